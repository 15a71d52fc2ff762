"""What an agent tells its own machine about itself: `<state>/nodes/<name>/status.json`.

The agent writes the file when something changes; the command line reads it where no head could be
asked. It outlives its writer: who reads compares the process id with the one that runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.api_maps import from_map
from bus.errors import Invalid, StartError, SuperfluidError, TokenRefused
from bus.state import write_atomically

STATUS_FILE = "status.json"
#: Refusals of a link that waiting does not mend, and what each is to a person.
PERMANENT_REFUSALS: Mapping[str, type[SuperfluidError]] = {
    "token_refused": TokenRefused,
    "peer_key_differs": TokenRefused,
    "revoked": TokenRefused,
    "identity_in_use": StartError,
    "no_common_version": StartError,
    "wrong_role": StartError,
    "own_key": StartError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLink:
    """The link to the head.

    Attributes:
        peer: the other end, for people.
        address: where it is looked for, or waited for.
        up: whether a link stands.
        code: why there is none, as in the log; empty while it is tried for the first time.
        reason: the same as a sentence.
    """

    peer: str
    address: str
    up: bool = False
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel:
    """One model's worker.

    Attributes:
        phase: loading, ready or failed.
        problem: why the last worker ended; kept until one is ready.
        code: of the error that it named itself; empty when it just ended.
        failures: workers that ended since one was last ready.
    """

    name: str
    phase: str
    problem: str = ""
    code: str = ""
    failures: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """All of the file."""

    pid: int
    identity: str
    link: AgentLink
    models: tuple[AgentModel, ...]


def write_agent_status(folder: Path, status: AgentStatus) -> None:
    """Replace the file in an agent's folder.

    Raises:
        OSError: it can not be written.
    """
    write_atomically(folder / STATUS_FILE, json.dumps(dataclasses.asdict(status), indent=1) + "\n")


def read_agent_status(folder: Path) -> AgentStatus | None:
    """What an agent wrote last; None when there is nothing that can be read."""
    try:
        found = json.loads((folder / STATUS_FILE).read_text("utf-8"))
        return _parse(found)
    except (OSError, ValueError, TypeError, KeyError, Invalid):
        return None


def _parse(found: Mapping[str, Any]) -> AgentStatus:
    return AgentStatus(
        pid=int(found["pid"]),
        identity=str(found["identity"]),
        link=from_map(AgentLink, found["link"]),
        models=tuple(from_map(AgentModel, model) for model in found["models"]),
    )
