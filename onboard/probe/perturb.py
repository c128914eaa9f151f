"""Flips of one thing in a reference, each a mistake that a port may make, and that a proof has to find."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onboard.probe.reference import Reference

# Returns False when the model has no such thing.
Flip = Callable[[Reference], bool]
EPS = ("eps", "variance_epsilon", "norm_eps", "layer_norm_eps", "rms_norm_eps")
ACTIVATIONS = ("act_fn", "act", "activation_fn", "activation", "activation_func")
SCALES = ("scaling", "softmax_scale", "inv_norm_factor", "scale_attn", "norm_factor", "scale")
WINDOWS = ("sliding_window", "attention_chunk_size", "sliding_window_size")
ROTATIONS = ("apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_interleave")
TOP_K = ("top_k", "num_experts_per_tok", "moe_top_k", "num_selected_experts")


def norm_eps(reference: Reference) -> bool:
    """The eps of every norm, ten times as large."""
    found = [(m, name) for m in reference.model.modules() for name in EPS if isinstance(vars(m).get(name), float)]
    for module, name in found:
        setattr(module, name, 10 * getattr(module, name))
    return bool(found)


def plus_one(reference: Reference) -> bool:
    """The last RMSNorm multiplies by 1 + weight instead of weight, or by 1 + (1 + weight)."""
    norms = [m for m in reference.model.modules() if "rmsnorm" in type(m).__name__.lower() and _weight(m) is not None]
    if not norms:
        return False
    norms[-1].weight.data += 1.0
    return True


def activation(reference: Reference) -> bool:
    """Every activation becomes the next of kin: exact and tanh GELU change places, others become GELU."""
    found = [(m, name) for m in reference.model.modules() for name in ACTIVATIONS if callable(getattr(m, name, None))]
    found = [(m, name) for m, name in found if not inspect.ismethod(getattr(m, name))]
    for module, name in found:
        setattr(module, name, _kin(getattr(module, name)))
    return bool(found)


def _kin(act: Any) -> nn.Module:
    x = torch.linspace(-3, 3, 61)
    learned = isinstance(act, nn.Module) and any(True for _ in act.parameters())
    exact = not learned and torch.allclose(act(x), nn.functional.gelu(x), atol=1e-6)
    return nn.GELU(approximate="tanh") if exact else nn.GELU()


def rotary_style(reference: Reference) -> bool:
    """Attention rotates pairs of neighbours where it rotated halves, and the other way round."""
    found = False
    for module in reference.model.modules():
        forward = inspect.unwrap(type(module).forward)
        known = vars(sys.modules[type(module).__module__])
        used = [name for name in ROTATIONS if name in forward.__code__.co_names and name in known]
        if used:
            others = {**known, **{name: _other_pairs(known[name]) for name in used}}
            again = types.FunctionType(
                forward.__code__, others, forward.__name__, forward.__defaults__, forward.__closure__
            )
            again.__kwdefaults__ = forward.__kwdefaults__
            module.forward = types.MethodType(again, module)
            found = True
    return found


def _other_pairs(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """The rotation between a change of the order of the channels and its reverse."""

    def rotated(*args: Any, **kwargs: Any) -> Any:
        tables = [a for a in args if isinstance(a, Tensor) and a.dim() < 4 and not a.is_complex()]
        size = tables[0].shape[-1] if tables else 0
        moved = [_reorder(a, size) if isinstance(a, Tensor) and a.dim() == 4 else a for a in args]
        named = {k: _reorder(v, size) if k in ("q", "k") else v for k, v in kwargs.items()}
        result = rotate(*moved, **named)
        if isinstance(result, Tensor):
            return _restore(result, size)
        return tuple(_restore(each, size) for each in result)

    return rotated


def _order(width: int, size: int) -> Tensor:
    size = size if 0 < size <= width else width
    pairs = torch.arange(size).reshape(2, size // 2).t().reshape(-1)
    return torch.cat((pairs, torch.arange(size, width)))


def _reorder(x: Tensor, size: int) -> Tensor:
    return x[..., torch.argsort(_order(x.shape[-1], size))]


def _restore(x: Tensor, size: int) -> Tensor:
    return x[..., _order(x.shape[-1], size)]


def rotary_base(reference: Reference) -> bool:
    """The rotary base, 0.1% larger."""
    found = False
    for module in reference.model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith("inv_freq") and buffer.dim() == 1:
                size = 2 * buffer.numel()
                buffer.mul_(1.001 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size))
                found = True
    return found


def window(reference: Reference) -> bool:
    """Sliding windows and chunks, one token longer."""
    config = reference.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and not any("sliding" in kind or "chunk" in kind for kind in kinds):
        return False
    if getattr(config, "use_sliding_window", True) is False:
        return False
    names = [name for name in WINDOWS if isinstance(getattr(config, name, None), int)]
    for name in names:
        setattr(config, name, getattr(config, name) + 1)
    return bool(names)


def scale(reference: Reference) -> bool:
    """The scale of attention scores, 1% larger."""
    found = False
    for module in reference.model.modules():
        if "attention" in type(module).__name__.lower():
            for name in SCALES:
                if isinstance(vars(module).get(name), float):
                    setattr(module, name, 1.01 * getattr(module, name))
                    found = True
    return found


def soft_cap(reference: Reference) -> bool:
    """No soft cap on the logits and the scores."""
    found = False
    for holder in (reference.config, *reference.model.modules()):
        for name in [n for n, v in vars(holder).items() if "softcap" in n and isinstance(v, float)]:
            setattr(holder, name, None)
            found = True
    return found


def router(reference: Reference) -> bool:
    """The router's weights are normalised where they were not and the reverse; else one expert fewer is taken."""
    found = False
    for module in reference.model.modules():
        values = vars(module)
        top = next((name for name in TOP_K if type(values.get(name)) is int and values[name] > 1), None)
        if isinstance(values.get("norm_topk_prob"), bool):
            module.norm_topk_prob = not module.norm_topk_prob
            found = True
        elif top is not None:
            setattr(module, top, values[top] - 1)
            found = True
    return found


def bias(reference: Reference) -> bool:
    """The biases of all projections are dropped; those of norms stay."""
    found = []
    for module in reference.model.modules():
        weight, value = getattr(module, "weight", None), getattr(module, "bias", None)
        if isinstance(weight, Tensor) and weight.dim() == 2 and isinstance(value, Tensor):
            found.append(value)
    for value in found:
        value.data.zero_()
    return bool(found)


def _weight(module: nn.Module) -> Tensor | None:
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, Tensor) and weight.dim() == 1 else None


PERTURBATIONS: Mapping[str, Flip] = {
    "norm eps": norm_eps,
    "plus one": plus_one,
    "activation": activation,
    "rotary style": rotary_style,
    "rotary base": rotary_base,
    "window": window,
    "scale": scale,
    "soft cap": soft_cap,
    "router": router,
    "bias": bias,
}


class FlippedReference:
    """Makes references that are flipped once their config and weights are saved, as `prove` asks for them.

    Attributes:
        applied: whether the last one that was saved has what is flipped.
    """

    def __init__(self, flip: Flip) -> None:
        self.flip = flip
        self.applied = False

    def __call__(self, config: Any, seed: int = 0) -> Reference:
        """A reference that flips itself at the end of its first save."""
        maker = self

        class Flipped(Reference):
            pristine = True

            def save(self, folder: Path) -> None:
                super().save(folder)
                if self.pristine:
                    self.pristine = False
                    _ = self.origin
                    maker.applied = maker.flip(self)

        return Flipped(config, seed)


def flipped(flip: Flip) -> FlippedReference:
    """A maker of references with one thing flipped."""
    return FlippedReference(flip)
