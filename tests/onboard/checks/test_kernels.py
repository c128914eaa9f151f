"""`onboard kernels`: a dry run of whole models, its refusals, its costs, and its bad input."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import vllm_neuron.functional as NF
from onboard.checks import kernels as checks
from onboard.checks.kernels import KernelReport, dry_run
from onboard.checks.kernels_cost import measure
from onboard.checks.kernels_model import DryModel, Limits
from onboard.cli.exits import Exit
from onboard.cli.main import run
from onboard.report import kernels_markdown
from onboard.report.kernels_rows import lines
from reference_models.llama3 import model as llama3
from tests.support.hf import MODELS
from vllm_neuron.nki.backend import CORES_VARIABLE
from vllm_neuron.step import Phase

SMALL = Limits(max_model_len=128, max_num_batched_tokens=64, max_num_seqs=4, dtype="float32")
OPTIONS = ["--max-model-len", "128", "--max-num-batched-tokens", "64", "--max-num-seqs", "4"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders with a config.json alone."""
    found = {}
    for name in ("llama", "gemma3"):
        folder = tmp_path_factory.mktemp(name)
        MODELS[name].config().save_pretrained(folder)
        found[name] = str(folder)
    return found


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``--lnc`` sets is unset after a test."""
    monkeypatch.setenv(CORES_VARIABLE, "")


def outcome(report: KernelReport) -> set[Any]:
    return {(row.shape, row.call, row.count, row.kernel, row.compiler, row.why()) for row in report.rows}


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_operation_takes_its_kernel(folders: dict[str, str], name: str) -> None:
    report = dry_run(DryModel(folders[name], None, SMALL))
    assert not report.refusals
    assert {row.shape.phase for row in report.rows} == set(Phase)
    chosen = {row.call.operation: row.kernel for row in report.rows}
    assert chosen["embedding"] is None and "DMA" in report.left["embedding"]
    assert all(kernel.startswith("nki.") for name, kernel in chosen.items() if name != "embedding" and kernel)
    assert {"flash_attention", "segmented_attention", "attention_decode", "kv_write", "mlp", "linear"} <= set(chosen)
    sizes = {row.shape.size for row in report.rows if row.shape.phase is Phase.PREFILL}
    assert sizes == {16, 32, 64}


@pytest.mark.parametrize("tp", [1, 2])
def test_one_of_each_kind_of_layer_says_the_same_as_all(
    folders: dict[str, str], tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(SMALL, tp=tp)
    short = dry_run(DryModel(folders["gemma3"], None, limits))
    monkeypatch.setattr(checks, "_kind", id)
    whole = dry_run(DryModel(folders["gemma3"], None, limits))
    assert outcome(short) == outcome(whole)
    assert any("of 2 kinds" in note for note in short.notes)


def test_ranks_divide_what_an_operation_sees(folders: dict[str, str]) -> None:
    def width(tp: int) -> int:
        report = dry_run(DryModel(folders["llama"], None, dataclasses.replace(SMALL, tp=tp)))
        text = next(dict(row.call.arguments)["down_IH"] for row in report.rows if row.call.operation == "mlp")
        return int(text[1:].split(",")[0])

    assert width(1) == 2 * width(2)


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLP kernel that takes 32 tokens at most, and an output projection without any."""

    with NF.use_kernels("simulate"):
        pass  # registers the kernels

    def few(x_TH: Any, *rest: Any, **options: Any) -> Any:
        return NF.YES if x_TH.shape[0] <= 32 else NF.no("x_TH.shape[0]", x_TH.shape[0], "at most 32 tokens")

    monkeypatch.setattr(NF.mlp, "kernels", [dataclasses.replace(k, supports=few) for k in NF.mlp.kernels])
    monkeypatch.setattr(NF.o_proj, "kernels", [])


def test_a_refusal_names_size_field_and_limit(folders: dict[str, str], picky: None) -> None:
    report = dry_run(DryModel(folders["llama"], None, SMALL))
    found = {(line.phase, line.operation): [] for line in lines(report)}
    for line in lines(report):
        found[line.phase, line.operation].append(line)
    small, large = found["prefill", "mlp"]
    assert (small.sizes, small.choice, small.why) == ("16-32", "nki.mlp", "")
    assert (large.sizes, large.choice) == ("64", "torch") and large.refused
    assert large.why == "nki.mlp: x_TH.shape[0] is 64, it takes at most 32 tokens"
    assert found["decode", "o_proj"][0].why == "there is no NKI kernel for it"
    text = kernels_markdown.render(report)
    assert "Plain torch in some shapes: mlp, o_proj." in text and "at most 32 tokens |" in text


def test_costs_and_trace(folders: dict[str, str], tmp_path: Path) -> None:
    report = dry_run(DryModel(folders["llama"], None, SMALL))
    measure(report, tmp_path / "trace.json")
    counted = {row.call.operation: row.cost for row in report.rows if row.cost is not None}
    assert set(counted) == {row.call.operation for row in report.rows if row.kernel}
    for cost in counted.values():
        for chip in ("trn2", "trn3"):
            least = cost.least(chip)
            assert least is not None and 0 < least <= cost.counted(chip) * 1.001
            assert all(run.ratio >= 0.999 for run in cost.runs[chip])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"tensor", "dma"} <= {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "all kernels of a step, decode of 4: trn2" in kernels_markdown.render(report)


def test_what_is_too_large_is_reduced_and_said(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from onboard.checks import kernels_cost

    report = dry_run(DryModel(folders["llama"], None, SMALL))
    products = max(
        sum(least.tensor_cycles for _, least in row.runs if least)
        for row in report.rows
        if row.call.operation == "mlp" and row.shape.size == 32
    )
    monkeypatch.setattr(kernels_cost, "MOST_PRODUCTS", products * kernels_cost.ARRAY)
    measure(report)
    assert "cost of mlp in prefill: counted with 32 in place of 64" in report.notes
    monkeypatch.setattr(kernels_cost, "MOST_BYTES", 0)
    measure(report)
    assert "cost of mlp in decode: not counted, too large for the stand-in in any size" in report.notes


def test_the_command_in_its_formats(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["kernels", folders["llama"], "--tp", "2", *OPTIONS]) == Exit.OK
    text = capsys.readouterr().out
    assert "TP 2, bfloat16" in text and "nki.attention_decode" in text and "Every operation" in text
    assert run(["kernels", folders["llama"], "--lnc", "2", *OPTIONS, "--format", "json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["lnc"], found["refusals"], found["package"]) == (2, 0, "reference_models.llama3")
    assert {row["phase"] for row in found["rows"]} == {"prefill", "extend", "decode"}
    assert all(row["kernel"] or row["compiler"] for row in found["rows"])
    assert run(["kernels", folders["llama"], *OPTIONS, "--format", "markdown", "-o", str(tmp_path / "k.md")]) == Exit.OK
    assert "| rms_norm | 16-64 |" in (tmp_path / "k.md").read_text()


def test_exit_code_tells_of_refusals(folders: dict[str, str], picky: None) -> None:
    command = ["kernels", folders["llama"], *OPTIONS]
    assert run(command) == Exit.OK
    assert run([*command, "--exit-code"]) == Exit.FINDINGS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tp", "3"], "tensor_parallel_size"),
        (["--package", "no.such.package"], "PACKAGE: got 'no.such.package'"),
        (["--max-model-len", "100000"], "--max-model-len: got 100000, expected at most"),
        (["--trace", "t.json"], "it needs --cost"),
        (["--lnc", "3"], "less than or equal to 2"),
    ],
)
def test_bad_input(folders: dict[str, str], options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", folders["llama"], *options]) in (Exit.BAD_INPUT, Exit.USAGE)
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_architecture_without_a_package_says_how_to_name_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = MODELS["llama"].config().to_dict() | {"architectures": ["MysteryForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["kernels", str(tmp_path)]) == Exit.BAD_INPUT
    assert "MysteryForCausalLM" in (said := capsys.readouterr().err) and "--package" in said
    assert run(["kernels", str(tmp_path), "--package", "reference_models.llama3", *OPTIONS]) == Exit.OK


def test_a_package_of_a_folder(folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(llama3.__file__).parent
    target = tmp_path / "src" / "tiny_llama"
    target.mkdir(parents=True)
    for path in source.glob("*.py"):
        (target / path.name).write_text(path.read_text().replace("reference_models.llama3", "tiny_llama"))
    assert run(["kernels", folders["llama"], "--package", str(tmp_path), *OPTIONS, "--format", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["package"] == "tiny_llama"
