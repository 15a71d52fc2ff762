"""Link-F messages about sessions that are parked in files of a node (capability `parking`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, OneLine
from bus.ids import Epoch, ModelName, SessionId
from bus.messages.link_codec import LINK
from bus.messages.parts import U32, U63, CommandRef, Name


@LINK.message(tag=26, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPark(CommandRef):
    """The session ends there; what is computed of its context is written to a file.

    Answered by SessionParked, unless the node does not hold it.
    """


@LINK.message(tag=27, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRestore(CommandRef):
    """Take up the session's file, and remove it; its context was appended before.

    Answered by SessionRestored, also where there is no file.
    """


@LINK.message(tag=28, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForget:
    """Remove the session's file, if there is one."""

    session: SessionId
    model: ModelName


@LINK.message(tag=38, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParked:
    """The session's first `tokens` tokens are in its file; when there are none, why."""

    session: SessionId
    epoch: Epoch
    tokens: U32 = 0
    file_bytes: U63 = 0
    code: Name = ""
    message: Annotated[str, MaxBytes(2048), OneLine()] = ""


@LINK.message(tag=39, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRestored(CommandRef):
    """The session's first `tokens` tokens need not be computed again on this node.

    The first `exact_tokens` are bit for bit what it would compute; `problem` says why not all are,
    or why there are none.
    """

    tokens: U32 = 0
    exact_tokens: U32 = 0
    problem: Annotated[str, MaxBytes(2048), OneLine()] = ""
