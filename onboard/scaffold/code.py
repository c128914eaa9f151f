"""What the renderer hands over: the three Python files of a model, and what is known about them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpenFeature:
    """Something that the model computes and the code does not.

    Attributes:
        feature: its name; the code has ``raise NotImplementedError("<feature>: ...")`` where it belongs.
        hf_class: class of transformers that computes it.
        source: file of transformers that holds the class, e.g. ``models/gemma3n/modeling_gemma3n.py``.
        where: the part of the model that it belongs to.
    """

    feature: str
    hf_class: str
    source: str = ""
    where: str = ""


@dataclass(frozen=True)
class ModelCode:
    """The rendered files.

    Attributes:
        config_py, model_py, factory_py: their texts.
        class_name: class in ``factory_py``, its stem plus ``ForCausalLM``; the other classes begin with the same stem.
        architecture: the name in the config's ``architectures``.
        detected: feature and value, a row each, for people.
        open: what the code leaves out by name.
    """

    config_py: str
    model_py: str
    factory_py: str
    class_name: str
    architecture: str
    detected: tuple[tuple[str, str], ...] = ()
    open: tuple[OpenFeature, ...] = ()
