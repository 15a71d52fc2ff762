"""A child process that ends when its parent ends, however that ended.

Two independent means, since each has a hole. PR_SET_PDEATHSIG kills at once, but follows the
*thread* that started the child (which is why children are started from the main thread) and is
Linux only. A death pipe, whose write end only the parent holds, reads as ended when the parent is
gone, but needs a thread that gets to run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

#: Exit status of a child whose parent is gone.
EXIT_ORPHANED = 113
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, death_fd: int | None) -> None:
    """Bind this process's life to its parent's. Call it first thing in a child's `main`.

    Elsewhere than on Linux only the death pipe protects; services run on Linux, the rest is for
    development.

    Args:
        parent_pid: the parent's process id, as the parent told it.
        death_fd: read end of the death pipe; None when there is none.

    Raises:
        OSError: the kernel refused PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        _set_parent_death_signal()
    # The parent may have ended before the line above; then no signal would come any more.
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)
    if death_fd is not None:
        threading.Thread(
            target=_wait_for_end, args=(death_fd,), name="death-pipe", daemon=True
        ).start()


def _set_parent_death_signal() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"PR_SET_PDEATHSIG was refused: {os.strerror(number)}")


def _wait_for_end(death_fd: int) -> None:
    while os.read(death_fd, 1):
        pass
    os._exit(EXIT_ORPHANED)
