"""Whether our packages come from one place; their short names can be shadowed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bus.errors import StartError

#: Everything that an installation of ours brings.
NAMES = ("bus", "agent", "head", "superfluid")


def shadowed_packages() -> str:
    """What is taken from elsewhere, as a sentence with the remedy; empty when nothing is."""
    home = Path(__file__).resolve().parents[1]
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        expected = home / f"{name}.py" if name == "superfluid" else home / name / "__init__.py"
        if found != expected:
            return (
                f"{name} is taken from {found}, not from {expected}; install superfluid-fleet "
                "into an environment of its own"
            )
    return ""


def check_packages() -> None:
    """See at a process's start that it runs one installation.

    Raises:
        StartError: a package of ours is taken from elsewhere.
    """
    problem = shadowed_packages()
    if problem:
        raise StartError(problem)
