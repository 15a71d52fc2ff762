"""The client's side of the API protocol, without sockets or clock (docs/api.md).

    start ──▶ OPEN ──events──▶ OPEN ──end | error──▶ closed
               │  lost, has a cursor to go on from ──▶ DETACHED ──connected──▶ OPEN (attach)
               │  lost, nothing to go on from, deadline, a fault of the head ──▶ closed (Failed)

`ClientSession` is driven by a thin adapter (bus/client.py is the blocking one): it hands in what
came (`receive`), time (`handle_timeout` at `next_timeout`), and sends what `frames_to_send` gives.
What a request got is taken with `take`; taking is what grants the head more credit, so a reader
that is behind is felt by the head instead of filling memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.client_events import ClientEvent, Ended, Failed, error_of, read_event
from bus.client_request import pack_request
from bus.errors import Invalid, NoHead, SuperfluidError, TimedOut, WireError
from bus.ids import RequestId
from bus.messages.api import DEFAULT_CREDIT, MARK, MAX_CREDIT, PlacedEvent, TokenEvent, decode_body

ID_BYTES = 8
#: Ids of `more`, `cancel` and `ping`: a refusal of those is no event of any request.
_CONTROL_PREFIX = b"c"
_REQUEST_PREFIX = b"r"
#: With requests open and nothing heard for this long, the head is asked whether it lives.
PING_AFTER_S = 5.0
#: An unanswered ping for this long means that the head hangs or the path is cut half-way.
SILENCE_LIMIT_S = 20.0
#: Operations that change nothing at the head, or nothing more when they come twice: safe to send
#: again on a new connection.
REPEATABLE = frozenset(
    {
        *("hello", "ping", "status", "nodes", "models", "tokenize", "detokenize", "attach"),
        *("session.get", "session.ls", "session.park", "session.finish", "embed"),
        "render",
    }
)
#: Operations that an idempotency key is for.
TAKE_KEYS = frozenset({"generate", "chat", "session.generate", "session.chat"})
#: How many closed requests are remembered, to tell a late event from one that was never asked for.
REMEMBERED_CLOSED = 1024


@dataclass(slots=True)
class _Request:
    """One open request. Private to ClientSession."""

    op: str
    body: dict[str, Any]
    credit: int
    deadline: float | None
    #: Tokens that came: the offset that the next token event must have.
    cursor: int
    session: str | None = None
    #: Events that the head may still send.
    granted: int = 0
    #: Events taken since credit was last granted; granted + waiting + taken is at most credit.
    taken: int = 0
    detached: bool = False
    waiting: deque[ClientEvent] = field(default_factory=deque)

    @property
    def key(self) -> str | None:
        key = self.body.get("key")
        return key if isinstance(key, str) else None

    @property
    def repeatable(self) -> bool:
        """Whether sending it again can do no harm and misses nothing."""
        return self.op in REPEATABLE or (self.key is not None and self.cursor == 0)

    @property
    def can_continue(self) -> bool:
        return self.repeatable or self.key is not None or self.session is not None


class ClientSession:
    """All requests of one client, over one connection after another.

    Invariant: a request that was started gives exactly one Ended or Failed, as its last event,
    and its token events are without gap or repeat, also across connections.

    Args:
        entropy: n random bytes for n; request ids are made of it.
    """

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._open: dict[RequestId, _Request] = {}
        #: Closed ones whose last events are not taken yet.
        self._untaken: dict[RequestId, deque[ClientEvent]] = {}
        #: True: the head closed it, so more about it is a fault. False: we gave it up.
        self._closed: dict[RequestId, bool] = {}
        self._ping: RequestId | None = None
        self._ping_sent = 0.0
        self._heard = 0.0
        self._connected = True
        self._out: deque[list[bytes]] = deque()

    # --- requests ---------------------------------------------------------------------------

    def start(
        self,
        op: str,
        body: Mapping[str, Any],
        *,
        now: float,
        credit: int = DEFAULT_CREDIT,
        deadline: float | None = None,
        frames: Sequence[bytes] = (),
    ) -> RequestId:
        """Send a request.

        Args:
            op: the operation's name.
            body: its own keys, without `op`, `id` and `credit`.
            now: seconds, of the adapter's clock.
            credit: events that may wait here, 1 to 4096.
            deadline: when to give up, on the same clock; None never does.
            frames: what travels behind the body; not for operations that are sent again.

        Raises:
            Invalid: credit is out of range, or a value can not travel.
            TooLarge: the body is over the API's limit.
        """
        if not 1 <= credit <= MAX_CREDIT:
            raise Invalid(f"credit is {credit}; it should be 1 to {MAX_CREDIT}", param="credit")
        request = self._new_id(_REQUEST_PREFIX)
        cursor = body.get("offset", 0) if op == "attach" else 0
        made = _Request(op, dict(body), credit, deadline, cursor, granted=credit)
        if not self._open:
            self._heard = now
        self._send(op, request, made.body, credit, frames)
        self._open[request] = made
        return request

    def cancel(self, request: RequestId) -> None:
        """Ask the head to stop it; its end then comes as `cancelled`. Fine when it has ended."""
        found = self._open.get(request)
        if found is not None and not found.detached:
            self._control("cancel", request)

    def abandon(self, request: RequestId) -> None:
        """Cancel it and forget it; nothing of it is given any more."""
        self.cancel(request)
        if self._open.pop(request, None) is not None:
            self._remember(request, by_head=False)
        self._untaken.pop(request, None)

    def take(self, request: RequestId) -> list[ClientEvent]:
        """What came for a request since the last take; grants credit for it.

        After the list with an Ended or Failed there is nothing more.
        """
        found = self._open.get(request)
        if found is None:
            return list(self._untaken.pop(request, ()))
        events = list(found.waiting)
        found.waiting.clear()
        found.taken += len(events)
        if found.taken * 2 >= found.credit and not found.detached:
            self._control("more", request, credit=found.taken)
            found.granted += found.taken
            found.taken = 0
        return events

    def is_open(self, request: RequestId) -> bool:
        """Whether its end has yet to come."""
        return request in self._open

    @property
    def idle(self) -> bool:
        """Whether no request is open."""
        return not self._open

    def cursor(self, request: RequestId) -> int:
        """How many tokens of an open request came."""
        return self._open[request].cursor

    # --- time -------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called, None for never."""
        times = [r.deadline for r in self._open.values() if r.deadline is not None]
        if self._open and self._connected:
            waits = self._ping is not None
            times.append(self._ping_sent + SILENCE_LIMIT_S if waits else self._heard + PING_AFTER_S)
        return min(times, default=None)

    def handle_timeout(self, now: float) -> bool:
        """Give up what is over its deadline, and see whether the head lives.

        Call it after all that came was handed to `receive`.

        Returns:
            False when the head has been silent for too long: treat the connection as lost.
        """
        for request, found in list(self._open.items()):
            if found.deadline is not None and now >= found.deadline:
                self.cancel(request)
                text = f"{found.op} did not end in time; raise the timeout or ask for less"
                self._fail(request, TimedOut(text, details={"offset": found.cursor}))
        if not self._open or not self._connected:
            return True
        if self._ping is None and now >= self._heard + PING_AFTER_S:
            self._ping, self._ping_sent = self._new_id(_CONTROL_PREFIX), now
            self._send("ping", self._ping, {})
        return self._ping is None or now < self._ping_sent + SILENCE_LIMIT_S

    # --- the connection ---------------------------------------------------------------------

    def frames_to_send(self) -> list[list[bytes]]:
        """Messages to send, in order; each is given once."""
        out = list(self._out)
        self._out.clear()
        return out

    def connection_lost(self) -> None:
        """The connection is gone: requests that can be continued wait, the others fail."""
        self._connected = False
        self._out.clear()
        self._ping = None
        for request, found in list(self._open.items()):
            found.detached = True
            if not found.can_continue:
                text = f"the head went away during {found.op}{_remedy(found.op)}"
                self._fail(request, NoHead(text, details={"offset": found.cursor}))

    def connected(self, now: float) -> None:
        """A new connection is there: what waited is sent again or attached at its cursor."""
        self._connected = True
        self._heard = now
        for request, found in self._open.items():
            if not found.detached:
                continue
            found.detached = False
            found.taken = 0
            found.granted = max(1, found.credit - len(found.waiting))
            if found.op == "attach":
                self._send("attach", request, found.body | {"offset": found.cursor}, found.granted)
            elif found.repeatable:
                self._send(found.op, request, found.body, found.granted)
            else:
                named = {"key": found.key} if found.key else {"session": found.session}
                self._send("attach", request, named | {"offset": found.cursor}, found.granted)

    def fail_all(self, error: SuperfluidError) -> None:
        """No connection can be had: every open request ends with this error."""
        for request in list(self._open):
            self._fail(request, error)

    def receive(self, frames: list[bytes], now: float) -> None:
        """Take one message of the head.

        A fault in what an open request gets closes that request with a WireError.

        Raises:
            WireError: the message is none, or about no request of ours.
            SuperfluidError: the head says that it could not read what we sent.
        """
        body = decode_body(frames)
        self._heard = now
        request, kind = body.get("id"), body.get("kind")
        if request is None and kind == "error":
            raise error_of(body)
        if not isinstance(request, bytes):
            raise WireError("the head sent a reply without a request id; are versions equal?")
        if request.startswith(_CONTROL_PREFIX):
            # `more` and `cancel` about a request that ended meanwhile are refused; that is fine.
            if request == self._ping:
                self._ping = None
        elif RequestId(request) in self._open:
            self._dispatch(RequestId(request), body)
        elif self._closed.get(RequestId(request), True):
            known = RequestId(request) in self._closed
            fact = "after the request had ended" if known else "for a request never made"
            raise WireError(f"the head sent {kind} {fact} ({request.hex()})")

    # --- inside -----------------------------------------------------------------------------

    def _dispatch(self, request: RequestId, body: dict[str, Any]) -> None:
        kind = body.get("kind")
        try:
            if kind == "event":
                self._event(self._open[request], body)
            elif kind == "end":
                self._close(request, Ended(body), by_head=True)
            elif kind == "error":
                self._close(request, Failed(error_of(body)), by_head=True)
            else:
                raise WireError(f"the head sent a reply of unknown kind {kind!r}")
        except WireError as error:
            self._control("cancel", request)
            self._fail(request, error)

    def _event(self, found: _Request, body: dict[str, Any]) -> None:
        if not found.granted:
            raise WireError(f"the head sent more than the {found.credit} events it had credit for")
        found.granted -= 1
        event = read_event(body)
        if isinstance(event, TokenEvent):
            _check_tokens(found.cursor, event)
            found.cursor += len(event.tokens)
        elif isinstance(event, PlacedEvent):
            found.session = event.session
        found.waiting.append(event)

    def _close(self, request: RequestId, last: Ended | Failed, *, by_head: bool) -> None:
        found = self._open.pop(request)
        found.waiting.append(last)
        self._untaken[request] = found.waiting
        self._remember(request, by_head=by_head)

    def _fail(self, request: RequestId, error: SuperfluidError) -> None:
        self._close(request, Failed(error), by_head=False)

    def _remember(self, request: RequestId, *, by_head: bool) -> None:
        self._closed[request] = by_head
        while len(self._closed) > REMEMBERED_CLOSED:
            del self._closed[next(iter(self._closed))]

    def _new_id(self, prefix: bytes) -> RequestId:
        while True:
            request = RequestId(prefix + self._entropy(ID_BYTES))
            if request not in self._open and request not in self._closed:
                return request

    def _control(self, op: str, about: RequestId, **more: Any) -> None:
        self._send(op, self._new_id(_CONTROL_PREFIX), {"about": about, **more})

    def _send(
        self,
        op: str,
        request: RequestId,
        body: Mapping[str, Any],
        credit: int | None = None,
        frames: Sequence[bytes] = (),
    ) -> None:
        whole = {"op": op, "id": request, **body}
        if credit is not None:
            whole["credit"] = credit
        self._out.append([MARK, pack_request(whole), *frames])


def _remedy(op: str) -> str:
    """What to do about a request of which it is not known whether the head took it."""
    if op in TAKE_KEYS:
        return (
            " and the request has no idempotency key to continue by; send it again, with `key` to "
            "survive this"
        )
    return ", which it may have done; see what is there before you send it again"


def _check_tokens(cursor: int, event: TokenEvent) -> None:
    if event.logprobs is not None and len(event.logprobs) != len(event.tokens):
        raise WireError(
            f"the head sent {len(event.logprobs)} log-probabilities for {len(event.tokens)} tokens"
        )
    if event.index != 0:
        raise WireError(f"the head sent tokens of choice {event.index}; one was asked for")
    if event.offset != cursor:
        what = "skipped" if event.offset > cursor else "repeated"
        raise WireError(
            f"the head {what} tokens: the event starts at {event.offset}, {cursor} came so far",
            details={"offset": event.offset, "cursor": cursor},
        )
