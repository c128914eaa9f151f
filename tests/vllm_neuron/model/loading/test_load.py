"""Loading whole models: values of every rank, what stops a load before a parameter changes, and what a load reports."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.model.loading import Fuse, LoadReport, Map, Split, StackExperts, Table, Tie, load_model
from vllm_neuron.model.loading import load as load_module
from vllm_neuron.utils.weight_loader import (
    SafetensorsWeightLoader,
    expert_parallel_weight_loader,
    expert_range,
    fused_gate_up_weight_loader,
    get_weight_loader,
    set_weight_loader,
    sharding_weight_loader,
)


class Toy(nn.Module):
    """An embedding, one fused layer with a bias, and a head."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        with torch.device("meta"):
            self.embed = nn.Embedding(8, 4)
            self.mlp = nn.Linear(4, 8 // ranks)
            self.head = nn.Linear(4, 8, bias=False)
        for parameter in self.mlp.parameters():
            set_weight_loader(parameter, fused_gate_up_weight_loader(4 // ranks, 0, ranks))


TOY = Table(
    Map("embed", "model.embed_tokens"),
    Fuse("mlp", "model.mlp.{gate,up}_proj"),
    Map("head", "lm_head"),
    Tie("head", "embed", when="tie"),
)


def toy_tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (8, 4), "lm_head.weight": (8, 4)}
    for p in ("gate", "up"):
        shapes |= {f"model.mlp.{p}_proj.weight": (4, 4), f"model.mlp.{p}_proj.bias": (4,)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def load_toy(
    folder: Path,
    tensors: dict[str, Tensor],
    *,
    tie: bool = False,
    dtype: torch.dtype = torch.float32,
    model: Toy | None = None,
) -> tuple[Toy, LoadReport]:
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, folder / "model.safetensors")
    model = model or Toy()
    return model, load_model(model, TOY, folder, rank=0, world_size=1, dtype=dtype, flags={"tie": tie})


def refused(folder: Path, tensors: dict[str, Tensor], **options: bool) -> str:
    """The message of a load that must leave every parameter as it was."""
    model = Toy()
    before = dict(model.named_parameters())
    with pytest.raises(CheckpointError) as caught:
        load_toy(folder, tensors, model=model, **options)
    assert all(after is before[name] and after.is_meta for name, after in model.named_parameters())
    return str(caught.value)


def test_values_and_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = toy_tensors()
    with caplog.at_level(logging.INFO):
        model, report = load_toy(tmp_path, tensors)
    assert torch.equal(model.embed.weight, tensors["model.embed_tokens.weight"])
    assert torch.equal(model.mlp.weight, torch.cat([tensors[f"model.mlp.{p}_proj.weight"] for p in ("gate", "up")]))
    assert torch.equal(model.mlp.bias, torch.cat([tensors[f"model.mlp.{p}_proj.bias"] for p in ("gate", "up")]))
    assert torch.equal(model.head.weight, tensors["lm_head.weight"])
    size = sum(t.nbytes for t in tensors.values())
    assert (report.parameters, report.bytes, report.bytes_read) == (4, size, size)
    assert report.seconds > 0 and report.notes() == []
    assert caplog.text.count("\n") == 1 and "Loaded 4 parameters" in caplog.text
    assert all(isinstance(p, nn.Parameter) and not p.requires_grad for p in model.parameters())
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in model.parameters())


def test_progress_off_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_file(toy_tensors(), tmp_path / "model.safetensors")
    with caplog.at_level(logging.INFO):
        options = {"dtype": torch.float32, "flags": {"tie": False}, "progress": False}
        load_model(Toy(), TOY, tmp_path, rank=0, world_size=1, **options)  # type: ignore[arg-type]
    assert caplog.text == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []
    stream = SimpleNamespace(isatty=lambda: terminal, write=written.append, flush=lambda: None)
    monkeypatch.setattr(load_module.sys, "stderr", stream)
    load_toy(tmp_path, toy_tensors())
    assert ("Loading weights" in "".join(written)) is terminal


@pytest.mark.parametrize("tie", [True, False])
def test_C1_a_tied_head_that_repeats_the_embedding(tmp_path: Path, tie: bool) -> None:
    tensors = toy_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model, report = load_toy(tmp_path, tensors, tie=tie)
    assert torch.equal(model.head.weight, tensors["lm_head.weight"])
    assert report.redundant == (("lm_head.weight",) if tie else ())
    assert any("1 redundant: lm_head.weight" in note for note in report.notes()) is tie


@pytest.mark.parametrize("row", range(8))
def test_C1_a_tied_head_that_differs_in_one_value(tmp_path: Path, row: int) -> None:
    tensors = toy_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][row, 3] += 1
    assert "lm_head.weight: got F32 [8, 4] unlike model.embed_tokens.weight" in refused(tmp_path, tensors, tie=True)


def test_C1_every_row_is_compared_by_some_rank(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][5, 3] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    stopped = []
    for rank in range(2):
        try:
            load_model(Toy(2), TOY, tmp_path, rank=rank, world_size=2, dtype=torch.float32, flags={"tie": True})
        except CheckpointError:
            stopped.append(rank)
    assert stopped == [1]


def test_C1_a_tied_head_of_another_shape_or_dtype(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][:6]
    assert "[6, 4]" in refused(tmp_path, tensors, tie=True)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].bfloat16()
    assert "BF16" in refused(tmp_path, tensors, tie=True)


def test_C3_the_head_is_absent_and_not_tied(tmp_path: Path) -> None:
    tensors = toy_tensors()
    del tensors["lm_head.weight"]
    assert "set tie to true" in refused(tmp_path, tensors)
    model, _ = load_toy(tmp_path, tensors, tie=True)
    assert torch.equal(model.head.weight, tensors["model.embed_tokens.weight"])


def test_C7_nothing_changes_when_a_file_is_truncated(tmp_path: Path) -> None:
    model = Toy()
    save_file(toy_tensors(), tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-64])
    with pytest.raises(CheckpointError, match=str(len(whole))):
        load_model(model, TOY, tmp_path, rank=0, world_size=1, dtype=torch.float32, flags={"tie": False})
    assert all(parameter.is_meta for parameter in model.parameters())


def test_C11_a_bias_that_the_file_lacks(tmp_path: Path) -> None:
    tensors = toy_tensors()
    del tensors["model.mlp.up_proj.bias"]
    assert "mlp.bias needs model.mlp.up_proj.bias" in refused(tmp_path, tensors)


def test_C13_a_shifted_checkpoint_loads_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = {"language_model." + name: tensor for name, tensor in toy_tensors().items()}
    with caplog.at_level(logging.INFO):
        model, report = load_toy(tmp_path, tensors)
    assert torch.equal(model.head.weight, tensors["language_model.lm_head.weight"])
    assert report.remapped == ("language_model.", "")
    assert caplog.text.count("names mapped from prefix 'language_model.' to ''") == 1


def test_all_shapes_that_do_not_fit_are_named_at_once(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors["model.embed_tokens.weight"] = torch.zeros(9, 4)
    tensors["model.mlp.up_proj.weight"] = torch.zeros(5, 4)
    message = refused(tmp_path, tensors)
    assert "2 of 4 parameters that do not fit" in message
    assert "model.embed_tokens.weight gives [9, 4], embed.weight is [8, 4]" in message
    assert "model.mlp.gate_proj.weight + model.mlp.up_proj.weight for mlp.weight" in message and "[5, 4]" in message


def test_a_loader_that_fails_is_named_with_its_parameter(tmp_path: Path) -> None:
    model = Toy()
    set_weight_loader(
        model.head.weight, SafetensorsWeightLoader(lambda slices, rank: slices[0][...] @ torch.ones(3, device="meta"))
    )
    with pytest.raises(CheckpointError, match=r"lm_head\.weight for head\.weight: RuntimeError"):
        load_toy(tmp_path, toy_tensors(), model=model)


@pytest.mark.parametrize(
    ("stored", "wanted", "said"),
    [
        (torch.float32, torch.bfloat16, "float32 to bfloat16, rounded"),
        (torch.bfloat16, torch.float32, "bfloat16 to float32, exact"),
        (torch.bfloat16, torch.float16, "bfloat16 to float16, rounded"),
        (torch.float16, torch.bfloat16, "float16 to bfloat16, rounded"),
        (torch.bfloat16, torch.bfloat16, None),
    ],
)
def test_casts_are_those_of_torch_and_are_reported(
    tmp_path: Path, stored: torch.dtype, wanted: torch.dtype, said: str | None
) -> None:
    tensors = toy_tensors(stored)
    model, report = load_toy(tmp_path, tensors, dtype=wanted)
    assert model.head.weight.dtype == wanted
    assert torch.equal(model.head.weight, tensors["lm_head.weight"].to(wanted))
    assert report.casts == ({said: 4} if said else {})


def test_numbers_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    tensors = toy_tensors(torch.bfloat16)
    tensors["lm_head.weight"][0, 0] = 1e6
    with pytest.raises(CheckpointError, match="numbers beyond float16"):
        load_toy(tmp_path, tensors, dtype=torch.float16)


def test_a_parameter_that_modules_share_is_filled_in_all_of_them(tmp_path: Path) -> None:
    model = Toy()
    model.head.weight = model.embed.weight
    tensors = toy_tensors()
    del tensors["lm_head.weight"]
    load_toy(tmp_path, tensors, tie=True, model=model)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, tensors["model.embed_tokens.weight"])


def test_a_loaded_model_can_be_loaded_again(tmp_path: Path) -> None:
    model, _ = load_toy(tmp_path, toy_tensors())
    loader = get_weight_loader(model.mlp.weight)
    other = {name: tensor + 1 for name, tensor in toy_tensors().items()}
    load_toy(tmp_path, other, model=model)
    assert get_weight_loader(model.mlp.weight) is loader
    assert torch.equal(model.mlp.bias[:4], other["model.mlp.gate_proj.bias"])


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_group(tmp_path: Path, rank: int) -> None:
    with pytest.raises(ConfigError, match="0 to 1"):
        load_model(Toy(), TOY, tmp_path, rank=rank, world_size=2, dtype=torch.float32)


def one_parameter(
    folder: Path, table: Table, shape: tuple[int, ...], loader: SafetensorsWeightLoader | None = None
) -> Tensor:
    model = nn.Module()
    model.w = nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)
    if loader is not None:
        set_weight_loader(model.w, loader)
    load_model(model, table, folder, rank=0, world_size=1, dtype=torch.float32, progress=False)
    return model.w


@pytest.mark.parametrize(("dim", "shape"), [(0, (3, 4)), (1, (6, 2))])
def test_split_rows_share_one_key(tmp_path: Path, dim: int, shape: tuple[int, int]) -> None:
    whole = torch.arange(24.0).reshape(6, 4)
    save_file({"x.ab": whole}, tmp_path / "model.safetensors")
    model = nn.Module()
    model.a, model.b = (nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False) for _ in range(2))
    load_model(model, Table(Split("{a,b}", "x.ab", dim=dim)), tmp_path, rank=0, world_size=1, dtype=torch.float32)
    assert torch.equal(torch.cat((model.a, model.b), dim), whole)


def test_split_refuses_a_size_that_does_not_divide(tmp_path: Path) -> None:
    save_file({"x.ab": torch.zeros(5, 4)}, tmp_path / "model.safetensors")
    model = nn.Module()
    model.a, model.b = (nn.Parameter(torch.empty(2, 4, device="meta"), requires_grad=False) for _ in range(2))
    with pytest.raises(CheckpointError, match="a multiple of 2 along dimension 0"):
        load_model(model, Table(Split("{a,b}", "x.ab")), tmp_path, rank=0, world_size=1, dtype=torch.float32)


def test_D9_experts_load_from_either_form_and_a_missing_one_stops(tmp_path: Path) -> None:
    experts, mine = 10, expert_range(10, 4, 2)
    whole = torch.arange(experts).float()[:, None, None].expand(experts, 4, 3).contiguous()
    table = Table(StackExperts("w", "experts.{e}.down.weight"), Map("w", "experts.down"))
    loader = expert_parallel_weight_loader(mine, sharding_weight_loader(0, 4, 1), experts)
    apart = {f"experts.{e}.down.weight": whole[e].clone() for e in range(experts)}
    for tensors in (apart, {"experts.down": whole}):
        save_file(tensors, tmp_path / "model.safetensors")
        assert torch.equal(one_parameter(tmp_path, table, (2, 4, 3), loader), whole[6:8])
    for lost in (0, 5, 9):
        save_file({k: v for k, v in apart.items() if f".{lost}." not in k}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"experts.{lost}.down|a multiple of 10 experts"):
            one_parameter(tmp_path, table, (2, 4, 3), loader)
