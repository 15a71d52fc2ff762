"""Which agents of this machine run, and which serve a model right now."""

from __future__ import annotations

from pathlib import Path

from bus.agent_status import read_agent_status
from bus.errors import StartError
from bus.file_lock import FileLock, LockHeld
from bus.state import StateFolder

_LOCK = "agent.lock"


def serving_agents(state: StateFolder, model: str) -> list[str]:
    """Local names of the agents that run and have the model, as their status files tell."""
    return [folder.name for folder in _folders(state) if _serves(folder, model)]


def running_agents(state: StateFolder) -> list[str]:
    """Local names of the agents that run."""
    return [folder.name for folder in _folders(state) if _is_held(folder / _LOCK)]


def _folders(state: StateFolder) -> list[Path]:
    try:
        return sorted(state.nodes.iterdir())
    except OSError:
        return []


def _serves(folder: Path, model: str) -> bool:
    status = read_agent_status(folder)
    if status is None or all(served.name != model for served in status.models):
        return False
    return _is_held(folder / _LOCK)


def _is_held(lock: Path) -> bool:
    """Whether an agent runs: it holds its folder's lock until it ends, however that happens."""
    if not lock.exists():
        return False
    try:
        FileLock(lock).close()
    except LockHeld:
        return True
    except StartError:
        # another user's agent: what can not be known is not taken for idle
        return True
    return False
