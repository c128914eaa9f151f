"""Snapshots of steps taken in real engines, and their replay outside of them: the same bits, or a named refusal."""

from __future__ import annotations

import json
import logging
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

from tests.vllm_neuron.vllm.conftest import prompts_of
from vllm_neuron.errors import ConfigError
from vllm_neuron.snapshot.inputs import rank_folders, read_snapshot
from vllm_neuron.snapshot.replay import replay
from vllm_neuron.step import Phase
from vllm_neuron.vllm.worker.snapshotting import same_request

LENGTHS = (1, 7, 33, 100)


def run(llm: Any, lengths: tuple[int, ...] = LENGTHS, tokens: int = 6) -> None:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, prompt_logprobs=0)
    llm.generate([{"prompt_token_ids": p} for p in prompts_of(*lengths)], params, use_tqdm=False)


def options(**rules: Any) -> dict[str, Any]:
    return {"max_num_batched_tokens": 24, "additional_config": {"neuron_config": {"input_snapshot": rules}}}


def taken(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture(scope="module", params=["gemma3-float32", "gemma3-bfloat16", "llama-bfloat16"])
def snapshots(request: pytest.FixtureRequest, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All steps of a batch with packs, extends and decodes past the window."""
    name, dtype = request.param.split("-")
    folder = tmp_path_factory.mktemp("snapshots") / "run"
    llm = engine(name, dtype=dtype, **options(dir=str(folder), steps=["0-99"], max_captures=100))
    run(llm)
    return folder


def test_every_step_replays_bit_by_bit(snapshots: Path) -> None:
    phases = set()
    for name in taken(snapshots):
        found = replay(snapshots / name)
        assert found.bitwise and not found.notes, found
        assert {each.name.split(",")[0] for each in found.tensors} == {"hidden", "logits"}
        phases.add(found.phase)
    assert phases == {"prefill", "extend", "decode"}


def test_what_a_view_declares_of_its_mask_is_kept_and_holds(snapshots: Path) -> None:
    declared = set()
    for name in taken(snapshots):
        snapshot = read_snapshot(rank_folders(snapshots / name)[0])
        for view in snapshot.step.views:
            mask, phase = view.mask_BQS[0], snapshot.step.phase
            assert view.causal == (phase is Phase.PREFILL)
            if view.causal:
                assert not mask.triu(1).any()
            if view.window is not None:
                assert not mask.tril(-view.window if view.causal else -1).any()
                declared.add(phase)
    windowed = snapshot.meta["architecture"].startswith("Gemma3")
    assert declared == ({Phase.PREFILL, Phase.EXTEND} if windowed else set())


def test_a_changed_page_is_seen(snapshots: Path, tmp_path: Path) -> None:
    """What a decode reads of the cache counts: the replay is no test that can't fail."""
    name = taken(snapshots)[-1]
    shutil.copytree(snapshots / name, tmp_path / name)
    path = tmp_path / name / "rank0" / "kv.safetensors"
    pages = load_file(path)
    layer = "layers.0.self_attn"
    pages[layer][1:] *= 1.5
    save_file(pages, path)
    found = replay(tmp_path / name)
    hidden = found.tensors[0]
    assert not found.bitwise and hidden.worst > 0 and hidden.at is not None
    assert hidden.replayed != hidden.recorded


@pytest.fixture(scope="module")
def one(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first step of a run."""
    folder = tmp_path_factory.mktemp("one") / "run"
    run(engine("llama", **options(dir=str(folder), steps=[0])), (20,))
    assert taken(folder) == ["step-000000"]
    return folder / "step-000000"


def test_snapshots_of_an_earlier_run_are_refused_before_anything_is_served(engine: Any, one: Path) -> None:
    with pytest.raises(ConfigError, match="It has step-000000 of an earlier run"):
        engine("llama", **options(dir=str(one.parent), steps=[5]))


def test_rules_are_ored_and_limited(engine: Any, tmp_path: Path) -> None:
    rules = {"steps": [1], "requests": ["blue"], "tokens": [319], "max_captures": 3}
    llm = engine("llama", **options(dir=str(tmp_path / "s"), **rules))
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    core = llm.llm_engine
    for request, ids in (("red", [5, 6, 7]), ("green", [5, 319]), ("blue", [9] * 30)):
        core.add_request(request, {"prompt_token_ids": ids}, params)
        while core.has_unfinished_requests():
            core.step()
    # red: steps 0 to 2; green: 3 to 5, the first with the token; blue: from 6 on, up to the limit.
    assert taken(tmp_path / "s") == ["step-000001", "step-000003", "step-000006"]


@pytest.mark.parametrize(
    ("internal", "given", "same"),
    [
        ("7-0a1b2c3d", "7", True),
        ("cmpl-mine-0-0a1b2c3d", "mine", True),
        ("chatcmpl-mine-0a1b2c3d", "mine", True),
        ("chatcmpl-mine-0a1b2c3d", "chatcmpl-mine", True),
        ("yours-0a1b2c3d", "you", False),
        ("mine2-0a1b2c3d", "mine", False),
    ],
)
def test_requests_are_known_by_the_clients_id(internal: str, given: str, same: bool) -> None:
    assert same_request(given, internal) is same


def test_pages_are_those_of_the_step_alone(one: Path) -> None:
    snapshot = read_snapshot(rank_folders(one)[0])
    assert {tuple(pages.shape[:2]) for pages in snapshot.pages.values()} == {(2, 32)}, "null block and one of 20 tokens"
    assert snapshot.label.tokens == 20 and snapshot.step.tokens == 24


def test_other_weights_are_refused(one: Path, checkpoint: Any, tmp_path: Path) -> None:
    other = tmp_path / "model"
    shutil.copytree(checkpoint("llama").folder, other)
    assert replay(one, model=other).bitwise
    path = other / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] += 1e-3
    save_file(weights, path)
    with pytest.raises(ConfigError, match=r"weights: .*is not what the snapshot was taken on"):
        replay(one, model=other)


def edited(one: Path, to: Path, **changes: Any) -> Path:
    shutil.copytree(one, to)
    path = to / "rank0" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return to


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": {"torch": "1.0", "neuron-onboard": "0.1.0"}}, "versions: torch"),
        ({"schema": 2}, "a snapshot of schema 1"),
        ({"tensor_parallel_size": 2}, "all 2 ranks"),
        ({"neuron_config": {"compile_layers": True}}, "compile_layers"),
        ({"kernel_target": "nki"}, "kernel_target"),
        ({"model": "/nowhere"}, "--model"),
        ({"masks": [7]}, "a whole snapshot"),
        ({"architecture": "NoSuchModel"}, "architectures"),
    ],
)
def test_what_can_not_be_compared_is_refused_by_name(
    one: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    from vllm_neuron.errors import NeuronError

    with pytest.raises(NeuronError, match=message):
        replay(edited(one, tmp_path / "s", **changes))


def test_links_out_of_the_folder_are_not_followed(one: Path, tmp_path: Path) -> None:
    copy = tmp_path / "s"
    shutil.copytree(one, copy)
    inputs = copy / "rank0" / "step.safetensors"
    inputs.unlink()
    inputs.symlink_to(one / "rank0" / "step.safetensors")
    with pytest.raises(ConfigError, match="Links out of the folder"):
        replay(copy)
    shutil.rmtree(copy)
    copy.mkdir()
    (copy / "rank0").symlink_to(one / "rank0")
    with pytest.raises(ConfigError, match="Links out of the folder"):
        replay(copy)


def test_a_step_that_never_ended_has_its_inputs(engine: Any, tmp_path: Path) -> None:
    llm = engine("llama", **options(dir=str(tmp_path / "s"), steps=[0]))
    runner = llm.llm_engine.model_executor.driver_worker.worker.runner

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    hook = runner.model.layers[0].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        run(llm, (9,))
    hook.remove()
    found = replay(tmp_path / "s" / "step-000000")
    assert found.tokens == 9 and not found.tensors and not found.bitwise
    assert "never ended" in found.notes[0]


def test_a_full_disk_stops_snapshots_and_not_the_engine(
    engine: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = engine("llama", **options(dir=str(tmp_path / "s"), steps=["0-9"], max_captures=9))
    logger, limit = logging.getLogger("vllm_neuron"), resource.getrlimit(resource.RLIMIT_FSIZE)
    logger.addHandler(caplog.handler)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limit[1]))
    try:
        run(llm, (9,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        logger.removeHandler(caplog.handler)
    said = [r.getMessage() for r in caplog.records if "input_snapshot: stops" in r.getMessage()]
    assert len(said) == 1 and "File too large" in said[0]
    assert not [path for path in (tmp_path / "s").rglob("*") if path.is_file()]


def test_the_parent_folder_names_its_steps(one: Path) -> None:
    with pytest.raises(ConfigError, match="It has step-000000: name one of them"):
        replay(one.parent)


def test_outputs_are_those_of_tokens(one: Path) -> None:
    snapshot = read_snapshot(one / "rank0")
    assert snapshot.hidden_TH is not None and snapshot.hidden_TH.shape == (20, 64)
    heads = snapshot.heads
    assert [len(head.tokens) for head in heads] == [8, 8, 3, 1] and heads[-1].tokens == (19,)
    assert all(torch.isfinite(head.logits_RV).all() for head in heads)
