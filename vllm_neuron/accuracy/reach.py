"""What a set of prompts reaches in a model: short prompts hide every fault that begins at a window or an edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

WINDOW, WINDOW_PREFILL, WINDOW_DECODE = "window", "window (prefill)", "window (decode)"
PAST_256, EDGE, ORIGINAL, DECODE = "position > 256", "bucket edge", "original context", "decode"
# bfloat16 has 8 significant bits: it counts to 256 and then skips numbers, so positions kept in it go wrong there.
LAST_EXACT_POSITION = 256
# Where context buckets end when nobody says otherwise: powers of two.
EDGES = tuple(2**n for n in range(6, 18))


@dataclass(frozen=True)
class Reach:
    """The lengths at which a model or its runtime changes what it does.

    Attributes:
        windows: tokens that a windowed or chunked layer sees, each length once.
        original_context: positions that the model was trained with before its rotary positions were scaled; None
            when they are not.
        edges: context lengths at which a decode goes to the next compiled graph.
        longest: positions that the model has; None without a limit.
    """

    windows: tuple[int, ...] = ()
    original_context: int | None = None
    edges: tuple[int, ...] = EDGES
    longest: int | None = None

    @classmethod
    def of_config(cls, config: Any, edges: Iterable[int] = EDGES) -> Reach:
        """Read a transformers config."""
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        types = getattr(text, "layer_types", None)
        windows = set()
        sliding = getattr(text, "sliding_window", None)
        if sliding and ("sliding_attention" in types if types else getattr(text, "use_sliding_window", True)):
            windows.add(int(sliding))
        if getattr(text, "attention_chunk_size", None):
            windows.add(int(text.attention_chunk_size))
        return cls(
            tuple(sorted(windows)),
            _original(text),
            tuple(sorted(edges)),
            getattr(text, "max_position_embeddings", None),
        )

    def labels(self) -> tuple[str, ...]:
        """Everything that prompts could cover in this model, in the order that it is said."""
        window = (WINDOW_PREFILL, WINDOW_DECODE) if self.windows else ()
        original = (ORIGINAL,) if self.original_context else ()
        return (*window, PAST_256, EDGE, *original, DECODE)

    def covered(self, length: int, steps: int) -> tuple[str, ...]:
        """What one prompt of ``length`` tokens covers, the last ``steps`` of them decoded one by one."""
        prefilled = length - steps
        facts = {
            WINDOW_PREFILL: bool(self.windows) and prefilled > max(self.windows),
            WINDOW_DECODE: bool(self.windows) and any(prefilled <= window < length for window in self.windows),
            PAST_256: length > LAST_EXACT_POSITION + 1,
            EDGE: any(prefilled <= edge < length for edge in self.edges),
            ORIGINAL: self.original_context is not None and length > self.original_context,
            DECODE: steps > 0,
        }
        return tuple(label for label in self.labels() if facts[label])

    def missing(self, covered: Iterable[Iterable[str]]) -> tuple[str, ...]:
        """What none of some prompts covers; a window that is reached neither way is one label."""
        reached = {label for each in covered for label in each}
        left = [label for label in self.labels() if label not in reached]
        if WINDOW_PREFILL in left and WINDOW_DECODE in left:
            left = [WINDOW, *(label for label in left if label not in (WINDOW_PREFILL, WINDOW_DECODE))]
        return tuple(left)


def _original(config: Any) -> int | None:
    """``original_max_position_embeddings`` of the config or of its rotary settings, where they scale positions."""
    direct = getattr(config, "original_max_position_embeddings", None)
    if direct:
        return int(direct)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, Mapping):
        return None
    nested = [each for each in rope.values() if isinstance(each, Mapping)]
    found = [each.get("original_max_position_embeddings") for each in (rope, *nested)]
    return min((int(each) for each in found if each), default=None)
