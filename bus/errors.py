"""Every error that superfluid raises, and what each means to a person, a script and a proxy.

    SuperfluidError
    ├── Invalid                 a parameter is wrong
    │   ├── CursorAhead
    │   ├── ConstraintInvalid
    │   └── ContextLengthExceeded
    ├── NotAuthorised, NotAllowed
    ├── NotFound, SessionBusy, ModelBusy, Parked, TooLarge
    ├── RateLimited, QueueFull, NoNode, StorageFull, NoMemory
    ├── Expired, TimedOut
    ├── NodeLost, UnsupportedOnFleet, BlobMissing, TokenizerUnavailable
    ├── RequestKillsWorkers, ConstraintReplayFailed, StoreRestored
    ├── Internal
    ├── NoHead                  no head answers at the address (client side)
    ├── StartError              a process can not start
    │   ├── PortInUse, ConfigInvalid, ModelIncomplete, TokenRefused, StoreCorrupt
    └── WireError               what a peer sent, or did; never shown to API clients as is
        ├── DecodeError         bytes that are no message
        └── AuthError           a tag, key or handshake that does not verify

The `code` of a class is stable and travels on the wire; the text is for people: it says the fact
and the remedy. `ERROR_TABLE` is the one table from code to class, exit code and HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class SuperfluidError(Exception):
    """The root. `str(error)` is a sentence for a person: the fact and the remedy.

    Attributes:
        code: stable name, as in docs/api.md.
        exit_code: what `sfctl` exits with.
        http_status: what an HTTP door answers with.
        message: the sentence.
        param: the parameter that is wrong, when one is.
        details: figures a program may need (lengths, offsets).
        retry_after_ms: when to try again, for errors that pass.
    """

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details = dict(details or {})
        self.retry_after_ms = retry_after_ms

    def to_dict(self) -> dict[str, Any]:
        """The error as it travels in an API reply."""
        return {
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "details": self.details,
            "retry_after_ms": self.retry_after_ms,
        }


class Invalid(SuperfluidError):
    """A parameter is not what it should be; `param` names it."""

    code = "invalid"
    exit_code = 2
    http_status = 400


class CursorAhead(Invalid):
    """An offset above what the answer has."""

    code = "cursor_ahead"


class ConstraintInvalid(Invalid):
    """A schema or grammar that can not be honoured."""

    code = "constraint_invalid"
    exit_code = 1


class ContextLengthExceeded(Invalid):
    """A prompt longer than any window; details: `length`, `max`."""

    code = "context_length_exceeded"
    exit_code = 1


class NotAuthorised(SuperfluidError):
    """The key is unknown."""

    code = "not_authorised"
    exit_code = 6
    http_status = 401


class NotAllowed(SuperfluidError):
    """The key's scope is too small."""

    code = "not_allowed"
    exit_code = 6
    http_status = 403


class NotFound(SuperfluidError):
    """No such model, session, node or request."""

    code = "not_found"
    exit_code = 5
    http_status = 404


class SessionBusy(SuperfluidError):
    """One generation per session at a time."""

    code = "session_busy"
    exit_code = 7
    http_status = 409


class ModelBusy(SuperfluidError):
    """The model is being unloaded from the node; it can be loaded again once it is gone."""

    code = "model_busy"
    exit_code = 7
    http_status = 409


class Parked(SuperfluidError):
    """The session is parked; resume it first."""

    code = "parked"
    exit_code = 7
    http_status = 409


class TooLarge(SuperfluidError):
    """A message or blob over its limit."""

    code = "too_large"
    http_status = 413


class RateLimited(SuperfluidError):
    """The key's rate is used up."""

    code = "rate_limited"
    exit_code = 7
    http_status = 429


class QueueFull(SuperfluidError):
    """The model's queue holds all it may."""

    code = "queue_full"
    exit_code = 7
    http_status = 503


class NoNode(SuperfluidError):
    """No node can serve it now; details: each node with its reason."""

    code = "no_node"
    exit_code = 3
    http_status = 503


class StorageFull(SuperfluidError):
    """A file can not be kept: the disk, or the budget for files, is used up."""

    code = "storage_full"
    exit_code = 7
    http_status = 507


class NoMemory(SuperfluidError):
    """A model does not fit beside those of a node; details: `needed_bytes`, `free_bytes`."""

    code = "no_memory"
    exit_code = 7
    http_status = 507


class Expired(SuperfluidError):
    """The request's wall budget is used up."""

    code = "expired"
    exit_code = 8
    http_status = 504


class TimedOut(SuperfluidError):
    """A wait reached its limit."""

    code = "timed_out"
    exit_code = 8
    http_status = 504


class NodeLost(SuperfluidError):
    """The node or worker died and no other took over; details: `offset`."""

    code = "node_lost"
    http_status = 502


class UnsupportedOnFleet(SuperfluidError):
    """A node runs a version that can not do it."""

    code = "unsupported_on_fleet"
    http_status = 501


class RequestKillsWorkers(SuperfluidError):
    """Two workers died while they ran this request."""

    code = "request_kills_workers"


class ConstraintReplayFailed(SuperfluidError):
    """No node accepted the constraint with the tokens delivered so far."""

    code = "constraint_replay_failed"


class StoreRestored(SuperfluidError):
    """The answer ran when a backup was made that the head's store was put back from."""

    code = "store_restored"
    http_status = 410


class BlobMissing(SuperfluidError):
    """A file that a request names is not there."""

    code = "blob_missing"


class TokenizerUnavailable(SuperfluidError):
    """Nothing at hand can encode text for this model."""

    code = "tokenizer_unavailable"


class Internal(SuperfluidError):
    """A fault of ours; the log has more."""

    code = "internal"


class NoHead(SuperfluidError):
    """No head answers at the address."""

    code = "no_head"
    exit_code = 4
    http_status = 503


class StartError(SuperfluidError):
    """A process can not start."""

    code = "start_failed"


class PortInUse(StartError):
    """Another process has the address."""

    code = "port_in_use"


class ConfigInvalid(StartError):
    """A configuration file, key or value is wrong."""

    code = "config_invalid"
    exit_code = 2


class ModelIncomplete(StartError):
    """A model folder lacks a file or has a damaged one."""

    code = "model_incomplete"


class TokenRefused(StartError):
    """The peer's fleet token and ours differ, or ours can not be used."""

    code = "token_refused"
    exit_code = 6


class StoreCorrupt(StartError):
    """The durable store can not be read; it is never replaced in silence."""

    code = "store_corrupt"


class WireError(SuperfluidError):
    """A fault of a peer or of the link to it."""

    code = "wire"


class DecodeError(WireError):
    """Bytes that are no valid message. The decoder raises nothing else."""

    code = "decode"


class AuthError(WireError):
    """A seal, key or handshake that does not verify. Says nothing about which part failed."""

    code = "auth"


def _walk(cls: type[SuperfluidError]) -> list[type[SuperfluidError]]:
    return [cls] + [found for sub in cls.__subclasses__() for found in _walk(sub)]


#: From code to class. Exit code and HTTP status are attributes of the class.
ERROR_TABLE: Mapping[str, type[SuperfluidError]] = {
    cls.code: cls for cls in reversed(_walk(SuperfluidError))
} | {"internal": Internal}


def error_from_dict(body: Mapping[str, Any]) -> SuperfluidError:
    """Rebuild the error that a reply carries; an unknown code becomes `SuperfluidError`."""
    cls = ERROR_TABLE.get(str(body.get("code", "internal")), SuperfluidError)
    details = body.get("details")
    retry = body.get("retry_after_ms")
    param = body.get("param")
    return cls(
        str(body.get("message", "the head gave no reason")),
        param=param if isinstance(param, str) else None,
        details=details if isinstance(details, dict) else None,
        retry_after_ms=retry if isinstance(retry, int) else None,
    )
