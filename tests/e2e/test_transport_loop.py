"""The loop: order inside a turn, signals, wakeups from threads, failing callbacks, lag."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from bus.transport import clock
from bus.transport.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    with (
        zmq.Context[zmq.Socket[bytes]]() as context,
        context.socket(zmq.PAIR) as left,
        context.socket(zmq.PAIR) as right,
    ):
        left.linger = right.linger = 0
        left.bind("inproc://loop")
        right.connect("inproc://loop")
        yield left, right


class Deadline:
    """A timer source that is due once."""

    def __init__(self, loop: Loop, at: float | None, trace: list[str]) -> None:
        self.at = at
        self._trace = trace
        loop.add_timer_source(lambda: self.at, self._fire)

    def _fire(self, now: float) -> None:
        assert self.at is not None
        assert now >= self.at
        self.at = None
        self._trace.append("timer")


def test_everything_readable_is_handled_before_a_timer_that_is_long_due(
    loop: Loop, pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]
) -> None:
    left, right = pair
    trace: list[str] = []
    loop.add_reader(right, lambda: trace.append(right.recv(zmq.NOBLOCK).decode()))
    loop.on_turn(lambda now: trace.append("turn"))
    Deadline(loop, clock.now() - 5.0, trace)
    for index in range(500):
        left.send(b"%d" % index)
    loop.turn()
    assert trace == [*map(str, range(500)), "timer", "turn"]


def test_a_flood_does_not_keep_timers_from_firing(
    loop: Loop, pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]
) -> None:
    left, right = pair
    trace: list[str] = []

    def answer_for_ever() -> None:
        right.recv(zmq.NOBLOCK)
        left.send(b"more")

    loop.add_reader(right, answer_for_ever)
    Deadline(loop, clock.now(), trace)
    left.send(b"first")
    loop.turn()
    assert trace == ["timer"]


def test_a_reader_with_much_to_do_lets_the_turn_end(
    loop: Loop, pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]
) -> None:
    left, right = pair
    trace: list[str] = []

    def read() -> None:
        trace.append(right.recv(zmq.NOBLOCK).decode())
        loop.end_reading()

    loop.add_reader(right, read)
    loop.on_turn(lambda now: trace.append("turn"))
    for name in ("a", "b"):
        left.send(name.encode())
    loop.turn()
    loop.turn()
    assert trace == ["a", "turn", "b", "turn"]


def test_timers_fire_when_due_and_not_before(loop: Loop) -> None:
    trace: list[str] = []
    begin = clock.now()
    deadline = Deadline(loop, begin + 0.05, trace)
    while deadline.at is not None:
        loop.turn()
    assert clock.now() >= begin + 0.05
    assert trace == ["timer"]
    assert loop.lag_ms >= 0.0
    highest = loop.take_max_lag_ms()
    assert highest >= loop.lag_ms
    assert loop.take_max_lag_ms() == 0.0


def test_lag_tells_how_late_a_timer_was(loop: Loop) -> None:
    clock_s = 100.0

    def late() -> float:
        return clock_s

    made = Loop(late)
    trace: list[str] = []
    deadline = Deadline(made, 100.02, trace)

    def stall() -> None:
        nonlocal clock_s
        os.eventfd_read(event)
        clock_s = 100.5

    event = os.eventfd(1)
    made.add_reader(event, stall)
    made.turn()
    assert deadline.at is None
    assert made.take_max_lag_ms() == pytest.approx(480.0)
    assert made.lag_ms == pytest.approx(48.0)
    os.close(event)
    made.close()


def test_wakeup_and_stop_from_another_thread(loop: Loop) -> None:
    turns: list[float] = []
    loop.on_turn(turns.append)
    woken = threading.Event()
    loop.on_turn(lambda now: woken.set())

    def other() -> None:
        loop.wakeup()
        assert woken.wait(20)
        loop.stop()

    thread = threading.Thread(target=other)
    thread.start()
    loop.run()
    thread.join()
    assert turns


def test_a_stop_before_run_counts_once(loop: Loop) -> None:
    loop.stop()
    loop.run()
    loop.stop()
    loop.run()


def test_a_callback_that_raises_ends_the_loop_with_its_error(loop: Loop) -> None:
    def fail(now: float) -> None:
        raise RuntimeError("broken core")

    loop.on_turn(fail)
    loop.wakeup()
    with pytest.raises(RuntimeError, match="broken core"):
        loop.run()


def test_a_reader_removed_by_another_one_in_the_same_turn_is_not_called(loop: Loop) -> None:
    first, second = os.eventfd(1), os.eventfd(1)
    called: list[int] = []

    def callback(own: int, other: int) -> None:
        called.append(own)
        os.eventfd_read(own)
        loop.remove_reader(other)

    loop.add_reader(first, lambda: callback(first, second))
    loop.add_reader(second, lambda: callback(second, first))
    loop.turn()
    assert len(called) == 1
    loop.remove_reader(first)
    os.close(first)
    os.close(second)


def test_signals_run_their_callback_in_the_loop_and_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    loop = Loop()
    seen: list[str] = []

    def drain() -> None:
        seen.append("drain")
        loop.stop()

    loop.on_signal(signal.SIGTERM, drain)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == []
    loop.run()
    assert seen == ["drain"]
    loop.close()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_only_waits_stops_on_a_signal(number: signal.Signals) -> None:
    code = (
        "from bus.transport.loop import Loop\n"
        "with Loop() as loop:\n"
        "    loop.stop_on_signals(); print('up', flush=True); loop.run(); print('down')"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    begin = time.monotonic()
    child.send_signal(number)
    assert child.wait(20) == 0
    assert time.monotonic() - begin < 4.0, "it only noticed when the wait ended by itself"
    assert child.stdout.read() == b"down\n"
    child.stdout.close()


def test_a_source_that_rests_is_read_at_one_go_when_its_rest_is_over(
    loop: Loop, pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]
) -> None:
    left, right = pair
    seen: list[tuple[float, bytes]] = []
    loop.add_reader(right, lambda: seen.append((clock.now(), right.recv(zmq.NOBLOCK))))
    loop.rest(right, 0.05)
    rests_since = clock.now()
    for number in range(3):
        left.send(b"%d" % number)
    loop.turn(0.0)
    assert seen == []
    loop.turn()
    assert [data for _, data in seen] == [b"0", b"1", b"2"]
    assert min(at for at, _ in seen) - rests_since >= 0.045
    loop.rest(right, 60.0)
    loop.remove_reader(right)
    left.send(b"3")
    loop.turn(0.0)
    assert len(seen) == 3


@pytest.mark.parametrize("kind", [zmq.PULL, zmq.DEALER])
def test_a_reader_that_takes_one_message_a_call_gets_all_that_lie_there(
    loop: Loop, kind: int
) -> None:
    """Also those that came before the loop looked, and those that came while the socket rested."""
    with (
        zmq.Context[zmq.Socket[bytes]]() as context,
        context.socket(kind) as reader,
        context.socket(zmq.PUSH if kind == zmq.PULL else zmq.DEALER) as writer,
    ):
        reader.linger = writer.linger = 0
        reader.bind("inproc://one-by-one")
        writer.connect("inproc://one-by-one")
        for number in range(3):
            writer.send(b"%d" % number)
        assert reader.recv() == b"0"
        got: list[bytes] = []
        loop.add_reader(reader, lambda: got.append(reader.recv()))
        loop.turn(1.0)
        assert got == [b"1", b"2"]
        writer.send(b"3")
        loop.turn(1.0)
        loop.rest(reader, 0.01)
        writer.send(b"4")
        until = clock.now() + 5.0
        while len(got) < 4 and clock.now() < until:
            loop.turn(0.05)
        assert got == [b"1", b"2", b"3", b"4"]
        loop.remove_reader(reader)
        writer.send(b"5")
        loop.turn(0.0)
        assert len(got) == 4
