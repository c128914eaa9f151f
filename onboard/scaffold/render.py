"""``ModelFacts`` -> the three Python files of a model, as a person would have written them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any

from onboard.facts.api import ModelFacts
from onboard.scaffold import describe, roles
from onboard.scaffold.build import BLOCKS, FRAME, NORMS, Built, build, local_conditions
from onboard.scaffold.calls import Tree, Unbound
from onboard.scaffold.code import ModelCode, OpenFeature
from onboard.scaffold.expressions import field_name
from onboard.scaffold.observe import Observed, observe
from onboard.scaffold.shipped import templates
from onboard.scaffold.study import NOT_THE_MODEL, Twin, twins
from onboard.scaffold.table import Rows, rows
from onboard.scaffold.tryout import leftovers
from onboard.scaffold.wiring import Open
from vllm_neuron.errors import ConfigError

TIE = 'Tie("head", "embed", when="tie_word_embeddings")'


def model_code(facts: ModelFacts, *, stem: str | None = None, module: str | None = None) -> ModelCode:
    """Render a model's code.

    Args:
        facts: of the model.
        stem: first part of the class names; from the architecture by default.
        module: dotted name of the package that the files go to; from the stem by default.

    Raises:
        ConfigError: a config that transformers can't build a reference from, or a value that no expression over the
            config gives (the message names it).
    """
    from onboard.probe.tiny import variants

    architecture = (facts.architectures or ("",))[0] or _class_of(facts)
    stem = stem or re.sub(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$", "", architecture)
    known = twins(facts, [(v.name, v.config) for v in variants(facts.model_type or "", dict(facts.text))])
    try:
        built = build(known)
    except Unbound as error:
        message = f"no expression over the config gives {list(error.values)!r:.200}"
        raise ConfigError(error.path, message, "a value that follows from the config") from error
    observed = observe(built)
    return _Writer(facts, built, observed, stem, module or stem.lower(), architecture).code()


def _class_of(facts: ModelFacts) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(facts.model_type or "", "Model")


class _Writer:
    def __init__(
        self, facts: ModelFacts, built: Built, observed: Observed, stem: str, module: str, architecture: str
    ) -> None:
        self.facts, self.built, self.observed = facts, built, observed
        self.stem, self.module, self.architecture = stem, module, architecture
        self.title = stem
        self.rows = self._rows()

    def code(self) -> ModelCode:
        """The rendered and formatted files."""
        missing = self._open()
        code = self._files(missing, incomplete=False)
        if not missing:
            return code
        base = self.built.twins[1]
        unused, unfilled = leftovers(code, self.module, base.config.model_type, base.config, self.observed.keys)
        for one in roles.patterns({key: () for key in unused}):
            self.rows.add("Drop", one.pattern, "", why="of a feature that is not written yet")
        return self._files(missing, incomplete=bool(unfilled))

    def _files(self, missing: tuple[OpenFeature, ...], incomplete: bool) -> ModelCode:
        common = {"title": self.title, "stem": self.stem, "module": self.module, "architecture": self.architecture}
        return ModelCode(
            config_py=_render("config.py.jinja", **common, **self._config()),
            model_py=_render("model.py.jinja", **common, **self._model(missing, incomplete)),
            factory_py=_render("factory.py.jinja", **common),
            class_name=self.stem + "ForCausalLM",
            architecture=self.architecture,
            detected=describe.rows(self.built.twins[0].spec),
            open=missing,
        )

    def _rows(self) -> Rows:
        return rows(self.observed.stored, self.observed.layout)

    def _open(self) -> tuple[OpenFeature, ...]:
        unknown = () if self.built.open else self.rows.unknown
        found = [*self.built.open, *(Open(f"stored tensor {name}") for name in unknown)]
        return tuple(OpenFeature(o.feature, o.hf_class, self.observed.source(o.hf_class), o.where) for o in found)

    # The config class

    def _trees(self) -> list[Tree]:
        b = self.built
        return [*b.frame.values(), *b.layer.values(), *b.whole.values(), *([b.scale] if b.scale else [])]

    def _used(self) -> list[str]:
        names = dict.fromkeys(f for tree in self._trees() for f in tree.fields)
        if self.built.rotary is not None:
            names.update(dict.fromkeys(self.built.rotary.fields))
        return [n for n in self.built.twins[0].env if n in names]

    def _config(self) -> dict[str, Any]:
        used = self._used()
        in_blocks = {f for tree in self._block_trees() for f in tree.fields} | self._whole_fields()
        helpers = {"require"}
        local: list[tuple[str, str]] = []
        fields: dict[str, dict[str, str]] = {}
        for name in used:
            text = self._read(name, helpers)
            if self.built.rotary is not None and name in self.built.rotary.fields:
                local.append((field_name(name), text))
                text = field_name(name)
            if name in in_blocks:
                fields[field_name(name)] = {"name": field_name(name), "type": self._type(name), "read": text}
        for name, tree in self.built.whole.items():
            if name not in fields:
                fields[name] = {"name": name, "type": self._whole_type(name), "read": self._inline(tree, helpers)}
        if self.built.rotary is not None:
            helpers.update(self.built.rotary.helpers)
            kind = "dict[str, RotaryConfig]" if self.built.rotary.keyed else "RotaryConfig"
            fields["rotary"] = {"name": "rotary", "type": kind, "read": self.built.rotary.text}
        pinned = self._pinned(used)
        if pinned:
            helpers.add("refuse_unless")
        return {
            "helpers": sorted(helpers),
            "rotary": self.built.rotary is not None,
            "pinned": pinned,
            "fields": list(fields.values()),
            "local": local,
            "config_class": type(self.built.twins[0].config).__name__,
        }

    def _block_trees(self) -> list[Tree]:
        b = self.built
        return [*b.frame.values(), *b.layer.values(), *([b.scale] if b.scale else [])]

    def _whole_fields(self) -> set[str]:
        return {n for n, tree in self.built.whole.items() if tree.text == f"c.{n}"}

    def _inline(self, tree: Tree, helpers: set[str]) -> str:
        text = tree.text
        for name in tree.fields:
            text = text.replace(f"c.{field_name(name)}", self._read(name, helpers))
        return text

    def _read(self, name: str, helpers: set[str]) -> str:
        if name == "head_dim":
            helpers.add("head_size")
            return "head_size(hf_config)"
        values = [t.env[name] for t in self.built.twins]
        *outer, last = name.split(".")
        place = ".".join(["hf_config", *outer])
        if any(v is None for v in values):
            return f"{place}.{last}"
        text = f"require({place}, {last!r})"
        return f"tuple({text})" if isinstance(values[0], tuple) else text

    def _type(self, name: str) -> str:
        return _type([t.env[name] for t in self.built.twins])

    def _whole_type(self, name: str) -> str:
        return {"tie_word_embeddings": "bool", "max_position_embeddings": "int | None"}.get(name, "int")

    def _pinned(self, used: Sequence[str]) -> list[tuple[str, str]]:
        found = []
        for name in self.built.twins[0].env:
            if name in used or "." in name or name.startswith("rope_"):
                continue
            values = [t.env[name] for t in self.built.twins if name in t.env]
            if all(_is_switch(v) for v in values):
                distinct = list(dict.fromkeys(values))
                found.append((repr(name), repr(tuple(distinct))))
        return found

    # The model class

    def _model(self, missing: Sequence[OpenFeature], incomplete: bool) -> dict[str, Any]:
        b = self.built
        conditions = local_conditions(list(b.layer.values()))
        norm = self._norm_function()
        layer = [(n, _short(b.layer[n].text, conditions, norm)) for n in BLOCKS if n in b.layer]
        if b.scale is not None:
            layer.append(("residual_scale", b.scale.text))
        if b.scalar:
            layer.append(("scalar", "nn.Parameter(torch.empty(1), requires_grad=False)"))
        frame = [(n, _short(b.frame[n].text, (), norm)) for n in FRAME if n in b.frame]
        if "norm" not in b.frame:
            frame.append(("norm", "nn.Identity()"))
        rotary_type, rotary_build = self._rotary()
        layers = f"nn.ModuleList({self.stem}Layer(c, i{', rotary' if rotary_type else ''}) for i in range(%s))"
        at = next(k for k, (n, _) in enumerate(frame) if n in ("norm", "head"))
        frame.insert(at, ("layers", layers % b.whole["num_hidden_layers"].text))
        kinds = sorted(self.rows.kinds | {"Table"} | ({"Tie"} if self._tied() else set()))
        blocks = {x for t in self._block_trees() for x in t.blocks if "." not in x} | (
            {"Rotary"} if rotary_type else set()
        )
        return {
            "summary": describe.summary(self.built.twins[0].spec),
            "scalar": b.scalar,
            "row_kinds": kinds,
            "rows": [*self.rows.lines, *([TIE] if self._tied() else [])],
            "blocks": sorted(blocks, key=str.lower),
            "norm_function": norm,
            "layer_doc": f"``{'``, then ``'.join(self._forward_formula())}``.",
            "rotary_type": rotary_type,
            "rotary_build": rotary_build,
            "conditions": conditions,
            "layer_blocks": layer,
            "layer_forward": self._forward(),
            "frame_blocks": frame,
            "embed_lines": self._embed(),
            "open_init": [_message(o) for o in missing] if incomplete else [],
            "open_layer": [] if incomplete else [_message(o) for o in missing],
        }

    def _tied(self) -> bool:
        return any(t.spec.head.tied for t in self.built.twins)

    def _rotary(self) -> tuple[str | None, str]:
        if self.built.rotary is None:
            return None, ""
        if self.built.rotary.keyed:
            return "dict[str, Rotary]", "{kind: Rotary(config) for kind, config in c.rotary.items()}"
        return "Rotary", "Rotary(c.rotary)"

    def _norm_function(self) -> dict[str, str] | None:
        texts = [t.text for n, t in (*self.built.layer.items(), *self.built.frame.items()) if n in (*NORMS, "norm")]
        if len(texts) >= 4 and len(set(texts)) == 1:
            return {"text": texts[0], "block": texts[0].split("(", 1)[0]}
        return None

    def _embed(self) -> list[str]:
        text = "self.embed(step.token_ids_T)"
        if "positions" in self.built.frame:
            text += " + self.positions(step.positions_T)"
        if "embed_norm" in self.built.frame:
            text = f"self.embed_norm({text})"
        plain = "positions" not in self.built.frame and "embed_norm" not in self.built.frame
        return [] if plain else [f"return {text}"]

    def _forward(self) -> list[str]:
        return forward(self.built, "self.", "step")

    def _forward_formula(self) -> list[str]:
        lines = forward(self.built, "", "")
        return [line.replace("x_TH", "x").removeprefix("x = ").removeprefix("return ") for line in lines]


def forward(built: Built, own: str, step: str) -> list[str]:
    """The lines of a layer's forward; without ``own`` and ``step`` they are the formula for people."""
    have = built.layer
    scale = f"{own}residual_scale * " if built.scale is not None else ""
    after = f", {step}" if step else ""

    def block(name: str, x: str) -> str:
        inner = f"{own}{name}_norm({x})" if f"{name}_norm" in have else x
        text = f"{own}{name}({inner}{after if name == 'attn' else ''})"
        if f"post_{name}_norm" in have and built.wiring.shape != "after":
            text = f"{own}post_{name}_norm({text})"
        return scale + text

    last = " * self.scalar" if built.scalar and own else ""
    shape = built.wiring.shape
    if shape == "parallel":
        lines = [
            f"h_TH = {own}attn_norm(x_TH)",
            f"return x_TH + {scale}({own}attn(h_TH{after}) + {own}mlp(h_TH))"
            if scale
            else f"return x_TH + {own}attn(h_TH{after}) + {own}mlp(h_TH)",
        ]
    elif shape == "parallel2":
        lines = [f"return x_TH + {block('attn', 'x_TH')} + {block('mlp', 'x_TH')}"]
    elif shape == "after":
        lines = [f"x_TH = {own}post_attn_norm(x_TH + {block('attn', 'x_TH')})"]
        lines.append(f"return {own}post_mlp_norm(x_TH + {block('mlp', 'x_TH')})")
    else:
        lines = [f"x_TH = x_TH + {block('attn', 'x_TH')}"] if "attn" in have else []
        lines += [f"x_TH = x_TH + {block('mlp', 'x_TH')}"] if "mlp" in have else []
        lines[-1] = "return " + lines[-1].removeprefix("x_TH = ")
    if last:
        lines[-1] = f"return ({lines[-1].removeprefix('return ')}){last}"
    return lines


def _message(o: OpenFeature) -> str:
    where = f" of {o.where}" if o.where else ""
    source = f"; see {o.hf_class} in transformers' {o.source}" if o.hf_class and o.source else ""
    return repr(f"{o.feature}:{where or ' this model'} is not written yet{source}")


def _short(text: str, conditions: Iterable[tuple[str, str]], norm: dict[str, str] | None) -> str:
    if norm is not None and text == norm["text"]:
        return "_norm(c)"
    for name, condition in conditions:
        text = text.replace(f" if {condition} else ", f" if {name} else ")
    return text.replace("Index()", "i")


def _type(values: Sequence[Any]) -> str:
    some = [v for v in values if v is not None]
    if not some:
        return "None"
    names = {type(v).__name__ for v in some}
    if "tuple" in names:
        inner = {type(x).__name__ for v in some if isinstance(v, tuple) for x in v} or {"int"}
        text = f"tuple[{' | '.join(sorted(inner))}, ...]"
    else:
        text = "float" if names == {"int", "float"} else " | ".join(sorted(names))
    return text + (" | None" if len(some) < len(values) else "")


def _is_switch(value: Any) -> bool:
    if value is None or isinstance(value, bool | str):
        return True
    return value == () or (isinstance(value, int | float) and value in (0, 1))


def _render(template: str, **context: Any) -> str:
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    source = (templates() / "code" / template).read_text(encoding="utf-8")
    return formatted(environment.from_string(source).render(**context))


def formatted(source: str) -> str:
    """Python source as ``ruff format`` and its import sorting write it.

    Raises:
        ConfigError: the text is not Python.
    """
    import ruff

    tool = ruff.find_ruff_bin()
    for arguments in (
        ["check", "--fix-only", "--quiet", "--isolated", "--select=I,F401", "--line-length=120"],
        ["format", "--quiet", "--isolated", "--line-length=120"],
    ):
        done = subprocess.run(
            [tool, *arguments, "--stdin-filename=model.py", "-"], input=source, capture_output=True, text=True
        )
        if done.returncode:
            raise ConfigError("rendered code", done.stderr.strip()[:300], "Python", "This is a fault of the renderer.")
        source = done.stdout
    return source


__all__ = ["NOT_THE_MODEL", "Twin", "formatted", "forward", "model_code"]
