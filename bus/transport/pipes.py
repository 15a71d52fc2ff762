"""The two ipc pipes between a parent process and one incarnation of its child.

The parent (head or agent) binds both ends and the child connects, so a parent's send is refused
until the child is there. A path belongs to one incarnation and is never used again: what was
queued for a dead child dies with its sockets and can not reach the next one.

    parent  PUSH bind    {prefix}-in.sock   connect PULL  child
    parent  PULL bind    {prefix}-out.sock  connect PUSH  child

Nothing here waits for the other side except `WorkerPipe.recv`, which waits as long as it is told.
A send that returned True is not delivered yet: keep what must not be lost until it is answered.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import zmq

from bus.closing import Closing
from bus.errors import StartError, TooLarge
from bus.file_lock import FileLock, LockHeld
from bus.state import private_folder as private_folder

#: Linux keeps a socket's path in 108 bytes with the zero at the end (unix(7)).
MAX_PATH_BYTES = 107
#: The largest message: what the workers' codec allows, and room for its envelope. Beyond it libzmq
#: would cut the connection in silence, so `send` refuses first.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024 + 4096
#: Messages a full direction holds (on each side). Enough to bridge a turn of either process;
#: more would only hide that the reader is behind.
HIGH_WATER_MESSAGES = 256
#: How long a child that ends in order waits for its last message ("failed: ...") to leave.
CHILD_LINGER_MS = 1000
#: The longest wait at once; libzmq counts milliseconds in 31 bits.
_LONGEST_WAIT_S = 3600.0

_SUFFIXES = ("-in.sock", "-out.sock", ".lock")


def _addresses(path_prefix: str) -> tuple[str, str]:
    longest = f"{path_prefix}-out.sock"
    if len(os.fsencode(longest)) > MAX_PATH_BYTES:
        raise StartError(
            f"the socket path {longest} has {len(os.fsencode(longest))} bytes and Linux takes at "
            f"most {MAX_PATH_BYTES}; choose a shorter state folder (SUPERFLUID_STATE)"
        )
    return f"ipc://{path_prefix}-in.sock", f"ipc://{path_prefix}-out.sock"


def _configure(socket: zmq.Socket[bytes], linger_ms: int = 0) -> zmq.Socket[bytes]:
    # Bounded queues: a reader that is behind is felt by the sender instead of filling memory.
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MESSAGES)
    # A peer that sends more than any message has is broken; cut it instead of allocating.
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    # What is unsent when the parent closes belongs to a dead child; waiting for it would hang us.
    socket.setsockopt(zmq.LINGER, linger_ms)
    return socket


def _send(socket: zmq.Socket[bytes], data: bytes) -> bool:
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"a message of {len(data)} bytes is over a worker pipe's limit of {MAX_MESSAGE_BYTES}; "
            "shorten the context"
        )
    try:
        socket.send(data, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def remove_stale_pipes(run_dir: Path, name: str) -> None:
    """Remove what dead parents left of the pipes of child `name`; those of living ones stay."""
    number = re.compile(re.escape(name) + r"-[0-9a-f.]+\.lock")
    for lock_path in run_dir.iterdir():
        if not number.fullmatch(lock_path.name):
            continue
        prefix = str(lock_path).removesuffix(".lock")
        try:
            lock = FileLock(lock_path)
        except LockHeld:
            continue
        _remove_files(prefix)
        lock.close()


def _remove_files(prefix: str) -> None:
    for suffix in _SUFFIXES:
        Path(f"{prefix}{suffix}").unlink(missing_ok=True)


class WorkerPipe(Closing):
    """The child's side. Owns two sockets and their context; used by one thread.

    Args:
        path_prefix: what the parent handed over as `--pipe`.

    Raises:
        StartError: the path is longer than Linux takes.
    """

    def __init__(self, path_prefix: str) -> None:
        inbound, outbound = _addresses(path_prefix)
        # A context of its own: ending it is what waits for the last message to leave.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pull = _configure(self._context.socket(zmq.PULL))
        self._push = _configure(self._context.socket(zmq.PUSH), CHILD_LINGER_MS)
        self._pull.connect(inbound)
        self._push.connect(outbound)

    def recv(self, timeout_s: float | None) -> bytes | None:
        """The next message, or None when none came in time.

        Args:
            timeout_s: seconds to wait, an hour at most; 0 looks without waiting, None waits for
                ever.
        """
        if timeout_s is None:
            return self._pull.recv()
        if timeout_s > 0:
            wait_ms = max(1, round(min(timeout_s, _LONGEST_WAIT_S) * 1000))
            if not self._pull.poll(wait_ms):
                return None
        try:
            return self._pull.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, data: bytes) -> bool:
        """Queue one message; False when the queue is full, and the caller keeps it.

        Raises:
            TooLarge: the message is over the pipe's limit.
        """
        return _send(self._push, data)

    def wait_sendable(self, timeout_s: float) -> None:
        """Wait until the queue is not full, or the time is over."""
        self._push.poll(max(1, round(min(timeout_s, _LONGEST_WAIT_S) * 1000)), zmq.POLLOUT)

    def close(self) -> None:
        """Close, after at most `CHILD_LINGER_MS` for what is still queued. May be called again."""
        self._pull.close()
        self._push.close()
        self._context.term()


class ParentPipe:
    """The parent's side for one incarnation of a child. Owns two sockets and their files.

    Args:
        path_prefix: path without its ending, `{run folder}/{name}-{incarnation}`.

    Raises:
        StartError: the path is too long, the folder is open to others, or another process has
            this pipe.
    """

    def __init__(self, path_prefix: str) -> None:
        inbound, outbound = _addresses(path_prefix)
        private_folder(Path(path_prefix).parent)
        try:
            # libzmq lets a second binder steal an ipc path without an error.
            self._lock = FileLock(Path(f"{path_prefix}.lock"))
        except LockHeld as error:
            raise StartError(
                f"another process uses the pipe {path_prefix}; stop the other service that runs "
                "in this state folder"
            ) from error
        self._prefix = path_prefix
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._push = _configure(context.socket(zmq.PUSH))
        self._pull = _configure(context.socket(zmq.PULL))
        try:
            self._push.bind(inbound)
            self._pull.bind(outbound)
        except zmq.ZMQError as error:
            self.close()
            raise StartError(
                f"can not make the pipe {path_prefix}: {error}; check the folder's permissions "
                "and free space"
            ) from error

    @property
    def path_prefix(self) -> str:
        """What the child gets as `--pipe`."""
        return self._prefix

    @property
    def readable(self) -> zmq.Socket[bytes]:
        """The socket that a loop polls; read through `recv`."""
        return self._pull

    def send(self, data: bytes) -> bool:
        """Queue one message; False when the child is not there or behind.

        Raises:
            TooLarge: the message is over the pipe's limit.
        """
        return _send(self._push, data)

    def recv(self) -> bytes | None:
        """The next message of the child, or None when there is none now."""
        try:
            return self._pull.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self) -> None:
        """Close both sockets and remove their files. May be called again."""
        if self._push.closed:
            return
        self._push.close()
        self._pull.close()
        _remove_files(self._prefix)
        self._lock.close()
