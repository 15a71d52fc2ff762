"""What stands behind an append: requests on its session, taken in order once it is done.

    append ──▶ its text is tokenized ──▶ end: what stands behind is taken, up to the next append

So a client need not wait for one reply to send the next, whatever it asks of the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgpack

from bus.api_maps import to_map
from bus.errors import RateLimited, SessionBusy, SuperfluidError
from bus.ids import RequestId, SessionId
from bus.messages.api import AnswerUsage, EndBody, Timing
from head.effects import NOBODY, ClientKey
from head.operation import ApiRequest, Core
from head.sessions import Session

#: Requests that may stand behind an append which is still being tokenized, and their bytes: of one
#: session, and of all. A request stands there packed: what is made of it may be ten times as large.
MAX_BEHIND = 64
MAX_BEHIND_BYTES = 16 << 20
MAX_ALL_BEHIND_BYTES = 64 << 20
#: What a small request takes beside its bytes.
REQUEST_BYTES = 1024
#: Operations whose `session` is the one that they are about.
ON_SESSION = frozenset(
    {
        *("session.append", "session.generate", "session.chat", "session.get", "session.fork"),
        *("session.park", "session.resume", "session.finish", "attach", "explain"),
    }
)
#: Those that make an answer.
TURNS = frozenset({"session.generate", "session.chat"})
#: Operations about what another request has made, by its id or key.
ON_ANSWER = frozenset({"attach", "more"})
#: Of these nothing is left when nobody reads their reply.
TELLS = frozenset({"session.get", "attach", "more", "explain"})
#: What is asked of a request while it stands in a line; what is longer is none.
_LOOKED_AT = ("key", "on_disconnect")
_LOOKED_AT_LENGTH = 256

Handle = Callable[[ApiRequest, float], None]


@dataclass(slots=True, eq=False)
class _Standing:
    """A request of a line; `client` is NOBODY once its own is gone.

    Attributes:
        request: has of its body what is asked for meanwhile.
        packed: its whole body; nothing of one that has begun.
    """

    request: ApiRequest
    line: _Line
    packed: bytes = b""

    @property
    def size_bytes(self) -> int:
        return REQUEST_BYTES + len(self.packed) + sum(map(len, self.request.blobs))


@dataclass(slots=True, eq=False)
class _Line:
    """One session's append, none while what stood behind the last one is taken, and the rest."""

    session: Session
    append: _Standing | None = None
    behind: deque[_Standing] = field(default_factory=deque)
    behind_bytes: int = 0
    is_taken: bool = False


class SessionLines:
    """Owned by the API.

    Invariants: a session has a line while it is appended to, and while its line is taken; `_open`
    has what is in lines of clients that are there.

    Args:
        core: the head's.
        handle: takes a request whose turn has come.
    """

    def __init__(self, core: Core, handle: Handle) -> None:
        self._core = core
        self._handle = handle
        self._lines: dict[SessionId, _Line] = {}
        self._open: dict[ClientKey, dict[RequestId, _Standing]] = {}
        #: Of all that stands behind appends.
        self._behind_bytes = 0

    def is_open(self, client: ClientKey, request: RequestId) -> bool:
        return request in self._open.get(client, {})

    def stands_behind(self, request: ApiRequest) -> bool:
        """Whether an append of the request's session comes first; it is then taken after it.

        Raises:
            SessionBusy: too many stand there already.
            RateLimited: they have too many bytes, there or behind all appends.
        """
        line = self._line_of(request)
        if line is None or line.append is None:
            return False
        if len(line.behind) >= MAX_BEHIND:
            raise SessionBusy(
                f"{len(line.behind)} requests stand behind an append to session "
                f"{line.session.id}, which is all that may; wait for the replies to some",
                param="session",
            )
        standing = _Standing(_without_body(request), line, msgpack.packb(request.body))
        self._check_bytes(line, standing.size_bytes)
        line.behind.append(standing)
        self._count(standing, standing.size_bytes)
        self._keep_open(standing)
        return True

    def begin(self, session: Session, request: ApiRequest) -> None:
        """A session is appended to, until `end`."""
        session.appending = True
        line = self._lines.setdefault(session.id, _Line(session))
        line.append = _Standing(_without_body(request), line)
        self._keep_open(line.append)

    def end(self, session: Session, now: float) -> None:
        """Its append has had its reply: take what stands behind it."""
        session.appending = False
        line = self._lines[session.id]
        if line.append is not None:
            self._close(line.append)
            line.append = None
        if line.is_taken:
            return  # This append stood in the line; whoever takes it goes on.
        line.is_taken = True
        while line.behind and line.append is None:
            standing = line.behind[0]
            self._leave(standing)
            self._take(standing, now)
        line.is_taken = False
        if line.append is None:
            del self._lines[session.id]

    def cancel(self, client: ClientKey, request: RequestId) -> bool:
        """End a request that stands behind an append; False when none has that id."""
        standing = self._open.get(client, {}).get(request)
        if standing is None or standing is standing.line.append:
            return False
        self._leave(standing)
        end = EndBody(
            finish="cancelled",
            usage=AnswerUsage(),
            timing=Timing(),
            node="",
            session=standing.line.session.id,
            offset=0,
        )
        self._core.outbox.reply(standing.request.end(to_map(end)))
        return True

    def client_gone(self, client: ClientKey) -> None:
        """What is to be done without its client stays where it stands."""
        for standing in list(self._open.get(client, {}).values()):
            request = standing.request
            if _is_done_unread(request) or standing is standing.line.append:
                self._close(standing)
                standing.request = replace(request, client=NOBODY)
            else:
                self._leave(standing)

    # --- parts --------------------------------------------------------------------------------

    def _line_of(self, request: ApiRequest) -> _Line | None:
        op, body = request.envelope.op, request.body
        session, about, key = body.get("session"), body.get("about"), body.get("key")
        if op in ON_SESSION and isinstance(session, str) and session in self._lines:
            return self._lines[SessionId(session)]
        if op in ON_ANSWER and isinstance(about, bytes):
            standing = self._open.get(request.client, {}).get(RequestId(about))
            return standing.line if standing is not None else None
        if op in ON_ANSWER and isinstance(key, str):
            return next((line for line in self._lines.values() if _names(line, key)), None)
        return None

    def _check_bytes(self, line: _Line, more: int) -> None:
        if line.behind_bytes + more > MAX_BEHIND_BYTES:
            raise RateLimited(
                f"{line.behind_bytes} bytes of requests stand behind an append to session "
                f"{line.session.id}, and with this one it would be more than {MAX_BEHIND_BYTES}; "
                "wait for the replies to some, or send less at once",
                param="session",
                retry_after_ms=1000,
            )
        if self._behind_bytes + more > MAX_ALL_BEHIND_BYTES:
            raise RateLimited(
                f"{self._behind_bytes} bytes of requests stand behind appends to all sessions, and "
                f"with this one it would be more than {MAX_ALL_BEHIND_BYTES}; wait for the append "
                "to this session, or try again in a second",
                param="session",
                retry_after_ms=1000,
            )

    def _count(self, standing: _Standing, more: int) -> None:
        standing.line.behind_bytes += more
        self._behind_bytes += more

    def _leave(self, standing: _Standing) -> None:
        """A request stands behind its append no more."""
        standing.line.behind.remove(standing)
        self._count(standing, -standing.size_bytes)
        self._close(standing)

    def _take(self, standing: _Standing, now: float) -> None:
        request = replace(standing.request, body=msgpack.unpackb(standing.packed))
        try:
            self._handle(request, now)
        except SuperfluidError as error:
            self._core.fail_request(request.client, request.id, error)

    def _keep_open(self, standing: _Standing) -> None:
        request = standing.request
        if request.client != NOBODY:
            self._open.setdefault(request.client, {})[request.id] = standing

    def _close(self, standing: _Standing) -> None:
        theirs = self._open.get(standing.request.client, {})
        theirs.pop(standing.request.id, None)
        if not theirs:
            self._open.pop(standing.request.client, None)


def _without_body(request: ApiRequest) -> ApiRequest:
    """A request with no more than is asked of it in a line."""
    short = {
        name: value
        for name in _LOOKED_AT
        if isinstance(value := request.body.get(name), str) and len(value) <= _LOOKED_AT_LENGTH
    }
    return replace(request, body=short)


def _is_done_unread(request: ApiRequest) -> bool:
    """Whether what a request asks for is done when its client is gone."""
    if request.envelope.op in TURNS:
        return request.body.get("on_disconnect") != "cancel"
    return request.envelope.op not in TELLS


def _names(line: _Line, key: str) -> bool:
    """Whether a turn with this key stands in a line."""
    return any(
        standing.request.envelope.op in TURNS and standing.request.body.get("key") == key
        for standing in line.behind
    )
