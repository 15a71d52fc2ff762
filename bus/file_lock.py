"""A lock on a file that ends with its holder, however that ended (flock), and names the holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from bus.closing import Closing
from bus.errors import StartError


class LockHeld(StartError):
    """Another process holds the lock; `pid` is its process id, None when it can not be read."""

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{holder} holds the lock {path}; stop it first")
        self.pid = pid


class FileLock(Closing):
    """Holds `path` locked until `close`, or until the process ends.

    The file stays: removing it would let one process lock the removed file and another one its
    successor, both in good faith.

    Raises:
        LockHeld: another holder has it.
        StartError: the file can not be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise StartError(
                f"can not open the lock {path}: {error.strerror}; see that its folder can be "
                "written to"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pid(descriptor)
            os.close(descriptor)
            raise LockHeld(path, pid) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Give the lock back. May be called again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
