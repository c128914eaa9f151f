"""Settings that a model's config class refuses by name."""

from __future__ import annotations

from types import SimpleNamespace as Config

import pytest

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model.hf_config import plain_rope_base, refuse_other_kinds


@pytest.mark.parametrize("value", ["a", ["a", "b"], ("b",), [], None])
def test_known_kinds_pass(value):
    refuse_other_kinds(Config(kinds=value), "kinds", "a", "b")
    refuse_other_kinds(Config(), "kinds", "a", "b")


@pytest.mark.parametrize("value", ["c", ["a", "c"], ("c",), ""])
def test_an_unknown_kind_is_named(value):
    with pytest.raises(UnsupportedError, match=r"config\.kinds: got '(c|)', expected 'a' or 'b'"):
        refuse_other_kinds(Config(kinds=value), "kinds", "a", "b")


def test_base_of_rotary_positions_that_are_not_scaled():
    assert plain_rope_base(Config(rope_parameters={"rope_theta": 500000})) == 500000.0
    with pytest.raises(UnsupportedError, match=r"rope_type: got 'yarn'"):
        plain_rope_base(Config(rope_parameters={"rope_theta": 1e4, "rope_type": "yarn"}))
    with pytest.raises(ConfigError, match="rope_theta"):
        plain_rope_base(Config(rope_parameters={"rope_type": "default"}))
