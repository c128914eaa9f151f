"""What a decoder is, layer by layer, and what follows from that alone: parameters, cache bytes, FLOPs. No I/O."""
