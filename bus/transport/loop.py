"""The one poll loop that owns a process's sockets.

One turn: wait; handle everything readable, looking again until nothing is; fire the timers that
are due; run the turn's callbacks, which send what the cores have to send. Reading before timers
matters: a peer whose heartbeat lies in our queue is not silent, however late we are.

A plain zmq poll, no asyncio: one thread, and a frame costs a quarter of the CPU. A callback that
raises ends `run` with its error: a core whose state is unknown must not go on.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from bus.closing import Closing
from bus.transport import clock
from bus.transport.source_poll import Source, SourcePoll

#: A turn reads for at most this long; then timers get their turn even under a flood.
READ_BUDGET_S = 0.1
#: A timer this late means that the whole process stood still (stopped, suspended, starved). What
#: peers sent meanwhile may still be on its way through the I/O thread, which gets `STALL_GRACE_S`.
STALLED_S = 0.25
STALL_GRACE_S = 0.05
#: The longest wait. poll(2) does not count time in suspend, CLOCK_BOOTTIME does.
MAX_WAIT_S = 5.0
#: Weight of the newest sample in the smoothed lag.
LAG_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class _TimerSource:
    next_timeout: Callable[[], float | None]
    handle_timeout: Callable[[float], None]


class Loop(Closing):
    """Drives sockets, descriptors, timers and signals of one thread.

    Only `wakeup` and `stop` may be called from other threads and from signal handlers.

    Args:
        now: the clock, seconds.
    """

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        self._now = now
        self._poll = SourcePoll()
        self._readers: dict[Source, Callable[[], None]] = {}
        self._resting: dict[Source, float] = {}
        self._timers: list[_TimerSource] = []
        self._turn_callbacks: list[Callable[[float], None]] = []
        self._stopping = False
        self._read_enough = False
        self._waited_until = now()
        self._lag_s = 0.0
        self._max_lag_s = 0.0
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.add_reader(self._event_fd, self._clear_wakeup)
        self._signals = _Signals()

    # --- what it drives -----------------------------------------------------------------------

    def add_reader(self, source: Source, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `source` is readable.

        The callback may read one message or many (the loop comes back while there are more), must
        never wait, and must take it calmly when there is nothing to read.
        """
        self._readers[source] = callback
        self._poll.add(source)

    def remove_reader(self, source: Source) -> None:
        """Forget `source`. Call it before closing the socket or descriptor."""
        rests = self._resting.pop(source, None) is not None
        if self._readers.pop(source, None) is not None and not rests:
            self._poll.remove(source)

    def rest(self, source: Source, seconds: float) -> None:
        """Do not look at `source` for so long, so that much of little worth is read at one go."""
        if source in self._readers and source not in self._resting:
            self._resting[source] = self._now() + seconds
            self._poll.remove(source)

    def add_timer_source(
        self,
        next_timeout: Callable[[], float | None],
        handle_timeout: Callable[[float], None],
    ) -> None:
        """Ask `next_timeout` each turn when it is due (None: never) and call `handle_timeout(now)`.

        `handle_timeout` must move what `next_timeout` gives past `now`.
        """
        self._timers.append(_TimerSource(next_timeout, handle_timeout))

    def remove_timer_source(self, handle_timeout: Callable[[float], None]) -> None:
        """Forget the timer source with this `handle_timeout`."""
        self._timers = [found for found in self._timers if found.handle_timeout != handle_timeout]

    def on_turn(self, callback: Callable[[float], None]) -> None:
        """Call `callback(now)` at the end of every turn, after all readers and timers."""
        self._turn_callbacks.append(callback)

    def on_signal(self, number: signal.Signals, callback: Callable[[], None]) -> None:
        """Call `callback` in the loop, not inside the handler, when the signal came.

        Main thread only. The former handler comes back at `close`.
        """
        if not self._signals.installed:
            self.add_reader(self._signals.install(), self._signals.handle)
        self._signals.watch(number, callback)

    def stop_on_signals(self) -> None:
        """End `run` on SIGTERM and SIGINT."""
        self.on_signal(signal.SIGTERM, self.stop)
        self.on_signal(signal.SIGINT, self.stop)

    # --- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until `stop` was called; a stop that came before `run` counts.

        Raises:
            Exception: what a callback raised.
        """
        while not self._stopping:
            self.turn()
        self._stopping = False

    def stop(self) -> None:
        """End `run` after the present turn. For any thread and any signal handler."""
        self._stopping = True
        self.wakeup()

    def wakeup(self) -> None:
        """Start a turn now. For any thread and any signal handler."""
        try:
            os.eventfd_write(self._event_fd, 1)
        except BlockingIOError:
            pass  # The counter is full, so a wakeup is pending.

    def end_reading(self) -> None:
        """Let timers and turn callbacks run before more is read. For a reader with much to do."""
        self._read_enough = True

    def turn(self, max_wait_s: float = MAX_WAIT_S) -> None:
        """One turn, which waits at most `max_wait_s` for something to do."""
        wait_s = min(max_wait_s, MAX_WAIT_S)
        due = self._next_due()
        for at in (due, *self._resting.values()):
            if at is not None:
                wait_s = min(wait_s, max(0.0, at - self._now()))
        self._read(wait_s)
        if due is not None and self._now() - max(due, self._waited_until) > STALLED_S:
            self._read(STALL_GRACE_S, all_of_it=True)
        self._fire_timers()
        now = self._now()
        for callback in self._turn_callbacks:
            callback(now)
        self._waited_until = self._now()

    @property
    def lag_ms(self) -> float:
        """How late timers fire, smoothed, in milliseconds."""
        return self._lag_s * 1000

    def take_max_lag_ms(self) -> float:
        """The latest that a timer fired since this was last called, in milliseconds."""
        highest, self._max_lag_s = self._max_lag_s, 0.0
        return highest * 1000

    def close(self) -> None:
        """Give back signals and descriptors. The sources stay their owners'."""
        self._signals.close()
        if self._event_fd >= 0:
            os.close(self._event_fd)
            self._event_fd = -1
        self._readers.clear()
        self._resting.clear()
        self._poll = SourcePoll()

    # --- inside -------------------------------------------------------------------------------

    def _next_due(self) -> float | None:
        due = [at for timer in self._timers if (at := timer.next_timeout()) is not None]
        return min(due, default=None)

    def _end_rests(self) -> bool:
        """Look again at what has rested; False when nothing has."""
        now = self._now()
        rested = [source for source, until in self._resting.items() if until <= now]
        for source in rested:
            del self._resting[source]
            self._poll.add(source)
        return bool(rested)

    def _read(self, wait_s: float, *, all_of_it: bool = False) -> None:
        # Rounded up: waking a fraction of a millisecond early would spin until the time has come.
        ready = self._poll.wait(math.ceil(wait_s * 1000))
        if self._resting and self._end_rests():
            ready = self._poll.wait(0)
        until = self._now() + READ_BUDGET_S
        self._read_enough = False
        while ready:
            for source in ready:
                # A callback before it may have removed this one.
                callback = self._readers.get(source)
                if callback is not None:
                    callback()
            if (self._read_enough and not all_of_it) or self._now() >= until:
                return
            ready = self._poll.wait(0)

    def _fire_timers(self) -> None:
        now = self._now()
        for timer in list(self._timers):
            due = timer.next_timeout()
            if due is None or due > now:
                continue
            # A time that was past already when it was set is not the loop's lag.
            lag_s = now - max(due, self._waited_until)
            self._lag_s += LAG_WEIGHT * (lag_s - self._lag_s)
            self._max_lag_s = max(self._max_lag_s, lag_s)
            timer.handle_timeout(now)
            now = self._now()

    def _clear_wakeup(self) -> None:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            pass  # Spurious, as callbacks are told to expect.


class _Signals:
    """Turns signals into bytes of a pipe, written in C at once (`signal.set_wakeup_fd`).

    A Python handler alone runs only between bytecodes: a signal just before poll(2) would lie
    there until something else ends the wait.
    """

    def __init__(self) -> None:
        self._read_fd = self._write_fd = -1
        self._former_fd = -1
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._former: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    @property
    def installed(self) -> bool:
        return self._read_fd >= 0

    def install(self) -> int:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A full pipe holds thousands of signals that are pending anyway.
        self._former_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        return self._read_fd

    def watch(self, number: signal.Signals, callback: Callable[[], None]) -> None:
        former = signal.signal(number, _leave_it_to_the_pipe)
        self._former.setdefault(number, former)
        self._callbacks[number] = callback

    def handle(self) -> None:
        try:
            numbers = os.read(self._read_fd, 4096)
        except BlockingIOError:
            return
        for number in dict.fromkeys(numbers):
            callback = self._callbacks.get(number)
            if callback is not None:
                callback()

    def close(self) -> None:
        if not self.installed:
            return
        for number, former in self._former.items():
            signal.signal(number, former if former is not None else signal.SIG_DFL)
        self._former.clear()
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._read_fd)
        os.close(self._write_fd)
        self._read_fd = self._write_fd = -1


def _leave_it_to_the_pipe(number: int, frame: FrameType | None) -> None:
    """A handler must exist for the wakeup pipe to be written."""
