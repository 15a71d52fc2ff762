"""Pipes between real processes: order, a full queue, a killed child, files and locks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from agent.workers import pipe_name
from bus.errors import StartError, TooLarge
from bus.ids import BootCounter, WorkerIncarnation, incarnation_name
from bus.state import MAX_RUN_PATH_BYTES, StateFolder
from bus.transport import pipes
from bus.transport.pipes import ParentPipe, WorkerPipe, remove_stale_pipes

ECHO = """
import sys
from bus.transport.pipes import WorkerPipe
with WorkerPipe(sys.argv[1]) as pipe:
    while (data := pipe.recv(None)) != b"end":
        while not pipe.send(data):
            pass
    pipe.send(b"last words")
"""
SILENT = """
import sys, time
from bus.transport.pipes import WorkerPipe
pipe = WorkerPipe(sys.argv[1])
pipe.send(b"ready")
time.sleep(60)
"""


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "w-1")


def _child(code: str, prefix: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, prefix])


def _next(pipe: ParentPipe) -> bytes:
    assert pipe.readable.poll(20_000), "the child sent nothing"
    data = pipe.recv()
    assert data is not None
    return data


def _until(condition: Callable[[], bool], pipe: ParentPipe) -> None:
    for _ in range(2_000):
        if condition():
            return
        pipe.readable.poll(10)
    raise AssertionError("the condition never came true")


def test_messages_come_back_in_order_and_the_last_one_arrives(prefix: str) -> None:
    pipe = ParentPipe(prefix)
    child = _child(ECHO, prefix)
    sent = 0
    got: list[int] = []
    while len(got) < 1_000:
        while sent < 1_000 and pipe.send(b"%d" % sent):
            sent += 1
        pipe.readable.poll(100)
        while (data := pipe.recv()) is not None:
            got.append(int(data))
    assert got == list(range(1_000))
    _until(lambda: pipe.send(b"end"), pipe)
    assert _next(pipe) == b"last words"
    assert child.wait(20) == 0
    pipe.close()
    assert sorted(os.listdir(Path(prefix).parent)) == []


def test_a_send_is_refused_before_the_child_is_there_and_when_it_is_behind(prefix: str) -> None:
    pipe = ParentPipe(prefix)
    assert not pipe.send(b"nobody is there")
    child = _child(SILENT, prefix)
    assert _next(pipe) == b"ready"
    taken = 0
    while taken < 100_000 and pipe.send(bytes(4096)):
        taken += 1
    # At least the sender's queue; at most both queues and what the kernel holds.
    assert pipes.HIGH_WATER_MESSAGES <= taken < 10_000
    child.kill()
    child.wait()
    _until(lambda: not pipe.send(b"the child is dead"), pipe)
    pipe.close()


def test_a_wait_may_be_as_long_as_one_likes(tmp_path: Path) -> None:
    parent = ParentPipe(str(tmp_path / "w-1"))
    child = WorkerPipe(parent.path_prefix)
    for wait_s in (2.0**31 / 1000, 2.0**32, 1e300):
        _until(lambda: parent.send(b"word"), parent)
        assert child.recv(wait_s) == b"word"
        child.wait_sendable(wait_s)
    child.close()
    parent.close()


def test_what_a_dead_child_did_not_read_never_reaches_the_next_one(tmp_path: Path) -> None:
    first = ParentPipe(str(tmp_path / "w-1"))
    child = _child(SILENT, first.path_prefix)
    assert _next(first) == b"ready"
    assert first.send(b"for the first")
    child.kill()
    child.wait()
    first.close()
    second = ParentPipe(str(tmp_path / "w-2"))
    child = _child(ECHO, second.path_prefix)
    _until(lambda: second.send(b"for the second"), second)
    assert _next(second) == b"for the second"
    _until(lambda: second.send(b"end"), second)
    assert child.wait(20) == 0
    second.close()


def test_worker_waits_as_long_as_told(prefix: str) -> None:
    parent = ParentPipe(prefix)
    with WorkerPipe(prefix) as worker:
        assert worker.recv(0) is None
        assert worker.recv(0.01) is None
        assert worker.send(b"hello")
        assert _next(parent) == b"hello"
        _until(lambda: parent.send(b"back"), parent)
        assert worker.recv(None) == b"back"
    parent.close()
    parent.close()


def test_a_second_parent_is_refused(prefix: str) -> None:
    first = ParentPipe(prefix)
    with pytest.raises(StartError, match="another process uses the pipe"):
        ParentPipe(prefix)
    with WorkerPipe(prefix) as worker:
        assert worker.send(b"still the first")
        assert _next(first) == b"still the first"
    first.close()


def test_a_path_too_long_is_refused_with_the_remedy(tmp_path: Path) -> None:
    fits = "x" * (pipes.MAX_PATH_BYTES - len(str(tmp_path)) - len("/-out.sock"))
    ParentPipe(str(tmp_path / fits)).close()
    with pytest.raises(StartError, match="choose a shorter state folder"):
        ParentPipe(str(tmp_path / (fits + "x")))
    with pytest.raises(StartError, match="choose a shorter state folder"):
        WorkerPipe(str(tmp_path / (fits + "x")))


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(StartError, match="chmod 700"):
        ParentPipe(str(folder / "w-1"))


def test_too_large_is_said_instead_of_cutting_the_pipe(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "MAX_MESSAGE_BYTES", 1000)
    pipe = ParentPipe(prefix)
    with pytest.raises(TooLarge):
        pipe.send(bytes(1001))
    assert pipe.readable.getsockopt(zmq.MAXMSGSIZE) == 1000
    pipe.close()


def test_stale_files_go_and_living_ones_stay(tmp_path: Path) -> None:
    living = ParentPipe(str(tmp_path / "w-7"))
    for left in ("w-3-in.sock", "w-3-out.sock", "w-3.lock", "w-other-3.lock"):
        (tmp_path / left).touch()
    remove_stale_pipes(tmp_path, "w")
    assert sorted(os.listdir(tmp_path)) == [
        "w-7-in.sock",
        "w-7-out.sock",
        "w-7.lock",
        "w-other-3.lock",
    ]
    living.close()


def test_the_longest_names_of_pipes_fit_into_the_longest_run_folder(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base = tmp_path_factory.mktemp("s")
    filler = "x" * (MAX_RUN_PATH_BYTES - len(str(base)) - len("//run"))
    run = StateFolder.resolve(base / filler, {}).run
    assert (len(str(run)), run.name) == (MAX_RUN_PATH_BYTES, "run")
    for name, boot in ((f"{pipe_name('a-box-in-the-cellar')}.9", 0xFFFF), ("text-1", 2**32 - 1)):
        counter = BootCounter(boot)
        numbers = [counter.next() for _ in range(255)]
        ParentPipe(f"{run}/{name}-{incarnation_name(WorkerIncarnation(numbers[-1]))}").close()


def test_agents_of_long_names_have_pipes_of_their_own() -> None:
    assert pipe_name("node-1") == "node-1"
    assert pipe_name("a-box-in-the-cellar-1") != pipe_name("a-box-in-the-cellar-2")
