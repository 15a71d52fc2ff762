"""A test that leaves a zmq socket, a child process or a thread behind fails."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

#: How long something that is already ending may take to be gone.
_GRACE_S = 3.0


#: Every zmq socket of this process, noted as it is made: looking through all objects for them
#: takes longer than most tests.
_sockets: weakref.WeakSet[zmq.Socket[bytes]] = weakref.WeakSet()
_make_socket = zmq.Socket.__init__


def _note_socket(self: zmq.Socket[bytes], *args: Any, **kwargs: Any) -> None:
    _make_socket(self, *args, **kwargs)
    _sockets.add(self)


zmq.Socket.__init__ = _note_socket  # type: ignore[method-assign]


def _open_sockets() -> set[int]:
    return {id(found) for found in _sockets if not found.closed}


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def _children() -> set[int]:
    """Process ids of this process's children, zombies too."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except FileNotFoundError:
            continue
    return found


def _describe(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return str(pid)
    return f"{pid} ({raw.replace(bytes(1), b' ').decode(errors='replace').strip() or 'zombie'})"


@pytest.fixture(autouse=True, scope="session")
def interrupts() -> None:
    """Children can be interrupted, also where a script's background job started the tests."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


@pytest.fixture(autouse=True, scope="session")
def runtime_folder() -> Iterator[None]:
    """Run folders of state folders with long paths end with the tests, not in /tmp for ever."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="sf-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        yield
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Compares sockets, children and threads before and after the test."""
    sockets, threads, children = _open_sockets(), _threads(), _children()
    yield
    deadline = time.monotonic() + _GRACE_S
    while True:
        left = _left(sockets, threads, children)
        if not left or time.monotonic() > deadline:
            break
        gc.collect()
        time.sleep(0.01)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


def _left(sockets: set[int], threads: set[threading.Thread], children: set[int]) -> list[str]:
    left = [
        f"zmq socket {found!r}"
        for found in _sockets
        if not found.closed and id(found) not in sockets
    ]
    left += [f"thread {thread.name}" for thread in _threads() - threads]
    left += [
        f"child process {_describe(pid)}" for pid in _children() - children if pid != os.getpid()
    ]
    return left
