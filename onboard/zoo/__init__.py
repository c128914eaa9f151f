"""Every decoder of the installed transformers, generated and proved: what the generator can and can't do, measured."""
