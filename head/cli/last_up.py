"""How many node agents the last start of this machine had, for a later `up` that says no number."""

from __future__ import annotations

import json

from bus.errors import StartError
from bus.state import StateFolder, write_atomically

UP_FILE = "up.json"
MAX_NODES = 256


def last_nodes(state: StateFolder) -> int:
    """The number of the last start with agents; 1 where none was noted.

    Raises:
        StartError: the note is damaged.
    """
    file = state.path / UP_FILE
    try:
        found = json.loads(file.read_text("utf-8"))["nodes"]
    except FileNotFoundError:
        return 1
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(state, f"{type(error).__name__}: {error}") from error
    if type(found) is not int or not 1 <= found <= MAX_NODES:
        raise _damaged(state, f"nodes is {found!r}")
    return found


def note_nodes(state: StateFolder, nodes: int) -> None:
    """Keep the number of a start; one without agents leaves the former.

    Raises:
        StartError: it can not be written.
    """
    if not nodes:
        return
    try:
        write_atomically(state.path / UP_FILE, json.dumps({"nodes": nodes}) + "\n")
    except OSError as error:
        raise StartError(
            f"can not write {state.path / UP_FILE}: {error.strerror}; see that this user may"
        ) from error


def _damaged(state: StateFolder, why: str) -> StartError:
    return StartError(
        f"{state.path / UP_FILE} can not be read ({why}); say the number with --nodes, or remove "
        "the file"
    )
