"""Part of supervisord (conf/supervisord.conf): what has ended is started again at once.

supervisord sleeps for up to a second in its poll, which the end of a child does not interrupt:
since Python 3.5 a signal handler runs and the poll goes on. And an end that it has noticed is acted
on in its next turn, which is after another poll. So every signal writes a byte into a socket that
the poll waits for, and what reads it writes another one, for the turn after.
"""

from __future__ import annotations

import signal
import socket
from typing import Any

#: No signal has this number.
_TURN_AGAIN = b"\0"
_READ_BYTES = 4096


class SignalWakeup:
    """A reader in supervisord's poll that is readable after a signal, and once more after that.

    Owns both ends of a socket. Driven by supervisord, by the names of its dispatchers.
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)

    def fileno(self) -> int:
        """What the poll is to wait for."""
        return self._near.fileno()

    def attach(self) -> None:
        """Let every signal of this process write into it."""
        # A full socket wakes as well as one with another byte.
        signal.set_wakeup_fd(self._far.fileno(), warn_on_full_buffer=False)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        if self._near.recv(_READ_BYTES).strip(_TURN_AGAIN):
            self._far.send(_TURN_AGAIN)

    def handle_error(self) -> None:
        """Nothing: without it, ends are noticed within two seconds."""

    def close(self) -> None:
        """Close both ends."""
        self._near.close()
        self._far.close()


class _NoMethods:
    """An XML-RPC interface without methods: supervisord loads parts as such."""


def install(supervisord: Any) -> _NoMethods:
    """Add it to a supervisord; the factory that its configuration names."""
    wakeup = SignalWakeup()
    supervisord.options.get_socket_map()[wakeup.fileno()] = wakeup
    wakeup.attach()
    return _NoMethods()
