"""Level 2 on made-up sources: noise as BF16 makes it passes, faults do not, and what can't be compared is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.vllm_neuron.accuracy.synthetic import VOCAB, Case, Fixed
from vllm_neuron.accuracy.logit_validation import logit_validation, validate_prompt
from vllm_neuron.accuracy.prompts import Prompt
from vllm_neuron.accuracy.reach import Reach
from vllm_neuron.accuracy.results import NEAR_TIES, Place, PromptResult, Report
from vllm_neuron.accuracy.sources import LayerKV, LogitsSource, Scored
from vllm_neuron.errors import UnsupportedError


def validate(case: Case) -> PromptResult:
    target, expected, baseline = case.sources()
    return validate_prompt(target, case.prompt, expected=expected, baseline=baseline)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([2, 5, 13, 40, 120]))
def test_bf16_noise_passes(seed: int, length: int) -> None:
    result = validate(Case.make(seed, length, kv=True))
    assert result.passed, result.verdict
    assert len(result.rows) == length and result.diverges_at is None and len(result.layers) == 3
    assert [row.phase for row in result.rows].count("decode") == length // 4


def test_no_alarm_in_hundreds_of_prompts() -> None:
    """The limits leave room for chance: 200 prompts of 24 positions, 4,800 in all."""
    failed = [seed for seed in range(100, 300) if not validate(Case.make(seed, 24)).passed]
    assert failed == []


def mine(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Case], Case]:
    return lambda case: case.with_mine(change(case.mine.float(), case.gold).bfloat16())


def _one_outlier(t: Tensor, x: Tensor) -> Tensor:
    t[33, 7] += 60 * (t - x).square().mean().sqrt()
    return t


FAULTS: dict[str, Callable[[Case], Case]] = {
    "three times the noise": lambda case: replace(case, mine=Case.make(7, len(case.gold), noise=3.0).mine),
    "an offset": mine(lambda t, x: t + 3 * (t - x).square().mean().sqrt()),
    "a scale": mine(lambda t, x: t * 1.08),
    "one outlier": mine(_one_outlier),
    "one position late": mine(lambda t, x: t.roll(1, 0)),
    "one position wrong": mine(lambda t, x: torch.cat((t[:50], t[50:51].roll(3, 1), t[51:]))),
    "two tokens swapped": mine(lambda t, x: t[:, [1, 0, *range(2, VOCAB)]]),
    "softened": mine(lambda t, x: 30 * torch.tanh(t / 30)),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_faults_fail(fault: str) -> None:
    for seed in (7,) if fault == "three times the noise" else range(5):
        result = validate(FAULTS[fault](Case.make(seed, 120)))
        assert result.outcome == "fail", (seed, result.verdict)


def test_a_fault_that_begins_half_way_is_not_diluted() -> None:
    """From position 96 on the noise is 2.5 times as large: over the whole prompt it is 1.4 times."""
    case, noisy = Case.make(3, 128), Case.make(3, 128, noise=2.5)
    result = validate(replace(case, mine=torch.cat((case.mine[:96], noisy.mine[96:]))))
    assert result.verdict.startswith("fail: from position 96 to 127 (decode) the error is 2.")
    assert result.diverges_at == 96


def test_the_first_diverging_position_is_named() -> None:
    case = Case.make(4)
    wrong = case.mine.clone()
    wrong[[30, 61]] = wrong[[2, 3]]
    result = validate(case.with_mine(wrong))
    assert result.diverges_at == 30 and result.verdict.startswith("fail: 2 of 80 positions, first 30 (prefill): token ")
    assert [row.position for row in result.rows if not row.passed] == [30, 61]


def tie(gold_gap: float) -> PromptResult:
    """The two highest logits are 40.00 and 40 - gap in the gold; the target swaps them."""
    case = Case.make(5, 12)
    case.gold[4, 10], case.gold[4, 11] = 40.0, 40.0 - gold_gap
    case.base[4], swapped = case.gold[4].bfloat16(), case.gold.bfloat16()
    swapped[4, 10], swapped[4, 11] = 40.0 - gold_gap, 40.0
    return validate(replace(case, base=case.gold.bfloat16(), mine=swapped))


def test_H3_near_ties_are_counted_apart() -> None:
    result = tie(0.2)
    assert result.verdict == NEAR_TIES and result.near_ties == 1
    assert result.rows[4].gap_ulps == pytest.approx(0.8, rel=1e-4) and "near tie" in result.rows[4].verdict
    assert any(
        note.startswith("1 of 12 positions are near ties, counted apart: 1 within 2 ulps") for note in result.notes
    )
    assert result.rows[4].expected_top[0].id == 10 and result.rows[4].target_top[0].id == 11


def test_H3_a_gap_of_one_is_no_tie() -> None:
    result = tie(1.0)
    assert result.outcome == "fail" and result.diverges_at == 4
    assert "token 11 for 10, 4 ulps apart" in result.verdict


def test_H1_other_ids_are_refused_and_no_logit_is_judged() -> None:
    case = Case.make(6)
    target, expected, baseline = case.sources()
    for seen, at in ((case.prompt.ids[1:], 0), ((case.prompt.ids[0], *case.prompt.ids), 1)):
        target.scored = replace(target.scored, seen_ids=seen)
        result = validate_prompt(target, case.prompt, expected=expected, baseline=baseline)
        assert result.verdict == f"refused: prompt ids differ at {at}"
        assert result.rows == () and result.logits is None and not expected.asked
        assert sum("ran [" in note for note in result.notes) == 2


def test_H5_padding_is_left_out_and_said() -> None:
    case = Case.make(8)
    target, expected, baseline = case.sources()
    junk = torch.full((80, 12), 1e4)
    junk[0, 0] = float("nan")
    target.scored = replace(target.scored, logits_TV=torch.cat((case.mine.float(), junk), 1))
    target.vocab_size = VOCAB + 12
    result = validate_prompt(target, case.prompt, expected=expected, baseline=baseline)
    assert result.passed
    assert f"compared on {VOCAB} of {VOCAB + 12} logits: the target's last 12 are padding" in result.notes
    assert any("highest logit lies in the padding" in note for note in result.notes)
    target.vocab_size = VOCAB - 1
    narrow = validate_prompt(target, case.prompt, expected=expected, baseline=baseline)
    assert narrow.verdict == f"refused: the target has a vocabulary of {VOCAB - 1}, the reference of {VOCAB}"


def test_H7_a_set_of_short_prompts_says_what_it_does_not_cover() -> None:
    case = Case.make(9, 10)
    target, expected, baseline = case.sources()
    level = logit_validation(target, [case.prompt], expected=expected, baseline=baseline, reach=Reach((64,)))
    assert level.passed and level.coverage == ("decode",)
    assert level.not_covered == ("window", "position > 256", "bucket edge")
    assert "window, position > 256, bucket edge not covered" in level.notes


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_never_pass(value: float) -> None:
    case = Case.make(10)
    wrong = case.mine.clone()
    wrong[70, 3] = value
    result = validate(case.with_mine(wrong))
    assert result.verdict.startswith("fail: 1 of 80 positions, first 70 (decode): NaN or infinity in the logits")
    assert result.logits is not None and result.logits.verdict == "fail: NaN or infinity at [70, 3]"
    gold = case.gold.clone()
    gold[70, 3] = value
    for mine in (case.mine, wrong):
        result = validate(replace(case, gold=gold, mine=mine))
        if mine is case.mine:
            assert result.verdict.startswith("refused: the reference gives NaN or infinity") and result.rows == ()
        assert not result.passed


def test_prompts_that_are_none() -> None:
    target, expected, baseline = Case.make(11).sources()
    for ids, steps, words in (((), 0, "empty"), ((1, VOCAB), 0, "outside the vocabulary"), ((1,), 1, "prefilled")):
        result = validate_prompt(target, Prompt("p", ids, steps), expected=expected, baseline=baseline)
        assert result.outcome == "refused" and words in result.verdict
    assert not target.asked
    assert logit_validation(target, [], expected=expected, baseline=baseline).verdict == "refused: there are no prompts"


def test_only_prompts_that_can_run_are_prepared() -> None:
    case = Case.make(11)
    target, expected, baseline = case.sources()
    prepared: list[list[tuple[int, ...]]] = []
    expected.prepare = prepared.append  # type: ignore[attr-defined]
    prompts = [case.prompt, Prompt("outside", (1, VOCAB)), Prompt("empty", ())]
    level = logit_validation(target, prompts, expected=expected, baseline=baseline)
    assert prepared == [[case.prompt.ids]] and [p.outcome for p in level.prompts] == ["pass", "refused", "refused"]
    assert level.verdict.startswith("refused: 2 of 3 prompts, first 'outside': ")


def test_what_chance_lets_pass_is_said() -> None:
    notes = [
        note
        for seed in range(12)
        for note in validate(Case.make(seed, 13, noise=1.4)).notes
        if "chance explains" in note
    ]
    assert notes and "for 13 positions" in notes[0]


def test_unlike_references_are_refused() -> None:
    case = Case.make(12)
    target, expected, baseline = case.sources()
    target.tokenizer_id, expected.tokenizer_id = "a", "b"
    assert "tokenizers differ" in validate_prompt(target, case.prompt, expected=expected, baseline=baseline).verdict
    target.tokenizer_id = None
    assert "no bf16 baseline" in validate_prompt(target, case.prompt, expected=expected).verdict
    expected.dtype = "bfloat16"
    assert "the gold is bfloat16" in validate_prompt(target, case.prompt, expected=expected, baseline=baseline).verdict


def test_a_float32_target_is_held_to_its_own_errors() -> None:
    """Needs no baseline, and finds what BF16 would hide: a tenth of bf16's noise."""
    case = Case.make(13)
    target, expected, baseline = case.sources()
    target.dtype = "float32"
    target.scored = replace(target.scored, logits_TV=case.gold * (1 + 1e-6 * torch.randn_like(case.gold)))
    good = validate_prompt(target, case.prompt, expected=expected)
    assert good.verdict == "pass: within 1e-04 of the gold"
    target.scored = replace(target.scored, logits_TV=case.gold + 0.1 * (case.mine.float() - case.gold))
    hidden = validate_prompt(target, case.prompt, expected=expected, baseline=baseline)
    assert hidden.outcome == "fail"
    target.dtype = "bfloat16"
    assert validate_prompt(target, case.prompt, expected=expected, baseline=baseline).passed


@pytest.mark.parametrize("part", [0, 1])
def test_a_wrong_cache_fails_though_the_logits_are_right(part: int) -> None:
    case = Case.make(14, kv=True)
    assert case.kv is not None
    layers = list(case.kv[2])
    keys, values = layers[1].keys_SKD.clone(), layers[1].values_SKD.clone()
    (keys, values)[part][17] = (keys, values)[part][16]
    layers[1] = LayerKV(1, keys, values)
    result = validate(replace(case, kv=(*case.kv[:2], tuple(layers))))
    assert result.verdict.startswith(f"fail: KV cache of layer 1: {'values' if part else 'keys'}: ")
    assert [layer.outcome for layer in result.layers] == ["pass", "fail", "pass"]
    errors = result.layers[1].errors
    assert max(range(len(errors)), key=errors.__getitem__) == 17


def test_the_cache_of_a_window_is_compared_where_it_is_kept() -> None:
    case = Case.make(15, kv=True)
    assert case.kv is not None
    cut = tuple(LayerKV(e.layer, e.keys_SKD[60:], e.values_SKD[60:], start=60) for e in case.kv[2][:2])
    result = validate(replace(case, kv=(*case.kv[:2], cut)))
    assert result.passed and [(e.start, len(e.errors)) for e in result.layers] == [(60, 20), (60, 20)]
    assert "KV cache of layer 2: the target keeps none" in result.notes
    wide = tuple(LayerKV(e.layer, e.keys_SKD.repeat(1, 2, 1), e.values_SKD) for e in case.kv[2])
    odd = validate(replace(case, kv=(*case.kv[:2], wide)))
    assert odd.layers[0].verdict.startswith("not run: the target keeps keys [80, 4, 8]")


def top_source(case: Case, k: int = 20, *, rows: int | None = None) -> Fixed:
    logs = case.mine.double().log_softmax(-1)[:rows]
    top = tuple({int(i): float(v) for v, i in zip(*row.topk(k), strict=True)} for row in logs)
    ids = case.prompt.ids[: rows or len(case.prompt.ids)]
    return Fixed(Scored(None, ids, top=top, partial=rows is not None), dtype="unknown")


def test_a_source_of_log_probabilities_is_judged_by_what_it_shows() -> None:
    case = Case.make(16)
    _, expected, baseline = case.sources()
    result = validate_prompt(top_source(case), case.prompt, expected=expected, baseline=baseline)
    assert result.passed and result.verdict.endswith("(top 20 log-probabilities)") and len(result.rows) == 80
    assert all(row.overlap > 0.5 for row in result.rows)
    wrong = case.mine.clone()
    wrong[40] = wrong[3]
    failed = validate_prompt(top_source(case.with_mine(wrong)), case.prompt, expected=expected, baseline=baseline)
    assert failed.outcome == "fail" and failed.diverges_at == 40


def test_what_a_server_gave_before_it_died_is_kept_and_marked() -> None:
    case = Case.make(17)
    _, expected, baseline = case.sources()
    source = top_source(case, rows=30)
    level = logit_validation(source, [case.prompt], expected=expected, baseline=baseline)
    assert level.partial and level.prompts[0].partial and len(level.prompts[0].rows) == 30
    assert "partial: 30 of 80 positions were seen" in level.prompts[0].notes
    assert "bucket edge" in level.not_covered
    source.raises = UnsupportedError("--server", "gone", "an answer")
    dead = logit_validation(source, [case.prompt], expected=expected, baseline=baseline)
    assert dead.outcome == "not run" and dead.partial and "gone" in dead.verdict


def test_rows_have_what_the_tables_show() -> None:
    case = Case.make(18)
    target, expected, baseline = case.sources()
    result = validate_prompt(target, case.prompt, expected=expected, baseline=baseline, text=lambda token: f"<{token}>")
    x, t = case.gold.log_softmax(-1), case.mine.float().log_softmax(-1)
    for row in result.rows[:-1]:
        assert row.token == case.prompt.ids[row.position] and row.gold == case.prompt.ids[row.position + 1]
        p = row.position
        assert row.gold_rank == int((t[p] > t[p, row.gold]).sum())
        assert row.kl == pytest.approx(float((x[p].exp() * (x[p] - t[p])).sum()), rel=0.02, abs=1e-5)
        assert row.expected_top[0].text == f"<{row.expected_top[0].id}>" and len(row.target_top) == 5
        assert row.top1 == (row.expected_top[0].id == row.target_top[0].id)
    assert result.rows[-1].gold is None and result.rows[-1].gold_rank is None
    assert 100 <= len(result.scatter) <= 400


def test_all_prompts_are_pooled_and_the_guilty_module_is_named() -> None:
    good, bad = Case.make(19), Case.make(20)
    bad = bad.with_mine(bad.mine.roll(1, 0))
    cases = {case.prompt.ids: case for case in (good, bad)}

    class Several:
        """The two cases as one source."""

        vocab_size, tokenizer_id, prepared = VOCAB, None, 0

        def __init__(self, side: int, dtype: str) -> None:
            self.side, self.dtype, self.name = side, dtype, str(side)

        def prepare(self, prompts: list[tuple[int, ...]]) -> None:
            self.prepared = len(prompts)

        def score(self, prompt_ids: tuple[int, ...], steps: int) -> Scored:
            return cases[tuple(prompt_ids)].sources()[self.side].scored

    place = Place(layer=3, block="attn", ours="layers.3.attn", theirs="model.layers.3.self_attn", phase="prefill")
    target, expected, baseline = Several(0, "bfloat16"), Several(1, "float32"), Several(2, "bfloat16")
    assert isinstance(target, LogitsSource)
    asked: list[str] = []
    level = logit_validation(
        target,
        [replace(good.prompt, name="good"), replace(bad.prompt, name="bad"), replace(bad.prompt, name="again")],
        expected=expected,
        baseline=baseline,
        locate=lambda result: asked.append(result.name) or place,
    )
    assert asked == ["bad"] and level.place == place and expected.prepared == 3
    assert level.verdict.startswith("fail: 2 of 3 prompts, first 'bad': ")
    assert level.verdict.endswith("at layer 3, attn (prefill)") and level.prompts[2].place is None
    assert level.logits is not None and level.logits.target is not None
    assert level.logits.target.count == 3 * 80 * VOCAB
    report = Report(verdict=level.verdict, model="m", package="p", target="t", reference="r", levels=(level,))
    assert Report.from_json(report.to_json()) == report
