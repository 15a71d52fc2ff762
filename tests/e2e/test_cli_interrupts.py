"""`sfctl` that is interrupted while it is still importing what it is made of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 30.0
SFCTL = Path(sys.executable).with_name("sfctl")

#: Python imports this by itself at its start. It says when a module is about to be imported, and
#: waits there for a line.
STOPS = """
import os, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["STOP_AT"]:
            sys.meta_path.remove(self)
            os.write(1, b"there\\n")
            os.read(0, 1)

sys.meta_path.insert(0, Stop())
"""


@pytest.mark.parametrize("module", ["head.cli.command_line", "click", "msgpack", "zmq"])
def test_an_interrupt_is_one_line_and_130(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOPS)
    process = subprocess.Popen(
        [SFCTL, "--state", str(tmp_path / "state"), "version"],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "STOP_AT": module},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGINT)
        told, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, told, said) == (130, b"", b"error: interrupted\n")


def test_an_interrupt_that_is_ignored_stays_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOPS)
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$0" version', SFCTL],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "STOP_AT": "click"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGINT)
        told, said = process.communicate(b"\n", timeout=LIMIT_S)
    assert (process.returncode, said) == (0, b"")
    assert told.startswith(b"superfluid ")
