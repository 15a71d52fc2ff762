"""Limits of the process that the transport needs raised."""

from __future__ import annotations

import ctypes
import resource

from bus.errors import StartError

#: Each link takes a descriptor, each of our sockets a few; strangers that connect take some too.
MIN_OPEN_FILES = 8192


def raise_open_files(minimum: int = MIN_OPEN_FILES) -> int:
    """Let this process open at least `minimum` files; what it may open now.

    libzmq aborts the whole process when it can not get a descriptor for a socket of its own, so
    this is settled at the start.

    Raises:
        StartError: the system's hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= minimum:
        return soft
    if hard != resource.RLIM_INFINITY and hard < minimum:
        raise StartError(
            f"this process may open {hard} files and needs {minimum}; raise the limit: "
            f"`ulimit -Hn {minimum}` in the shell that starts it, LimitNOFILE={minimum} for "
            "systemd, or nofile in /etc/security/limits.conf"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (minimum, hard))
    return minimum


#: glibc's names of what `mallopt` sets, and the sizes up to which freed memory is kept.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let malloc keep what was freed for what comes next; does nothing without glibc.

    A frame of 128 KiB is as large as what glibc takes from the system anew each time: its pages
    are then cleared and mapped at every copy, which cost more than sealing it (a copy of 128 KiB
    took 80 us instead of 6).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
