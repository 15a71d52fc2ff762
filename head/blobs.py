"""Files on their way to nodes: a request goes out when its node has every file that it names.

    generate ──all there──▶ sent
       │                      │ Declined blob_missing: once more from the start
       ▼                      ▼
    waits for transfers ──all Done──▶ sent          a transfer failed ──▶ the owner decides

One copy of a file goes to a node, and once while the node has it. A lost link drops what waits
here: the request comes again when the node has reconciled, or for another node, and a transfer goes
on where the node is.

Each link has a pace, beside the window that its sender keeps: a node that takes files as fast as it
can has no processor left for its streams.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from bus.blob_sender import BlobSender, BlobSource, Outcome
from bus.errors import SuperfluidError
from bus.ids import GenerationId, NodeIdentity
from bus.messages.link import GenerateReq
from bus.messages.link_jobs import JobStart
from bus.messages.link_transfers import XferChunk, XferCredit, XferDone
from bus.timers import Timers
from head.effects import LinkKey
from head.outbox import Outbox

#: Files of one node that are remembered; of one that is forgotten the node says that it has it.
MAX_REMEMBERED = 4096
#: How often one request's files go to one node again.
MAX_AGAIN = 1
#: What a link that could not keep its pace may make up for.
CATCH_UP_S = 0.1

#: What may name files.
Request = GenerateReq | JobStart

#: Told when a file does not reach the node: code, message, now.
Failed = Callable[[str, str, float], None]


@dataclass(slots=True)
class _Waiting:
    """A request that waits for its files."""

    request: Request
    missing: set[bytes]
    failed: Failed
    since: float


@dataclass(slots=True)
class _Line:
    """What goes over one link."""

    sender: BlobSender
    #: Hashes that the node has, as far as is known; the last ones named are at the end.
    there: OrderedDict[bytes, None]
    waiting: dict[GenerationId, _Waiting] = field(default_factory=dict)
    #: Requests whose files were sent again.
    again: dict[GenerationId, int] = field(default_factory=dict)
    stall_timer: int | None = None
    #: When its pace allows the next chunk.
    next_at: float = 0.0

    def took(self, size: int, bytes_per_s: float, now: float) -> None:
        """So many bytes of files go out on it."""
        if size and bytes_per_s:
            self.next_at = max(self.next_at, now - CATCH_UP_S) + size / bytes_per_s


class BlobDesk:
    """Owned by the core's runs.

    Invariant: a request waits only for files that its link's sender has.

    Args:
        source: where the head has its files.
        link_bytes_per_s: the pace of each link; 0 is none.
    """

    def __init__(
        self, outbox: Outbox, source: BlobSource, timers: Timers, *, link_bytes_per_s: float = 0.0
    ) -> None:
        self._outbox = outbox
        self._source = source
        self._timers = timers
        self._numbers = count(1)
        self._lines: dict[LinkKey, _Line] = {}
        self._there: dict[NodeIdentity, tuple[int, OrderedDict[bytes, None]]] = {}
        self._link_bytes_per_s = link_bytes_per_s
        self._pump_timer: int | None = None
        self._pump_at = 0.0

    # --- links --------------------------------------------------------------------------------

    def link_up(self, link: LinkKey, node: NodeIdentity, incarnation: int) -> None:
        """A node's link is up; one that was started again may have lost its files."""
        known, there = self._there.get(node, (incarnation, OrderedDict()))
        if known != incarnation:
            there = OrderedDict()
        self._there[node] = (incarnation, there)
        self._lines[link] = _Line(BlobSender(self._source, self._numbers), there)

    def link_down(self, link: LinkKey) -> None:
        """What waited for the link is dropped; its owner hears of the link, too."""
        line = self._lines.pop(link, None)
        if line is not None:
            self._timers.cancel(line.stall_timer)

    def receive(self, link: LinkKey, message: XferCredit | XferDone, now: float) -> None:
        """What a node says about a transfer."""
        line = self._lines.get(link)
        if line is not None:
            line.sender.receive(message, now)
            self._settle(link, line, now)
            self._pump_soon(now)

    # --- requests -----------------------------------------------------------------------------

    def generate(self, link: LinkKey, request: Request, failed: Failed, now: float) -> None:
        """Send a request, after its files.

        Args:
            failed: called, later, when a file does not reach the node.
        """
        line = self._lines.get(link)
        if line is None or not request.blobs:
            self._outbox.send(link, request)
            return
        missing = {blob.sha256 for blob in request.blobs if blob.sha256 not in line.there}
        if not missing:
            self._send(link, line, request)
            return
        line.waiting[_number(request)] = _Waiting(request, missing, failed, now)
        try:
            for blob in request.blobs:
                if blob.sha256 in missing:
                    line.sender.offer("request", blob)
        except SuperfluidError as error:
            code, message = error.code, error.message
            self._timers.at(now, lambda at: self._fail(link, _number(request), code, message, at))
            return
        self._pump_soon(now)

    def missing(self, link: LinkKey, request: Request, failed: Failed, now: float) -> bool:
        """A node has not what it was said to have: send the files again, and then the request.

        Returns:
            False when that was done already, and its owner is to try elsewhere.
        """
        line = self._lines.get(link)
        if line is None or line.again.get(_number(request), 0) >= MAX_AGAIN:
            return False
        line.again[_number(request)] = line.again.get(_number(request), 0) + 1
        for blob in request.blobs:
            line.there.pop(blob.sha256, None)
        self.generate(link, request, failed, now)
        return True

    def drop(self, link: LinkKey | None, generation: GenerationId, now: float) -> None:
        """A generation is over, or not wanted there any more; fine when nothing waits of it."""
        line = self._lines.get(link) if link is not None else None
        if line is None:
            return
        line.again.pop(generation, None)
        waiting = line.waiting.pop(generation, None)
        if waiting is None:
            return
        wanted = set().union(*(other.missing for other in line.waiting.values()))
        for sha256 in waiting.missing - wanted:
            line.sender.withdraw(sha256, "no request wants it any more")
        self._pump_soon(now)

    def is_waiting(self, generation: GenerationId) -> bool:
        """Whether a request waits for its files."""
        return any(generation in line.waiting for line in self._lines.values())

    # --- inside -------------------------------------------------------------------------------

    def _send(self, link: LinkKey, line: _Line, request: Request) -> None:
        for blob in request.blobs:
            self._remember(line, blob.sha256)
        self._outbox.send(link, request)

    def _remember(self, line: _Line, sha256: bytes) -> None:
        line.there[sha256] = None
        line.there.move_to_end(sha256)
        while len(line.there) > MAX_REMEMBERED:
            line.there.popitem(last=False)

    def _pump_soon(self, now: float) -> None:
        ready = [line.next_at for line in self._lines.values() if line.sender.ready]
        if not ready:
            return
        due = max(min(ready), now)
        if self._pump_timer is not None and self._pump_at <= due:
            return
        self._timers.cancel(self._pump_timer)
        self._pump_at = due
        self._pump_timer = self._timers.at(due, self._pump)

    def _pump(self, now: float) -> None:
        """One chunk of each link; the loop sees to everything else before the next."""
        self._pump_timer = None
        for link, line in list(self._lines.items()):
            if line.sender.ready and line.next_at <= now:
                messages = line.sender.next_messages(now)
                self._outbox.send(link, *messages)
                size = sum(len(each.data) for each in messages if isinstance(each, XferChunk))
                line.took(size, self._link_bytes_per_s, now)
                self._settle(link, line, now)
            self._watch(link, line)
        self._pump_soon(now)

    def _watch(self, link: LinkKey, line: _Line) -> None:
        """See to it that a node's silence about a transfer is noticed."""
        due = line.sender.next_timeout()
        if line.stall_timer is not None or due is None:
            return

        def stalled(now: float) -> None:
            line.stall_timer = None
            line.sender.handle_timeout(now)
            self._settle(link, line, now)
            self._watch(link, line)
            self._pump_soon(now)

        line.stall_timer = self._timers.at(due, stalled)

    def _settle(self, link: LinkKey, line: _Line, now: float) -> None:
        for outcome in line.sender.outcomes():
            if outcome.failed:
                self._not_there(link, line, outcome, now)
            else:
                self._is_there(link, line, outcome.blob.sha256, now)

    def _is_there(self, link: LinkKey, line: _Line, sha256: bytes, now: float) -> None:
        self._remember(line, sha256)
        for generation, waiting in list(line.waiting.items()):
            waiting.missing.discard(sha256)
            if not waiting.missing:
                del line.waiting[generation]
                self._send(link, line, _after(waiting, now))

    def _not_there(self, link: LinkKey, line: _Line, outcome: Outcome, now: float) -> None:
        for generation, waiting in list(line.waiting.items()):
            if outcome.blob.sha256 in waiting.missing:
                self._fail(link, generation, outcome.code, outcome.message, now)

    def _fail(
        self, link: LinkKey, generation: GenerationId, code: str, message: str, now: float
    ) -> None:
        line = self._lines.get(link)
        waiting = line.waiting.get(generation) if line is not None else None
        if waiting is not None:
            self.drop(link, generation, now)
            waiting.failed(code, message, now)


def _after(waiting: _Waiting, now: float) -> Request:
    """The request with what is left of its wall budget."""
    request = waiting.request
    if not request.wall_ms:
        return request
    waited_ms = round((now - waiting.since) * 1000)
    return replace(request, wall_ms=max(request.wall_ms - waited_ms, 1))


def _number(request: Request) -> GenerationId:
    """Generations and jobs have numbers of one kind."""
    return request.job if isinstance(request, JobStart) else request.generation
