"""The text of a model's files, from its expressions and the names of its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from onboard.facts.api import ModelFacts
from onboard.scaffold import describe
from onboard.scaffold.build import BLOCKS, FRAME, NORMS, Built, local_conditions
from onboard.scaffold.calls import Tree
from onboard.scaffold.code import ModelCode, OpenFeature
from onboard.scaffold.emit import rendered
from onboard.scaffold.expressions import field_name
from onboard.scaffold.forward import forward
from onboard.scaffold.observe import Observed
from onboard.scaffold.table import Rows, rows
from onboard.scaffold.wiring import Open
from vllm_neuron.model.hf_config import FOREIGN

LONGEST_DOC = 105
# The variant whose rotary settings turn a part of each head.
PARTIAL = "partial_rotary"
TIE = 'Tie("head", "embed", when="tie_word_embeddings")'


class Writer:
    """Makes the three files of a model from what was built and observed.

    Args:
        facts: of the model.
        built: the expressions.
        observed: names in the checkpoint.
        stem, module, architecture: names of classes, package and registry entry.
    """

    def __init__(
        self, facts: ModelFacts, built: Built, observed: Observed, stem: str, module: str, architecture: str
    ) -> None:
        self.facts, self.built, self.observed = facts, built, observed
        self.stem, self.module, self.architecture = stem, module, architecture
        self.title = stem
        self.derived = built.twins[0].derived
        self.rows = self._rows()
        for prefix in observed.idle:
            self.rows.add("Drop", prefix + ".*", "", why="not a part of the text model")
        unknown = () if built.open else self.rows.unknown
        found = [*built.open, *(Open(f"stored tensor {name}") for name in unknown)]
        self.open: tuple[OpenFeature, ...] = tuple(map(self._feature, found))
        self.incomplete = built.incomplete
        self.wrapped: tuple[str, ...] = ()

    def code(self, *, raising: bool = True, module: str | None = None) -> ModelCode:
        """The rendered and formatted files.

        Args:
            raising: open features raise where they belong; else the code computes what it can, for a try-out.
            module: package that the files go to, where it is another one for a try-out.
        """
        names = {"title": self.title, "stem": self.stem, "architecture": self.architecture}
        names["module"] = module or self.module
        missing = self.open if raising else ()
        return ModelCode(
            config_py=rendered("config.py.jinja", **names, **self._config()),
            model_py=rendered("model.py.jinja", **names, **self._model(missing)),
            factory_py=rendered("factory.py.jinja", **names),
            class_name=self.stem + "ForCausalLM",
            architecture=self.architecture,
            detected=describe.rows(self.built.twins[0].spec),
            open=self.open,
        )

    def add_open(self, found: Sequence[Open]) -> None:
        """Further features that nothing computes."""
        self.open = (*self.open, *map(self._feature, found))

    def _feature(self, o: Open) -> OpenFeature:
        hf_class = o.hf_class or self.observed.class_of(o.feature)
        return OpenFeature(o.feature, hf_class, self.observed.source(hf_class), o.where)

    def _rows(self) -> Rows:
        return rows(self.observed.stored, self.observed.layout)

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
        helpers: set[str] = set()
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
        helpers |= {"refuse_foreign"} | ({"refuse_unless"} if pinned else set())
        kinds = self._kinds()
        helpers |= {"refuse_other_kinds"} if kinds else set()
        whole_heads = any(t.name == PARTIAL for t in self.built.refused)
        helpers |= {"refuse_partial_rotary"} if whole_heads else set()
        return {
            "foreign": ["hf_config", *(repr(name) for name in FOREIGN if self._honours(name, used))],
            "whole_heads": whole_heads,
            "helpers": sorted(helpers),
            "rotary": self.built.rotary is not None,
            "pinned": pinned,
            "kinds": kinds,
            "fields": list(fields.values()),
            "local": local,
            "config_class": type(self.built.twins[0].config).__name__,
        }

    def _honours(self, name: str, used: Sequence[str]) -> bool:
        """Whether the code may let a setting pass: it reads it, or the config class derives it from others; where the
        code raises before anything is computed, it lets all pass."""
        twin = self.built.twins[0]
        return name in used or self.incomplete or (hasattr(twin.config, name) and name not in twin.env)

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
        if name in self.derived:
            text, needed = self.derived[name]
            helpers.update(needed)
            return text
        values = [t.env[name] for t in self.built.twins]
        *outer, last = name.split(".")
        place = ".".join(["hf_config", *outer])
        if any(v is None for v in values):
            return f"{place}.{last}"
        helpers.add("require")
        text = f"require({place}, {last!r})"
        return f"tuple({text})" if isinstance(values[0], tuple) else text

    def _type(self, name: str) -> str:
        return _type([t.env[name] for t in self.built.twins])

    def _whole_type(self, name: str) -> str:
        return {"tie_word_embeddings": "bool", "max_position_embeddings": "int | None"}.get(name, "int")

    def _pinned(self, used: Sequence[str]) -> list[tuple[str, str]]:
        """Switches that the code does not read, and settings of the variants that it does not hold for."""
        kept, base = self.built.twins, self.built.twins[1]
        turned = {
            name
            for twin in self.built.refused
            for name, value in twin.env.items()
            if name in base.env and base.env[name] != value and _is_switch(base.env[name])
        }
        found = []
        for name in kept[0].env:
            if "." in name or name.startswith("rope_") or name in self.derived or (name in used and name not in turned):
                continue
            values = [_hashable(getattr(t.config, name, t.env[name])) for t in kept if name in t.env]
            if all(_is_switch(v) for v in values):
                plain = [list(v) if isinstance(v, tuple) else v for v in dict.fromkeys(values)]
                found.append((repr(name), repr(tuple(plain))))
        return found

    def _kinds(self) -> list[str]:
        """Names of layers and methods that the code tells apart: an unknown one must not pass for any of them."""
        conditions = " ".join(c for tree in self._trees() for c in tree.conditions)
        found = []
        for name in self.built.twins[0].env:
            if re.search(rf"\bc\.{field_name(name)}(\[i\])? == [\"']", conditions) and "." not in name:
                values = [getattr(t.config, name, t.env[name]) for t in self.built.twins]
                each = {x for v in values for x in (v if isinstance(v, list | tuple) else (v,)) if isinstance(x, str)}
                found.append(", ".join(map(repr, (name, *sorted(each)))))
        return found

    # The model class

    def _model(self, missing: Sequence[OpenFeature]) -> dict[str, Any]:
        b = self.built
        conditions = local_conditions(list(b.layer.values()))
        norm = self._norm_function()
        layer = [(n, _short(b.layer[n].text, conditions, norm)) for n in BLOCKS if n in b.layer]
        if missing and not self.incomplete:
            layer = [(n, self._own(n) + "(" + t.split("(", 1)[1] if n in self.wrapped else t) for n, t in layer]
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
        frame.insert(at, ("layers", layers % "c.num_hidden_layers"))
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
            "layer_doc": self._layer_doc(),
            "rotary_type": rotary_type,
            "rotary_build": rotary_build,
            "conditions": conditions,
            "layer_blocks": layer,
            "layer_forward": self._forward(),
            "frame_blocks": frame,
            "embed_lines": self._embed(),
            "per_layer": "layer_input" in b.layer,
            "per_layer_optional": "per_layer" in b.frame and _optional(b.frame["per_layer"]),
            **self._raising(missing),
        }

    def _raising(self, missing: Sequence[OpenFeature]) -> dict[str, Any]:
        """Where open features raise: in blocks of their own, at the start of a layer, or before anything is built."""
        messages = [_message(o) for o in missing]
        wrapped = [
            {"name": self._own(name), "base": self.built.layer[name].text.split("(", 1)[0], "block": name}
            for name in (self.wrapped if messages else ())
            if name in self.built.layer
        ]
        incomplete = self.incomplete and bool(messages)
        return {
            "messages": messages,
            "open_init": incomplete,
            "wrapped": [] if incomplete else wrapped,
            "open_layer": bool(messages) and not incomplete and not wrapped,
        }

    def _own(self, block: str) -> str:
        return self.stem + "".join(part.capitalize() for part in block.split("_"))

    def _layer_doc(self) -> str:
        lines = [f"``{line}``" for line in self._forward_formula()]
        text = ", then ".join(lines) + "."
        if len(text) <= LONGEST_DOC:
            return text
        return lines[0] + ", then\n    " + ", then\n    ".join(lines[1:]) + ".\n    "

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


def _optional(tree: Tree) -> bool:
    """Whether some configs have no such block."""
    return bool(tree.conditions)


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
        inner = {"None" if x is None else type(x).__name__ for v in some if isinstance(v, tuple) for x in v} or {"int"}
        text = f"tuple[{' | '.join(sorted(inner, key=lambda name: (name == 'None', name)))}, ...]"
    else:
        text = "float" if names == {"int", "float"} else " | ".join(sorted(names))
    return text + (" | None" if len(some) < len(values) else "")


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_switch(value: Any) -> bool:
    if value is None or isinstance(value, bool | str):
        return True
    return value == () or (isinstance(value, int | float) and value in (0, 1))
