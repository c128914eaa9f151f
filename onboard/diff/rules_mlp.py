"""The rows of the coverage table about feed-forward blocks without experts."""

from __future__ import annotations

from typing import Any

from onboard.arch.blocks import Clamp, Norm
from onboard.diff.coverage import ACTIVATIONS, Answer, Call, Code, Missing, Rule, Wiring, only
from onboard.diff.rules_attention import head_norm


def activation(value: str) -> Answer:
    """The names that functional/mlp.py knows, and xIELU, which has parameters and no gate beside it."""
    if value == "xielu":
        return Missing("the activation xielu beside a gate (MLP has it, GatedMLP does not)")
    if value not in ACTIVATIONS:
        return Missing(f"activation {value} in functional/mlp.py (it has {', '.join(sorted(ACTIVATIONS))})")
    return Call("GatedMLP", (("act", ACTIVATIONS[value]),))


def plain_activation(value: str) -> Answer:
    """As :func:`activation`, for the block without a gate."""
    if value == "xielu":
        return Call("MLP", (("act", value),))
    answer = activation(value)
    return Call("MLP", answer.args) if isinstance(answer, Call) else answer


def biases(value: str) -> tuple[tuple[str, Any], ...]:
    """The switches of ``none``, ``up``, ``down`` or ``up and down``."""
    names = value.split(" and ")
    return ("up_bias", "up" in names), ("down_bias", "down" in names)


def bias(value: str) -> Answer:
    """All projections, none, or some."""
    if value in ("none", "up and down"):
        return Call("GatedMLP", (("bias", value != "none"),))
    return Call("GatedMLP", biases(value))


def clamp(value: Clamp | None) -> Answer:
    """Limits of the product, with their numbers."""
    if value is None:
        return Call("GatedMLP", (("clamp", None),))
    parts = [repr(value.limit)]
    parts += [f"alpha={value.alpha!r}"] if value.alpha is not None else []
    parts += [f"up_shift={value.up_shift!r}"] if value.up_shift else []
    return Call("GatedMLP", (("clamp", Code(f"Clamp({', '.join(parts)})")),))


def down_norm(value: Norm | None) -> Answer:
    """A norm of the product, over the width of all ranks."""
    made = head_norm(value, "full")
    return made if isinstance(made, Missing) else Call("GatedMLP", (("down_norm", made),))


DENSE: dict[str, Rule] = {
    "mlp": lambda value: Call("GatedMLP") if value else Wiring("nothing to do, the part is not there"),
    "mlp.activation": activation,
    "mlp.gated": lambda value: Call("GatedMLP" if value else "MLP"),
    "mlp.bias": bias,
    "mlp.clamp": clamp,
    "mlp.down_norm": down_norm,
    "mlp.fused": lambda value: (
        Call("Map", (), "gate and up stored as one") if value else Call("Fuse", (), "gate and up stored apart")
    ),
}

# What a field means where no dense block of the target has a gate.
PLAIN: dict[str, Rule] = {
    "mlp": lambda value: Call("MLP") if value else Wiring("nothing to do, the part is not there"),
    "mlp.activation": plain_activation,
    "mlp.bias": lambda value: Call("MLP", biases(value)),
    "mlp.clamp": only(None, "MLP", "limits in a block without a gate ({})"),
    "mlp.down_norm": only(None, "MLP", "a norm before the down projection of a block without a gate ({})"),
    "mlp.fused": lambda value: Call("Map", (), "there is no gate, so up is a matrix of its own"),
}
