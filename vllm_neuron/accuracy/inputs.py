"""Do both sides run the same thing? Most score gaps between two stacks are another BOS, template or tokenizer.

These checks come before any number: when they refuse, no logit is judged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vllm_neuron.errors import CheckpointError

SHOWN_IDS = 48
# Parts of tokenizer.json that change how a text is cut, and so not its ids.
_HOW_LONG = ("version", "truncation", "padding")


@dataclass(frozen=True)
class Refusal:
    """Why two sides can't be compared.

    Attributes:
        verdict: begins with ``refused:``.
        notes: the evidence, both id lists among it.
    """

    verdict: str
    notes: tuple[str, ...] = ()


def tokenizer_id(folder: Path) -> str | None:
    """A hash of how a checkpoint's tokenizer turns text into ids, None when it has none.

    Of ``tokenizer.json`` the content counts, not the layout of the file; else the bytes of ``tokenizer.model`` or of
    ``vocab.json`` and ``merges.txt``.

    Raises:
        CheckpointError: ``tokenizer.json`` is no JSON object.
    """
    path = folder / "tokenizer.json"
    if path.is_file():
        stat = path.stat()
        return _json_hash(path.resolve(), stat.st_size, stat.st_mtime_ns)
    for names in (("tokenizer.model",), ("vocab.json", "merges.txt")):
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            return _hash(*(file.read_bytes() for file in files))
    return None


@lru_cache(maxsize=4)
def _json_hash(path: Path, size: int, changed_ns: int) -> str:
    """Of a ``tokenizer.json``: tens of megabytes, which every side of a comparison asks for."""
    try:
        content: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(str(path), str(error), "JSON", "Download the file again.") from None
    if not isinstance(content, dict):
        raise CheckpointError(str(path), type(content).__name__, "a JSON object", "Download the file again.")
    kept = {key: value for key, value in content.items() if key not in _HOW_LONG}
    return _hash(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode())


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def check_ids(asked: Sequence[int], seen: Sequence[int], *, partial: bool = False) -> Refusal | None:
    """The ids that the target ran are those that the reference ran.

    Args:
        asked: the reference's. seen: the target's.
        partial: the target ended early, so that it may have run fewer.
    """
    asked, seen = list(asked), list(seen)
    if seen == asked or (partial and seen == asked[: len(seen)]):
        return None
    pairs = zip(asked, seen, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(asked), len(seen)))
    why = _why(asked, seen)
    notes = (*((why,) if why else ()), f"reference ran {_shown(asked)}", f"target ran {_shown(seen)}")
    return Refusal(f"refused: prompt ids differ at {first}", notes)


def _why(asked: list[int], seen: list[int]) -> str:
    """A likely cause in words, or nothing."""
    if not seen:
        return "the target ran nothing"
    for more, less, who in ((seen, asked, "target"), (asked, seen, "reference")):
        extra = len(more) - len(less)
        if extra < 1 or not less:
            continue
        if extra == 1 and more[1:] == less:
            if more[0] == less[0]:
                return f"the {who} has id {more[0]} twice at the start: a BOS added by the tokenizer and by the text"
            return f"the {who} alone starts with id {more[0]}: a BOS on one side only"
        start = next((i for i in range(extra + 1) if more[i : i + len(less)] == less), None)
        # A tokenizer's BOS stands before a template as well as before the plain text.
        inner = next((i for i in range(extra + 2) if more[i : i + len(less) - 1] == less[1:]), None)
        if start is not None and (start or len(more) > len(less)):
            if start == 0:
                return f"the {who} has {extra} ids more at the end"
            return f"the {who} has {start} ids before and {extra - start} behind: a chat template on one side only"
        if inner is not None and len(less) > 2:
            return f"the {who} has {extra} ids around the text: a chat template on one side only"
    return ""


def _shown(ids: Sequence[int]) -> str:
    text = ", ".join(map(str, ids[:SHOWN_IDS]))
    return f"[{text}]" if len(ids) <= SHOWN_IDS else f"[{text}, ... {len(ids)} ids]"


def check_tokenizers(expected: str | None, target: str | None) -> Refusal | None:
    """The hashes of the two tokenizers are the same, as far as they are known."""
    if expected is None or target is None or expected == target:
        return None
    return Refusal(
        "refused: the tokenizers differ", (f"reference's tokenizer {expected[:16]}", f"target's {target[:16]}")
    )


def check_vocabulary(expected: int, target: int) -> Refusal | None:
    """The target answers for at least the reference's vocabulary; what is beyond is padding."""
    if target >= expected:
        return None
    return Refusal(
        f"refused: the target has a vocabulary of {target}, the reference of {expected}",
        ("A narrower head has lost tokens: it is cut, or sharded without padding.",),
    )


def check_prompt(ids: Sequence[int], steps: int, vocab_size: int) -> Refusal | None:
    """There is a prompt, its ids are in the vocabulary, and its last ``steps`` tokens leave one to prefill."""
    if not ids:
        return Refusal("refused: the prompt is empty", ("No token, no logits. Remove it or give it a text.",))
    outside = next((i for i, token in enumerate(ids) if not 0 <= token < vocab_size), None)
    if outside is not None:
        return Refusal(f"refused: prompt id {ids[outside]} at {outside} is outside the vocabulary of {vocab_size}")
    if not 0 <= steps < len(ids):
        return Refusal(f"refused: {steps} tokens to decode of {len(ids)}, at least one has to be prefilled")
    return None
