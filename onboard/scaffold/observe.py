"""What tiny random models of transformers show: names in a saved checkpoint, the order in which norms run, matrices
that are stored transposed, and where a class stands in the sources."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard.facts.families.storage import interleaved_experts
from onboard.probe.reference import References
from onboard.scaffold import roles
from onboard.scaffold.build import NORMS, Built
from onboard.scaffold.calls import Call
from onboard.scaffold.roles import Stored
from onboard.scaffold.table import Layout
from onboard.scaffold.wiring import Wiring

TOKENS = 6
# Words in the names of the classes that compute what no block here does.
CLASSES = {
    "mamba1": r"Mixer",
    "mamba2": r"Mixer",
    "gated_delta_net": r"DeltaNet",
    "short_conv": r"ShortConv",
    "kda": r"DeltaAttention|KDA",
    "lightning": r"LightningAttention",
    "rg_lru": r"Rglru",
    "wkv": r"SelfAttention",
    "mlstm": r"mLSTMLayer|Layer",
    "sparse_indexer": r"Indexer",
    "compressed_attention": r"Compressor|Attention",
    "hyper_connections": r"HyperConnection",
    "latent_experts": r"MoE|Moe",
    "hash_routing": r"HashRouter|Router",
    "grouped_output_projection": r"GroupedLinear|Attention",
    "single_kv_entry": r"Attention",
    "output_turned_back": r"Attention",
    "low_rank_query": r"Attention",
    "query_norm_unlike_key_norm": r"Attention",
    "narrow_attention_input": r"Attention",
    "projected_embedding": r"Decoder$|Model$",
}


@dataclass(frozen=True)
class Observed:
    """What was seen.

    Attributes:
        stored: the checkpoint's modules.
        each: the modules of each twin's checkpoint, the plain one first.
        layout: what their names don't say.
        keys: names in the plain twin's checkpoint.
        idle: prefixes of stored names whose modules do not run on text (vision and audio parts).
        modules: Python module that holds the model's classes.
    """

    stored: tuple[Stored, ...]
    each: tuple[tuple[Stored, ...], ...]
    layout: Layout
    keys: tuple[str, ...]
    idle: tuple[str, ...]
    module: Any

    def class_of(self, feature: str) -> str:
        """The class of the model's module that computes an open feature, by the words of such classes' names."""
        words = CLASSES.get(feature)
        classes = [
            n for n, c in vars(self.module).items() if inspect.isclass(c) and c.__module__ == self.module.__name__
        ]
        return next((n for n in classes if words and re.search(words, n)), "")

    def source(self, hf_class: str) -> str:
        """``models/x/modeling_x.py:123`` of a class, "" when it isn't there."""
        found = getattr(self.module, hf_class, None) if hf_class else None
        if not inspect.isclass(found):
            return ""
        path = Path(inspect.getsourcefile(found) or "")
        parts = path.parts[path.parts.index("transformers") + 1 :] if "transformers" in path.parts else path.parts[-1:]
        return f"{'/'.join(parts)}:{inspect.getsourcelines(found)[1]}"


def observe(built: Built, references: References) -> Observed:
    """Build and save the tiny twins that the code holds for, and look at them."""
    shapes: dict[str, tuple[int, ...]] = {}
    norms: dict[str, str] = {}
    transposed: set[str] = set()
    final_norm, module = None, None
    keys: tuple[str, ...] = ()
    idle: set[str] = set()
    each: list[tuple[Stored, ...]] = []
    for twin, wiring in zip(built.twins[1:], built.wirings[1:], strict=True):
        reference = references(twin.config)
        module = inspect.getmodule(type(reference.model))
        saved = dict(reference.shapes)
        executed = _executed(reference)
        idle |= _idle(saved, reference, executed)
        saved = {key: shape for key, shape in saved.items() if not _under(key, idle)}
        shapes |= saved
        keys = keys or tuple(saved)
        each.append(tuple(roles.patterns(saved)))
        origin = {key: _first(name) for key, name in reference.origin.items() if name}
        norms |= _layer_norms(saved, origin, executed, wiring)
        final_norm = final_norm or _final_norm(saved, origin, executed)
        transposed |= _transposed(reference, saved, origin)
    attention = next((k.attention for k in built.twins[0].spec.kinds if k.attention), None)
    layout = Layout(
        norms=norms,
        final_norm=final_norm,
        qkv=attention.storage if attention else "separate",
        transposed=frozenset(transposed),
        latent=bool(attention and attention.latent),
        interleaved_experts=interleaved_experts(built.twins[0].config.model_type),
        gated_mlp=all(k.mlp.gated for k in built.twins[0].spec.kinds if k.mlp),
        beside=any(k.mlp and k.moe for k in built.twins[0].spec.kinds),
        gated_experts=all(k.moe.gated for k in built.twins[0].spec.kinds if k.moe),
        query_gate=bool(attention and attention.output_gate and attention.gate_from == "query"),
        hidden=built.twins[1].spec.hidden,
    )
    return Observed(tuple(roles.patterns(shapes)), tuple(each), layout, keys, tuple(sorted(idle)), module)


def _first(names: Any) -> str:
    return names if isinstance(names, str) else next(iter(names))


def _under(key: str, prefixes: Collection[str]) -> bool:
    return any(key.startswith(prefix + ".") for prefix in prefixes)


def _idle(saved: Mapping[str, Any], reference: Any, executed: Sequence[str]) -> set[str]:
    """The outermost modules with stored tensors that never ran, nor anything inside them, outside the layers."""
    ran = {".".join(name.split(".")[:k]) for name in executed for k in range(1, name.count(".") + 2)}
    names = [name for name, _ in reference.model.named_modules()]
    still = {name for name in names if name and name not in ran and not re.search(r"\.\d+(\.|$)", name)}
    outermost = {name for name in still if name.rpartition(".")[0] not in still}
    return {name for name in outermost if sum(key.startswith(name + ".") for key in saved) > 1}


def _executed(reference: Any) -> list[str]:
    """Names of the modules in the order in which they begin to run."""
    import torch

    order: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda m, a, name=name: order.append(name))
        for name, module in reference.model.named_modules()
        if name
    ]
    try:
        reference.logits(torch.arange(1, TOKENS + 1).tolist())
    finally:
        for handle in handles:
            handle.remove()
    return order


def _layer_norms(
    saved: Mapping[str, Any], origin: Mapping[str, str], executed: list[str], wiring: Wiring
) -> dict[str, str]:
    """Stored norm within a layer -> ours, by the order in which they run."""
    layers: dict[int, dict[str, str]] = {}
    for key in saved:
        leaf = key.rpartition(".")[2]
        pattern = roles.pattern_of(key)
        prefix, tail = roles.split(pattern)
        found = re.search(r"\.(\d+)\.", key)
        if not prefix or leaf != "weight" or found is None or roles.in_attention(tail):
            continue
        if roles.is_norm(tail) and "sub_norm" not in tail and "per_layer" not in tail:
            layers.setdefault(int(found.group(1)), {})[tail] = origin.get(key, key).rpartition(".")[0]
    norms: dict[str, str] = {}
    for index, tails in layers.items():
        if index >= len(wiring.layers):
            continue
        ours = _norms_of(wiring.layers[index])
        ordered = roles.order(tails.values(), executed)
        names = sorted(tails, key=lambda t: ordered.index(tails[t]))
        if len(names) == len(ours):
            norms |= dict(zip(names, ours, strict=True))
    return norms


def _norms_of(layer: Mapping[str, Any]) -> list[str]:
    """Our norms with a weight in the order in which they run."""
    names = [n for n in NORMS if _has_weight(layer.get(n))]
    block = layer.get("mlp")
    if isinstance(block, Call) and block.block == "MoEBesideMLP":
        at = names.index("mlp_norm") + 1
        names[at:at] = [f"mlp.{n}" for n in ("post_dense_norm", "pre_moe_norm", "post_moe_norm")]
    return names


def _has_weight(call: Any) -> bool:
    if not isinstance(call, Call):
        return False
    weight = call.arg("weight")
    return weight is None or weight.value is True


def _final_norm(saved: Mapping[str, Any], origin: Mapping[str, str], executed: list[str]) -> str | None:
    """The stored norm outside the layers that runs last."""
    outside = {}
    for key in saved:
        pattern = roles.pattern_of(key)
        if "{i}" not in pattern and "per_layer" not in pattern and roles.is_norm(pattern):
            outside[origin.get(key, key).rpartition(".")[0]] = pattern
    last = max((executed.index(m) for m in outside if m in executed), default=None)
    if last is None:
        return None
    layers = [k for k, name in enumerate(executed) if re.search(r"\.\d+(\.|$)", name)]
    return outside[executed[last]] if not layers or last > layers[0] else None


def _transposed(reference: Any, saved: Mapping[str, Any], origin: Mapping[str, str]) -> set[str]:
    """Patterns of matrices whose module keeps [in, out]."""
    modules = dict(reference.model.named_modules())
    found = set()
    for key in saved:
        module = modules.get(origin.get(key, key).rpartition(".")[0])
        if type(module).__name__ == "Conv1D":
            found.add(roles.pattern_of(key))
    return found
