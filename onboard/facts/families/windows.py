"""Which layers look how far: every spelling of the pattern -> one name of a layer type for each layer."""

from __future__ import annotations

from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
NAMES = {
    "full_attention": FULL,
    "attention": FULL,
    "full": FULL,
    "global": FULL,
    "global_attention": FULL,
    "sliding_attention": SLIDING,
    "sliding": SLIDING,
    "local": SLIDING,
    "local_attention": SLIDING,
    "sliding_window": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": "linear_attention",
    "conv": "conv",
    "mamba": "mamba",
    "moe": "moe",
    "mlp": "mlp",
}
AT = "layers.kinds"


def explicit_types(r: Reader, n: int) -> list[str] | None:
    """``layer_types`` as written, under our names.

    Raises:
        ConfigError: not one for each layer, or a name that is not known.
    """
    types = r.maybe_list("layer_types", str, AT)
    if types is None:
        return None
    if len(types) != n:
        raise r.wrong("layer_types", f"{len(types)} entries", f"one for each of the {n} layers")
    for name in types:
        if name not in NAMES:
            raise r.wrong("layer_types", name, "one of " + ", ".join(NAMES))
    return [NAMES[name] for name in types]


def attention_types(r: Reader, family: Family, n: int) -> list[str]:
    """full or sliding for each layer."""
    switched_off = family.window == "switch" and not r.flag("use_sliding_window")
    if family.window == "switch":
        r.maybe_integer("max_window_layers", minimum=0)
    types = explicit_types(r, n)
    window = r.maybe_integer("sliding_window", minimum=0)
    pattern = r.find("sliding_window_pattern")[0]
    if types is not None:
        if switched_off and SLIDING in types:
            r.warn("layer_types names sliding layers, but use_sliding_window is false; use_sliding_window wins")
            return [FULL] * n
        return types
    if switched_off or not window:
        r.known(AT, key=r.prefix + ("use_sliding_window" if switched_off else "sliding_window"))
        return [FULL] * n
    if family.window == "switch":
        first = r.maybe_integer("max_window_layers", AT, minimum=0)
        return [FULL if first is None or i < first else SLIDING for i in range(n)]
    if family.window == "pattern" or (family.window == "none" and pattern is not None and r.default_kind == "assumed"):
        return _by_pattern(r, family, n)
    if family.window == "all":
        r.known(AT, key=r.prefix + "sliding_window")
        return [SLIDING] * n
    r.known(AT)
    return [FULL] * n


def _by_pattern(r: Reader, family: Family, n: int) -> list[str]:
    """Every p-th layer is full, from the p-th or from the first one on; a text such as "LLLG" is repeated, its last
    letter the full one."""
    pattern, _ = r.find("sliding_window_pattern", AT)
    if isinstance(pattern, str) and pattern:
        marks = [pattern[i % len(pattern)] for i in range(n)]
        marks[-1] = pattern[-1]
        return [SLIDING if m == "L" else FULL for m in marks]
    if type(pattern) is not int or pattern < 1:
        raise r.wrong("sliding_window_pattern", pattern, "an integer of 1 or more, or a text such as LLLG")
    return [FULL if (i if family.pattern_first else i + 1) % pattern == 0 else SLIDING for i in range(n)]
