"""The rows of the coverage table about attention blocks."""

from __future__ import annotations

from typing import Any

from onboard.arch.blocks import Norm, QKNorm
from onboard.diff.coverage import Answer, Call, Code, Missing, Rule, Wiring, always, only, takes

# Arguments of Attention that LatentAttention takes under the same name.
LATENT_TOO = ("rotary", "scale", "window", "query_growth")
WIDTHS = ("head", "full", "each_head")


def mixers(value: str) -> Answer:
    """Softmax attention and latent attention are there; every other mixer is to write."""
    kinds = value.split(" + ")
    names = {"compressed": "compressed attention"}
    missing = [
        names.get(m, f"the {m} mixer with its state cache") for m in kinds if m not in ("attention", "mla", "none")
    ]
    if missing:
        return Missing(" and ".join(missing))
    if "mla" in kinds:
        return Call("LatentAttention", (), "and Attention" if "attention" in kinds else "")
    return Call("Attention")


def bias(value: str) -> Answer:
    """q, k, v and o have a switch each."""
    names = [] if value == "none" else value.split(", ")
    qkv: Any = tuple(name in names for name in "qkv")
    return Call("Attention", (("bias", qkv[0] if len(set(qkv)) == 1 else qkv), ("o_bias", "o" in names)))


def latent_bias(value: str) -> Answer:
    """As :func:`bias`, for latent attention: q and k are its two down projections."""
    names = value.split(", ")
    if "v" in names:
        return Missing("a bias on the values in LatentAttention")
    biases = {"q_bias": "q" in names, "kv_bias": "k" in names, "o_bias": "o" in names}
    return Call("LatentAttention", tuple(biases.items()))


def head_norm(norm: Norm | None, width: str = "head", after: bool = False) -> Code | Missing | None:
    """The :class:`vllm_neuron.nn.QKNorm` that says the norm."""
    if norm is None:
        return None
    if norm.gated or norm.groups != 1 or norm.eps is None or width not in WIDTHS:
        what = "gated" if norm.gated else f"in {norm.groups} groups" if norm.groups != 1 else f"over {width}"
        return Missing(f"a norm {what if norm.eps is not None else 'of unknown eps'} inside Attention")
    parts = [repr(norm.eps)]
    parts += [f"kind={norm.kind!r}"] if norm.kind != "rms" else []
    parts += [f"width={width!r}"] if width != "head" else []
    parts += [f"{name}=True" for name in ("plus_one", "bias") if getattr(norm, name)]
    parts += ["weight=False"] if not norm.weight else []
    parts += ["after_rotary=True"] if after else []
    return Code(f"QKNorm({', '.join(parts)})")


def qk_norm(value: QKNorm | None) -> Answer:
    """A norm over each head or all of them, before the rotary embedding or after it."""
    if value is None:
        return Call("Attention", (("qk_norm", None),))
    if value.query_norm not in (None, value.norm):
        return Missing("another norm for queries than for keys, in Attention")
    made = head_norm(value.norm, value.width, value.place == "after_rope")
    return made if isinstance(made, Missing) else Call("Attention", (("qk_norm", made),))


def norm_of(argument: str, width: str) -> Rule:
    """A norm of the values, or of the output."""

    def rule(value: Norm | None) -> Answer:
        made = head_norm(value, width)
        return made if isinstance(made, Missing) else Call("Attention", ((argument, made),))

    return rule


def scale(value: Any) -> Answer:
    """Any number; the usual one by default."""
    if value == "unknown":
        return Missing("the factor on the scores, which the config does not give")
    return Call("Attention", (("scale", None if value == "head_size ** -0.5" else value),))


def position_kind(value: str) -> Answer:
    """Rotary, linear biases, or nothing inside the block."""
    given = {
        "rotary": ("rotary", Code("Rotary(config)")),
        "alibi": ("alibi", Code("Alibi()")),
        "none": ("rotary", None),
    }
    return Call("Attention", (given[value],)) if value in given else Missing(f"{value} positions")


def query_growth(value: str | None) -> Answer:
    """``floor 8192, beta 0.1``."""
    if value is None:
        return Call("Attention", (("query_growth", None),))
    made = ", ".join(part.replace(" ", "=") for part in value.split(", "))
    return Call("Attention", (("query_growth", Code(f"QueryGrowth({made})")),))


def shared_kv(value: bool) -> Answer:
    """The layer that is read."""
    return Call("Attention", (("shared_with", Code("earlier_layer") if value else None),))


def latent_query(value: str) -> Answer:
    """Direct or through a low rank."""
    rank = Code("config.q_lora_rank") if value == "through a low rank" else None
    return Call("LatentAttention", (("q_rank", rank),))


def latent_norm(value: Norm | None) -> Answer:
    """A plain RMS norm."""
    if value is None:
        return Wiring("nothing to do, the part is not there")
    if value.eps is None or value != Norm("rms", value.eps):
        return Missing("another norm than a plain RMS one in LatentAttention")
    return Call("LatentAttention", (("eps", value.eps),))


def storage(value: str) -> Answer:
    """Loaders exist for q, k and v apart, and for one block in several layouts."""
    if value == "separate":
        return Call("Fuse", (), "q, k and v stored apart")
    options: dict[str, tuple[tuple[str, Any], ...]] = {
        "concatenated": (),
        "grouped": (("layout", "grouped"),),
        "per head": (("layout", "per_head"),),
        "four blocks": (("layout", "four_blocks"),),
        "transposed": (("transpose", True),),
    }
    if value not in options:
        return Missing("find out how the checkpoint stores q, k and v; separate ones are covered")
    return Call("Map", options[value], "q, k and v stored as one block")


def latent(path: str, answer: str, value: Any) -> tuple[str | None, str | None]:
    """``(covered_by, missing)`` for a call of Attention where the target has latent attention alone."""
    if path == "attention.bias":
        made = latent_bias(value)
        return (None, made.what) if isinstance(made, Missing) else (str(made), None)
    argument = answer.partition("(")[2].partition("=")[0]
    if argument in LATENT_TOO:
        return f"Latent{answer}", None
    return None, f"LatentAttention takes no {argument or path.rpartition('.')[2]}"


ATTENTION: dict[str, Rule] = {
    "mixer": mixers,
    "attention.sharing": lambda value: Call("Attention", (("kv_heads", Code("config.num_key_value_heads")),)),
    "attention.width": lambda value: Call("Attention", (("head_size", Code("config.head_dim")),)),
    "attention.window": takes("Attention", "window"),
    "attention.chunk": takes("Attention", "chunk"),
    "attention.bias": bias,
    "attention.qk_norm": qk_norm,
    "attention.v_norm": norm_of("v_norm", "head"),
    "attention.out_norm": norm_of("out_norm", "full"),
    "attention.k_eq_v": takes("Attention", "k_eq_v"),
    "attention.storage": storage,
    "attention.scale": scale,
    "attention.softcap": takes("Attention", "softcap"),
    "attention.clip_qkv": takes("Attention", "clip"),
    "attention.sinks": takes("Attention", "sinks"),
    "attention.output_gate": takes("Attention", "output_gate"),
    "attention.gate_from": lambda value: Call("Map", (), "a key of its own for the gate")
    if value == "own"
    else Call("Map", (("layout", "query_gate"),), "the gate inside the query projection"),
    "attention.gate_act": takes("Attention", "gate_act"),
    "attention.value_scale": takes("Attention", "value_scale"),
    "attention.input_size": only(None, "Attention", "an Attention that reads {} channels"),
    "attention.shared_kv": shared_kv,
    "attention.head_size_v": lambda value: Call(
        "Attention", (("head_size_v", None if value == "as keys" else value),)
    ),
    "attention.latent": lambda value: Call("LatentAttention")
    if value
    else Wiring("nothing to do, the part is not there"),
    "attention.latent.query": latent_query,
    "attention.latent.norm": latent_norm,
    "attention.latent.kv_scale": takes("LatentAttention", "kv_scale"),
    "attention.single_cache": only(False, "Attention", "one cache entry for key and value"),
    "attention.q_rank": only(None, "Attention", "queries through a low rank ({})"),
    "attention.undo_rope": only(False, "Attention", "turning the output back by its own position"),
    "attention.o_groups": only(None, "Attention", "a grouped low-rank output projection ({} groups)"),
    "attention.indexer": always("the sparse indexer and its key cache"),
    "attention.compressor": always("the compressed long-range branch"),
    "attention.query_growth": query_growth,
    "attention.positions.kind": position_kind,
}  # fmt: skip
