"""Attention, in the order of its computation: projections, norms, positions, mask, cache, scores, output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vllm_neuron.accuracy.calls import Call
from vllm_neuron.accuracy.explain.scene import UNKNOWN, Part, Scene, constant
from vllm_neuron.accuracy.gold import Inside
from vllm_neuron.accuracy.hf import AttentionCall
from vllm_neuron.accuracy.observed import Event
from vllm_neuron.nn.head_norm import HeadNorm

ATTENTION = ("flash_attention", "segmented_attention", "attention_decode")
LETTERS = {"q": "queries", "k": "keys", "v": "values"}


def explain_attention(scene: Scene) -> Part:
    """The first part of an attention block that is not the reference's."""
    if any(inside.attention is None for inside in scene.expected):
        return _output(scene) or UNKNOWN
    for check in (_heads, _settings, _mask, _cache, _softmax, _output):
        part = check(scene)
        if part is not None:
            return part
    return UNKNOWN


def _attention(inside: Inside) -> AttentionCall:
    assert inside.attention is not None
    return inside.attention


def _whole_heads(rows: Tensor | None, heads: int) -> Tensor | None:
    """[R, ranks * K, D] -> [R, K, D]: one of each head that several ranks hold."""
    return rows if rows is None or rows.shape[1] % heads else rows[:, :: rows.shape[1] // heads]


def _ours(scene: Scene) -> dict[str, Tensor | None]:
    """Queries, keys and values that go into attention proper, [R, N, D]."""
    attention, writes = scene.events(*ATTENTION), scene.events("kv_write")
    kv_heads = _attention(scene.expected[0]).k_SKD.shape[1]
    found = {"q": scene.rows(attention, lambda e: e.args["q_BQND"].flatten(0, 1))}
    for letter, name in (("k", "k_TKD"), ("v", "v_TKE")):
        rows = scene.rows(writes, lambda e, name=name: e.args[name])  # type: ignore[misc]
        found[letter] = _whole_heads(rows, kv_heads)
    return found


def _theirs(scene: Scene, letter: str) -> tuple[Tensor, Tensor | None] | None:
    name = {"q": "q_TND", "k": "k_SKD", "v": "v_SKE"}[letter]
    return scene.theirs(lambda inside: getattr(_attention(inside), name))


def _heads(scene: Scene) -> Part | None:
    """Queries, keys and values, and what made them wrong."""
    wrong = {}
    for letter, rows in _ours(scene).items():
        finding = scene.compare(rows, _theirs(scene, letter), LETTERS[letter])
        if finding is not None and not finding.ok:
            wrong[letter] = finding
    if not wrong:
        return None
    row = min(f.row for f in wrong.values() if f.row is not None)
    said = f"{' and '.join(LETTERS[each] for each in wrong)} differ{scene.where(row)}"
    return _projected(scene, said) or _normed(scene, said, list(wrong)) or Part("rotary", said, row)


def _product(scene: Scene) -> dict[str, Tensor] | None:
    """What the fused projection gives, by letter, [R, heads * D]; the ranks' parts joined."""
    events = scene.events("qkv_proj")
    sizes = scene.module.qkv.sizes
    first = _attention(scene.expected[0])
    heads = dict(zip("qkv", (first.q_TND.shape[1], first.k_SKD.shape[1], first.v_SKE.shape[1]), strict=True))
    found = {}
    for at, letter in enumerate("qkv"[: len(sizes)]):
        start = sum(sizes[:at])
        local = scene.module.heads if letter == "q" else scene.module.kv_heads
        rows = scene.rows(events, lambda e: e.result[:, start : start + sizes[at]].unflatten(-1, (local, -1)))  # noqa: B023
        whole = _whole_heads(rows, heads[letter])
        if whole is None:
            return None
        found[letter] = whole.flatten(1)
    return found


def _projected(scene: Scene, said: str) -> Part | None:
    """The projections, when they are wrong already."""
    ours, theirs = _product(scene), scene.outputs_of(scene.modules_of("qkv.weight"))
    if ours is None or theirs is None or theirs[0].shape[1] != sum(x.shape[1] for x in ours.values()):
        return None
    sizes = [x.shape[1] for x in ours.values()]
    expected = dict(zip(ours, theirs[0].split(sizes, dim=1), strict=True))
    baseline = dict(zip(ours, theirs[1].split(sizes, dim=1), strict=True)) if theirs[1] is not None else {}
    findings = {
        letter: scene.judge(rows, expected[letter], baseline.get(letter), f"{LETTERS[letter]} of the projection")
        for letter, rows in ours.items()
    }
    wrong = [letter for letter, finding in findings.items() if not finding.ok]
    if not wrong:
        return None
    named = " and ".join(LETTERS[each] for each in wrong)
    row = findings[wrong[0]].row
    if all(constant(ours[each] - expected[each]) for each in wrong):
        return Part("qkv bias", f"{named} of the projection differ by one vector: a bias", row)
    swapped = wrong == ["k", "v"] and ours["k"].shape == expected["v"].shape
    if swapped and scene.judge(ours["k"], expected["v"], baseline.get("v"), "keys against values").ok:
        return Part("qkv", "the projection has keys and values swapped", row)
    return Part("qkv", f"{named} of the projection differ: {findings[wrong[0]].words}; {said}", row)


def _normed(scene: Scene, said: str, wrong: Sequence[str]) -> Part | None:
    """The norms of queries, keys and values, when what they give is wrong or they are missing."""
    for letter in wrong:
        names = [name for name in scene.expected[0].calls if _is_norm_of(scene, name, letter)]
        if len(names) != 1:
            continue
        heads = _theirs(scene, letter)
        assert heads is not None
        shape = heads[0].shape
        theirs = scene.theirs(lambda inside: _by_token(inside.calls[names[0]], shape))  # noqa: B023
        ours = _norm_output(scene, letter)
        if ours is None and not isinstance(getattr(scene.module, f"{letter}_norm", None), HeadNorm):
            return Part(f"{letter}_norm", f"no {letter}_norm here, {names[0]} there; {said}", 0)
        finding = scene.compare(ours, theirs, f"{letter}_norm")
        if finding is not None and not finding.ok:
            return Part(
                f"{letter}_norm", f"{letter}_norm gives another result than {names[0]}: {finding.words}", finding.row
            )
    return None


def _is_norm_of(scene: Scene, name: str, letter: str) -> bool:
    last = name.rpartition(".")[2]
    kind = type(scene.gold.hf.model.get_submodule(name)).__name__.lower()
    return last.startswith(letter) and "norm" in last.lower() + kind and len(scene.expected[0].calls[name]) == 1


def _by_token(calls: Sequence[Call], shape: Sequence[int]) -> Tensor | None:
    """A norm's output [1, T, N, D] or [1, N, T, D] as [T, N, D]."""
    output = calls[0].output
    if output.dim() == 4 and output.shape[1] == shape[1] and output.shape[2] != shape[1]:
        output = output.transpose(1, 2)
    return output.reshape(-1, *shape[1:]).float()


def _norm_output(scene: Scene, letter: str) -> Tensor | None:
    """[R, N, D] that our head norm gave, if it ran as an operation."""
    weights = [getattr(getattr(module, f"{letter}_norm", None), "weight", None) for module in scene.modules]
    events = [
        [e for e in run if e.args.get("weight_D") is weight and weight is not None and e.result.dim() == 3]
        for run, weight in zip(scene.events("rms_norm", "layer_norm"), weights, strict=True)
    ]
    rows = scene.rows(events, lambda e: e.result)
    theirs = _theirs(scene, letter)
    return None if theirs is None else _whole_heads(rows, theirs[0].shape[1])


def _settings(scene: Scene) -> Part | None:
    """Scale, soft cap and sinks, as they were handed to the operation."""
    reference = _attention(scene.expected[0])
    for rank, events in enumerate(scene.events(*ATTENTION)):
        for event in events:
            scale, softcap, sinks = event.args["scale"], event.args.get("softcap"), event.args.get("sinks_N")
            if reference.scaling is not None and abs(scale - reference.scaling) > 1e-6 * abs(reference.scaling):
                return Part("scale", f"scores times {scale:.6g}, expected {reference.scaling:.6g}", 0)
            if (softcap or 0.0) != (reference.softcap or 0.0):
                return Part("softcap", f"soft cap {softcap}, expected {reference.softcap}", 0)
            if (sinks is None) != (reference.sinks_N is None):
                return Part("sinks", f"sinks {'given' if sinks is not None else 'not given'} to {event.op}", 0)
            if sinks is not None and reference.sinks_N is not None:
                part = reference.sinks_N.float()[rank * len(sinks) : (rank + 1) * len(sinks)]
                if not torch.allclose(sinks.float(), part, rtol=1e-2):
                    return Part("sinks", f"the sinks of rank {rank} are not the reference's", 0)
    return None


def _visible(scene: Scene) -> list[Tensor]:
    """For each prompt bool [T, S], what the reference's mask shows; causal where it has none."""
    masks = []
    for inside in scene.expected:
        call = _attention(inside)
        size = len(call.q_TND)
        masks.append(torch.ones(size, size, dtype=torch.bool).tril() if call.mask_TS is None else call.mask_TS)
    return masks


def _queries(scene: Scene, event: Event) -> Iterator[tuple[int, int, int]]:
    """Index of each real query in its step, its prompt and its position."""
    edges = scene.gold.edges
    for index, row in enumerate(event.rows.tolist()):
        if row >= 0:
            prompt = max(k for k, edge in enumerate(edges[:-1]) if edge <= row)
            yield index, prompt, row - edges[prompt]


def _mask(scene: Scene) -> Part | None:
    """Which keys each query sees."""
    masks = _visible(scene)
    edges = scene.gold.edges
    for event in scene.events(*ATTENTION)[0]:
        mask = event.args["mask_BQS"]
        queries = mask.flatten(0, 1)
        if event.args.get("causal"):
            queries = queries.tril()
        dense = event.args.get("blocks_BM") is None
        for index, prompt, position in _queries(scene, event):
            expected = torch.zeros(queries.shape[1], dtype=torch.bool)
            if dense:
                own = (event.rows >= edges[prompt]) & (event.rows < edges[prompt + 1])
                expected[own] = masks[prompt][position, event.rows[own] - edges[prompt]]
            else:
                seen = masks[prompt][position][: len(expected)]
                expected[: len(seen)] = seen
            if torch.equal(queries[index], expected):
                continue
            key = int((queries[index] != expected).nonzero()[0])
            shown = "sees" if bool(queries[index][key]) else "does not see"
            what = f"token {key} of its step" if dense else f"key {key}"
            if dense and int(event.rows[key]) < 0:
                what += " (a padded one)"
            return Part("mask", f"the query at position {position} {shown} {what}", edges[prompt] + position)
    return None


def _cache(scene: Scene) -> Part | None:
    """What the cache holds for each query, against what the reference has there."""
    keys, values = _theirs(scene, "k"), _theirs(scene, "v")
    assert keys is not None and values is not None
    masks, edges = _visible(scene), scene.gold.edges
    for rank, events in enumerate(scene.events(*ATTENTION)):
        module = scene.modules[rank]
        mine = _heads_of_rank(module.kv_heads, rank, len(scene.modules), keys[0].shape[1])
        stored = torch.cat((keys[0][:, mine].flatten(1), values[0][:, mine].flatten(1)), dim=1)
        rounded = stored.to(scene.module.asks.dtype).float()
        for event in events:
            if event.context is None or event.meant is None:
                continue
            for index, prompt, position in _queries(scene, event):
                seen = masks[prompt][position].nonzero().flatten()
                batch = index if event.op == "attention_decode" else 0
                expected = rounded[edges[prompt] + seen]
                read, meant = event.context[batch, seen].float(), event.meant[batch, seen].float()
                at = _first_far(read, expected)
                if at is None:
                    continue
                key = int(seen[at])
                name = "cache write" if _first_far(meant, expected) is not None else "cache read"
                said = f"in the {event.op} at position {position} the cache has another key or value at position {key}"
                return Part(name, said, edges[prompt] + position)
    return None


def _heads_of_rank(held: int, rank: int, ranks: int, heads: int) -> list[int]:
    """Key-value heads of a rank, also where several ranks hold the same one."""
    first = rank * heads // ranks
    return list(range(first, first + held))


def _first_far(found: Tensor, expected: Tensor) -> int | None:
    """First row that is another one, not a rounded one."""
    if not len(expected):
        return None
    far = (found - expected).norm(dim=1) > 0.1 * expected.norm(dim=1)
    return int(far.nonzero()[0]) if far.any() else None


def _softmax(scene: Scene) -> Part | None:
    """Attention proper, when all that it was given is right."""
    ours = scene.rows(scene.events(*ATTENTION), lambda e: e.result.flatten(0, 1))
    theirs = scene.theirs(lambda inside: _attention(inside).out_TNE)
    finding = scene.compare(ours, theirs, "attention before the output projection")
    if finding is None or finding.ok or ours is None:
        return None
    if _other_heads(scene, ours):
        return Part(
            "head mapping", "query heads read the keys of other heads: tiled where they are grouped", finding.row
        )
    return Part("softmax", f"queries, keys, values and mask agree, the result does not: {finding.words}", finding.row)


def _other_heads(scene: Scene, ours: Tensor) -> bool:
    """Whether the result is what query head ``h`` gets from key head ``h % K``."""
    found = []
    for inside, mask in zip(scene.expected, _visible(scene), strict=True):
        call = _attention(inside)
        groups = call.q_TND.shape[1] // call.k_SKD.shape[1]
        if groups == 1 or call.scaling is None or call.softcap is not None or call.sinks_N is not None:
            return False
        k, v = (x.float().repeat(1, groups, 1) for x in (call.k_SKD, call.v_SKE))
        scores = torch.einsum("tnd,snd->nts", call.q_TND.float(), k) * call.scaling
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        found.append(torch.einsum("nts,snd->tnd", weights, v))
    expected = torch.cat(found)
    changed = torch.stack([ours.float(), expected]).isfinite().all(0)
    return bool((ours - expected)[changed].norm() < 0.02 * expected[changed].norm())


def _output(scene: Scene) -> Part | None:
    """What comes after attention proper: gate, output projection, sum over the ranks."""
    names = scene.modules_of("o.weight")
    events = scene.events("o_proj")
    if len(names) == 1:
        ours = scene.rows(events, lambda e: e.args["x_TF"])
        finding = scene.compare(ours, scene.theirs(lambda inside: inside.input_of(names[0])), "input of o")
        if finding is not None and not finding.ok:
            # A block that computes attention in its own code shows no operation to compare before this one.
            seen = all(scene.events(*ATTENTION))
            name, of = ("gate", "") if seen else ("softmax", ", and attention is code of the block's own")
            return Part(name, f"what enters the output projection differs{of}: {finding.words}", finding.row)
    total = scene.rows(events, lambda e: e.result, join="sum")
    if total is None:
        return None
    ranks, bias = len(scene.modules), scene.module.o.bias
    if ranks > 1 and bias is not None:
        total = total + bias.float()
    expected = scene.outputs_of(names) or scene.theirs(lambda inside: inside.output)
    finding = scene.compare(total, expected, "output projection")
    if finding is not None and not finding.ok:
        return Part("o", f"the output projection differs: {finding.words}", finding.row)
    if ranks > 1:
        return Part("all_reduce", "the ranks' parts sum up to the reference, the block gives something else", 0)
    return Part("after o", "the output projection agrees, what the block gives does not", 0)
