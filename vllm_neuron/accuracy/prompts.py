"""Prompts of level 2: the default set, made to reach what the model has, and prompts from a file.

All texts are this project's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_neuron.accuracy.reach import LAST_EXACT_POSITION, Reach
from vllm_neuron.errors import ConfigError, nearest

MOST_TOKENS = 1024
DECODED = 8
# Tokens by which a long prompt passes a border.
PAST = 24
Encode = Callable[[str], Sequence[int]]

SHORT = "The tallest tree in the old park is"
SENTENCE = (
    "When the ferry left the harbour at six, the cook was still counting lemons: four crates for the hotel, two for "
    "the school, and one that nobody had ordered. The total was"
)
LETTER = (
    "Dear neighbours,\n\nNext Tuesday, 14 March, the water will be turned off between 9:30 and 11:45 while the pipe "
    "under the stairs is replaced. Please fill a jug for your tea beforehand. If you have plants on the landing, move "
    "them to the second floor; Mr. Okafor has offered his balcony for the larger ones. The bicycle room stays open, "
    "but the light in it is broken, so bring a lamp. Questions go to the office (room 12, ext. 4071).\n\nThank you,\n"
)
LANGUAGES = (
    "Der Bäcker öffnet um fünf, doch das Brot ist erst um sieben fertig. Le facteur, lui, passe après neuf heures. "
    "昨日の雨で川の水が増え、橋は通れなくなった。小船停在岸边，没有人说话。Утром туман ушёл, и горы стали видны. "  # noqa: RUF001
    "في المساء عاد الصياد ومعه ثلاث سمكات. नदी के उस पार एक छोटा गाँव है। Το πλοίο φεύγει στις οκτώ 🙂. Allora"  # noqa: RUF001
)
CODE = '''def longest_run(values: list[int]) -> tuple[int, int]:
    """Start and length of the longest run of equal values."""
    best, start = (0, 0), 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[start]:
            if i - start > best[1]:
                best = (start, i - start)
            start = i
    return best


assert longest_run([1, 1, 2, 2, 2, 3]) == (2, 3)
'''


@dataclass(frozen=True)
class Prompt:
    """What all sides run.

    Attributes:
        name: for reports.
        ids: all tokens, those that are decoded included.
        steps: the last so many are decoded one by one, the others prefilled.
    """

    name: str
    ids: tuple[int, ...]
    steps: int = 0


def default_prompts(encode: Encode, reach: Reach, *, most_tokens: int = MOST_TOKENS) -> list[Prompt]:
    """Several lengths, other languages, code, and for each border of the model a prefill past it and a decode over it.

    Both prompts of a border have the same ids, so the reference runs them once. A border that lies behind
    ``most_tokens`` or the model's last position is left out; the coverage of the result says so.

    Args:
        encode: text -> ids as the model is given them, special tokens included.
        reach: where the model's borders are.
        most_tokens: length of the longest prompt.

    Raises:
        ConfigError: the tokenizer makes nothing of a text.
    """
    room = min(most_tokens, reach.longest or most_tokens)
    made = [
        _prompt("short", encode, SHORT, 3, room),
        _prompt("sentence", encode, SENTENCE, DECODED, room),
        _prompt("letter", encode, LETTER, DECODED, room),
        _prompt("languages", encode, LANGUAGES, DECODED, room),
        _prompt("code", encode, CODE, DECODED, room),
    ]
    borders = {LAST_EXACT_POSITION: "position 256"}
    borders |= {window: f"window {window}" for window in reach.windows}
    if reach.original_context:
        borders[reach.original_context] = f"original context {reach.original_context}"
    if any(LAST_EXACT_POSITION < border <= room - PAST and border in reach.edges for border in borders):
        del borders[LAST_EXACT_POSITION]  # the larger one reaches all that this one does
    edge = max((edge for edge in reach.edges if edge + PAST <= room), default=None)
    if edge is not None and room < LAST_EXACT_POSITION + PAST:
        borders.setdefault(edge, f"bucket edge {edge}")
    borders = {border: name for border, name in sorted(borders.items()) if border + PAST <= room}
    if not borders:
        return made
    ids = _long(encode, max(borders) + PAST)
    for border, name in borders.items():
        # The last border's prompt is past every other one too.
        part = ids[: border + PAST]
        made.append(Prompt(f"decode over {name}", part, min(PAST + DECODED, len(part) - 1)))
    made.append(Prompt(f"past {name}", part, DECODED))
    return made


def _prompt(name: str, encode: Encode, text: str, steps: int, room: int) -> Prompt:
    ids = tuple(int(i) for i in encode(text))[:room]
    if not ids:
        raise ConfigError("tokenizer", text, "ids for a text", "Check the checkpoint's tokenizer files.")
    return Prompt(name, ids, min(steps, len(ids) - 1))


def _long(encode: Encode, tokens: int) -> tuple[int, ...]:
    """The first tokens of a log book that goes on for as long as is needed."""
    days = tokens // 24 + 2
    while True:
        ids = tuple(int(i) for i in encode(log_book(days)))
        if len(ids) >= tokens:
            return ids[:tokens]
        if not ids:
            raise ConfigError("tokenizer", log_book(1), "ids for a text", "Check the checkpoint's tokenizer files.")
        days *= 2


_WHO = ("the pilot", "our cook", "Ines", "the second mate", "a passenger", "old Tom", "the engineer", "nobody")
_DID = (
    "counted {a} gulls before noon",
    "mended the net, {a} knots and {b} patches",
    "measured {a} fathoms off the northern cape",
    "sold {b} barrels for {a} crowns",
    "saw a light at {b} degrees and lost it",
    "wrote {a} letters and burned {b}",
    "found the pump broken again",
)
_THEN = ("Wind from the west", "Fog until ten", "Calm sea", "Heavy rain at night", "A clear sky", "Snow, then sun")


def log_book(days: int) -> str:
    """A ship's log: names, numbers and weather in an order that does not repeat for 2,310 days."""
    lines = []
    for day in range(1, days + 1):
        did = _DID[day % 7].format(a=day * 37 % 101, b=day * day % 71)
        lines.append(f"Day {day}: {_WHO[day * 5 % 8]} {did}. {_THEN[day * 11 % 6]}; {day * 13 % 17} knots.")
    return "\n".join(lines)


def read_prompts(path: Path, encode: Encode, *, steps: int = DECODED) -> list[Prompt]:
    """Prompts of a file.

    A ``.txt`` file has one prompt a line; empty lines are left out. Each line of a ``.jsonl`` file is an object with
    ``text`` or ``ids``, and perhaps ``name`` and ``steps`` (tokens to decode one by one).

    Args:
        path: the file.
        encode: text -> ids.
        steps: tokens to decode where the file does not say; fewer for a shorter prompt.

    Raises:
        ConfigError: the file can't be read, has no prompt, or a line is wrong; it names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--prompts", str(path), "a readable UTF-8 file", str(error)) from None
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError("--prompts", path.name, "a .txt file (a prompt a line) or a .jsonl file")
    made = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        entry = {"text": line} if path.suffix == ".txt" else _entry(line, where)
        made.append(_from_entry(entry, where, encode, steps))
    if not made:
        raise ConfigError("--prompts", str(path), "at least one prompt", "The file is empty.")
    names = [prompt.name for prompt in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError("--prompts name", twice, "each name once")
    return made


def check_ids(prompts: Sequence[Prompt], vocab_size: int) -> None:
    """Refuse ids that the model has no embedding for, those of the tokenizer's texts included.

    Raises:
        ConfigError: naming the prompt and the first such id.
    """
    for prompt in prompts:
        beyond = next((token for token in prompt.ids if token >= vocab_size), None)
        if beyond is not None:
            raise ConfigError(
                f"prompt {prompt.name}", beyond, f"ids below {vocab_size}", "Is the tokenizer another model's?"
            )


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(where, line, "a JSON object", str(error)) from None
    if not isinstance(entry, dict):
        raise ConfigError(where, line, "a JSON object with 'text' or 'ids'")
    known = ("text", "ids", "name", "steps")
    for key in entry:
        if key not in known:
            raise ConfigError(f"{where}: {key}", entry[key], "a known key", nearest(key, known))
    if ("text" in entry) == ("ids" in entry):
        raise ConfigError(where, line, "one of 'text' and 'ids'")
    return entry


def _from_entry(entry: dict[str, Any], where: str, encode: Encode, steps: int) -> Prompt:
    name, wanted = entry.get("name", where), entry.get("steps")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: name", name, "a text")
    if "ids" in entry:
        ids = entry["ids"]
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise ConfigError(f"{where}: ids", ids, "a list of token ids")
    else:
        if not isinstance(entry["text"], str):
            raise ConfigError(f"{where}: text", entry["text"], "a text")
        ids = [int(i) for i in encode(entry["text"])]
    if not ids:
        raise ConfigError(
            f"{where}: prompt", entry.get("text", ids), "at least one token", "An empty prompt has no logits."
        )
    if wanted is None:
        return Prompt(name, tuple(ids), min(steps, len(ids) - 1))
    if type(wanted) is not int or not 0 <= wanted < len(ids):
        raise ConfigError(f"{where}: steps", wanted, f"0 to {len(ids) - 1}, one token at least is prefilled")
    return Prompt(name, tuple(ids), wanted)
