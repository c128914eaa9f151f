"""Recording and replacing modules in memory, on models of this project and of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.hf import MODELS
from vllm_neuron.accuracy.session import Session
from vllm_neuron.errors import ConfigError, ShapeError
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.model.registry import resolve
from vllm_neuron.snapshot.capture import capture
from vllm_neuron.snapshot.label import Span
from vllm_neuron.snapshot.patterns import compile_pattern, match_modules
from vllm_neuron.snapshot.replacement import replace

IDS = torch.randint(3, 320, (57,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Gemma 3: ours and transformers', with equal weights."""
    folder = tmp_path_factory.mktemp("gemma3")
    reference = MODELS["gemma3"].save(folder)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    model: Any = resolve("Gemma3ForCausalLM").from_configs(reference.config, NeuronConfig())
    torch.set_default_dtype(before)
    model.load_weights(folder, torch.float32, progress=False)
    return model, reference


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("layers.*.attn", "layers.3.attn", "layers.3.attn.qkv"),
        ("layers.**", "layers.3.attn.qkv", "norm"),
        ("layers.{0-2,7}.attn", "layers.7.attn", "layers.3.attn"),
        ("layers.1", "layers.1", "layers.11"),
        ("layers.*", "layers.1", "layersx1"),
        ("*.head(", "a.head(", "head"),
    ],
)
def test_patterns(pattern: str, fits: str, not_: str) -> None:
    assert compile_pattern(pattern).fullmatch(fits)
    assert not compile_pattern(pattern).fullmatch(not_)


@pytest.mark.parametrize("pattern", ["", "layers.{", "layers.{a}", "layers.{3-1}", "layers.{}", "a}b"])
def test_broken_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="modules"):
        compile_pattern(pattern)


def test_patterns_that_fit_nothing_name_the_nearest(models: Any) -> None:
    model, _ = models
    with pytest.raises(ConfigError, match=r"Did you mean 'layers\.0\.attn'"):
        match_modules(model, ["layers.{0-3}.atten"])
    with pytest.raises(ConfigError, match="Top-level modules: embed, layers, norm, head"):
        match_modules(model, ["zzz.yyy"])
    with pytest.raises(ConfigError, match="at least one pattern"):
        match_modules(model, [])


def test_both_sides_of_a_layer(models: Any) -> None:
    """Ours prefilled and decoded with padding, theirs at once: the same tensors."""
    model, reference = models
    with capture(reference, ["model.layers.*", "model.layers.*.self_attn"]) as theirs, torch.no_grad():
        reference(torch.tensor([IDS]))
    session = Session(model, max_tokens=64)
    with capture(model, ["layers.*", "layers.*.attn", "head"]) as ours:
        session.prefill(IDS[:50], pad=14)
        for token in IDS[50:]:
            session.decode(token)
    assert [r.phase for r in ours["layers.0"]] == ["prefill", *["decode"] * 7]
    assert [r.step for r in ours["layers.0"]] == list(range(8)) == [r.step for r in ours["head"]]
    assert ours["layers.0"][0].label.spans == (Span("0", 0, 50, 0),)
    assert [r.label.spans[0].position for r in ours["layers.0"][1:]] == list(range(50, 57))
    for name, records in ours.items():
        if name == "head":
            continue
        record = theirs[f"model.{name.replace('attn', 'self_attn')}"][0]
        for mine, expected in (("input", record.input), ("output", record.output)):
            rows = torch.cat([getattr(r, mine)[: r.label.tokens] for r in records])
            assert (rows - expected[0]).norm() <= 1e-5 * expected.norm(), (name, mine)
    assert "position_embeddings.0" in theirs["model.layers.0"][0].inputs
    assert theirs["model.layers.0"][0].phase is None


def test_packed_requests_are_told_apart() -> None:
    from vllm_neuron.snapshot.capture import spans_of
    from vllm_neuron.step import KVView, Phase, Step

    positions = torch.tensor([0, 1, 2, 0, 1, 0, 0])
    slots = torch.tensor([16, 17, 18, 32, 33, 48, 0])
    step = Step(Phase.PREFILL, positions, positions, (KVView(slots, None, torch.ones(1, 7, 7).bool()),), 1)
    assert spans_of(step) == (Span("0", 0, 3, 0), Span("1", 3, 2, 0), Span("2", 5, 1, 0))


def test_hooks_and_forward_are_as_before(models: Any) -> None:
    model, _ = models
    with pytest.raises(ZeroDivisionError), capture(model, ["layers.*"]):
        raise ZeroDivisionError
    assert "forward" not in model.__dict__
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_records_are_copies() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x).add_(1)

    model = InPlace()
    with capture(model, ["a"]) as seen:
        model(torch.zeros(2))
        model(torch.ones(2))
    assert seen["a"][0].output.tolist() == [0, 0] and seen["a"][1].input.tolist() == [1, 1]
    with capture(model, ["a"], inputs=False) as seen:
        model(torch.zeros(2))
    assert not seen["a"][0].inputs


@pytest.mark.parametrize("at", ["input", "output"])
def test_a_reference_tensor_mends_what_came_before(models: Any, at: Any) -> None:
    """Layer 2 is broken; transformers' tensor at layer 4 makes the logits right again."""
    model, reference = models
    with capture(reference, ["model.layers.4", "lm_head"]) as theirs, torch.no_grad():
        expected = reference(torch.tensor([IDS])).logits[0]
    tensor = getattr(theirs["model.layers.4"][0], at)
    hook = model.layers[2].register_forward_hook(lambda module, args, output: output * 0.5)
    try:
        broken = Session(model, max_tokens=64).prefill(IDS, pad=7)
        with replace(model, {"layers.4": tensor}, at=at) as counts:
            mended = Session(model, max_tokens=64).prefill(IDS, pad=7)
    finally:
        hook.remove()
    assert counts == {"layers.4": 1}
    assert (broken - expected).norm() > 1e-2 * expected.norm()
    assert (mended - expected).norm() <= 1e-5 * expected.norm()


def test_transformers_models_are_replaced_too(models: Any) -> None:
    """Keyword arguments, a leading batch dimension, and a module that gives a tuple (attention)."""
    model, reference = models
    session = Session(model, max_tokens=64)
    with capture(model, ["layers.*.attn"]) as ours:
        session.prefill(IDS)
    with torch.no_grad():
        expected = reference(torch.tensor([IDS])).logits[0]
        fed = {"model.layers.3.self_attn": ours["layers.3.attn"][0].output}
        with replace(reference, fed):
            same = reference(torch.tensor([IDS])).logits[0]
        with replace(reference, {name: tensor.flip(0) for name, tensor in fed.items()}):
            other = reference(torch.tensor([IDS])).logits[0]
        with replace(reference, {"model.layers.3.self_attn": ours["layers.3.attn"][0].input}, at="input"):
            again = reference(torch.tensor([IDS])).logits[0]
    assert (same - expected).norm() <= 1e-5 * expected.norm()
    assert (again - expected).norm() <= 1e-5 * expected.norm()
    assert (other - expected).norm() > 1e-2 * expected.norm()


def test_one_tensor_for_each_call(models: Any) -> None:
    model, _ = models
    tensors = [torch.full((1, 64), float(i)) for i in range(2)]
    session = Session(model, max_tokens=64)
    session.prefill(IDS[:5])
    with replace(model, {"layers.6": tensors}) as counts, capture(model, ["layers.6"]) as seen:
        for token in IDS[5:8]:
            session.decode(token)
    outputs = [record.output for record in seen["layers.6"]]
    assert counts == {"layers.6": 2} and torch.equal(outputs[0], tensors[0]) and torch.equal(outputs[1], tensors[1])
    assert outputs[2].unique().numel() > 1


@pytest.mark.parametrize("shape", [(58, 64), (57, 63), (2, 57, 64), (64,)])
def test_tensors_that_do_not_fit_are_refused(models: Any, shape: tuple[int, ...]) -> None:
    model, _ = models
    with (
        pytest.raises(ShapeError, match=r"replacement of layers\.1: output"),
        replace(model, {"layers.1": torch.ones(shape)}),
    ):
        Session(model, max_tokens=64).prefill(IDS)
    assert not model.layers[1]._forward_hooks


def test_a_name_that_is_no_module(models: Any) -> None:
    model, _ = models
    with pytest.raises(ConfigError, match=r"Did you mean 'layers\.1'"), replace(model, {"layer.1": torch.ones(1)}):
        pass
