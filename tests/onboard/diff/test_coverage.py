"""The coverage table against the real building blocks: every call it can name must exist as named."""

from __future__ import annotations

import inspect
from importlib import import_module
from itertools import combinations
from typing import Any

import pytest

from onboard import catalog
from onboard.arch.blocks import Clamp, Norm, QKNorm, Scaling
from onboard.diff import diff
from onboard.diff.coverage import ACTIVATIONS, BLOCKS, PARTS, ROTARY_KINDS, Call, Missing, Wiring, cover
from onboard.diff.fields import ABSENT
from onboard.diff.rules import RULES, layer_norm
from onboard.diff.rules_mlp import PLAIN
from onboard.diff.rules_moe import EXPERTS_ALONE, SCORES
from onboard.diff.rules_positions import SINUSOIDAL
from onboard.diff.table import BY_LAYER, FIELDS
from onboard.facts.api import load

PROPORTIONAL = "proportional: 0.25 of the head turns, exponents"
NAMES = ["meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "google/gemma-4-31B-it", "Qwen/Qwen2.5-7B",
         "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "CohereForAI/c4ai-command-r-v01", "EleutherAI/pythia-1b",
         "google/gemma-2-9b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "THUDM/glm-4-9b"]  # fmt: skip


def real(block: str) -> Any:
    module, _, names = BLOCKS[block].partition(":")
    found: Any = import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def samples() -> list[tuple[str, Any]]:
    """Values of every field: those that the catalog's models have, and some that no model has."""
    made: list[tuple[str, Any]] = [
        ("attention.qk_norm", QKNorm(Norm("rms", 1e-6, plus_one=True))),
        ("attention.positions.scaling", Scaling("llama3", 8.0, 8192, 1.0, 4.0)),
        ("attention.positions.scaling", Scaling("linear", 8.0)),
        ("attention.positions.scaling", Scaling("dynamic", 8.0)),
        (
            "attention.positions.scaling",
            Scaling("yarn", 8.0, 64, beta_fast=4.0, truncate=False, attention_factor=1.2),
        ),
        ("attention.positions.scaling", Scaling("longrope", None, 4096, factors_short=(1.0,), factors_long=(2.0,))),
        (
            "attention.positions.scaling",
            "proportional: 0.25 of the head turns, exponents over the whole head, factor 8",
        ),
        ("attention.positions.leading", False),
        ("attention.positions.reverse", True),
        ("attention.positions.dealt", 6),
        ("embedding.positions", "learned"),
        ("embedding.positions", "sinusoidal"),
        ("embedding.positions.offset", 2),
        ("head.multiplier", 0.25),
        ("mlp.clamp", Clamp(7.0)),
        ("mlp.down_norm", Norm("rms", 1e-6)),
        ("mlp.bias", "down"),
        ("mlp.gated", False),
        ("norms.kind", "layernorm"),
        ("norms.weight", False),
        ("embedding.extra_rows", 64),
        ("per_layer_input", True),
        ("per_layer_input.norm", Norm("rms", 1e-6)),
        ("layer.per_layer_input", True),
        ("norms.places", "sandwich (pre mixer, post mixer, pre mlp, post mlp, post dense, pre moe, post moe)"),
        ("moe.router.input_norm", Norm("rms", 1e-6, weight=False)),
        ("moe.router.input_scale", True),
        ("moe.router.expert_scale", True),
        ("attention.bias", "q, k, v"),
        ("attention.bias", "q, v"),
        ("attention.qk_norm", QKNorm(Norm("layernorm", 1e-5), "each_head", "after_rope")),
        ("attention.v_norm", Norm("rms", 1e-6, weight=False)),
        ("attention.chunk", 8192),
        ("attention.sinks", True),
        ("attention.output_gate", "head"),
        ("attention.storage", "per head"),
        ("attention.storage", "transposed"),
        ("attention.positions.kind", "alibi"),
        ("attention.latent.query", "through a low rank"),
        ("attention.bias", "o"),
        ("embedding.norm", Norm("rms", 1e-6)),
        ("head.tied", True),
        ("head.tied", False),
        ("mlp.bias", "up and down"),
        ("mlp.fused", True),
        ("predict_layers", 1),
        ("config.section", "text_config"),
        *((path, 4) for path in BY_LAYER.values()),
    ]
    for name in catalog.names():
        arch = load(name).arch
        for field in FIELDS:
            for part in (arch,) if field.facet == "model" else arch.kinds:
                value = field.get(part)
                if value is not ABSENT and field.kind == "semantic":
                    made.append((field.path, value))
    return made


def test_every_call_fits_the_real_signature() -> None:
    seen = set()
    for path, value in samples():
        answer = RULES[path](value) if path in RULES else None
        if isinstance(answer, Call):
            parameters = inspect.signature(real(answer.block)).parameters
            for argument, _ in answer.args:
                assert argument in parameters, f"{path}: {answer.block} takes no {argument}"
                seen.add((answer.block, argument))
    assert {("Attention", "window"), ("RMSNorm", "plus_one"), ("LMHead", "softcap"), ("RotaryConfig", "factor")} <= seen


def test_rows_of_models_with_experts_alone_fit_the_real_signature() -> None:
    parameters = inspect.signature(real("MoE")).parameters
    for path, value in (("mlp.activation", "gelu"), ("mlp.gated", False), ("mlp.bias", "up and down")):
        answer = EXPERTS_ALONE[path](value)
        assert isinstance(answer, Call) and answer.block == "MoE" and answer.args[0][0] in parameters
    assert isinstance(EXPERTS_ALONE["mlp.bias"]("up"), Missing)


def test_rows_of_other_blocks_fit_their_real_signatures() -> None:
    values: dict[str, tuple[Any, ...]] = {
        "mlp": (True,),
        "mlp.activation": ("xielu", "relu2"),
        "mlp.bias": ("none", "down"),
        "mlp.clamp": (None,),
        "mlp.down_norm": (None,),
        "mlp.fused": (False,),
        "norms.kind": ("layernorm", "rms"),
    }
    rules = {**PLAIN, **layer_norm(Norm("layernorm", 1e-5, weight=False, plus_one=True)), **SINUSOIDAL}
    for path, rule in rules.items():
        for value in values.get(path, (True,)):
            answer = rule(value)
            assert isinstance(answer, Call)
            for argument, _ in answer.args:
                assert argument in inspect.signature(real(answer.block)).parameters, f"{path}: {answer}"


def test_experts_beside_a_dense_mlp_are_covered_and_other_router_norms_are_not() -> None:
    places = "sandwich (pre mixer, post mixer, pre mlp, post mlp, post dense, pre moe, post moe)"
    inner = RULES["norms.places"](places)
    assert isinstance(inner, Call) and inner.block == "MoEBesideMLP"
    assert isinstance(RULES["norms.places"]("sandwich"), Wiring)
    norm = RULES["moe.router.input_norm"]
    assert norm(Norm("rms", 1e-6, weight=False)) == Call("RouterConfig", (("input_norm_eps", 1e-6),))
    assert isinstance(norm(Norm("rms", 1e-6)), Missing) and isinstance(norm(Norm("l2", weight=False)), Missing)


def test_router_scores_are_those_of_the_operation() -> None:
    assert import_module("vllm_neuron.functional.route").SCORES == SCORES


def test_the_signature_check_notices_a_wrong_argument() -> None:
    assert "input_size" not in inspect.signature(real("Attention")).parameters
    assert isinstance(RULES["attention.input_size"](64), Missing)


def test_norms_inside_attention_are_written_as_the_block_takes_them() -> None:
    """The text of each argument is code that makes the real object."""
    nn = import_module("vllm_neuron.nn")
    names = {"QKNorm": nn.QKNorm, "QueryGrowth": nn.QueryGrowth, "Alibi": nn.Alibi}
    for path, value in samples():
        answer = RULES[path](value) if path in RULES else None
        for _, made in answer.args if isinstance(answer, Call) else ():
            if isinstance(made, str) and made.startswith(tuple(names)):
                assert isinstance(eval(made, names), tuple(names.values()))
    norm = RULES["attention.qk_norm"](QKNorm(Norm("layernorm", 1e-5), "each_head", "after_rope"))
    assert str(norm) == ("Attention(qk_norm=QKNorm(1e-05, kind='layernorm', width='each_head', after_rotary=True))")


def test_activations_are_those_of_the_operation() -> None:
    table = import_module("vllm_neuron.functional.mlp").ACTIVATIONS
    assert set(ACTIVATIONS.values()) <= set(table)
    aliases = {"swish": "silu", "relu_squared": "relu2"}
    aliases |= {name: "gelu_pytorch_tanh" for name in ("gelu_new", "gelu_fast", "gelu_tanh")}
    assert {aliases.get(name, name) for name in table} == set(ACTIVATIONS.values()), "a new activation needs a row"


def test_rotary_kinds_are_those_of_the_block() -> None:
    assert tuple(import_module("vllm_neuron.nn.frequencies").KINDS) == ROTARY_KINDS


def test_a_new_block_needs_a_place_in_the_table() -> None:
    exported = set(import_module("vllm_neuron.nn").__all__)
    known = {name for name, where in BLOCKS.items() if where.startswith("vllm_neuron.nn:")} | set(PARTS)
    assert exported == known


@pytest.mark.parametrize("field", [f for f in FIELDS if f.kind == "semantic"], ids=lambda f: f.path)
def test_every_semantic_field_has_an_answer(field: Any) -> None:
    for path, value in ((field.path, True), (field.path, "x")):
        try:
            covered, missing = cover(path, value, RULES)
        except (AttributeError, ValueError, TypeError):
            continue  # a rule that takes parts, not these made-up scalars
        assert (covered is None) != (missing is None)


@pytest.mark.parametrize(("a", "b"), list(combinations(NAMES, 2)))
def test_every_row_is_covered_or_says_what_is_missing(a: str, b: str) -> None:
    for target in ("a", "b"):
        for row in diff(load(a), load(b), target=target).rows:
            assert (row.covered_by is None) == (row.missing is not None), row
            if row.missing:
                assert "no building block takes" not in row.missing, row


def covered(base: str, target: str) -> dict[str, str | None]:
    """The target's rows against the base: field -> what covers it."""
    return {row.field: row.covered_by for row in diff(load(base), load(target)).rows}


def test_yarn_is_an_argument_away_from_llama3() -> None:
    found = covered("meta-llama/Llama-3.1-8B", "openai/gpt-oss-20b")["attention.positions.scaling"]
    assert found is not None and found.startswith(
        "RotaryConfig(kind='yarn', factor=32.0, original_max_position=4096, beta_fast=32.0, beta_slow=1.0, truncate="
    )


def test_gpt2_s_parts_are_blocks() -> None:
    found = covered("meta-llama/Llama-3.1-8B", "openai-community/gpt2")
    assert found["norms.kind"] == "LayerNorm(eps=1e-05, bias=True)" and found["norms.bias"] == "LayerNorm(bias=True)"
    assert found["mlp.gated"] == "MLP()" and found["mlp.activation"] == "MLP(act='gelu_pytorch_tanh')"
    assert found["mlp.bias"] == "MLP(up_bias=True, down_bias=True)"
    assert str(found["embedding.positions"]).startswith("LearnedPositions()")


def test_sandwich_norms_and_multipliers_are_covered() -> None:
    assert str(covered("meta-llama/Llama-3.1-8B", "google/gemma-2-9b")["norms.places"]).startswith("wiring: sandwich")
    found = covered("meta-llama/Llama-3.1-8B", "CohereLabs/c4ai-command-r7b-12-2024")
    assert found["head.multiplier"] == "LMHead(multiplier=0.25)"
    assert found["norms.kind"] == "LayerNorm(eps=1e-05, bias=False)"


def test_arguments_are_written_as_the_blocks_take_them() -> None:
    """The text of a norm or of limits is code that makes the real object."""
    nn = import_module("vllm_neuron.nn")
    norm = RULES["mlp.down_norm"](Norm("rms", 1e-6))
    limits = RULES["mlp.clamp"](Clamp(7.0, 1.702, 1.0))
    assert isinstance(norm, Call) and isinstance(limits, Call)
    assert eval(norm.args[0][1], {"QKNorm": nn.QKNorm}) == nn.QKNorm(1e-6, width="full")
    assert eval(limits.args[0][1], {"Clamp": nn.Clamp}) == nn.Clamp(7.0, alpha=1.702, up_shift=1.0)


def test_what_today_s_blocks_lack_is_told() -> None:
    assert RULES["norms.kind"]("l2") == Missing("a l2 block")
    assert isinstance(RULES["norms.bias"](True), Missing)
    assert isinstance(RULES["attention.positions.scaling"](Scaling("ntk_by_magic", 4.0)), Missing)
    assert isinstance(
        RULES["attention.positions.scaling"]("proportional: 1 of the head turns, exponents over 8"), Missing
    )
    assert isinstance(RULES["embedding.positions"]("alibi"), Missing)
    assert isinstance(RULES["embedding.norm"](Norm("rms", 1e-6, bias=True)), Missing)
    for activation in ("prelu", "xielu"):
        assert isinstance(RULES["mlp.activation"](activation), Missing)
    for path, value in (("mlp.clamp", Clamp(7.0)), ("mlp.down_norm", Norm("rms", 1e-6)), ("mlp.activation", "prelu")):
        assert isinstance(PLAIN[path](value), Missing)
    two = QKNorm(Norm("rms", 1e-6), query_norm=Norm("rms", 1e-6, weight=False))
    assert isinstance(RULES["attention.qk_norm"](two), Missing)
    assert isinstance(RULES["attention.qk_norm"](QKNorm(Norm("rms", 1e-6, groups=2))), Missing)
    assert isinstance(RULES["attention.compressor"]("rate 4"), Missing)
    assert cover("attention.window", {"sliding": 8, "full": None}, RULES)[1] is None
