"""Finding and ending processes, and running the model program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.errors import Invalid, NotFound
from head.cli.logs import read_log
from head.cli.model_store import usable_models
from head.cli.processes import (
    ProcessId,
    await_begun,
    descendants,
    end,
    process,
    services_of,
    wait_ended,
)
from head.cli.program import run_model_program

#: Says that it is up, then waits for its stdin to close; "deaf" ones pass over TERM.
WAITER = """
import signal, subprocess, sys
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
sys.stdin.read()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=sys.stdin)
child.wait()
"""


def _start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    started = subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == b"up\n"
    return started


def _reap(started: subprocess.Popen[bytes]) -> None:
    started.kill()
    started.communicate()


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {"SUPERVISOR_ENABLED": "1", "SUPERFLUID_STATE": str(tmp_path)}
    started = _start(WAITER, "deaf", env=env)
    yield started
    _reap(started)


def test_services_are_known_by_their_mark(marked: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert [each.pid for each in services_of(tmp_path)] == [marked.pid]
    assert services_of(tmp_path / "other") == []


def test_what_does_not_hear_is_killed(marked: subprocess.Popen[bytes]) -> None:
    found = process(marked.pid)
    assert found is not None
    assert found.alive
    # Reaped by another thread, as its parent would: a zombie has ended but is still there.
    waiter = threading.Thread(target=marked.wait)
    waiter.start()
    assert end([found], grace_s=1.0) == []
    waiter.join()
    assert not found.alive


def test_a_number_used_again_is_not_the_same_process(marked: subprocess.Popen[bytes]) -> None:
    found = process(marked.pid)
    assert found is not None
    earlier = ProcessId(found.pid, found.started - 1)
    assert not earlier.alive
    assert wait_ended([earlier], 0.0) == []
    assert wait_ended([found], 0.0) == [found]
    assert end([earlier], grace_s=0.0) == []
    assert found.alive


def test_children_of_children_are_found() -> None:
    started = _start(PARENT, WAITER)
    try:
        (child,) = descendants(started.pid)
        assert {each.pid for each in descendants(os.getpid())} >= {started.pid, child.pid}
    finally:
        assert started.stdin is not None
        started.stdin.close()
        started.wait()
        assert started.stdout is not None
        started.stdout.close()


#: Forks a child that has the parent's command line until it is told to become another program.
FORKER = """
import os, sys
if os.fork() == 0:
    sys.stdin.readline()
    os.execvp("cat", ["cat"])
print("up", flush=True)
os.wait()
"""


def test_a_child_that_is_still_its_keeper_is_waited_for() -> None:
    keeper = _start(FORKER, "supervisor.supervisord")
    try:
        begin = time.monotonic()
        await_begun(keeper.pid, 0.2)
        assert time.monotonic() - begin >= 0.2
        assert keeper.stdin is not None
        keeper.stdin.write(b"\n")
        keeper.stdin.flush()
        await_begun(keeper.pid, 30)
        assert time.monotonic() - begin < 30
        (child,) = descendants(keeper.pid)
        assert Path(f"/proc/{child.pid}/cmdline").read_bytes() == b"cat\0"
    finally:
        keeper.communicate()


def test_the_model_programs_lines_become_progress_and_a_path(tmp_path: Path) -> None:
    steps: list[str] = []
    arguments = ["toy", "--into", str(tmp_path / "models")]
    path, rows = run_model_program(arguments, lambda step, done, total: steps.append(step))
    assert (path, rows) == (tmp_path / "models" / "toy", [])
    assert steps
    assert usable_models(tmp_path / "models") == ["toy"]


def test_the_model_programs_error_keeps_its_class(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing-of-this-name"):
        run_model_program(["pull", "nothing-of-this-name"], lambda step, done, total: None)
    file = tmp_path / "x.gguf"
    file.write_bytes(b"no model")
    with pytest.raises(Invalid):
        run_model_program(
            ["import", str(file), "--into", str(tmp_path), "--name", "x"],
            lambda step, done, total: None,
        )


def test_a_log_is_followed_across_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "head.log"
    log.write_text("one\ntwo\nthree\n")
    lines = read_log(log, 2, follow=True)
    assert [next(lines), next(lines)] == ["two", "three"]
    writer = threading.Thread(target=_write_and_rotate, args=(log,))
    writer.start()
    assert [next(lines), next(lines)] == ["four", "five"]
    writer.join()
    lines.close()


def _write_and_rotate(log: Path) -> None:
    with log.open("a") as file:
        file.write("four\n")
    log.rename(log.with_suffix(".log.1"))
    log.write_text("five\n")
