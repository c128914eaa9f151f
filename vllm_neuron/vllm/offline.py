"""An engine in this process as a source of logits: what is scored is what is served.

Every prompt goes through vLLM's scheduler and the runner's own steps. Prefilled positions get their logits because the
request asks for prompt log-probabilities; the decoded ones are teacher-forced by a logits processor that allows the
given next id only. The logits are taken at the model's head, before any processor.

Engines can be started one after the other in a process; :meth:`EngineSource.close` leaves nothing behind but vLLM's
imports. With tensor parallelism each rank is a process of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from vllm_neuron.accuracy.sources import LayerKV, Scored
from vllm_neuron.errors import ShapeError
from vllm_neuron.snapshot.capture import Record
from vllm_neuron.vllm.rows import LogitsBuffer
from vllm_neuron.vllm.starting import EngineOptions, environment, start
from vllm_neuron.vllm.uninstalled import Uninstalled

if TYPE_CHECKING:
    from vllm_neuron.vllm.worker.tap import RankKV, Tapped

__all__ = ["EngineOptions", "EngineSource", "OnRows"]

# Number of the request, position of the first row, rows [R, V] float32: a piece of the logits as it was computed.
OnRows = Callable[[int, int, Tensor], None]


class EngineSource:
    """A :class:`vllm_neuron.accuracy.sources.LogitsSource` over one engine; a context manager.

    Args:
        model: checkpoint folder or model id.
        options: of the engine.
        kv: read the cache out after each prompt.
        package: a model package that is not installed.
        tokenizer_id: what :attr:`tokenizer_id` answers; the engine itself has no tokenizer.
        scratch: folder for logits that are too many for memory; the system's own by default.

    Raises:
        ConfigError, UnsupportedError, CheckpointError: the engine can't be started so.
    """

    def __init__(
        self,
        model: str | Path,
        options: EngineOptions | None = None,
        *,
        kv: bool = True,
        package: Uninstalled | None = None,
        tokenizer_id: str | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.options = options or EngineOptions()
        self.kv, self.scratch, self.tokenizer_id = kv, scratch, tokenizer_id
        self.dtype = self.options.dtype
        self._listener: Callable[[Tapped], None] | None = None
        self._requests = 0
        with ExitStack() as stack:
            stack.enter_context(environment(self.options))
            if package is not None:
                stack.enter_context(package.importable())
            self._llm = start(model, self.options)
            stack.callback(self._shut_down)
            self._direct = self.options.tensor_parallel_size == 1
            self._llm.collective_rpc("tap_logits", args=(self._hear,) if self._direct else ())
            self._leaving = stack.pop_all()
        self.vocab_size = int(self._llm.model_config.get_vocab_size())
        self.name = f"{package.name if package else 'the served package'} on vLLM, {self._how()}"

    def _how(self) -> str:
        o = self.options
        parts = [o.dtype, f"TP {o.tensor_parallel_size}" if o.tensor_parallel_size > 1 else ""]
        parts.append(f"chunks of {o.max_num_batched_tokens}" if o.max_num_batched_tokens else "")
        parts.append("" if o.kernels == "auto" else f"kernels {o.kernels}")
        return ", ".join(part for part in parts if part)

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """See :class:`~vllm_neuron.accuracy.sources.LogitsSource`.

        Large logits lie in a file that is gone when nobody refers to them any more.

        Raises:
            ShapeError: no ids, ``steps`` out of range, or a prompt that the engine has no room for.
        """
        buffer = LogitsBuffer(len(prompt_ids), self.vocab_size, self.scratch)
        scored = self.stream([(prompt_ids, steps)], lambda _, position, rows: buffer.write(position, rows))[0]
        return replace(scored, logits_TV=buffer.filled())

    def score_together(self, prompts: Sequence[tuple[Sequence[int], int]]) -> list[Scored]:
        """As :meth:`score` for several prompts, side by side as the scheduler batches them."""
        buffers = [LogitsBuffer(len(ids), self.vocab_size, self.scratch) for ids, _ in prompts]
        found = self.stream(prompts, lambda number, position, rows: buffers[number].write(position, rows))
        return [replace(one, logits_TV=buffer.filled()) for one, buffer in zip(found, buffers, strict=True)]

    def stream(self, prompts: Sequence[tuple[Sequence[int], int]], on_rows: OnRows) -> list[Scored]:
        """Score prompts side by side, as the scheduler batches them, without keeping their logits.

        Args:
            prompts: ``(ids, steps)`` of each, as in :meth:`score`.
            on_rows: gets each piece of logits when it is computed, to be read before it returns; the pieces of one
                prompt come in order, without gaps, from ``Scored.first`` on.

        Returns:
            One for each prompt, ``logits_TV`` None; ``partial`` where the engine ended a request early.

        Raises:
            ShapeError: as :meth:`score`.
        """
        checked = [self._checked(ids, steps) for ids, steps in prompts]
        runs = [self._submit(number, *each) for number, each in enumerate(checked)]
        by_id = {run.internal: run for run in runs}
        self._listener = lambda piece: _hand_on(by_id, piece, on_rows)
        engine = self._llm.llm_engine
        try:
            while engine.has_unfinished_requests():
                outputs = engine.step()
                if not self._direct:
                    for piece in self._llm.collective_rpc("take_logits")[0]:
                        self._hear(piece)
                for output in outputs:
                    if output.finished:
                        self._finish(runs[int(output.request_id.rpartition(".")[2])], output)
        finally:
            self._listener = None
            left = [run.internal for run in runs if not run.done]
            if left:
                engine.abort_request(left, internal=True)
        return [run.scored() for run in runs]

    def _hear(self, piece: Tapped) -> None:
        if self._listener is not None:
            self._listener(piece)

    def _checked(self, prompt_ids: Sequence[int], steps: int) -> tuple[list[int], int]:
        ids = [int(token) for token in prompt_ids]
        if not ids or not 0 <= steps < len(ids):
            raise ShapeError("steps", steps, f"0 to {len(ids) - 1}, with {len(ids)} prompt ids")
        longest = self._llm.model_config.max_model_len
        if len(ids) >= longest:
            raise ShapeError("prompt ids", len(ids), f"fewer than max_model_len {longest}", "Start it with more.")
        odd = [token for token in ids if not 0 <= token < self.vocab_size]
        if odd:
            raise ShapeError("prompt ids", odd[0], f"ids from 0 to {self.vocab_size - 1}, the model's vocabulary")
        return ids, steps

    def _submit(self, number: int, ids: list[int], steps: int) -> _Run:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0,
            max_tokens=steps + 1,
            ignore_eos=True,
            prompt_logprobs=0,
            skip_reading_prefix_cache=not self.options.enable_prefix_caching,
            detokenize=False,
            extra_args={"forced_ids": ids[len(ids) - steps :]} if steps else None,
        )
        self._requests += 1
        prompt = {"prompt_token_ids": ids[: len(ids) - steps]}
        internal = self._llm.llm_engine.add_request(f"score-{self._requests}.{number}", prompt, params)
        return _Run(internal, number, len(ids), ids)

    def _finish(self, run: _Run, output: Any) -> None:
        run.done = True
        completion = output.outputs[0]
        if run.next < run.length or completion.finish_reason != "length":
            why = completion.stop_reason or completion.finish_reason
            run.notes.append(f"the engine ended the request after position {run.next - 1}: {why}")
        elif self.kv:
            ranks = self._llm.collective_rpc("read_kv", args=(run.internal, run.length))
            run.kv = tuple(_joined(parts) for parts in zip(*ranks, strict=True))

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Greedy continuations, nothing forced, all prompts side by side: what a server would answer.

        Args:
            prompts: token ids of each.
            tokens: how many to add to each; the end-of-text token does not stop it.
        """
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs = self._llm.generate(given, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    @contextmanager
    def modules(self, patterns: Sequence[str]) -> Iterator[Callable[[], list[Record]]]:
        """Record modules while the block lasts; the callable gives, and forgets, what came so far, rank by rank.

        Args:
            patterns: see :func:`vllm_neuron.snapshot.patterns.compile_pattern`.

        Raises:
            ConfigError: a pattern that fits no module.
        """
        self._llm.collective_rpc("tap_modules", args=(tuple(patterns),))
        try:
            yield lambda: [record for rank in self._llm.collective_rpc("take_modules") for record in rank]
        finally:
            self._llm.collective_rpc("untap_modules")

    def close(self) -> None:
        """Shut the engine down; another one can be started in this process."""
        self._leaving.close()

    def _shut_down(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        gc.collect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


@dataclass
class _Run:
    """One prompt on its way.

    Attributes:
        internal: vLLM's id. number: place among the prompts.
        length: of the prompt, the decoded tokens included. asked: of it, what was given as the prompt.
        first: position of the first logits; what lies before came from cached blocks. next: of the next ones.
    """

    internal: str
    number: int
    length: int
    asked: list[int]
    first: int = 0
    next: int = 0
    done: bool = False
    kv: tuple[LayerKV, ...] | None = None
    ids: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def scored(self) -> Scored:
        # vLLM finds cached blocks by their ids, so those before the first computed position are the prompt's.
        seen = (*self.asked[: self.first], *(self.ids[position] for position in sorted(self.ids)))
        partial = self.next < self.length
        return Scored(None, seen, kv=self.kv, first=self.first, partial=partial, notes=tuple(self.notes))


def _hand_on(runs: Mapping[str, _Run], piece: Tapped, on_rows: OnRows) -> None:
    """Pass on the rows that are new: the end of a chunk comes twice, and a preempted request from its start again."""
    from vllm_neuron.vllm.worker.tap import RanIds

    run = runs.get(piece.request)
    if run is None:
        return
    if isinstance(piece, RanIds):
        if not run.ids:
            run.first = run.next = piece.position
        run.ids.update({piece.position + i: token for i, token in enumerate(piece.ids)})
        return
    known = run.next - piece.position
    assert known >= 0, f"logits of position {run.next} are missing"
    rows = piece.rows_RV[known : known + run.length - run.next]
    if rows.shape[0]:
        on_rows(run.number, run.next, rows)
        run.next += rows.shape[0]


def _joined(parts: Sequence[RankKV]) -> LayerKV:
    """One layer's cache of all ranks, each head once: neighbouring ranks may hold the same one, bit for bit."""
    kept = [parts[0]]
    for part in parts[1:]:
        if not torch.equal(part.keys_SKD, kept[-1].keys_SKD) or not torch.equal(part.values_SKD, kept[-1].values_SKD):
            kept.append(part)
    first = parts[0]
    keys = torch.cat([part.keys_SKD for part in kept], dim=1)
    values = torch.cat([part.values_SKD for part in kept], dim=1)
    layer = next(int(piece) for piece in first.name.split(".") if piece.isdigit())
    return LayerKV(layer, keys, values, first.start, first.name)
