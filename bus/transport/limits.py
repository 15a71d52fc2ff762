"""Limits of the process that the transport needs raised."""

from __future__ import annotations

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
