"""Odd requests against one live worker, and ordinary streams beside them.

A request is done when it was told an error by type or ended as any answer does; one that names no
generation, or is no message at all, when the worker answers a question that was asked after it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.errors import DecodeError
from bus.ids import GenerationId
from bus.messages.worker import (
    WORKER,
    Accepted,
    Cancel,
    Output,
    OutputRun,
    Ping,
    Pong,
    Ready,
    Rejected,
    Resume,
    WorkerStats,
)
from tests.harness.live_worker import LiveWorker
from tests.odd.messages import FIRST, Odd, odd_message
from tests.odd.neighbours import Neighbours
from tests.odd.tally import Tally

LANES = 12
WINDOW = 256
TOKEN_BYTES = 1024
ARGUMENTS = (
    *("--lanes", str(LANES), "--kv-bytes", str(LANES * WINDOW * TOKEN_BYTES)),
    *("--kv-host-bytes", str(6 * WINDOW * TOKEN_BYTES), "--log-level", "critical"),
)
#: Requests that wait for their end at once.
OPEN = 20
#: One that is not done is resumed after so long, and cancelled after twice that.
PATIENCE_S = 0.5
#: So long without an end, and something was lost.
STALL_S = 45.0
#: Nonces from here on ask whether the message before was survived.
_NONCE = 1 << 50


class WorkerGone(Exception):
    """The worker ended, or said what nobody can read."""


@dataclass
class _Open:
    """A request that is not done."""

    odd: Odd
    since: float
    acknowledged: bool = False
    resumed: bool = False


class WorkerRun:
    """Drives one run. Owns what waits for an answer.

    Args:
        worker: that answers.
        seed: of the requests.
    """

    def __init__(self, worker: LiveWorker, seed: int) -> None:
        self.tally = Tally()
        self._worker = worker
        self._seed = seed
        self._neighbours = Neighbours()
        self._keep_going = False
        #: By generation, in their order: a number may be given again.
        self._open: dict[int, deque[_Open]] = {}
        #: By nonce, messages that a pong shows to be survived.
        self._asked: dict[int, Odd] = {}
        self._unsent: deque[bytes] = deque()
        self._stats: WorkerStats | None = None
        self._recent: deque[Odd] = deque(maxlen=2 * OPEN)
        self._done_at = time.monotonic()
        self._ready = False

    def run(self, requests: int) -> Tally:
        """Send so many requests, and see what comes of them."""
        try:
            self._run(requests)
        except WorkerGone as error:
            self.tally.worker_deaths += 1
            self.tally.faults.append(
                f"{error}; sent before: {[odd.number for odd in self._recent]}"
            )
            self.tally.faults.append(self._worker.log_tail())
        self.tally.neighbours_equal = not self._neighbours.faults
        self.tally.neighbour_rounds = self._neighbours.rounds
        self.tally.faults += self._neighbours.faults
        return self.tally

    def _run(self, requests: int) -> None:
        self._wait(lambda: self._ready)
        self._start_neighbours()
        self._wait(lambda: not self._neighbours.running)
        self._neighbours.keep_as_wanted()
        self._keep_going = True
        self._start_neighbours()
        for number in range(requests):
            self._wait(lambda: self._waiting < OPEN and not self._unsent)
            self._send_odd(odd_message(self._seed, number, WINDOW))
        self._wait(lambda: not self._waiting)
        self._keep_going = False
        self._wait(lambda: not self._neighbours.running)
        self._stats = None
        self._send(Ping(nonce=_NONCE - 1))
        self._wait(lambda: self._stats is not None)
        self._check_rest()

    @property
    def _waiting(self) -> int:
        return len(self._asked) + sum(map(len, self._open.values()))

    def _check_rest(self) -> None:
        stats = self._stats or WorkerStats()
        left = (stats.lanes_used, stats.queued, stats.kv_live_tokens)
        if left != (0, 0, 0):
            self.tally.faults.append(f"lanes, queue and tokens are left at the end: {left}")

    # --- what is sent ---------------------------------------------------------------------

    def _start_neighbours(self) -> None:
        for stream in self._neighbours.streams:
            self._send(stream.next_round())

    def _send_odd(self, odd: Odd) -> None:
        self.tally.requests += 1
        self._recent.append(odd)
        self._unsent.append(odd.data)
        if odd.generation is not None and odd.generation >= FIRST:
            waiting = self._open.setdefault(odd.generation, deque())
            waiting.append(_Open(odd, time.monotonic()))
        else:
            self._asked[_NONCE + odd.number] = odd
            self._send(Ping(nonce=_NONCE + odd.number))
        self._flush()

    def _send(self, message: object) -> None:
        self._unsent.append(WORKER.encode(message))
        self._flush()

    def _flush(self) -> None:
        while self._unsent and self._worker.offer(self._unsent[0]):
            self._unsent.popleft()

    # --- what comes -----------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Hear the worker until a condition holds."""
        self._done_at = time.monotonic()
        while not condition():
            self._flush()
            try:
                heard = self._worker.receive(5)
            except DecodeError as error:
                raise WorkerGone(f"the worker said what an agent can not read: {error}") from error
            for message in heard:
                self._hear(message)
            if not heard and self._worker.has_ended:
                raise WorkerGone("the worker ended")
            now = time.monotonic()
            self._hurry(now)
            if now - self._done_at > STALL_S:
                self._give_up()

    def _give_up(self) -> None:
        left = [(one.odd.number, one.odd.about) for o in self._open.values() for one in o]
        asked = [odd.number for odd in self._asked.values()]
        raise WorkerGone(
            f"nothing came for {STALL_S:.0f} s; of {left} and {asked} nothing is known"
        )

    def _hurry(self, now: float) -> None:
        """What orders have paused goes on."""
        for generation, waiting in self._open.items():
            for one in waiting:
                if not one.resumed and now - one.since > PATIENCE_S:
                    one.resumed = True
                    self._send(Resume(generation=GenerationId(generation)))
                elif one.resumed and now - one.since > 2 * PATIENCE_S:
                    one.since = now
                    self._send(Cancel(generation=GenerationId(generation)))

    def _hear(self, message: Any) -> None:
        match message:
            case Ready():
                self._ready = True
            case Rejected(generation=generation, code=code):
                self._rejected(generation, code)
            case Accepted(generation=generation):
                self._accepted(generation)
            case Output(runs=runs):
                for run in runs:
                    self._output(run)
            case Pong(nonce=nonce, stats=stats):
                self._stats = stats
                if (odd := self._asked.pop(nonce, None)) is not None:
                    self._survived(odd)
            case _:
                pass  # Parked, Restored: the pong behind tells that it was answered.

    def _survived(self, odd: Odd) -> None:
        self._done_at = time.monotonic()
        try:
            known = WORKER.decode(odd.data) is not None
        except DecodeError:
            known = False
        if known:
            self.tally.answer()
        else:
            self.tally.error("unreadable")

    def _rejected(self, generation: int, code: str) -> None:
        if self._neighbours.of(generation) is not None:
            self._neighbours.faults.append(f"neighbour {generation} was rejected: {code}")
        for one in self._open.get(generation, ()):
            if not one.acknowledged:
                self._done(generation, one, code)
                return

    def _accepted(self, generation: int) -> None:
        for one in self._open.get(generation, ()):
            if not one.acknowledged:
                one.acknowledged = True
                return

    def _output(self, run: OutputRun) -> None:
        stream = self._neighbours.of(run.generation)
        if stream is not None:
            self._neighbours.take(stream, run)
            if not stream.running and self._keep_going:
                self._send(stream.next_round())
        elif run.finish is not None:
            # A number that was given again while its first one ran names one generation.
            for one in list(self._open.get(run.generation, ())):
                if one.acknowledged:
                    is_error = run.finish.reason in ("error", "refused")
                    self._done(run.generation, one, run.finish.error_code if is_error else "")

    def _done(self, generation: int, one: _Open, code: str) -> None:
        self._done_at = time.monotonic()
        waiting = self._open[generation]
        waiting.remove(one)
        if not waiting:
            del self._open[generation]
        if code:
            self.tally.error(code)
        else:
            self.tally.answer()


def worker_run(model_folder: Path, folder: Path, seed: int, requests: int) -> Tally:
    """A run against a worker process of its own.

    Args:
        folder: for its pipes, its log and what it parks.
    """
    arguments = (*ARGUMENTS, "--park", str(folder / "parked"))
    run_dir = folder / "run"
    run_dir.mkdir(mode=0o700)
    with closing(LiveWorker(model_folder, run_dir, *arguments)) as worker:
        return WorkerRun(worker, seed).run(requests)
