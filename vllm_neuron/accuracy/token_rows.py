"""Logits of one prompt, taken in by chunks of positions, to one row a position."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from vllm_neuron.accuracy.results import Candidate, Phase, TokenRow
from vllm_neuron.accuracy.stats import Tally, ratio, ulp
from vllm_neuron.accuracy.stats import finite as all_finite
from vllm_neuron.accuracy.token_limits import TokenLimits

SCATTERED_ROWS = 64
NOT_FINITE = "fail: NaN or infinity in the logits"


@dataclass(frozen=True)
class _Errors:
    """One position's error sizes, see :class:`vllm_neuron.accuracy.stats.RowErrors`."""

    target: float
    baseline: float
    target_max: float
    baseline_max: float
    floor: float
    floor_max: float

    @property
    def log_ratio(self) -> float:
        """Logarithm of target over baseline; neither counts for less than the floor."""
        return math.log(max(self.target, self.floor) / max(self.baseline, self.floor))


@dataclass(frozen=True)
class Stretch:
    """Consecutive positions of one phase whose error is larger than chance explains.

    Attributes:
        start, stop: positions; ``stop`` is behind the last.
        phase: theirs. ratio: mean ratio of their errors to the baseline's.
    """

    start: int
    stop: int
    phase: Phase
    ratio: float


class TokenRows:
    """Gathers what level 2 says of one prompt.

    Args:
        ids: the prompt's tokens. steps: how many of the last ones are decoded.
        dtype: that the target computes in.
        exact: judge by ``limits.exact_rtol`` and not by the baseline's error.
        limits: see :class:`TokenLimits`.
        text: token id -> its text, for the tables.

    Attributes:
        tally: all logits so far.
        scatter: (expected, target, baseline) of some of them.
        in_padding: positions whose highest logit lies behind the reference's vocabulary.
    """

    def __init__(
        self,
        ids: Sequence[int],
        steps: int,
        *,
        dtype: torch.dtype,
        exact: bool,
        limits: TokenLimits,
        text: Callable[[int], str] | None = None,
    ) -> None:
        self.ids, self.prefilled, self.limits = list(ids), len(ids) - steps, limits
        self.exact, self.text = exact, text or (lambda token: "")
        self.tally = Tally(dtype, limits.exact_rtol if exact else None)
        self.scatter: list[tuple[float, float, float]] = []
        self.in_padding = 0
        self._rows: list[TokenRow] = []
        self._errors: list[_Errors | None] = []
        self._stride = -(-len(self.ids) // SCATTERED_ROWS)

    def phase(self, position: int) -> Phase:
        """How the target came to a position."""
        return "prefill" if position < self.prefilled else "decode"

    def add(self, position: int, target_RV: Tensor, expected_RV: Tensor, baseline_RV: Tensor | None) -> None:
        """Take in the logits of some positions.

        Args:
            position: of the first row.
            target_RV: [R, V or more]; columns beyond the reference's are left out.
            expected_RV, baseline_RV: [R, V].
        """
        width = expected_RV.shape[1]
        if target_RV.shape[1] > width:
            self.in_padding += int((target_RV[:, width:].amax(1) > target_RV[:, :width].amax(1)).sum())
        t, x = target_RV[:, :width].float(), expected_RV.float()
        b = x if baseline_RV is None else baseline_RV.float()
        finite = torch.ones(len(t), dtype=torch.bool) if all_finite(t) else torch.isfinite(t).all(1)
        if not finite.all() and self.tally.bad is None:
            row = int((~finite).int().argmax())
            self.tally.bad = (position + row, int((~torch.isfinite(t[row])).int().argmax()))
        kept = finite.nonzero().flatten().tolist()
        if len(kept) < len(t):
            t, x, b = t[finite], x[finite], b[finite]
        made = dict(zip(kept, self._compare([position + k for k in kept], t, x, b), strict=False)) if kept else {}
        for row in range(len(finite)):
            found = made.get(row)
            self._rows.append(found[0] if found else self._blank(position + row, NOT_FINITE))
            self._errors.append(found[1] if found else None)

    def add_top(self, position: int, top: Mapping[int, float], expected_V: Tensor, baseline_V: Tensor | None) -> None:
        """Take in one position of which the target shows its highest log-probabilities alone.

        KL is that of the shown tokens and all others as one, which is no larger than that of the whole distribution.
        """
        shown = sorted(top, key=lambda token: -top[token])
        index = torch.tensor(shown)
        g_V = expected_V.double().log_softmax(-1)
        b_V = g_V if baseline_V is None else baseline_V.double().log_softmax(-1)
        t, x, b = torch.tensor([top[token] for token in shown], dtype=torch.float64), g_V[index], b_V[index]
        if not torch.isfinite(t).all():
            self.tally.bad = self.tally.bad or (position, int((~torch.isfinite(t)).int().argmax()))
            self._rows.append(self._blank(position, NOT_FINITE))
            self._errors.append(None)
            return
        errors = self._measure(t[None], x[None], b[None], [position])
        row = self._blank(position, "pass")
        best, k = int(g_V.argmax()), self.limits.top_k
        expected = g_V.topk(min(k, len(g_V)))
        gold_rank = shown.index(row.gold) if row.gold in shown[:k] else None
        self._rows.append(
            replace(
                row,
                expected_top=self._candidates(expected.indices, expected.values),
                target_top=self._candidates(index[:k], t[:k]),
                baseline_top=() if baseline_V is None else self._candidates(*reversed(b_V.topk(min(k, len(b_V))))),
                top1=best == shown[0],
                gap_ulps=0.0 if best == shown[0] else self._gap(expected_V, best, shown[0]),
                overlap=len(set(expected.indices.tolist()) & set(shown[:k])) / len(expected.indices),
                kl=_coarse_kl(x, t),
                baseline_kl=_coarse_kl(x, b),
                gold_rank=gold_rank,
                expected_rank=None if row.gold is None else int((g_V > g_V[row.gold]).sum()),
            )
        )
        self._errors.append(errors[0] if errors else None)

    def _blank(self, position: int, verdict: str) -> TokenRow:
        gold = self.ids[position + 1] if position + 1 < len(self.ids) else None
        return TokenRow(
            verdict=verdict, position=position, phase=self.phase(position), token=self.ids[position], gold=gold
        )

    def _measure(self, t: Tensor, x: Tensor, b: Tensor, positions: Sequence[int]) -> list[_Errors]:
        rows = self.tally.add(t, x, x if self.exact else b, (positions[0],))
        if rows is None:
            return []
        base, base_max = rows.baseline, rows.baseline_max
        if self.exact and b is not x:
            base, base_max = (b - x).square().mean(1).sqrt(), (b - x).abs().amax(1)
        columns = (rows.target, base, rows.target_max, base_max, rows.floor, rows.floor_max)
        return [_Errors(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]

    def _compare(self, positions: Sequence[int], t: Tensor, x: Tensor, b: Tensor) -> list[tuple[TokenRow, _Errors]]:
        errors = self._measure(t, x, b, positions)
        if not errors:
            return []
        k = min(self.limits.top_k, x.shape[1])
        tops = [each.topk(k) for each in (x, t, b)]
        kl, baseline_kl = _kl(x, (t, b))
        ranks = self._ranks(positions, t), self._ranks(positions, x)
        found = []
        for i, position in enumerate(positions):
            best, picked = int(tops[0].indices[i, 0]), int(tops[1].indices[i, 0])
            row = self._blank(position, "pass")
            same = set(tops[0].indices[i].tolist()) & set(tops[1].indices[i].tolist())
            row = replace(
                row,
                expected_top=self._candidates(tops[0].indices[i], tops[0].values[i]),
                target_top=self._candidates(tops[1].indices[i], tops[1].values[i]),
                baseline_top=() if b is x else self._candidates(tops[2].indices[i], tops[2].values[i]),
                top1=best == picked,
                gap_ulps=0.0 if best == picked else self._gap(x[i], best, picked),
                overlap=len(same) / k,
                kl=float(kl[i]),
                baseline_kl=float(baseline_kl[i]),
                gold_rank=None if row.gold is None else ranks[0][i],
                expected_rank=None if row.gold is None else ranks[1][i],
            )
            found.append((row, errors[i]))
            if position % self._stride == 0:
                columns = [best, *torch.linspace(0, x.shape[1] - 1, 3).long().tolist()]
                self.scatter += [(float(x[i, c]), float(t[i, c]), float(b[i, c])) for c in columns]
        return found

    def _ranks(self, positions: Sequence[int], x_RV: Tensor) -> list[int]:
        """How many logits are higher than that of the id that follows each position; nonsense for the last id."""
        following = torch.tensor([self.ids[min(p + 1, len(self.ids) - 1)] for p in positions])[:, None]
        ranks: list[int] = (x_RV > x_RV.gather(1, following)).sum(1).tolist()
        return ranks

    def _candidates(self, ids: Tensor, logits: Tensor) -> tuple[Candidate, ...]:
        pairs = zip(ids.tolist(), logits.tolist(), strict=True)
        return tuple(Candidate(token, logit, self.text(token)) for token, logit in pairs)

    def _gap(self, x_V: Tensor, best: int, picked: int) -> float:
        """Distance of two gold logits in units in the last place at the size of the higher one."""
        return float((x_V[best] - x_V[picked]).double() / ulp(x_V[best], self.tally.dtype).double())

    def finish(self) -> tuple[TokenRow, ...]:
        """The rows with their verdicts."""
        known = [e for e in self._errors if e is not None]
        usual = _Usual.of(known)
        return tuple(
            row if errors is None else self._judged(row, errors, usual)
            for row, errors in zip(self._rows, self._errors, strict=True)
        )

    def _judged(self, row: TokenRow, e: _Errors, usual: _Usual) -> TokenRow:
        floor, floor_max = e.floor, e.floor_max
        base = floor if self.exact else max(e.baseline, usual.rms, floor)
        base_max = floor_max if self.exact else max(e.baseline_max, usual.largest, floor_max)
        row = replace(
            row,
            rms=e.target,
            baseline_rms=e.baseline,
            linf=e.target_max,
            baseline_linf=e.baseline_max,
            rms_ratio=ratio(e.target, base),
            linf_ratio=ratio(e.target_max, base_max),
        )
        if not row.top1:
            row = self._flipped(row, min(max(base, e.target), 2 * base))
            if not row.near_tie:
                return row
        for what, found in (("error", row.rms_ratio), ("worst logit", row.linf_ratio)):
            if found > self.limits.row_ratio:
                return replace(
                    row, verdict=f"fail: {what} {found:.3g} times what is usual, limit {self.limits.row_ratio:g}"
                )
        return row

    def _flipped(self, row: TokenRow, noise: float) -> TokenRow:
        """Another token is the highest: a tie, or not."""
        best, picked = row.expected_top[0], row.target_top[0]
        named = next((c.logit for c in row.expected_top if c.id == picked.id), None)
        unit = float(ulp(torch.tensor(best.logit), self.tally.dtype))
        gap = row.gap_ulps * unit if named is None else best.logit - named
        if row.gap_ulps <= self.limits.near_tie_ulps:
            return replace(row, near_tie=True, verdict=f"pass: near tie, {row.gap_ulps:.2g} ulps apart")
        if gap <= self.limits.tie_deviations * math.sqrt(2) * noise:
            return replace(row, near_tie=True, verdict=f"pass: near tie, {gap:.3g} apart at an error of {noise:.3g}")
        mine, other = (f"{c.id} {c.text!r}" if c.text else str(c.id) for c in (picked, best))
        return replace(row, verdict=f"fail: token {mine} for {other}, {row.gap_ulps:.3g} ulps apart")

    def log_ratios(self) -> list[float]:
        """Of all compared positions: logarithm of the target's error over the baseline's."""
        return [] if self.exact else [e.log_ratio for e in self._errors if e is not None]

    def stretches(self) -> list[Stretch]:
        """Stretches with more error than chance explains, in order."""
        if self.exact:
            return []
        pairs = [(row, e) for row, e in zip(self._rows, self._errors, strict=True) if e is not None]
        found = []
        for phase, group in groupby(pairs, key=lambda pair: pair[0].phase):
            members = list(group)
            for start in range(0, len(members), self.limits.segment):
                piece = members[start : start + self.limits.segment]
                excess = self.limits.excess([e.log_ratio for _, e in piece])
                if excess is not None:
                    found.append(Stretch(piece[0][0].position, piece[-1][0].position + 1, phase, excess))
        return found


@dataclass(frozen=True)
class _Usual:
    """The baseline's median error over a prompt."""

    rms: float
    largest: float

    @classmethod
    def of(cls, errors: Sequence[_Errors]) -> _Usual:
        if not errors:
            return cls(0.0, 0.0)
        rms, largest = (
            torch.tensor([getattr(e, name) for e in errors], dtype=torch.float64).median()
            for name in ("baseline", "baseline_max")
        )
        return cls(float(rms), float(largest))


def _kl(x_RV: Tensor, others: Sequence[Tensor]) -> list[Tensor]:
    """KL(expected || each of the others) in nats, [R]."""
    lse_x = x_RV.logsumexp(1)
    p_RV = (x_RV - lse_x[:, None]).exp_()
    found = []
    for t_RV in others:
        if t_RV is x_RV:
            found.append(torch.zeros(len(x_RV)))
            continue
        moved = torch.linalg.vecdot(p_RV, x_RV - t_RV)
        found.append((moved - lse_x + t_RV.logsumexp(1)).clamp(min=0))
    return found


def _coarse_kl(x_K: Tensor, t_K: Tensor) -> float:
    """KL in nats of log-probabilities of some tokens, all others being one."""
    rest_x, rest_t = (max(1e-12, 1.0 - float(each.exp().sum())) for each in (x_K, t_K))
    kl = float((x_K.exp() * (x_K - t_K)).sum()) + rest_x * math.log(rest_x / rest_t)
    return max(0.0, kl)
