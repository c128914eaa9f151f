"""What the class names in ``architectures`` say against the model type, and of a head of another kind."""

from __future__ import annotations

from onboard.facts.families.table import CLASSES, FAMILIES
from onboard.facts.sections import Section

# Families whose class with the head is called XModel.
WITH_HEAD = ("chatglm",)
HEADLESS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")


def contradictions(section: Section) -> list[str]:
    """Warnings, each with both values and the one that is taken."""
    found = []
    names = section.architectures
    family = FAMILIES.get(section.model_type or "")
    if len(set(names)) > 1:
        found.append(f"architectures names {', '.join(names)}; model_type {section.model_type!r} decides what is read")
    for name in names[:1]:
        other = CLASSES.get(name)
        if family is not None and other is not None and name != family.class_name and other != family.model_type:
            found.append(
                f"architectures={name} contradicts model_type={section.model_type}, whose class is "
                f"{family.class_name}; model_type wins"
            )
        bare = name.endswith("Model") and not name.endswith("LMHeadModel") and section.model_type not in WITH_HEAD
        if bare or name.endswith(HEADLESS):
            found.append(
                f"{name} has no language-model head; what is shown is the decoder with the head that its causal "
                "language model would have"
            )
    return found
