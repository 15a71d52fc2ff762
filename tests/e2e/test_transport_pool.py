"""The pool with real children: messages, deaths, backoff, stopping, a killed parent."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.errors import StartError
from bus.ids import WorkerIncarnation
from bus.transport import clock
from bus.transport import pool as pool_module
from bus.transport.child import ChildSpec
from bus.transport.loop import Loop
from bus.transport.pool import ChildExited, ChildMessage, ChildStarted, PoolEvent, ProcessPool

#: Echoes; `exit N` ends with N after a last message, `deaf` reads no more, `stubborn` ignores TERM.
CHILD = """
import argparse, os, signal, sys, time
from bus.transport.orphan import die_with_parent
from bus.transport.pipes import WorkerPipe

parser = argparse.ArgumentParser()
parser.add_argument("word")
for option in ("--pipe", "--incarnation", "--parent-pid", "--death-fd"):
    parser.add_argument(option, required=True)
args = parser.parse_args()
die_with_parent(int(args.parent_pid), int(args.death_fd))
print("log", args.word, os.environ.get("CHILD_TEST"), flush=True)
with WorkerPipe(args.pipe) as pipe:
    pipe.send(f"ready {args.word} {args.incarnation} {os.getpid()}".encode())
    while True:
        data = pipe.recv(None)
        if data.startswith(b"exit "):
            pipe.send(b"last words")
            break
        if data == b"deaf":
            time.sleep(60)
        if data == b"stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not pipe.send(data):
            pass
sys.exit(int(data[5:]))
"""


class Harness:
    """A pool, its loop, and the events so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "echo_child.py").write_text(CHILD)
        self.loop = Loop()
        self._numbers = iter(range(1, 1000))
        self.pool = ProcessPool(
            self.loop, folder / "run", lambda: WorkerIncarnation(next(self._numbers))
        )
        self.seen: list[PoolEvent] = []
        self.loop.on_turn(lambda now: self.seen.extend(self.pool.events()))

    def spec(self, name: str = "w") -> ChildSpec:
        path = f"{self.folder}:{Path(__file__).parents[2]}"
        return ChildSpec(
            name=name,
            module="echo_child",
            args=("hello",),
            log_path=self.folder / f"{name}.log",
            env={"PYTHONPATH": path, "CHILD_TEST": "from the spec"},
        )

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until the condition holds."""
        until = clock.now() + 30.0
        while not condition():
            assert clock.now() < until, f"it never came true; events: {self.seen}"
            self.loop.turn(0.1)

    def messages(self, incarnation: int = 1) -> list[bytes]:
        return [
            event.data
            for event in self.seen
            if isinstance(event, ChildMessage) and event.incarnation == incarnation
        ]

    def exits(self) -> list[ChildExited]:
        return [event for event in self.seen if isinstance(event, ChildExited)]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.pool.close(5.0)
    made.pool.close(5.0)
    made.loop.close()
    assert os.listdir(tmp_path / "run") == []


def test_messages_go_both_ways_in_order_beyond_what_the_pipe_holds(harness: Harness) -> None:
    harness.pool.start_slot(harness.spec())
    for index in range(1000):
        assert harness.pool.send("w", b"%d" % index)
    harness.until(lambda: len(harness.messages()) == 1001)
    pid = harness.pool.pid("w")
    assert harness.messages()[0] == f"ready hello 1 {pid}".encode()
    assert harness.messages()[1:] == [b"%d" % index for index in range(1000)]
    assert harness.seen[0] == ChildStarted("w", WorkerIncarnation(1))
    log = harness.folder / "w.log"
    assert log.read_text() == "log hello from the spec\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_last_words_come_before_the_exit_and_the_next_incarnation_after_it(
    harness: Harness,
) -> None:
    harness.pool.start_slot(harness.spec())
    assert harness.pool.send("w", b"exit 7")
    harness.until(lambda: len(harness.messages(2)) == 1)
    kinds = [(type(event), event.incarnation) for event in harness.seen]
    assert kinds == [
        (ChildStarted, 1),
        (ChildMessage, 1),
        (ChildMessage, 1),
        (ChildExited, 1),
        (ChildStarted, 2),
        (ChildMessage, 2),
    ]
    assert harness.messages()[-1] == b"last words"
    assert harness.exits() == [ChildExited("w", WorkerIncarnation(1), 7, 0.25)]


def test_backoff_doubles_to_its_limit_until_marked_ready(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(pool_module, "MAX_BACKOFF_S", 0.03)
    harness.pool.start_slot(harness.spec())
    harness.pool.mark_ready("w")
    for count in range(1, 5):
        harness.until(lambda count=count: len(harness.messages(count)) == 1)  # type: ignore[misc]
        if count == 4:
            harness.pool.mark_ready("w")
        harness.pool.kill("w")
        harness.until(lambda count=count: len(harness.exits()) == count)  # type: ignore[misc]
    assert [found.respawn_in_s for found in harness.exits()] == [0.01, 0.02, 0.03, 0.01]
    assert {found.returncode for found in harness.exits()} == {-signal.SIGKILL}


def test_nothing_is_taken_for_a_dead_child_and_nothing_of_it_reaches_the_next(
    harness: Harness,
) -> None:
    assert not harness.pool.send("w", b"no such slot")
    harness.pool.start_slot(harness.spec())
    harness.pool.send("w", b"deaf")
    harness.until(lambda: len(harness.messages()) == 1)
    taken = 1
    while harness.pool.send("w", b"old"):
        taken += 1
    assert taken >= pool_module.MAX_BACKLOG_MESSAGES
    harness.pool.kill("w")
    harness.until(lambda: len(harness.exits()) == 1)
    assert not harness.pool.send("w", b"between two")
    assert harness.pool.pid("w") is None
    harness.until(lambda: harness.pool.incarnation("w") == 2)
    assert harness.pool.send("w", b"new")
    harness.until(lambda: len(harness.messages(2)) == 2)
    assert harness.messages(2)[1] == b"new"


def test_a_stopped_slot_stays_empty_and_a_stubborn_child_is_killed(harness: Harness) -> None:
    harness.pool.start_slot(harness.spec("polite"))
    harness.pool.start_slot(harness.spec("stub"))
    harness.pool.send("stub", b"stubborn")
    harness.until(lambda: b"stubborn" in harness.messages(2) and len(harness.messages(1)) == 1)
    assert harness.pool.stop_slot("polite")
    assert harness.pool.stop_slot("stub", grace_s=0.05)
    harness.until(lambda: len(harness.exits()) == 2)
    codes = {found.slot: (found.returncode, found.respawn_in_s) for found in harness.exits()}
    assert codes == {"polite": (-signal.SIGTERM, None), "stub": (-signal.SIGKILL, None)}
    assert harness.pool.next_timeout() is None
    assert not harness.pool.stop_slot("polite")


def test_a_slot_that_is_stopped_between_two_children_has_no_exit_to_tell_of(
    harness: Harness,
) -> None:
    harness.pool.start_slot(harness.spec())
    harness.until(lambda: len(harness.messages()) == 1)
    harness.pool.kill("w")
    harness.until(lambda: len(harness.exits()) == 1)
    assert not harness.pool.stop_slot("w")
    assert harness.pool.next_timeout() is None
    harness.pool.start_slot(harness.spec())


def test_close_kills_what_ignores_sigterm(harness: Harness) -> None:
    harness.pool.start_slot(harness.spec())
    harness.pool.send("w", b"stubborn")
    harness.until(lambda: b"stubborn" in harness.messages())
    harness.pool.close(0.05)
    assert harness.pool.events() == [ChildExited("w", WorkerIncarnation(1), -9, None)]


def test_a_second_slot_of_the_same_name_is_refused(harness: Harness) -> None:
    harness.pool.start_slot(harness.spec())
    with pytest.raises(StartError, match="running already"):
        harness.pool.start_slot(harness.spec())


PARENT = """
import sys, time
from pathlib import Path
from bus.ids import WorkerIncarnation
from bus.transport.child import ChildSpec
from bus.transport.loop import Loop
from bus.transport.pool import ChildMessage, ProcessPool
folder = Path(sys.argv[1])
loop = Loop()
pool = ProcessPool(loop, folder / "run", lambda: WorkerIncarnation(1))
env = {"PYTHONPATH": sys.argv[2]}
pool.start_slot(ChildSpec(name="w", module="echo_child", args=("x",), env=env))
while True:
    loop.turn()
    for event in pool.events():
        if isinstance(event, ChildMessage):
            print(pool.pid("w"), flush=True)
"""


def test_kill_9_of_the_parent_leaves_no_child_and_its_files_are_removed_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "echo_child.py").write_text(CHILD)
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    # The child prints to the same stdout as its parent: one line each.
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), path], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    lines = [parent.stdout.readline() for _ in range(2)]
    (pid,) = [int(line) for line in lines if not line.startswith(b"log")]
    child = os.pidfd_open(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert select.select([child], [], [], 20)[0], "the child outlived its parent"
    os.close(child)
    assert len(os.listdir(tmp_path / "run")) == 3
    harness = Harness(tmp_path)
    harness.pool.start_slot(harness.spec())
    harness.until(lambda: len(harness.messages()) == 1)
    harness.pool.close(5.0)
    harness.loop.close()
    assert os.listdir(tmp_path / "run") == []
