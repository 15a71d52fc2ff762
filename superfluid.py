"""The door for scripts: `import superfluid`, then `superfluid.connect()`."""

from __future__ import annotations

import os
from pathlib import Path

from bus.answer import Answer
from bus.call import Call, Placed, Queued, Stream, Token
from bus.chat_call import ChatCall, ToolRun
from bus.client import ANSWER_TIMEOUT_S, Client
from bus.client_address import api_address
from bus.client_chat import Chat
from bus.client_transcripts import Transcription
from bus.errors import (
    BlobMissing,
    ConfigInvalid,
    ConstraintInvalid,
    ConstraintReplayFailed,
    ContextLengthExceeded,
    CursorAhead,
    Expired,
    Internal,
    Invalid,
    ModelBusy,
    ModelIncomplete,
    NodeLost,
    NoHead,
    NoMemory,
    NoNode,
    NotAllowed,
    NotAuthorised,
    NotFound,
    Parked,
    PortInUse,
    QueueFull,
    RateLimited,
    RequestKillsWorkers,
    SessionBusy,
    StartError,
    StorageFull,
    StoreCorrupt,
    StoreRestored,
    SuperfluidError,
    TimedOut,
    TokenizerUnavailable,
    TokenRefused,
    TooLarge,
    UnsupportedOnFleet,
    WireError,
)
from bus.messages.api import TokenLogprob, TopToken
from bus.messages.tool_calls import ToolCall
from bus.messages.worker import SpokenSegment
from bus.session_handle import Resumed, Session
from bus.state import StateFolder
from bus.tool_results import ToolResult
from bus.version import __version__


def connect(
    address: str | None = None,
    *,
    state: str | Path | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Client:
    """Connect to a head.

    Args:
        address: of its client API (`ipc://...`, `tcp://...`). None takes `$SUPERFLUID_API`, else
            what the head of the state folder wrote down.
        state: the state folder; None takes `$SUPERFLUID_STATE`, else the default one.
        timeout_s: how long an answer may take unless its call says otherwise.

    Raises:
        NoHead: none answers there.
    """
    named = address or (None if state else os.environ.get("SUPERFLUID_API"))
    if named is None:
        named = api_address(StateFolder.find(state))
    return Client(named, timeout_s=timeout_s)


__all__ = [
    "Answer",
    "BlobMissing",
    "Call",
    "Chat",
    "ChatCall",
    "Client",
    "ConfigInvalid",
    "ConstraintInvalid",
    "ConstraintReplayFailed",
    "ContextLengthExceeded",
    "CursorAhead",
    "Expired",
    "Internal",
    "Invalid",
    "ModelBusy",
    "ModelIncomplete",
    "NoHead",
    "NoMemory",
    "NoNode",
    "NodeLost",
    "NotAllowed",
    "NotAuthorised",
    "NotFound",
    "Parked",
    "Placed",
    "PortInUse",
    "QueueFull",
    "Queued",
    "RateLimited",
    "RequestKillsWorkers",
    "Resumed",
    "Session",
    "SessionBusy",
    "SpokenSegment",
    "StartError",
    "StorageFull",
    "StoreCorrupt",
    "StoreRestored",
    "Stream",
    "SuperfluidError",
    "TimedOut",
    "Token",
    "TokenLogprob",
    "TokenRefused",
    "TokenizerUnavailable",
    "TooLarge",
    "ToolCall",
    "ToolResult",
    "ToolRun",
    "TopToken",
    "Transcription",
    "UnsupportedOnFleet",
    "WireError",
    "__version__",
    "connect",
]
