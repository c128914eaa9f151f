"""The exact inputs of one step in a folder: what the model read besides its weights, and what came out.

``DIR/step-000012/rank0`` holds ``meta.json``, ``step.safetensors`` (token ids, positions, and of each cache group the
slots, block table and mask), ``kv.safetensors`` (the pages of the blocks that the step writes or reads, as they were
before it) and ``outputs.safetensors`` (hidden states and logits of the tokens). The inputs are written before the step
runs, so that a step that ends the process is there too, without outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.kv_cache import KVBinding
from vllm_neuron.snapshot.files import new_folder, write_json, write_tensors
from vllm_neuron.snapshot.index import inside, tensors_in
from vllm_neuron.snapshot.label import Span, StepLabel
from vllm_neuron.step import KVView, Phase, Step

SCHEMA = 1
META, STEP, KV, OUTPUTS = "meta.json", "step.safetensors", "kv.safetensors", "outputs.safetensors"


@dataclass(frozen=True, eq=False)
class HeadCall:
    """One run of the head on rows of the step.

    Attributes:
        rows: rows that the head was given, padding and other steps' rows included.
        places: where this step's rows were among them.
        tokens: which tokens of the step they are.
        logits_RV: float32, of those rows.
    """

    rows: int
    places: tuple[int, ...]
    tokens: tuple[int, ...]
    logits_RV: Tensor


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One step of one rank, as it is read back.

    Attributes:
        folder: where it is from.
        meta: ``model``, ``weights``, ``dtype``, ``versions``, ... of the run.
        label: number, phase, and whose tokens the rows are.
        step: as the model was given it; blocks are numbered anew, in the order of ``pages``.
        pages: cache layer -> [blocks, block_size, width], before the step; block 0 is the null block.
        groups: cache layer -> its view in the step.
        hidden_TH: of the tokens, padding cut off; None when the step never ended.
        heads: runs of the head on them.
    """

    folder: Path
    meta: Mapping[str, Any]
    label: StepLabel
    step: Step
    pages: Mapping[str, Tensor]
    groups: Mapping[str, int]
    hidden_TH: Tensor | None = None
    heads: tuple[HeadCall, ...] = field(default=())


def write_inputs(
    folder: Path, label: StepLabel, step: Step, bindings: Mapping[str, KVBinding], about: Mapping[str, Any]
) -> Path:
    """Write the inputs of a step that is about to run; the folder of this rank.

    Args:
        folder: new; ``rank<N>`` in the step's folder.
        label, step: what runs.
        bindings: the caches, before the step.
        about: of the run; goes into ``meta.json``.

    Raises:
        ConfigError: the folder has files.
        OSError: the disk is full.
    """
    new_folder(folder, "neuron_config.input_snapshot.dir")
    sizes = {binding.group: binding.pages.shape[1] for binding in bindings.values()}
    blocks = [_blocks(view, sizes[i]) for i, view in enumerate(step.views)]
    masks: dict[int, int] = {}
    tensors: dict[str, Tensor] = {"token_ids": step.token_ids_T, "positions": step.positions_T}
    for i, view in enumerate(step.views):
        tensors[f"view{i}.slots"] = view.slots_T
        tensors[f"view{i}.needed"] = blocks[i]
        if view.blocks_BM is not None:
            tensors[f"view{i}.blocks"] = view.blocks_BM
        if view.start_B is not None:
            tensors[f"view{i}.start"] = view.start_B
        tensors[f"mask{masks.setdefault(id(view.mask_BQS), len(masks))}"] = view.mask_BQS
    meta = {
        "schema": SCHEMA,
        **about,
        "step": label.step,
        "phase": step.phase.value,
        "rows": step.rows,
        "spans": [span.to_json() for span in label.spans],
        "masks": [masks[id(view.mask_BQS)] for view in step.views],
        "causal": [view.causal for view in step.views],
        "windows": [view.window for view in step.views],
        "groups": {name: binding.group for name, binding in bindings.items()},
        "outputs": None,
    }
    write_tensors(folder / STEP, {name: tensor.clone() for name, tensor in tensors.items()}, {})
    pages = {name: binding.pages[blocks[binding.group]] for name, binding in bindings.items()}
    write_tensors(folder / KV, pages, {})
    write_json(folder / META, meta)
    return folder


def _blocks(view: KVView, block_size: int) -> Tensor:
    """The blocks that a step writes or reads, ascending, the null block first."""
    found = [torch.zeros(1, dtype=torch.int64), view.slots_T // block_size]
    if view.blocks_BM is not None:
        found.append(view.blocks_BM.flatten())
    return torch.unique(torch.cat(found))


def write_outputs(folder: Path, hidden_TH: Tensor, heads: Sequence[HeadCall]) -> None:
    """Add what a step gave, and say in ``meta.json`` that it is there.

    Raises:
        OSError: the disk is full.
    """
    tensors = {"hidden": hidden_TH, **{f"logits{i}": head.logits_RV for i, head in enumerate(heads)}}
    write_tensors(folder / OUTPUTS, tensors, {})
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    meta["outputs"] = [{"rows": h.rows, "places": list(h.places), "tokens": list(h.tokens)} for h in heads]
    write_json(folder / META, meta)


def rank_folders(path: str | Path) -> list[Path]:
    """The ``rank<N>`` folders of one step's snapshot, by rank.

    Raises:
        ConfigError: no such folder, or none in it; several steps in it are listed.
    """
    root = Path(path)
    try:
        names = sorted(each.name for each in root.iterdir() if each.is_dir())
    except OSError as error:
        raise ConfigError("FOLDER", str(path), "a folder that can be read", str(error)) from error
    ranks = sorted(int(name[4:]) for name in names if name.startswith("rank") and name[4:].isdigit())
    if not ranks:
        steps = [name for name in names if name.startswith("step-")]
        hint = f"It has {', '.join(steps[:5])}: name one of them." if steps else ""
        raise ConfigError("FOLDER", str(path), "the folder of one step, with rank0 in it", hint)
    return [inside(root, root / f"rank{rank}") for rank in ranks]


def read_snapshot(folder: Path) -> Snapshot:
    """One rank's snapshot.

    Raises:
        ConfigError: a file is missing, damaged, of another version, or lies elsewhere.
    """
    meta = _meta(folder)
    try:
        tensors, stored = tensors_in(inside(folder, folder / STEP)), tensors_in(inside(folder, folder / KV))
        sizes = {int(meta["groups"][name]): pages.shape[1] for name, pages in stored.items()}
        says = zip(meta["masks"], meta["causal"], meta["windows"], strict=True)
        views = tuple(
            _view(
                tensors, i, f"mask{int(mask)}", sizes.get(i, 1), bool(causal), None if window is None else int(window)
            )
            for i, (mask, causal, window) in enumerate(says)
        )
        step = Step(Phase(meta["phase"]), tensors["token_ids"], tensors["positions"], views, int(meta["rows"]))
        label = StepLabel(int(meta["step"]), meta["phase"], tuple(Span(*span) for span in meta["spans"]))
        hidden, heads = None, []
        if meta["outputs"] is not None:
            outputs = tensors_in(inside(folder, folder / OUTPUTS))
            hidden = outputs["hidden"]
            for i, each in enumerate(meta["outputs"]):
                places, tokens = tuple(map(int, each["places"])), tuple(map(int, each["tokens"]))
                heads.append(HeadCall(int(each["rows"]), places, tokens, outputs[f"logits{i}"]))
        groups = {name: int(group) for name, group in meta["groups"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(
            str(folder), f"{type(error).__name__}: {error}", "a whole snapshot", "Take it again."
        ) from error
    return Snapshot(folder, meta, label, step, stored, groups, hidden, tuple(heads))


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / META
    try:
        meta = json.loads(inside(folder, path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), str(error), "what input_snapshot wrote", "Take it again.") from error
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        found = meta.get("schema") if isinstance(meta, dict) else meta
        raise ConfigError(str(path), found, f"a snapshot of schema {SCHEMA}", "Take it again with this version.")
    return meta


def _view(
    tensors: Mapping[str, Tensor], i: int, mask: str, block_size: int, causal: bool, window: int | None
) -> KVView:
    """A view whose blocks are numbered by their place among the stored pages."""
    needed, slots = tensors[f"view{i}.needed"], tensors[f"view{i}.slots"]
    blocks = tensors.get(f"view{i}.blocks")
    moved = torch.searchsorted(needed, slots // block_size) * block_size + slots % block_size
    return KVView(
        moved,
        None if blocks is None else torch.searchsorted(needed, blocks),
        tensors[mask],
        tensors.get(f"view{i}.start"),
        causal,
        window,
    )
