"""`tensor_capture` and `tensor_replacement` in real engines: whose rows are where, limits, refusals."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams

from tests.vllm_neuron.vllm.conftest import prompts_of, tokens_of
from vllm_neuron.errors import ConfigError
from vllm_neuron.snapshot.index import CaptureFolder

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=0)
LENGTHS = (1, 7, 33, 60)
MODULES = ["layers.{0,5}", "layers.5.attn", "head"]


def ask(llm: Any, prompts: list[list[int]]) -> list[list[int]]:
    return tokens_of(llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False))


def options(**neuron_config: Any) -> dict[str, Any]:
    """Small chunks, so that one scheduler step has prefills, an extend and decodes."""
    return {"max_num_batched_tokens": 24, "additional_config": {"neuron_config": neuron_config}}


def close(llm: Any) -> None:
    llm.llm_engine.model_executor.driver_worker.worker.runner.watch.close()


def rows_by_token(folder: CaptureFolder, module: str) -> dict[str, dict[int, torch.Tensor]]:
    """Request -> position -> its row of the module's output."""
    found: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
    for record in folder.records(module):
        assert record.output.shape[0] == record.label.tokens, "padding was cut off"
        for span in record.label.spans:
            for i in range(span.count):
                found[span.request][span.position + i] = record.output[span.start + i]
    return found


@pytest.fixture(scope="module")
def captured(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[CaptureFolder, list[list[int]]]:
    """A folder of a batch of four requests, and prompt + tokens of each."""
    path = tmp_path_factory.mktemp("capture") / "run"
    llm = engine("gemma3", **options(tensor_capture={"modules": MODULES, "dir": str(path)}))
    prompts = prompts_of(*LENGTHS)
    found = ask(llm, prompts)
    close(llm)
    return CaptureFolder.open(path), [[*p, *t] for p, t in zip(prompts, found, strict=True)]


@pytest.mark.parametrize(("ours", "theirs"), [("layers.0", 0), ("layers.5", 5), ("head", None)])
def test_rows_are_those_of_transformers(captured: Any, checkpoint: Any, ours: str, theirs: int | None) -> None:
    folder, texts = captured
    rows = rows_by_token(folder, ours)
    assert len(rows) == len(texts)
    reference = checkpoint("gemma3").reference
    for found, ids in zip((rows[key] for key in sorted(rows, key=lambda k: int(k.split("-")[0]))), texts, strict=True):
        with torch.no_grad():
            output = reference(torch.tensor([ids]), output_hidden_states=True)
        expected = output.logits[0] if theirs is None else output.hidden_states[theirs + 1][0]
        assert sorted(found) == list(range(len(ids) - 1)), "every position but the last token's, which never runs"
        mine = torch.stack([found[i] for i in range(len(ids) - 1)])
        assert (mine - expected[:-1]).norm() <= 1e-5 * expected.norm()


def test_a_batch_had_packs_extends_and_padding(captured: Any) -> None:
    folder, _ = captured
    phases = {step.label.phase for step in folder.steps}
    assert phases == {"prefill", "extend", "decode"}
    assert any(len(step.label.spans) > 1 for step in folder.steps if step.label.phase == "prefill")
    assert any(len(step.label.spans) == 4 for step in folder.steps if step.label.phase == "decode")


def test_steps_are_numbered_from_the_first_after_warm_up(captured: Any) -> None:
    folder, texts = captured
    numbers = [step.label.step for step in folder.steps]
    assert numbers == list(range(len(numbers)))
    assert list(folder.steps[0].token_ids)[:1] == texts[0][:1]


def test_index_lists_names_shapes_and_steps(captured: Any) -> None:
    folder, _ = captured
    index = json.loads((folder.path / "rank0" / "index.json").read_text())
    assert index["modules"] == ["layers.0", "layers.5", "layers.5.attn", "head"] and index["stopped"] is None
    assert index["architecture"] == "Gemma3ForCausalLM" and index["dtype"] == "float32"
    for entry, step in zip(index["steps"], folder.steps, strict=True):
        assert entry["file"] == step.path.name and entry["token_ids"] == list(step.token_ids)
        for record in step.records("layers.0"):
            listed = entry["tensors"]["layers.0/0/out.0"]
            assert listed == {"dtype": "float32", "shape": list(record.output.shape)}
    assert not list(folder.path.rglob("*.partial"))


def test_chosen_steps_and_outputs_only(engine: Any, tmp_path: Path) -> None:
    config = {"modules": ["layers.*"], "dir": str(tmp_path / "c"), "steps": [2, "4-5"], "tensors": "outputs"}
    ask(engine("llama", **options(tensor_capture=config)), prompts_of(30))
    folder = CaptureFolder.open(tmp_path / "c")
    assert [step.label.step for step in folder.steps] == [2, 4, 5]
    assert {key for step in folder.steps for call in step.calls for key in call.shapes} == {"out.0"}


def test_limit_is_said_once_and_the_engine_goes_on(
    engine: Any, checkpoint: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 40_000
    config = {"modules": ["layers.*"], "dir": str(tmp_path / "c"), "max_bytes": limit}
    llm = engine("llama", **options(tensor_capture=config))
    logger = logging.getLogger("vllm_neuron")
    logger.addHandler(caplog.handler)
    try:
        prompt = prompts_of(16)[0]
        checkpoint("llama").assert_greedy(prompt, ask(llm, [prompt])[0])
    finally:
        logger.removeHandler(caplog.handler)
    said = [record.getMessage() for record in caplog.records if "rank 0 stops" in record.getMessage()]
    assert len(said) == 1 and str(limit) in said[0]
    folder = CaptureFolder.open(tmp_path / "c")
    assert (
        0 < sum(t.nbytes for s in folder.steps for r in s.records() for t in (*r.inputs.values(), *r.outputs)) <= limit
    )
    assert f"max_bytes {limit}" in str(folder.about[0]["stopped"])


def test_replacement_goes_on_with_the_captured_tensors(engine: Any, captured: Any, tmp_path: Path) -> None:
    """The tensors of one run fed into an equal run change nothing; after another layer was broken they mend it."""
    folder, texts = captured
    fed = {"modules": ["layers.5"], "dir": str(folder.path)}
    again = {"modules": ["layers.{4,5}", "layers.6", "head"], "dir": str(tmp_path / "again")}
    llm = engine("gemma3", **options(tensor_replacement=fed, tensor_capture=again))
    runner = llm.llm_engine.model_executor.driver_worker.worker.runner
    runner.model.layers[2].register_forward_hook(lambda module, args, output: output * 0.5)
    found = ask(llm, prompts_of(*LENGTHS))
    assert found == [ids[-6:] for ids in texts], "what follows the fed layer is as it was"
    mine, theirs = CaptureFolder.open(tmp_path / "again"), folder
    for module, same in (("layers.5", True), ("head", True)):
        pairs = zip(mine.records(module), theirs.records(module), strict=True)
        assert all(torch.equal(a.output, b.output) for a, b in pairs) is same
    close(llm)


def test_replacement_refuses_other_tokens(captured: Any) -> None:
    """Directly at the watcher: an engine would end with the error."""
    from vllm_neuron.model.inspection_config import TensorReplacement
    from vllm_neuron.snapshot.label import Span, StepLabel
    from vllm_neuron.step import Phase, Step
    from vllm_neuron.vllm.worker.feeding import FileReplacement
    from vllm_neuron.vllm.worker.watch import Part

    folder, _ = captured
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Identity()])
    feeding = FileReplacement(model, TensorReplacement(("layers.0",), str(folder.path)), rank=0)
    step = Step(Phase.PREFILL, torch.tensor([5, 5]), torch.arange(2), (), 1)
    with pytest.raises(ConfigError, match=r"step 0 ran .* expected the 2 ids"):
        feeding.begin(Part(StepLabel(0, "prefill", (Span("r", 0, 2, 0),)), (0, 1)), step)


def test_replacement_by_inputs_that_were_not_captured(engine: Any, tmp_path: Path) -> None:
    config = {"modules": ["layers.1"], "dir": str(tmp_path / "c"), "tensors": "outputs"}
    ask(engine("llama", **options(tensor_capture=config)), prompts_of(5))
    fed = {"modules": ["layers.1"], "dir": str(tmp_path / "c")}
    with pytest.raises(ConfigError, match=r"tensor_replacement\.at: got 'input'.*Capture both"):
        engine("llama", **options(tensor_replacement={**fed, "at": "input"}))
    with pytest.raises(ConfigError, match=r"tensor_replacement\.modules: got 'layers\.2'.*Did you mean 'layers\.1'"):
        engine("llama", **options(tensor_replacement={**fed, "modules": ["layers.2"]}))


@pytest.mark.parametrize("at", ["input", "output"])
def test_replacement_on_both_sides_changes_nothing_in_an_equal_run(engine: Any, captured: Any, at: str) -> None:
    folder, texts = captured
    llm = engine("gemma3", **options(tensor_replacement={"modules": ["layers.0"], "dir": str(folder.path), "at": at}))
    assert ask(llm, prompts_of(*LENGTHS)) == [ids[-6:] for ids in texts]
    (watcher,) = llm.llm_engine.model_executor.driver_worker.worker.runner.watch.watchers
    assert watcher.counts == {"layers.0": len(folder.steps)}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"modules": ["layers.0.atn"]}, "Did you mean 'layers.0.attn'"),
        ({"modules": ["layers.0.attn.o"]}, "expected modules that are called"),
        ({"modules": ["layers.{0-"]}, "a module name with"),
    ],
)
def test_patterns_that_capture_nothing_are_refused(
    engine: Any, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine("llama", **options(tensor_capture={"dir": str(tmp_path / "c"), **config}))


def test_a_folder_of_an_earlier_run_is_refused(engine: Any, captured: Any) -> None:
    folder, _ = captured
    with pytest.raises(ConfigError, match="a new or an empty folder"):
        engine("llama", **options(tensor_capture={"modules": ["head"], "dir": str(folder.path)}))
