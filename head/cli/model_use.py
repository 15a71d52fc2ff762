"""Which agents of this machine run, and which serve a model right now."""

from __future__ import annotations

import shlex
from pathlib import Path

from bus.agent_status import read_agent_status
from bus.errors import SessionBusy, StartError, SuperfluidError
from bus.file_lock import FileLock, LockHeld
from bus.state import StateFolder
from head.cli.context import CliContext

_LOCK = "agent.lock"
#: The phase of a model that a node could not load.
FAILED = "failed"


def serving_agents(state: StateFolder, model: str) -> list[str]:
    """Local names of the agents that run and have the model, as their status files tell."""
    return [folder.name for folder in _folders(state) if _serves(folder, model)]


def running_agents(state: StateFolder) -> list[str]:
    """Local names of the agents that run."""
    return [folder.name for folder in _folders(state) if _is_held(folder / _LOCK)]


def check_replaceable(context: CliContext, state: StateFolder, model: str) -> None:
    """See that nobody works with the model of a name that is about to be made.

    Nodes keep the weights that they have loaded, while the head reads texts by the folder that is
    there: a model that was replaced meanwhile would be served no more.

    One that a node could not load may be made again.

    Raises:
        SessionBusy: it is there, and agents of this machine or nodes of the head's fleet serve it.
    """
    if not (state.models / model).exists():
        return
    serving = [each.name for each in _folders(state) if _serves(each, model, failed=False)]
    where = "of this machine "
    if not serving:
        serving, where = _serving_nodes(context, model), ""
    if not serving:
        return
    named, nodes = shlex.quote(model), " ".join(serving)
    raise SessionBusy(
        f"{', '.join(serving)} {where}serves {model}, so it is not replaced: unload it there first "
        f"({context.command(f'model unload {named} {nodes}')}) and load it again after that, or "
        "choose another name with --name"
    )


def _serving_nodes(context: CliContext, model: str) -> list[str]:
    """Nodes of the head of this state folder that serve a model; none when no head runs here."""
    if context.names_address:
        return []
    try:
        with context.client() as client:
            found = [row for row in client.models() if row["name"] == model]
    except SuperfluidError:
        return []
    on = [node for row in found for node in row["on"]]
    return [str(node["node"]) for node in on if node["phase"] != FAILED]


def _folders(state: StateFolder) -> list[Path]:
    try:
        return sorted(state.nodes.iterdir())
    except OSError:
        return []


def _serves(folder: Path, model: str, *, failed: bool = True) -> bool:
    """Whether an agent has a model; `failed` counts one that it could not load."""
    status = read_agent_status(folder)
    found = status.models if status is not None else ()
    if all(served.name != model or (served.phase == FAILED and not failed) for served in found):
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
