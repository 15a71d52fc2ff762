"""A thread for file work that may take long (fsync, large unlinks); the loop hears of its end."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable

from bus.closing import Closing
from bus.log import EventLog

log = EventLog(__name__)

Work = Callable[[], None]
Then = Callable[[OSError | None], None]


class FileThread(Closing):
    """Works in a thread that starts with the first job; `finish` runs in the owner's thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Work, Then] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Then, OSError | None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        """Becomes readable when `finish` has something to do."""
        return self._wake

    def submit(self, work: Work, then: Then) -> None:
        """Do `work` in the thread after all earlier work; `finish` then calls `then`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put((work, then))

    def finish(self) -> None:
        """Call back for all work that is done."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass  # Nothing is new, or a former call has seen it.
        while True:
            try:
                then, error = self._done.get_nowait()
            except queue.Empty:
                return
            then(error)

    def close(self) -> None:
        """Do what was submitted, then end the thread. May be called again."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, then = job
            error: OSError | None = None
            try:
                work()
            except OSError as problem:
                error = problem
            except Exception as fault:  # noqa: BLE001 - whatever it is, it is told
                # A thread that ended would leave all that comes later undone, without a word.
                log.error("file_work_failed", thread=self._name, error=fault)
                error = OSError(errno.EIO, f"a fault of superfluid, {type(fault).__name__}")
            self._done.put((then, error))
            os.eventfd_write(self._wake, 1)
