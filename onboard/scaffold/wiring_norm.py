"""Norms of an architecture -> blocks of ``vllm_neuron.nn``."""

from __future__ import annotations

from onboard.arch.blocks import Norm
from onboard.scaffold.calls import Arg, Call


def norm(n: Norm | None, size: int, size_path: str, path: str) -> Call | None:
    """An RMS or layer norm over ``size``."""
    if n is None:
        return None
    args = [Arg("", size, size_path), Arg("eps", n.eps, f"{path}.eps")]
    if n.kind == "layernorm":
        args.append(Arg("bias", n.bias, f"{path}.bias", True))
    args += [Arg("weight", n.weight, f"{path}.weight", True), Arg("plus_one", n.plus_one, f"{path}.plus_one", False)]
    return Call("LayerNorm" if n.kind == "layernorm" else "RMSNorm", tuple(args))


def head_norm(n: Norm | None, path: str, width: str = "head", after: bool = False) -> Call | None:
    """A norm inside the attention block."""
    if n is None:
        return None
    return Call(
        "QKNorm",
        (
            Arg("eps", n.eps, f"{path}.eps"),
            Arg("kind", n.kind, f"{path}.kind", "rms"),
            Arg("width", width, f"{path}.width", "head"),
            Arg("plus_one", n.plus_one, f"{path}.plus_one", False),
            Arg("bias", n.bias, f"{path}.bias", False),
            Arg("weight", n.weight, f"{path}.weight", True),
            Arg("after_rotary", after, f"{path}.place", False),
        ),
    )
