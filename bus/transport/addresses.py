"""Binding a socket to an address, with errors that a person can act on.

Addresses are libzmq's: `tcp://host:port` (port 0 takes a free one) and `ipc:///path`.
"""

from __future__ import annotations

import errno
import os
import socket as plain_socket
from pathlib import Path

import zmq

from bus.address import split_address
from bus.errors import PortInUse, StartError
from bus.file_lock import FileLock, LockHeld
from bus.state import private_folder
from bus.transport.pipes import MAX_PATH_BYTES

#: Sockets of one context. The default of 1,023 would end at some 300 dialed nodes, each of which
#: takes a socket and both ends of its monitor.
MAX_SOCKETS = 16_384
#: Connections that wait to be accepted; a fleet comes back at once after its head's restart.
BACKLOG = 512


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """The process's zmq context. One I/O thread carries all links; it is never the bottleneck."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    # Only counts before the first socket; set again it changes nothing.
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


def allow_ipv6(socket: zmq.Socket[bytes], address: str) -> None:
    """Switch IPv6 on for an address that is written as one.

    Not for names: libzmq takes the first answer only, so `localhost` would become ::1 and miss a
    server on 127.0.0.1.
    """
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)


def ipc_path(address: str) -> Path | None:
    """The path of an ipc address; None for others."""
    return Path(address.removeprefix("ipc://")) if address.startswith("ipc://") else None


class Binding:
    """A socket bound to an address, and the lock that keeps an ipc path ours.

    Args:
        socket: stays its owner's.
        address: where to bind.
        purpose: what it is for, as in "clients" or "nodes".
        setting: what a person changes to get another address.

    Raises:
        PortInUse: another process has the address.
        ConfigInvalid: it is no address at all.
        StartError: it is no address of this machine, or not allowed.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], address: str, *, purpose: str, setting: str
    ) -> None:
        split_address(address, setting)
        self._lock: FileLock | None = None
        self._path = ipc_path(address)
        if self._path is not None:
            self._lock = _lock_ipc(self._path, purpose, setting)
        allow_ipv6(socket, address)
        # libzmq's default of 100 turns connections away when a fleet comes back at once.
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        try:
            if self._path is not None:
                socket.setsockopt(zmq.USE_FD, _listen(self._path))
            socket.bind(address)
        except (zmq.ZMQError, OSError) as error:
            self.close()
            raise _bind_error(error, address, purpose, setting) from error
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Remove the ipc path and give its lock back. Call it after closing the socket."""
        if self._lock is not None:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def _lock_ipc(path: Path, purpose: str, setting: str) -> FileLock:
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise StartError(
            f"the socket path {path} has {length} bytes and Linux takes at most "
            f"{MAX_PATH_BYTES}; choose a shorter state folder (SUPERFLUID_STATE)"
        )
    private_folder(path.parent)
    try:
        # Without it a second binder takes the path over and the first never hears of it.
        return FileLock(path.with_name(path.name + ".lock"))
    except LockHeld as error:
        holder = "another process" if error.pid is None else f"process {error.pid}"
        raise PortInUse(
            f"{holder} already serves {purpose} at ipc://{path}; stop it, or set {setting}"
        ) from error


def _listen(path: Path) -> int:
    """A listening descriptor, which libzmq closes.

    Were libzmq to make it, it would also remove the path, from its own thread at some time after
    the socket was closed; by then the file may be of whoever got the lock next.
    """
    path.unlink(missing_ok=True)
    listener = plain_socket.socket(plain_socket.AF_UNIX)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener.detach()


def _bind_error(
    error: OSError | zmq.ZMQError, address: str, purpose: str, setting: str
) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"another process already listens at {address}, meant for {purpose}; stop it, or set "
            f"{setting} to another address (port 0 takes a free one)"
        )
    if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL, errno.EINVAL):
        return StartError(
            f"{address} is no address of this machine; set {setting} to one that is, as in "
            "tcp://127.0.0.1:8454 or tcp://*:8454"
        )
    if error.errno == errno.EACCES:
        return StartError(
            f"not allowed to listen at {address}; set {setting} to a port from 1024 up or to a "
            "folder of this user"
        )
    return StartError(f"can not listen at {address} for {purpose}: {error}; check {setting}")
