"""The search itself: its order, what is local and what propagated, refusals, and its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.vllm_neuron.accuracy.faults.models import Planted, subject
from tests.vllm_neuron.accuracy.faults.plant import rewritten, setting, wrapped
from vllm_neuron.accuracy.bisect import bisect
from vllm_neuron.accuracy.record import decode
from vllm_neuron.accuracy.results import Place
from vllm_neuron.accuracy.rig import Rig
from vllm_neuron.accuracy.ways import DECODE, PREFILL, TP2
from vllm_neuron.errors import ConfigError

SHORT = [list(range(3, 50)), list(range(200, 214))]


def test_the_first_of_several_faults_is_named_and_later_ones_are_not_taken_for_it() -> None:
    def both(model: Any) -> None:
        setting("layers.2.attn", scale=0.3)(model)
        rewritten("layers.1.mlp.down", lambda w: w.roll(1, 1))(model)

    made = subject("llama")
    found = bisect(Planted(made, both), made.reference, SHORT, dtypes=["float32"], ways=[PREFILL])
    assert found.place is not None and found.place.kind == "local"
    assert (found.place.layer, found.place.block, found.place.part) == (1, "mlp", "down")
    assert found.ways[-1].layer == 1 and found.ways[-1].block == "layers.1"


def test_a_fault_that_only_a_whole_run_shows_is_called_propagated() -> None:
    """The second layer is wrong only after the first one has run in the same pass: no block is wrong by itself."""
    made = subject("llama")

    def plant(model: Any) -> None:
        seen: list[Tensor] = []

        def first(module: Any, forward: Any, x: Tensor, step: Any) -> Tensor:
            seen[:] = [x]
            return forward(x, step)

        def second(module: Any, forward: Any, x: Tensor, step: Any) -> Tensor:
            y = forward(x, step)
            # What the second layer was given when the first one really ran on it.
            carried = seen and torch.equal(model.layers[0].probe, x)
            return y + 0.01 * seen[0] if carried else y

        wrapped("layers.0", first)(model)
        wrapped("layers.1", second)(model)
        model.layers[0].probe = torch.empty(0)
        model.layers[0].register_forward_hook(lambda m, a, out: setattr(m, "probe", out))

    found = bisect(Planted(made, plant), made.reference, SHORT, dtypes=["float32"], ways=[PREFILL])
    assert found.outcome == "fail" and found.place is not None
    assert (found.place.kind, found.place.layer) == ("propagated", 1)
    assert "every block agrees" in found.place.evidence


def test_more_ranks_are_tried_where_two_do_not_divide_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = subject("llama")
    asked: list[int] = []

    def refusing(self: Rig, way: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(way.ranks)
        if way.ranks > 1:
            raise ConfigError("tensor_parallel_size", way.ranks, "1, 5")
        return run(self, way, *args, **kwargs)

    run = Rig.run
    monkeypatch.setattr(Rig, "run", refusing)
    found = bisect(made.target, made.reference, SHORT, dtypes=["float32"], ways=[TP2])
    assert asked[:3] == [2, 3, 4]
    assert found.ways[0].verdict.startswith("not run:") and found.outcome == "pass"
    assert found.verdict.startswith("pass: 0 ways")


def test_places_and_results_survive_json() -> None:
    made = subject("llama")
    plant = setting("layers.1.mlp", act="gelu")
    found = bisect(Planted(made, plant), made.reference, SHORT, dtypes=["float32"], ways=[DECODE])
    read = json.loads(json.dumps(found.to_json()))
    assert decode(Place, read["place"]) == found.place
    assert read["verdict"] == found.verdict == "fail: layer 1, mlp: activation (decode)"
    assert read["tokens"] == sum(map(len, SHORT))


@pytest.mark.parametrize(
    ("prompts", "dtypes", "said"),
    [([], ["float32"], "prompts"), ([[1], []], ["float32"], "prompts"), ([[1]], ["float16"], "float32 or bfloat16")],
)
def test_wrong_inputs_are_refused(prompts: list[list[int]], dtypes: list[str], said: str) -> None:
    made = subject("llama")
    with pytest.raises(ConfigError, match=said):
        bisect(made.target, made.reference, prompts, dtypes=dtypes)
