"""Lines about everything that an oracle is shown, for a run that is replayed."""

from __future__ import annotations

from typing import Any

from bus.messages.link import Heartbeat, NodeStatus
from tests.harness.memory_watch import Observer
from tests.sim.world.world import World

#: Not said: they come all the time and tell little.
_DULL = (Heartbeat, NodeStatus)
_HOOKS = [name for name in vars(Observer) if not name.startswith("_") and name != "after_event"]
_SILENT = {"effects", "sent", "computed", "replied", "released"}


def trace_fleet(world: World) -> None:
    """Have a world say all that its oracle sees, before the oracle judges it."""
    for name in _HOOKS:
        if name not in _SILENT:
            setattr(world.oracle, name, _said(world, name, getattr(world.oracle, name)))


def _said(world: World, name: str, hook: Any) -> Any:
    def say(*values: Any) -> Any:
        if not any(isinstance(value, _DULL) for value in values):
            world.say(f"{name} " + " ".join(_short(value) for value in values))
        return hook(*values)

    return say


def _short(value: Any) -> str:
    if hasattr(value, "name") and hasattr(value, "boot"):
        return str(value.name)
    if isinstance(value, int) and value > 1 << 40:
        return f"{value:x}"
    text = str(value)
    return text if len(text) < 600 else f"{text[:600]}..."
