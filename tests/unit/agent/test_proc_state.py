"""What /proc/<pid>/stat says: odd names, stopped and ended processes, CPU time of all threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent.proc_state import ProcessState, parse_stat, read_process

#: As a kernel wrote it: utime 1312 and stime 77 stand in fields 14 and 15 of proc(5).
LINE = (
    "4711 (python3) S 4700 4711 4700 34816 4711 4194304 31415 271 3 0 1312 77 4 2 20 0 9 0 "
    "8123456 912343040 21034 18446744073709551615 94123 94456 140722 0 0 0 0 16781312 2 0 0 0 "
    "17 1 0 0 0 0 0 94789 94900 95000 140723 140724 140725 140726 0\n"
)


@pytest.mark.parametrize(
    "name",
    ["python3", "a b", ")", "((", "x) T 1 (y", ") R 9 9 9 9 9 9 9 9 9 9 9 9 9", "", "né\n"],
)
def test_fields_are_counted_after_the_name_whatever_it_has(name: str) -> None:
    line = LINE.replace("(python3)", f"({name})")
    assert parse_stat(line, 100) == ProcessState(letter="S", cpu_s=13.89)


def test_cpu_time_is_in_the_systems_ticks() -> None:
    assert parse_stat(LINE, 1000) == ProcessState(letter="S", cpu_s=1.389)


@pytest.mark.parametrize(
    ("letter", "stopped"), [("R", False), ("S", False), ("D", False), ("T", True), ("t", True)]
)
def test_t_is_stopped(letter: str, stopped: bool) -> None:
    state = parse_stat(LINE.replace(" S ", f" {letter} ", 1), 100)
    assert state is not None
    assert state.is_stopped is stopped


@pytest.mark.parametrize("letter", ["Z", "X", "x"])
def test_one_that_ended_has_no_state(letter: str) -> None:
    assert parse_stat(LINE.replace(" S ", f" {letter} ", 1), 100) is None


@pytest.mark.parametrize(
    "text", ["", "4711", "4711 (a) S 1 2 3", "no line", LINE.replace("77", "?")]
)
def test_what_is_no_such_line_has_no_state(text: str) -> None:
    assert parse_stat(text, 100) is None


def test_a_pid_of_no_process_has_no_state(tmp_path: Path) -> None:
    assert read_process(1, tmp_path) is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "stat").write_bytes(b"1 (\xff\xfe)) S" + LINE.encode().partition(b" S")[2])
    assert read_process(1, tmp_path) == ProcessState(
        letter="S", cpu_s=1389 / os.sysconf("SC_CLK_TCK")
    )


def test_the_time_of_every_thread_counts() -> None:
    """Ours grows by what another thread of ours used."""

    def work() -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass

    before = read_process(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    after = read_process(os.getpid())
    assert before is not None
    assert after is not None
    assert after.cpu_s - before.cpu_s >= 0.09


def test_a_real_process_is_seen_to_stop_and_to_end() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = read_process(process.pid)
        assert stopped is not None
        assert stopped.letter == "T"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_process(process.pid) is None, "a zombie has ended"
    assert read_process(process.pid) is None
