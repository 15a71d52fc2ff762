"""`sfctl` as a process: what is piped in and out, the terminal, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scripted_fleet import Served, served
from tests.e2e.scripted_head import ScriptedHead

#: Generous; nothing waits for it to pass.
LIMIT_S = 30.0

MAIN = "from head.cli import main; main()"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


def _process(head: ScriptedHead, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", MAIN, "--api", head.address, *arguments],
        **{"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, **streams},
    )


@pytest.mark.parametrize(("argument", "prompt"), [("sum it up", "sum it up\n\na b"), ("-", "a b")])
def test_what_is_piped_in_follows_the_prompt(fleet: Served, argument: str, prompt: str) -> None:
    with _process(fleet[1], "run", "--raw", "toy", argument, stdin=subprocess.PIPE) as process:
        process.communicate(b"a b", timeout=LIMIT_S)
    assert process.returncode == 0
    assert fleet[1].requests[-1]["prompt"] == prompt


def test_output_that_nothing_takes_is_one_line_and_1(fleet: Served) -> None:
    with (
        open("/dev/full", "wb") as full,
        _process(fleet[1], "run", "toy", "hi", stdin=subprocess.DEVNULL, stdout=full) as process,
    ):
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said == b"error: can not write the output: No space left on device; send it elsewhere\n"


def test_a_reader_that_went_away_is_no_error(fleet: Served) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with _process(fleet[1], "status", stdin=subprocess.DEVNULL, stdout=writer) as process:
        os.close(writer)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (1, b"")


class Terminal:
    """A pseudo terminal whose other end is a process's stdin and stdout."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.seen = b""

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def wait_for(self, text: bytes, times: int = 1) -> None:
        until = time.monotonic() + LIMIT_S
        while self.seen.count(text) < times:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self._ours, 4096)

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@contextmanager
def _at(
    terminal: Terminal, head: ScriptedHead, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process at a terminal of its own; killed at the end, if it still runs."""
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    process = _process(head, *arguments, start_new_session=True, **ends)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C once it waits for the keyboard; input() misses one that comes just before."""
    until = time.monotonic() + LIMIT_S
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


def test_ctrl_c_at_the_prompt_clears_the_line_first(fleet: Served, terminal: Terminal) -> None:
    with _at(terminal, fleet[1], "chat", "toy") as process:
        terminal.wait_for(b"> ")
        terminal.type(b"half a li")
        terminal.wait_for(b"half a li")
        _interrupt(process)
        terminal.wait_for(b"once more ends the chat")
        terminal.wait_for(b"> ", times=2)
        terminal.type(b"whole\n")
        terminal.wait_for(b"Hi there")
        terminal.wait_for(b"> ", times=3)
        assert fleet[1].requests[-1]["messages"] == [{"role": "user", "content": "whole"}]
        _interrupt(process)
        terminal.wait_for(b"once more ends the chat", times=2)
        terminal.wait_for(b"> ", times=4)
        _interrupt(process)
        assert process.wait(LIMIT_S) == 130
        assert b"error" not in terminal.seen


def test_a_prompt_from_the_terminal_says_how_it_ends(fleet: Served, terminal: Terminal) -> None:
    with _at(terminal, fleet[1], "run", "toy") as process:
        terminal.wait_for(b"Ctrl-D")
        terminal.type(b"hello\n\x04")
        terminal.wait_for(b"Hi there")
        assert process.wait(LIMIT_S) == 0


def test_following_a_log_ends_quietly(tmp_path: Path, fleet: Served) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "node-1.log").write_text("one\n")
    command = ("--state", str(tmp_path), "logs", "-f")
    with _process(fleet[1], *command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (130, b"")
