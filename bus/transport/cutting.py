"""Ending one connection of a ROUTER, which libzmq has no call for.

The monitor tells a connection's descriptor. It belongs to libzmq and may be closed and used again
at any moment, so it is never touched itself: a duplicate is, after seeing that it still leads to
the peer that was there when the connection was accepted.
"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS_BYTES = 12  # struct ucred: pid, uid, gid
_RECEIVED = struct.Struct("=Q")
_RECEIVED_OFFSET = 128


def peer_of(fd: int) -> bytes | None:
    """Who is on the other side of a connected socket; None when `fd` is no such thing any more."""
    duplicate = _duplicate(fd)
    if duplicate is None:
        return None
    with duplicate:
        return _peer(duplicate)


def host_of(peer: bytes) -> str:
    """The network address in what `peer_of` gave; empty for ipc."""
    _, found, rest = peer.partition(b"('")
    return rest.partition(b"'")[0].decode(errors="replace") if found else ""


def cut(fd: int, peer: bytes) -> bool:
    """Shut down the connection behind `fd` if it still leads to `peer`, as `peer_of` gave it.

    libzmq notices as if the peer had closed; the monitor then tells of it.

    Returns:
        False when the descriptor leads elsewhere by now; nothing was done then.
    """
    duplicate = _duplicate(fd)
    if duplicate is None:
        return False
    with duplicate:
        if _peer(duplicate) != peer:
            return False
        try:
            duplicate.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True


def bytes_received(fd: int, peer: bytes) -> int | None:
    """Bytes that a TCP peer sent over its connection; None for another kind, or another peer.

    Source: struct tcp_info of linux/tcp.h, `tcpi_bytes_received`, since Linux 4.1.
    """
    duplicate = _duplicate(fd)
    if duplicate is None:
        return None
    with duplicate:
        if duplicate.family == socket.AF_UNIX or _peer(duplicate) != peer:
            return None
        try:
            info = duplicate.getsockopt(
                socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_OFFSET + _RECEIVED.size
            )
        except OSError:
            return None
        if len(info) < _RECEIVED_OFFSET + _RECEIVED.size:
            return None
        return int(_RECEIVED.unpack_from(info, _RECEIVED_OFFSET)[0])


def _duplicate(fd: int) -> socket.socket | None:
    try:
        copy = os.dup(fd)
    except OSError:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None


def _peer(duplicate: socket.socket) -> bytes | None:
    try:
        if duplicate.family == socket.AF_UNIX:
            # An ipc peer has no name; its process, user and group are what can be compared.
            return duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES)
        return repr(duplicate.getpeername()).encode()
    except OSError:
        return None
