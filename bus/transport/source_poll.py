"""Which of a loop's sockets and descriptors are readable; quiet sockets cost next to nothing."""

from __future__ import annotations

import zmq

Source = zmq.Socket[bytes] | int
"""A zmq socket, or a file descriptor."""

#: Sockets that nobody sends on. A send may take in, unseen, that a message came.
RECEIVE_ONLY = frozenset({int(zmq.PULL), int(zmq.PAIR), int(zmq.SUB)})
_READABLE = int(zmq.POLLIN)


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message lies in a socket; a third of what a read that finds none costs."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)


class SourcePoll:
    """What is readable, of sockets and descriptors.

    libzmq looks into every socket in every wait, with two system calls each. Of the sockets that
    are only read it need not: their descriptor becomes readable when a message comes, but only
    once until all have been read, so one that had any is looked into until it has none.
    """

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._by_fd: dict[int, zmq.Socket[bytes]] = {}
        self._fd_of: dict[Source, int] = {}
        #: Sockets that are only read and may have messages.
        self._unsure: dict[zmq.Socket[bytes], None] = {}

    def add(self, source: Source) -> None:
        """Look at a source from now on; what a socket has by now counts."""
        if isinstance(source, int) or source.getsockopt(zmq.TYPE) not in RECEIVE_ONLY:
            self._poller.register(source, zmq.POLLIN)
            return
        fd = int(source.getsockopt(zmq.FD))
        self._by_fd[fd], self._fd_of[source] = source, fd
        self._poller.register(fd, zmq.POLLIN)
        self._unsure[source] = None

    def remove(self, source: Source) -> None:
        """Look at it no more."""
        fd = self._fd_of.pop(source, None)
        if fd is None:
            self._poller.unregister(source)
            return
        self._unsure.pop(self._by_fd.pop(fd), None)
        self._poller.unregister(fd)

    def wait(self, wait_ms: int) -> list[Source]:
        """What is readable, after at most so long."""
        ready: list[Source] = []
        if self._unsure:
            ready += self._look()
            if ready:
                wait_ms = 0
        for found, _ in self._poller.poll(wait_ms):
            socket = self._by_fd.get(found) if self._by_fd else None
            if socket is None:
                ready.append(found)
            elif socket not in self._unsure:
                self._unsure[socket] = None
                if is_readable(socket):
                    ready.append(socket)
        return ready

    def _look(self) -> list[zmq.Socket[bytes]]:
        readable = [s for s in self._unsure if is_readable(s)]
        self._unsure = dict.fromkeys(readable)
        return readable
