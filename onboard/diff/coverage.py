"""What today's building blocks can express: the one table that says which call covers a value, or what is missing.

Nothing is imported from the blocks, because that would load torch; a test holds every call, activation and rotary kind
below against the real signatures and tables, and every exported block against :data:`BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onboard.diff.show import jsonable, text

BLOCKS = {
    "Attention": "vllm_neuron.nn:Attention",
    "LatentAttention": "vllm_neuron.nn:LatentAttention",
    "GatedMLP": "vllm_neuron.nn:GatedMLP",
    "MLP": "vllm_neuron.nn:MLP",
    "MoE": "vllm_neuron.nn:MoE",
    "MoEBesideMLP": "vllm_neuron.nn:MoEBesideMLP",
    "RMSNorm": "vllm_neuron.nn:RMSNorm",
    "LayerNorm": "vllm_neuron.nn:LayerNorm",
    "LearnedPositions": "vllm_neuron.nn:LearnedPositions",
    "SinusoidalPositions": "vllm_neuron.nn:SinusoidalPositions",
    "RotaryConfig": "vllm_neuron.nn:RotaryConfig",
    "RouterConfig": "vllm_neuron.nn:RouterConfig",
    "PerLayerEmbedding": "vllm_neuron.nn:PerLayerEmbedding",
    "PerLayerInput": "vllm_neuron.nn:PerLayerInput",
    "VocabDimShardedEmbedding": "vllm_neuron.nn:VocabDimShardedEmbedding",
    "LMHead": "vllm_neuron.nn:LMHead",
    "Map": "vllm_neuron.model.loading:Map",
    "Fuse": "vllm_neuron.model.loading:Fuse",
    "Tie": "vllm_neuron.model.loading:Tie",
    "Drop": "vllm_neuron.model.loading:Drop",
}
# Exported by vllm_neuron.nn and never named in a row: parts of the blocks above.
PARTS = (
    "Alibi",
    "CachedBlock",
    "Clamp",
    "ColumnParallelLinear",
    "GateUpLinear",
    "HeadNorm",
    "Linear",
    "QKNorm",
    "QKVLinear",
    "QueryGrowth",
    "ReplicatedLinear",
    "Rotary",
    "RowParallelLinear",
    "Sampler",
)
SAME_NAME = """
silu gelu gelu_10 gelu_accurate gelu_python gelu_python_tanh hardswish laplace leaky_relu linear mish quick_gelu
relu relu2 relu6 sigmoid sqrtsoftplus tanh
"""
# Activation in an ArchSpec -> `act` of GatedMLP and MLP.
ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"} | {name: name for name in SAME_NAME.split()}
ROTARY_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")


class Code(str):
    """Text that stands for itself in a call, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Call:
    """A call of a building block: its name, positional values, named values, and a remark after it."""

    block: str
    args: tuple[tuple[str, Any], ...] = ()
    note: str = ""

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.args)
        return f"{self.block}({shown})" + (f", {self.note}" if self.note else "")


@dataclass(frozen=True)
class Wiring:
    """What a model's own file expresses without any block: plain Python between the blocks."""

    how: str

    def __str__(self) -> str:
        return f"wiring: {self.how}"


@dataclass(frozen=True)
class Missing:
    """What has to be written."""

    what: str


Answer = Call | Wiring | Missing
Rule = Callable[[Any], Answer]


def takes(block: str, argument: str) -> Rule:
    """The block takes any value under that name."""
    return lambda value: Call(block, ((argument, value),))


def only(plain: Any, block: str, missing: str) -> Rule:
    """The block does the plain thing and nothing else; ``{}`` in ``missing`` is the value met."""

    def rule(value: Any) -> Answer:
        return Call(block) if value == plain else Missing(missing.format(text(jsonable(value))))

    return rule


def always(missing: str) -> Rule:
    """No block has it; without it nothing is needed."""

    def rule(value: Any) -> Answer:
        return Wiring("nothing to do, the part is not there") if value in (None, False) else Missing(missing)

    return rule


def detail_of(path: str, rules: Mapping[str, Rule]) -> str | None:
    """The nearest part above ``path`` that is to write; None for a path that has a rule of its own or no such part."""
    part = "" if path in rules else path.rpartition(".")[0]
    while part:
        if part in rules and isinstance(rules[part](True), Missing):
            return part
        part = part.rpartition(".")[0]
    return None


def _parent(path: str, rules: Mapping[str, Rule]) -> Rule:
    """For a detail of a part without a rule of its own: what is missing for the part, else an honest unknown."""
    part = detail_of(path, rules)
    answer = rules[part](True) if part else None
    missing = Missing(f"goes with {answer.what}" if isinstance(answer, Missing) else f"no building block takes {path}")
    return lambda value: missing


def cover(path: str, value: Any, rules: Mapping[str, Rule]) -> tuple[str | None, str | None]:
    """``(covered_by, missing)`` for the target's value, which may be an object by kind of layer."""
    rule = rules.get(path) or _parent(path, rules)
    parts = value if isinstance(value, Mapping) else {"": value}
    answers = {where: rule(one) for where, one in parts.items()}
    missing = list(dict.fromkeys(a.what for a in answers.values() if isinstance(a, Missing)))
    if missing:
        return None, "; ".join(missing)
    where: dict[str, list[str]] = {}
    for label, answer in answers.items():
        where.setdefault(str(answer), []).append(label)
    if len(where) == 1:
        return next(iter(where)), None
    return "; ".join(f"{call} on {' and '.join(labels)}" for call, labels in where.items()), None
