"""A child ends when its parent is killed, by each of the two means alone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from bus.transport.orphan import EXIT_ORPHANED

CHILD = """
import ctypes, os, sys, time
from bus.transport import orphan
if sys.argv[3] == "pipe":
    orphan._set_parent_death_signal = lambda: None
orphan.die_with_parent(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2] != "-" else None)
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
read_end, write_end = os.pipe()
use_pipe = sys.argv[2] == "pipe"
subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], str(os.getpid()), str(read_end) if use_pipe else "-",
     sys.argv[2]], pass_fds=(read_end,) if use_pipe else ())
time.sleep(60)
"""


@pytest.mark.parametrize("means", ["signal", "pipe"])
def test_the_child_ends_with_a_killed_parent(means: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, means], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    assert not select.select([child], [], [], 0)[0], "the child ended before its parent"
    parent.kill()
    parent.wait()
    assert select.select([child], [], [], 20)[0], "the child outlived its parent"
    os.close(child)
    parent.stdout.close()


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    other = os.getpid() + 1
    child = subprocess.run([sys.executable, "-c", CHILD, str(other), "-", "signal"], check=False)
    assert child.returncode == EXIT_ORPHANED


def test_the_kernel_is_asked_for_sigkill() -> None:
    code = (
        "import ctypes, os; from bus.transport.orphan import die_with_parent\n"
        "die_with_parent(os.getppid(), None); value = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(value)); print(value.value)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.check_output([sys.executable, "-c", code], cwd=root) == b"9\n"
