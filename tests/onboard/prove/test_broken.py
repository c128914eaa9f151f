"""A package with one thing wrong fails, and the place is named: layer, block, and what was expected there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from onboard.prove import Package, Status, Verdict
from tests.onboard.prove.conftest import proof_of

ROTARY = "rotary=RotaryConfig.from_parameters(rope_parameters(hf_config), head_dim, max_position_embeddings)"
MLP = "return x_TH + self.mlp(self.mlp_norm(x_TH))"
BIAS = "            bias=c.attention_bias,\n"


def other_base(theta: str) -> str:
    return ROTARY.replace("rope_parameters(hf_config)", f"dict(rope_parameters(hf_config), rope_theta={theta})")


CASES = {
    "eps of a norm": (
        *("llama3", "llama", "model.py", "self.attn_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)"),
        *("self.attn_norm = RMSNorm(c.hidden_size, eps=10 * c.rms_norm_eps)", "layers.0.attn_norm", "LlamaRMSNorm"),
    ),
    "eps of the last norm": (
        *("llama3", "llama", "model.py", "self.norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)"),
        *("self.norm = RMSNorm(c.hidden_size, eps=1.1 * c.rms_norm_eps)", "norm", "LlamaRMSNorm model.norm"),
    ),
    "one plus the weight": (
        *("gemma3", "gemma3", "model.py", "eps=c.rms_norm_eps, plus_one=True)"),
        *("eps=c.rms_norm_eps, plus_one=False)", "layers.0.attn_norm", "Gemma3RMSNorm"),
    ),
    "window one too wide": (
        *("gemma3", "gemma3", "model.py", "else c.sliding_window,", "else c.sliding_window + 1,"),
        *("layers.0.attn", "Gemma3Attention"),
    ),
    "window one too narrow": (
        *("gemma3", "gemma3", "model.py", "else c.sliding_window,", "else c.sliding_window - 1,"),
        *("layers.0.attn", "Gemma3Attention"),
    ),
    "gate and up swapped": (
        *("llama3", "llama", "model.py", "mlp.{gate,up}_proj", "mlp.{up,gate}_proj", "layers.0.mlp", "LlamaMLP"),
    ),
    "scale": (
        *("llama3", "llama", "model.py", BIAS, BIAS + "            scale=1.001 * c.head_dim**-0.5,\n"),
        *("layers.0.attn", "LlamaAttention"),
    ),
    "rotary base off by 0.1 %": (
        *("llama3", "llama", "config.py", ROTARY, other_base("10010.0"), "layers.0.attn", "LlamaAttention"),
    ),
    "rotary scaling left out": (
        *("llama3", "llama3-rope", "config.py", ROTARY),
        ROTARY.replace("rope_parameters(hf_config)", "{'rope_theta': rope_parameters(hf_config)['rope_theta']}"),
        *("layers.0.attn", "LlamaAttention"),
    ),
    "gelu for its tanh form": (
        *("gemma3", "gemma3", "model.py", "act=c.hidden_activation", "act='gelu'", "layers.0.mlp", "Gemma3MLP"),
    ),
    "soft cap of the logits": (
        *("gemma3", "gemma3", "model.py", "softcap=c.final_logit_softcapping", "softcap=None", "head", "lm_head"),
    ),
    "scale of the embedding": (
        *("gemma3", "gemma3", "model.py", "scale=c.hidden_size**0.5", "scale=1.001 * c.hidden_size**0.5"),
        *("embed", "what enters model.layers.0"),
    ),
    "wiring of the layer": (
        *("llama3", "llama", "model.py", MLP, MLP.replace("x_TH +", "self.mlp_norm(x_TH) +")),
        *("layers.0", "LlamaDecoderLayer"),
    ),
    "one layer only": (
        *("llama3", "llama", "model.py", "act=c.hidden_act,", "act=c.hidden_act if i != 2 else 'gelu',"),
        *("layers.2.mlp", "LlamaMLP model.layers.2.mlp"),
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_place_is_named(case: str, package: Callable[..., Package]) -> None:
    model, variant, file, old, new, block, expected = CASES[case]
    proof = proof_of(package(model, (file, old, new)), variant, only=["blocks", "cache"])
    assert proof.verdict is Verdict.FAILED
    found = proof.divergence
    assert found is not None and found.block == block and expected in found.expected
    assert found.layer == (int(block.split(".")[1]) if block.startswith("layers.") else None)
    for check in proof.failures:
        if check.kind == "cache":
            assert check.divergence is not None and check.divergence.block == block, check.what


def test_a_whole_run_names_the_same_place(package: Callable[..., Package]) -> None:
    """Without the block checks, the walk through the layers finds it too, on several ranks as well."""
    edit = ("model.py", "else c.sliding_window,", "else c.sliding_window + 1,")
    proof = proof_of(package("gemma3", edit), "gemma3", only=["whole", "ranks"])
    assert {check.kind for check in proof.checks} == {"whole", "ranks"} and len(proof.failures) == 4
    assert {check.divergence.block for check in proof.failures if check.divergence} == {"layers.0.attn"}


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ([("model.py", "o_bias=c.attention_bias", "o_bias=False")], "o_proj.bias"),
        (
            [
                ("model.py", "o_bias=c.attention_bias", "o_bias=False"),
                ("model.py", "import Fuse, Map", "import Drop, Fuse, Map"),
                (
                    "model.py",
                    '        Map("norm"',
                    '        Drop("self_attn.o_proj.bias", why="no"),\n        Map("norm"',
                ),
            ],
            "layers.0.attn",
        ),
    ],
    ids=["the load finds it", "the numbers find it"],
)
def test_a_dropped_bias(edits: list[tuple[str, str, str]], said: str, package: Callable[..., Package]) -> None:
    proof = proof_of(package("llama3", *edits), "llama-tied-bias")
    assert proof.verdict is Verdict.FAILED and said in proof.failures[0].message


def test_a_mask_that_reads_the_cache_wrongly(package: Callable[..., Package]) -> None:
    """Right without a cache and wrong with one: only the cached runs fail, and say where."""
    edit = ("model.py", MLP, MLP.replace("return x_TH", "return x_TH * (1.0 + 1e-3 * (step.phase.value == 'decode'))"))
    proof = proof_of(package("llama3", edit), "llama")
    assert {check.kind for check in proof.failures} == {"cache", "ranks"}
    assert proof.divergence is not None and proof.divergence.block == "layers.0"


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ("x_TH[0, 0, 0] + ", r"IndexError: .*\(src/copy_of_llama3/model.py, line 39\)"),
        ("float('nan') * x_TH + ", "NaN or infinity in 64 of 64 tokens"),
        ("x_TH[:, :1] + self.missing + ", "AttributeError: .*missing"),
    ],
)
def test_what_a_package_raises_is_a_failed_check(instead: str, said: str, package: Callable[..., Package]) -> None:
    proof = proof_of(package("llama3", ("model.py", MLP, MLP.replace("x_TH + ", instead))), "llama")
    assert proof.verdict is Verdict.FAILED
    for check in proof.failures:
        assert check.rel_err is None
        assert re.search(said, check.message)


def test_a_shard_that_is_not_the_checkpoints(package: Callable[..., Package]) -> None:
    """Four ranks that all hold the first rank's rows would glue to something else than the checkpoint."""
    head = "self.head = LMHead(c.hidden_size, c.vocab_size)\n"
    wrong = (
        "        from vllm_neuron.utils import weight_loader as w\n"
        "        shards = w.sharding_weight_loader(0, self.head.weight.shape[0], self.head.group.world_size)\n"
        "        w.set_weight_loader(self.head.weight, w.with_rank_override(shards, 0))\n"
    )
    proof = proof_of(package("llama3", ("model.py", head, head + wrong)), "llama", only=["ranks"])
    assert [check.status for check in proof.checks] == [Status.PASSED, Status.FAILED, Status.FAILED]
    assert all("head.weight: shards of" in check.message for check in proof.failures)
