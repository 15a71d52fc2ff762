"""What the head's core hands to its adapter: what to keep, and what may leave after that.

The output-commit rule: an output leaves only after the `lsn` it is tagged with is durable, in
order. `OutputGate` (head/gate.py) is the one place that holds outputs back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bus.ids import RequestId
from head.rows import Row

#: Names one link: what the transport layer knows it by.
LinkKey = int
#: Names one API client connection.
ClientKey = bytes
#: The client of what nobody waits for any more; replies to it go nowhere.
NOBODY: ClientKey = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Rows to commit in one transaction; `lsn` rises by one each time."""

    lsn: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLink:
    """A Link-F message for a node."""

    link: LinkKey
    message: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A body for an API client."""

    client: ClientKey
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextJob:
    """A message of bus/messages/text.py for a text process; clients take turns."""

    message: object
    client: ClientKey = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropText:
    """Nobody waits for this text job any more."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLink:
    """End a link whose peer broke the protocol; it may join again."""

    link: LinkKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackUp:
    """A copy of the store for an API client: into `file`, or its own folder when that is empty.

    `keep` is how many stay in that folder; 0 is all.
    """

    client: ClientKey
    request: RequestId
    file: str = ""
    keep: int = 0


Output = SendLink | Reply | TextJob | DropText | CloseLink | BackUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """An output and the lsn that must be durable before it leaves (0: nothing)."""

    after: int
    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What one round of the core gave, in order.

    `forwards` rest on nothing that is kept: they wait neither for rows nor for other outputs.
    """

    persist: Persist | None
    outputs: tuple[Tagged, ...]
    forwards: tuple[SendLink, ...] = ()
