"""Requests of clients that jobs answer: their events within credit, then one end.

open ──text work──▶ ──job──▶ events ──▶ end or error
  └── cancel: an end at once; the connection is gone: nothing more
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bus.errors import Expired, Internal, NotFound, QueueFull, RateLimited, SuperfluidError
from bus.ids import NodeIdentity, RequestId
from bus.messages.api import error_body
from head.book import MAX_OPEN_REQUESTS
from head.effects import ClientKey, Reply
from head.jobs import JobDone, JobSpec
from head.operation import ApiRequest, Core

#: Of events that wait for credit of one client. Above it no further job of it begins; those that
#: run may add some.
MAX_WAITING_BYTES = 32 * 1024 * 1024
#: Characters of texts that wait for their model's tokenizer: of a client, and of all.
MAX_KEPT_TEXT = 32 * 1024 * 1024
MAX_KEPT_TEXTS = 8 * MAX_KEPT_TEXT
#: How a request ends, in its `end`.
DONE, CANCELLED = "done", "cancelled"

#: Give the keys of an event for a part's body (None for no event), and of the end for that of the
#: job's. What they raise says what is wrong with it: it is the node's fault.
EventOf = Callable[[bytes], dict[str, Any] | None]
EndOf = Callable[[JobDone], dict[str, Any]]


class JobRequest:
    """One open request. Its operation gives it text work and a job, in this order.

    Invariant: `_waiting` is empty while there is credit.
    """

    def __init__(
        self, requests: JobRequests, core: Core, request: ApiRequest, wall_ms: int, now: float
    ) -> None:
        self._requests = requests
        self._core = core
        #: Without its body, which may be long.
        self.request = replace(request, body={}, blobs=())
        self.text_jobs: set[int] = set()
        self._job: int | None = None
        self._credit = request.envelope.credit
        #: Events, with the size of the part that each is of.
        self._waiting: deque[tuple[dict[str, Any], int]] = deque()
        #: Its end, while events wait for credit before it.
        self._last: dict[str, Any] | None = None
        self.is_over = False
        #: What it keeps until the model's tokenizer is there; nothing once it is over.
        self.texts: list[str] = []
        self._wall_ms = wall_ms
        self._ends_s = now + wall_ms / 1000
        self._wall_timer = core.runs.jobs.timers.at(self._ends_s, self._expire) if wall_ms else None

    def run(self, spec: JobSpec, event_of: EventOf, end_of: EndOf, now: float) -> None:
        """Have the job done that answers the request.

        Raises:
            QueueFull: too many wait.
        """

        def on_part(body: bytes, at: float) -> None:
            try:
                if (event := event_of(body)) is not None:
                    self._event(event, len(body))
            except SuperfluidError as error:
                node = self._core.runs.jobs.node_of(self._job)
                self._stop(at)
                self.fail(_made_up(spec.kind, node, error))

        def on_end(result: JobDone | SuperfluidError, at: float) -> None:
            self._job = None
            if isinstance(result, SuperfluidError):
                self.fail(result)
                return
            try:
                self.end(end_of(result))
            except SuperfluidError as error:
                self.fail(_made_up(spec.kind, result.node, error))

        if self._wall_ms:
            # Some of it went by before.
            spec = replace(spec, wall_ms=max(1, round((self._ends_s - now) * 1000)))
        job = self._core.runs.jobs.submit(spec, on_part, on_end, now)
        if not self.is_over:
            self._job = job

    def keep(self, texts: list[str]) -> None:
        """Keep texts until they are taken, or it is over.

        Raises:
            QueueFull: too much is kept already.
        """
        self._requests.keep(self.request.client, sum(map(len, texts)))
        self.texts = texts

    def take(self) -> list[str]:
        """The texts that were kept, which are no longer."""
        taken, self.texts = self.texts, []
        self._requests.let_go(self.request.client, sum(map(len, taken)))
        return taken

    def _event(self, body: dict[str, Any], size_bytes: int) -> None:
        """Give an event, when there is credit for it."""
        self._waiting.append(({"id": self.request.id, "kind": "event", **body}, size_bytes))
        self._requests.count_waiting(self.request.client, size_bytes)
        self._pump()

    def end(self, body: dict[str, Any]) -> None:
        """Its one end, after all events."""
        self._close({"id": self.request.id, "kind": "end", **body})

    def fail(self, error: SuperfluidError) -> None:
        """Its one error, after the events that came before."""
        self._close(error_body(self.request.id, error))

    def more(self, credit: int, now: float) -> None:
        """The client takes so many further events."""
        self._credit += credit
        self._pump()
        self._requests.begin_held(now)

    def cancel(self, now: float) -> None:
        """The client wants no more: its end comes at once, and what waited is dropped.

        An end or error that waited behind events for credit is dropped with them.
        """
        self._stop(now)
        self._requests.count_waiting(self.request.client, -sum(size for _, size in self._waiting))
        self._waiting.clear()
        self._last = None
        self.end({"finish": CANCELLED})
        self._requests.begin_held(now)

    def _expire(self, now: float) -> None:
        self._wall_timer = None
        if self.is_over or self._last is not None:
            return
        self._stop(now)
        self.fail(
            Expired(
                f"the wall budget of {self._wall_ms} ms ended before the request; give it a larger "
                "max_wall_ms, or add a node"
            )
        )

    def drop(self) -> None:
        """Its connection is gone: nothing comes of it any more."""
        self.is_over = True
        self.take()
        self._core.runs.jobs.timers.cancel(self._wall_timer)

    def _close(self, body: dict[str, Any]) -> None:
        self._core.runs.jobs.timers.cancel(self._wall_timer)
        self.take()
        if self._last is None and not self.is_over:
            self._last = body
            self._pump()

    def _pump(self) -> None:
        while self._waiting and self._credit:
            self._credit -= 1
            event, size_bytes = self._waiting.popleft()
            self._requests.count_waiting(self.request.client, -size_bytes)
            self._reply(event)
        if self._job is not None:
            self._core.runs.jobs.hold(self._job, held=bool(self._waiting))
        if self._last is not None and not self._waiting and not self.is_over:
            self.is_over = True
            self._requests.closed(self)
            self._reply(self._last)

    def stop_text(self) -> None:
        """Drop its text work."""
        for job in self.text_jobs:
            self._core.texts.drop(job)
        self.text_jobs.clear()

    def _stop(self, now: float) -> None:
        self.stop_text()
        if self._job is not None:
            self._core.runs.jobs.cancel(self._job, now)
            self._job = None

    def _reply(self, body: dict[str, Any]) -> None:
        self._core.outbox.reply(Reply(client=self.request.client, body=body))


class JobRequests:
    """All that are open. Owned by the API. The jobs of a client that is gone end at the desk."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._open: dict[ClientKey, dict[RequestId, JobRequest]] = {}
        #: Bytes of events that wait for credit, by client.
        self._waiting_bytes: Counter[ClientKey] = Counter()
        #: Characters of texts that requests keep, by client.
        self._kept: Counter[ClientKey] = Counter()
        #: Whether a client has taken enough for its jobs to begin again.
        self._may_begin = False

    def open(self, request: ApiRequest, wall_ms: int, now: float) -> JobRequest:
        """Begin to answer a request.

        Args:
            wall_ms: from now to its end; 0 is no limit.

        Raises:
            RateLimited: the client has as many open as it may.
        """
        mine = self._open.get(request.client, {})
        if len(mine) >= MAX_OPEN_REQUESTS:
            raise RateLimited(
                f"{len(mine)} requests of this connection are open, which is all it may have; "
                "take their events, or wait for some to end",
                retry_after_ms=1000,
            )
        made = JobRequest(self, self._core, request, wall_ms, now)
        self._open.setdefault(request.client, {})[request.id] = made
        return made

    def keep(self, client: ClientKey, size: int) -> None:
        """So many characters more are kept for a client.

        Raises:
            QueueFull: too many are kept already.
        """
        if self._kept[client] + size > MAX_KEPT_TEXT or self._kept.total() + size > MAX_KEPT_TEXTS:
            raise QueueFull(
                "too much text waits for the tokenizer of its model already; try again in a second",
                retry_after_ms=1000,
            )
        self._kept[client] += size

    def let_go(self, client: ClientKey, size: int) -> None:
        """So many are kept no longer."""
        self._kept[client] -= size
        if not self._kept[client]:
            del self._kept[client]

    def count_waiting(self, client: ClientKey, size_bytes: int) -> None:
        """So much more waits for credit of a client, or (below 0) less."""
        self._waiting_bytes[client] += size_bytes
        full = self._core.runs.jobs.room.holds.full
        if self._waiting_bytes[client] > MAX_WAITING_BYTES:
            full.add(client)
        elif client in full:
            full.discard(client)
            self._may_begin = True

    def begin_held(self, now: float) -> None:
        """Begin jobs of clients that have taken enough of what waited."""
        if self._may_begin:
            self._may_begin = False
            self._core.runs.jobs.schedule_all(now)
        self._core.runs.jobs.schedule_released(now)

    def closed(self, request: JobRequest) -> None:
        """A request has had its end."""
        mine = self._open.get(request.request.client, {})
        mine.pop(request.request.id, None)
        if not mine:
            self._open.pop(request.request.client, None)

    def is_open(self, client: ClientKey, request: RequestId) -> bool:
        return request in self._open.get(client, {})

    def find(self, client: ClientKey, request: RequestId) -> JobRequest:
        """An open request of a client.

        Raises:
            NotFound: none of this id is open.
        """
        found = self._open.get(client, {}).get(request)
        if found is None:
            raise NotFound("no open request of this connection has that id", param="about")
        return found

    def client_gone(self, client: ClientKey) -> None:
        """Forget the requests of a connection that ended; nobody reads them."""
        del self._waiting_bytes[client]
        self._core.runs.jobs.room.holds.full.discard(client)
        for request in self._open.pop(client, {}).values():
            request.drop()


def _made_up(kind: str, node: NodeIdentity | None, error: SuperfluidError) -> Internal:
    """The error of a request whose node sent what answers nothing that it was asked."""
    return Internal(
        f"node {node or 'unknown'} sent what is no result of the job {kind} ({error.message}); "
        "see that its version is the head's, and ask again",
        details={"node": node} if node else None,
    )
