"""Cutting the TCP connections of a process of this user from outside, without rights of root.

A descriptor of the process is duplicated into ours (pidfd_getfd(2), Linux 5.6) and the connection
shut down, as if the network had ended it. Who may debug a process may do that; where the system
lets nobody debug what is not its child (yama), it is refused.
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

from bus.errors import NotAllowed

_PIDFD_GETFD = 438
#: As /proc/net/tcp has it.
_ESTABLISHED = "01"
_PROC = Path("/proc")


def cut_links(pid: int, address: str) -> int:
    """Shut down the connections of a process that have a port at either end.

    Args:
        pid: of the process.
        address: `tcp://host:port`, which it dials or where it listens.

    Returns:
        How many there were.

    Raises:
        NotAllowed: the system does not let this user.
    """
    port = int(address.rpartition(":")[2])
    inodes = _connections(pid, port)
    cut = 0
    for entry in (_PROC / str(pid) / "fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target in inodes:
            with socket.socket(fileno=_duplicate(pid, int(entry.name))) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            cut += 1
    return cut


def may_cut_links(pid: int) -> bool:
    """Whether this user may cut those of a process."""
    for entry in (_PROC / str(pid) / "fd").iterdir():
        try:
            os.close(_duplicate(pid, int(entry.name)))
        except NotAllowed:
            return False
        return True
    return False


def _connections(pid: int, port: int) -> set[str]:
    """What the descriptors of established connections from or to a port link to.

    Source: proc_pid_net(5), columns of /proc/net/tcp.
    """
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / str(pid) / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            ports = {int(columns[side].rpartition(":")[2], 16) for side in (1, 2)}
            if columns[3] == _ESTABLISHED and port in ports:
                found.add(f"socket:[{columns[9]}]")
    return found


def _duplicate(pid: int, descriptor: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        ours: int = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        number = ctypes.get_errno()
    finally:
        os.close(process)
    if ours < 0:
        raise NotAllowed(
            f"the system does not let this user cut a link ({os.strerror(number)}); run it as root "
            "or leave cut out of --kinds"
        )
    return ours
