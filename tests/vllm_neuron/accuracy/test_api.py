"""The ladder on tiny models, with transformers itself as the target where no engine is needed."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.support.hf import MODELS
from tests.support.tokenizer import save_tokenizer
from tests.vllm_neuron.accuracy.test_tasks import Source
from vllm_neuron.accuracy.accuracy_debugger import api
from vllm_neuron.accuracy.accuracy_debugger.tasks_level import TasksPlan
from vllm_neuron.accuracy.prompts import Prompt
from vllm_neuron.accuracy.results import EXPLAINED, LevelResult, Report
from vllm_neuron.accuracy.target import PackageTarget
from vllm_neuron.accuracy.tasks.thresholds import TaskThreshold, Thresholds
from vllm_neuron.errors import ConfigError
from vllm_neuron.model.registry import resolve

PROMPTS = (Prompt("one", (1, *range(20, 60)), 4), Prompt("two", (1, *range(90, 110)), 2))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folder, tokenizer, and the package on it."""
    folder = tmp_path_factory.mktemp("tiny")
    MODELS["llama"].save(folder)
    save_tokenizer(folder)
    config = AutoConfig.from_pretrained(folder)
    return (
        folder,
        AutoTokenizer.from_pretrained(folder),
        PackageTarget(resolve(config.architectures[0]), folder, config),
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_NEURON_GOLDEN_CACHE_DIR", str(tmp_path / "goldens"))


def source(folder, **options: Any) -> Source:
    """Transformers in bf16 by its fused attention: another correct implementation."""
    made = Source(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa"), **options
    )
    made.dtype = "bfloat16"
    return made


def run(tiny, made: Source, *, target=None, said: list[str] | None = None, **changes: Any) -> Report:
    folder, tokenizer, package = tiny
    options = replace(api.Options(prompts=PROMPTS, tasks=TasksPlan(limit=6)), **changes)
    say = (lambda what, done, total: said.append(f"{what} {done}/{total}")) if said is not None else lambda *_: None
    return api.run(
        folder, lambda: nullcontext(made), tokenizer=tokenizer, max_length=256, target=target or package,
        package="llama", options=options, say=say,
    )  # fmt: skip


def test_all_levels_of_a_correct_model(tiny):
    said: list[str] = []
    report = run(tiny, source(tiny[0]), said=said)
    assert report.passed, [level.verdict for level in report.levels]
    assert [level.level for level in report.levels] == [3, 2, 1] and report.place is None
    three, two, one = report.levels
    assert {block.dtype for block in three.blocks} == {"float32", "bfloat16"}
    assert {block.block for block in three.blocks} >= {"attn", "mlp", "embed", "norm", "head", "rotary"}
    assert [len(prompt.rows) for prompt in two.prompts] == [41, 21] and two.not_covered
    assert [task.task for task in one.tasks] == ["plain_facts", "perplexity"] and one.tasks[0].items == 6
    assert "Hugging Face, bfloat16" in " ".join(said) and any("modules in" in line for line in said)
    assert Report.from_json(json.loads(report.dumps())) == report
    assert report.peak_gib > 0.1 and report.versions["torch"] == torch.__version__


def test_a_fault_is_named_with_its_place(tiny):
    def swap(model: Any) -> None:
        layer = model.layers[2].mlp
        weight = layer.gate_up.weight.data
        half = weight.shape[0] // 2
        weight.copy_(torch.cat((weight[half:], weight[:half])))

    folder, _, package = tiny
    wrong = source(folder)
    mlp = wrong.model.model.layers[2].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
    report = run(tiny, wrong, target=replace(package, prepare=swap), levels=(3, 2))
    assert report.outcome == "fail" and report.place is not None
    assert (report.place.layer, report.place.block) == (2, "mlp") and "layer 2, mlp" in report.verdict
    assert [level.outcome for level in report.levels] == ["fail", "fail"]
    failed = next(prompt for prompt in report.level(2).prompts if prompt.place is not None)
    assert failed.place == report.place


def test_a_fault_around_the_package_is_not_blamed_on_it(tiny):
    def shifted(logits):
        return torch.cat((logits[:20], logits[20:].roll(3, -1)))

    report = run(tiny, source(tiny[0], change=shifted), levels=(2,))
    assert report.outcome == "fail" and report.place is None
    assert report.level(2).prompts[0].diverges_at == 20
    assert "look at what is around it" in report.notes[0]


def test_H1_a_target_that_runs_other_ids_is_refused(tiny):
    class WithoutFirst(Source):
        def score(self, prompt_ids, steps):
            return replace(super().score(prompt_ids[1:], min(steps, len(prompt_ids) - 2)))

    made = source(tiny[0])
    made.__class__ = WithoutFirst
    report = run(tiny, made, levels=(2,))
    assert report.outcome == "refused" and "prompt ids differ at 0" in report.verdict
    assert report.level(2).prompts[0].rows == () and report.level(2).prompts[0].seen_ids == PROMPTS[0].ids[1:]


def test_a_target_that_ends_half_way_keeps_what_it_gave(tiny):
    report = run(tiny, source(tiny[0], dies_after=1), levels=(2, 1))
    two, one = report.level(2), report.level(1)
    assert report.partial and two.partial and one.partial
    assert two.prompts[0].passed and two.prompts[1].partial and two.prompts[1].outcome == "not run"
    assert [task.outcome for task in one.tasks] == ["not run", "not run"] and "gone" in one.tasks[0].verdict
    assert report.outcome == "not run"


def test_logits_that_are_no_numbers_fail_every_level(tiny):
    report = run(tiny, source(tiny[0], change=lambda x: x * torch.nan), levels=(2, 1))
    assert [level.outcome for level in report.levels] == ["fail", "fail"]
    assert all("NaN" in task.verdict for task in report.level(1).tasks)


def test_level_one_against_bf16(tiny):
    said: list[str] = []
    report = run(tiny, source(tiny[0]), levels=(1,), reference="bf16", said=said)
    assert report.passed and "float32" not in " ".join(said) and "against bf16" in report.reference


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": ()}, "some of 1, 2, 3"),
        ({"levels": (4,)}, "some of 1, 2, 3"),
        ({"levels": (1,), "tasks": TasksPlan(names=(), text=None)}, "a task or a text"),
        (
            {"levels": (1,), "tasks": TasksPlan(thresholds=Thresholds({"arc_easy": TaskThreshold(min_score=0.1)}))},
            "thresholds.tasks.arc_easy",
        ),
    ],
)
def test_refusals_before_anything_is_loaded(tiny, changes, message):
    def never():
        raise AssertionError("the source was opened")

    options = replace(api.Options(prompts=PROMPTS), **changes)
    with pytest.raises(ConfigError, match=message):
        api.run(tiny[0], never, tokenizer=tiny[1], max_length=64, target=tiny[2], options=options)


def test_without_lm_eval_the_extra_is_named(tiny, monkeypatch):
    for name in ("vllm_neuron.accuracy.tasks.harness", "vllm_neuron.accuracy.tasks.model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(ConfigError, match=r"pip install 'neuron-onboard\[accuracy\]'"):
        run(tiny, source(tiny[0]), levels=(1,))
    report = run(tiny, source(tiny[0]), levels=(1,), tasks=TasksPlan(names=()))
    assert [task.task for task in report.level(1).tasks] == ["perplexity"]


def test_level_three_needs_a_package(tiny):
    with pytest.raises(ConfigError, match="does not show its modules"):
        api.run(tiny[0], lambda: nullcontext(source(tiny[0])), tokenizer=tiny[1], max_length=64)


def test_bf16_explains_nothing_in_a_float32_run():
    passed = [LevelResult("pass: within 1e-04 of the gold", 2)]
    assert api._verdict(passed, None, "float32") == "pass: what float32 explains"
    assert api._verdict(passed, None, "bfloat16") == EXPLAINED
