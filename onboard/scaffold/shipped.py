"""Where the templates are."""

from __future__ import annotations

from pathlib import Path

import onboard
from onboard.errors import RunError


def templates() -> Path:
    """The folder of the templates: inside the installed package, or beside it in a clone.

    Raises:
        RunError: the installation lacks them.
    """
    inside = Path(onboard.__file__).parent
    for folder in (inside / "templates", inside.parent / "templates"):
        if (folder / "package" / "copier.yml").is_file():
            return folder
    raise RunError("templates", str(inside), "an installation with its templates", "Install neuron-onboard again.")
