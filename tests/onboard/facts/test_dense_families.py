"""Every dense decoder: what is read from a config of its class counts as its reference does; its own traits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from onboard.arch.count import params
from onboard.facts.api import ModelFacts, read
from onboard.facts.source import Source
from tests.support.dense_configs import flags, tiny, written

_DENSE = """
apertus arcee biogpt bitnet bloom codegen cohere cohere2 cohere_compass_text cpmant ctrl cwm diffllama doge emu3
ernie4_5 exaone4 falcon gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm glm4 gpt2 gpt_bigcode
gpt_neo gpt_neox gpt_neox_japanese gptj granite granite_swa helium hrm_text hunyuan_v1_dense hyperclovax jais2 llama
ministral ministral3 mistral mllama modernbert-decoder moshi mpt nanochat nemotron olmo olmo2 olmo3 openai-gpt opt
persimmon phi phi3 phi4_multimodal qwen2 qwen3 seed_oss smollm3 stablelm starcoder2 vaultgemma xglm
"""
DENSE = _DENSE.split()
# Settings that build other weights, one at a time; the rest of a family's switches change no parameter.
_SWITCHES = """
attention_bias attention_out_bias bias mlp_bias use_bias use_qkv_bias norm_bias enable_bias decoder_bias classifier_bias
qk_layernorm use_qk_norm use_parallel_residual multi_query new_decoder_architecture parallel_attn use_post_norm is_moe
tie_word_embeddings do_layer_norm_before layer_norm_elementwise_affine _remove_final_layer_norm attention_k_eq_v
use_double_wide_mlp alibi scale_attn_weights
"""
SWITCHES = _SWITCHES.split()


def reference_params(config: Any) -> int:
    """Parameters of the causal LM on the meta device, a tied head once, without image and audio parts."""
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config.get_text_config() if hasattr(config, "vq_config") else
                                                          config)  # fmt: skip
    model.tie_weights()
    parts = {id(p): p.numel() for name, p in model.named_parameters() if "embed_tokens_extend" not in name}
    return sum(parts.values())


def facts_of(model_type: str, **changes: Any) -> ModelFacts:
    return read(written(tiny(model_type, **changes), full=False))


@pytest.mark.parametrize("full", [True, False], ids=["full", "sparse"])
@pytest.mark.parametrize("model_type", DENSE)
def test_parameters_are_those_of_the_reference(model_type: str, full: bool) -> None:
    config = tiny(model_type)
    facts = read(written(config, full=full))
    assert facts.known
    assert facts.unknown_keys == ()
    assert params(facts.arch).total == reference_params(config)
    assert all(source.kind != "assumed" for source in facts.sources.values())


def switched() -> list[tuple[str, str]]:
    return [(model_type, flag) for model_type in DENSE for flag in flags(model_type) if flag in SWITCHES]


@pytest.mark.parametrize(("model_type", "flag"), switched(), ids=lambda v: v)
def test_parameters_with_a_switch_turned(model_type: str, flag: str) -> None:
    config = tiny(model_type, **{flag: not getattr(tiny(model_type).get_text_config(), flag)})
    assert params(read(written(config, full=False)).arch).total == reference_params(config)


def test_the_list_is_complete() -> None:
    assert len(DENSE) == len(set(DENSE)) == 66
    assert all(model_type in CONFIG_MAPPING for model_type in DENSE)


BEYOND = {
    "cpmant": {"relative position bias", "learned prompt", "segment embedding", "bidirectional attention"},
    "diffllama": {"differential attention"},
    "doge": {"dynamic mask", "learned residual scale"},
    "gemma3n_text": {"altup", "laurel", "sparse activation"},
    "hrm_text": {"recurrent depth"},
    "mllama": {"cross attention"},
    "modernbert-decoder": {"head MLP"},
}


@pytest.mark.parametrize("model_type", DENSE)
def test_what_no_field_says_is_named(model_type: str) -> None:
    assert {one.feature for one in facts_of(model_type).arch.beyond} == BEYOND.get(model_type, set())


@pytest.mark.parametrize(
    ("model_type", "changes", "feature"),
    [
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "residual after the norm"),
        ("falcon", {"alibi": True}, "scaled alibi"),
        ("xglm", {"pad_token_id": 5}, "zeroed position"),
        ("xglm", {"add_cross_attention": True}, "cross attention"),
        ("doge", {"is_moe": True}, "product-key experts"),
    ],
)
def test_an_option_that_no_field_says(model_type: str, changes: dict[str, Any], feature: str) -> None:
    assert feature in {one.feature for one in facts_of(model_type, **changes).arch.beyond}


@pytest.mark.parametrize(
    ("model_type", "changes", "path", "source"),
    [
        ("granite", {"attention_multiplier": 0.3}, "attention.scale", "attention_multiplier"),
        ("granite_swa", {"embedding_multiplier": 3.0}, "embedding.multiplier", "embedding_multiplier"),
        ("granite_swa", {"layer_rope_theta": [1e4, 0, 2e4, 1e4]}, "attention.positions.base", "layer_rope_theta"),
        ("hyperclovax", {"logits_scaling": 3.0}, "head.multiplier", "logits_scaling"),
        ("hyperclovax", {"residual_multiplier": 0.3}, "residual_scale", "residual_multiplier"),
        ("cohere_compass_text", {"logit_scale": 0.3}, "head.multiplier", "logit_scale"),
        ("vaultgemma", {"query_pre_attn_scalar": 24}, "attention.scale", "query_pre_attn_scalar"),
        ("vaultgemma", {"attn_logit_softcapping": 3.0}, "attention.softcap", "attn_logit_softcapping"),
        ("nanochat", {"final_logit_softcapping": 3.0}, "head.softcap", "final_logit_softcapping"),
        ("hrm_text", {"embedding_scale": 3.0}, "embedding.multiplier", "embedding_scale"),
        ("gpt_neo", {}, "attention.window", "window_size"),
        ("cwm", {}, "attention.window", "sliding_window"),
        ("ctrl", {"layer_norm_epsilon": 1e-3}, "final_norm.eps", "layer_norm_epsilon"),
        ("persimmon", {"layer_norm_eps": 1e-3}, "norms.eps", "layer_norm_eps"),
    ],
)
def test_a_value_of_the_config_has_its_key(model_type: str, changes: dict[str, Any], path: str, source: str) -> None:
    sources = facts_of(model_type, **changes).sources
    found = [one for at, one in sources.items() if at == path or at.startswith(f"{path}@")]
    assert Source("explicit", source) in found


def test_an_epsilon_that_the_reference_fixes() -> None:
    for model_type in ("biogpt", "xglm", "opt"):
        arch = facts_of(model_type).arch
        assert {norm.eps for norm in (arch.layer(0).norms.pre_mixer, arch.final_norm) if norm} == {1e-5}
    ctrl = facts_of("ctrl", layer_norm_epsilon=1e-3).arch
    assert ctrl.final_norm is not None and ctrl.layer(0).norms.pre_mixer is not None
    assert (ctrl.layer(0).norms.pre_mixer.eps, ctrl.final_norm.eps) == (1e-6, 1e-3)


def test_sinusoidal_tables() -> None:
    ctrl, xglm = (facts_of(name).arch.embedding.positions for name in ("ctrl", "xglm"))
    assert ctrl is not None and xglm is not None
    assert (ctrl.base, ctrl.frequency_dim, ctrl.offset) == (10000.0, None, 0)
    assert (xglm.base, xglm.frequency_dim, xglm.offset) == (10000.0, 62, 2)


def test_norms_after_the_sum() -> None:
    for facts in (facts_of("openai-gpt"), facts_of("opt", do_layer_norm_before=False)):
        layer = facts.arch.layer(0)
        assert layer.norm_after_add and layer.norm_places == "after the sum"
        assert facts.arch.final_norm is None
    assert facts_of("olmo2").arch.layer(0).norm_places == "post"


def test_rotary_of_another_kind() -> None:
    turned = {name: facts_of(name).arch.layer(1).attention for name in ("nanochat", "cohere_compass_text")}
    nanochat, compass = turned["nanochat"], turned["cohere_compass_text"]
    assert nanochat is not None and compass is not None
    assert nanochat.positions.reverse
    assert (compass.positions.mrope, compass.positions.dealt) == ((2, 3, 3), 5)
    sliding = facts_of("cohere_compass_text").arch.layer(0).attention
    assert sliding is not None and sliding.positions.kind == "none"


def test_ntk_base_of_hunyuan() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 100.0, "factor": 1.0}
    attention = facts_of("hunyuan_v1_dense", rope_parameters=rope).arch.layer(0).attention
    assert attention is not None and attention.qk_norm is not None
    assert attention.positions.base == pytest.approx(1e4 * 100 ** (16 / 14))
    assert (attention.positions.scaling, attention.qk_norm.place) == (None, "after_rope")


def test_which_layers_look_how_far() -> None:
    kinds = {name: [layer.mixer_kind for layer in facts_of(name).arch] for name in
             ("cwm", "gpt_neo", "modernbert-decoder", "vaultgemma", "moshi", "mllama")}  # fmt: skip
    assert kinds["cwm"] == ["full"] + ["sliding"] * 3
    assert kinds["gpt_neo"] == ["full", "sliding"] * 2
    assert kinds["modernbert-decoder"] == ["full", "sliding", "sliding", "full"]
    assert kinds["vaultgemma"] == ["sliding", "full"] * 2
    assert kinds["moshi"] == ["full"] * 4
    assert kinds["mllama"] == ["full", "none", "full", "full"]
    windows = [layer.attention.window for layer in facts_of("modernbert-decoder").arch if layer.attention]
    assert windows == [None, 8, 8, None]


def test_scores_of_gpt2_scaled_by_layer() -> None:
    arch = facts_of("gpt2", scale_attn_by_inverse_layer_idx=True).arch
    assert [layer.attention.scale for layer in arch if layer.attention] == [0.25 / (i + 1) for i in range(4)]
    plain = facts_of("gpt2", scale_attn_weights=False).arch.layer(0).attention
    assert plain is not None and plain.scale == 1.0


def test_a_head_that_the_reference_never_ties() -> None:
    facts = facts_of("moshi", tie_word_embeddings=True)
    assert not facts.arch.head.tied
    assert any("does not tie" in note for note in facts.notes)
    assert (facts.arch.embedding.vocab, facts.arch.embedding.extra_rows) == (331, 1)


def test_norm_before_the_down_projection() -> None:
    layer = facts_of("bitnet").arch.layer(0)
    assert layer.mlp is not None and layer.attention is not None
    assert layer.mlp.down_norm is not None and layer.attention.out_norm is not None


def test_bias_in_the_last_layer_alone() -> None:
    arch = facts_of("gpt_neox_japanese").arch
    assert [layer.attention.o_bias for layer in arch if layer.attention] == [False, False, False, True]
