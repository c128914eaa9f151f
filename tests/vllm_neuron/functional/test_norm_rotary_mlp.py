"""Small operations against plain formulas, in float32 and bfloat16."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.errors import OperationError


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rms_norm_is_the_formula(plus_one: bool, eps: float) -> None:
    x, w = torch.randn(5, 3, 16, dtype=torch.float64) * 0.1, torch.randn(16, dtype=torch.float64)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * (w + plus_one)
    got = NF.rms_norm(x.float(), w.float(), eps=eps, plus_one=plus_one)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_without_weight() -> None:
    x = torch.randn(4, 8)
    torch.testing.assert_close(NF.rms_norm(x, None, eps=1e-6), NF.rms_norm(x, torch.ones(8), eps=1e-6))


def angles(size: int, base: float, positions: torch.Tensor) -> torch.Tensor:
    inverse = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    return positions.double()[:, None] * inverse


@settings(max_examples=30, deadline=None)
@given(
    pairs=st.integers(1, 8),
    rest=st.integers(0, 3),
    heads=st.integers(1, 3),
    interleaved=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rotary_turns_pairs_as_complex_numbers(pairs: int, rest: int, heads: int, interleaved: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, 500, (6,), generator=generator)
    size = 2 * pairs
    x = torch.randn(6, heads, size + rest, generator=generator)
    inverse = 1.0 / 10000.0 ** (torch.arange(0, size, 2).float() / size)
    table = NF.rotary_table(inverse, 500, interleaved=interleaved)[positions]
    got = NF.rotary(x, table, interleaved=interleaved)

    turned = x[..., :size].double()
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    rotated = (
        torch.complex(first, second) * torch.polar(torch.tensor(1.0).double(), angles(size, 1e4, positions))[:, None]
    )
    ours = got[..., :size]
    first, second = (ours[..., 0::2], ours[..., 1::2]) if interleaved else ours.chunk(2, dim=-1)
    torch.testing.assert_close(first.double(), rotated.real, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second.double(), rotated.imag, rtol=1e-4, atol=1e-4)
    assert torch.equal(got[..., size:], x[..., size:])


def test_E9_positions_above_256_keep_apart_in_bfloat16() -> None:
    table = NF.rotary_table(1.0 / 10000.0 ** (torch.arange(0, 64, 2).float() / 64), 1026)
    rows = table.bfloat16()
    assert not torch.equal(rows[256], rows[257]) and not torch.equal(rows[1024], rows[1025])
    exact = torch.cat((torch.cos(angles(64, 1e4, torch.tensor([257]))),) * 2, dim=-1)
    torch.testing.assert_close(rows[257, :64].double(), exact[0].float().bfloat16().double(), rtol=0, atol=2**-8)


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("bias", [False, True])
def test_mlp_is_three_linears(act: str, bias: bool) -> None:
    hidden, width = 12, 20
    gate, up = torch.nn.Linear(hidden, width, bias), torch.nn.Linear(hidden, width, bias)
    down = torch.nn.Linear(width, hidden, bias)
    x = torch.randn(7, hidden)
    with torch.no_grad():
        expected = down(NF.activation(act)(gate(x)) * up(x))
        got = NF.mlp(
            x,
            torch.cat((gate.weight, up.weight)).t(),
            down.weight.t(),
            act=act,
            gate_up_bias_F=torch.cat((gate.bias, up.bias)) if bias else None,
            down_bias_H=down.bias,
        )
    torch.testing.assert_close(got, expected)


def test_unknown_activation_names_the_nearest() -> None:
    with pytest.raises(OperationError, match="gelu_new"):
        NF.activation("gelu_neww")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_packed_weight_gives_the_plain_product(dtype: torch.dtype, rows: int) -> None:
    weight, bias = torch.randn(48, 64, dtype=dtype), torch.randn(48, dtype=dtype)
    x = torch.randn(rows, 64, dtype=dtype)
    packed = NF.PackedWeight(weight)
    assert packed.shape == (64, 48)
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(NF.linear(x, packed, bias).double(), expected, rtol=tolerance, atol=tolerance * 10)
    assert torch.equal(packed.dense(), weight.t())


def test_a_packed_weight_is_freed_with_its_layer() -> None:
    """The compiler's list of packed matrices must not keep a model alive that nobody has any more."""
    import gc

    from vllm_neuron.functional import weight

    before = len(weight._packed_matrices)
    packed = [NF.PackedWeight(torch.randn(16, 16)) for _ in range(3)]
    assert len(weight._packed_matrices) == before + 3
    del packed
    gc.collect()
    assert len(weight._packed_matrices) == before


def test_a_float16_layer_is_not_packed() -> None:
    from vllm_neuron.nn import ColumnParallelLinear

    layer = ColumnParallelLinear(16, 16, dtype=torch.float16)
    layer.pack()
    assert layer.weight is not None and not isinstance(layer.matrix, NF.PackedWeight)
