"""Hunyuan's fixed stretch of the rotary base against transformers."""

from __future__ import annotations

import torch
from transformers import HunYuanDenseV1Config
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding

from vllm_neuron.nn import RotaryConfig


def test_dynamic_with_alpha_is_a_larger_base() -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 100.0, "factor": 1.0, "beta_fast": 32}
    config = HunYuanDenseV1Config(head_dim=16, max_position_embeddings=64, rope_parameters=dict(parameters))
    ours = RotaryConfig.from_parameters(parameters, 16, 64)
    assert ours.kind == "default"
    torch.testing.assert_close(ours.inverse_frequencies(), HunYuanDenseV1RotaryEmbedding(config).inv_freq)
