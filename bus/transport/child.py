"""One incarnation of a child process: started by exec, spoken to through its own pipes.

Every child program takes, besides its own arguments:

    --pipe PREFIX        for `WorkerPipe`
    --incarnation N      its number, which rises with every start
    --parent-pid PID     for `die_with_parent`
    --death-fd FD        for `die_with_parent`
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bus.ids import WorkerIncarnation, incarnation_name
from bus.transport.monitor import Happening, SocketMonitor
from bus.transport.pipes import ParentPipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to start, and how to start it again after it died.

    Arguments and environment can be read by other users of the machine: secrets go through files
    or the pipe.

    Attributes:
        name: the slot's name; short (it is part of a socket path) and unique in the run folder.
        module: what `python -m` runs.
        args: its own arguments.
        log_path: gets its stdout and stderr, appended; None leaves them to the parent's.
        env: added to the parent's environment.
    """

    name: str
    module: str
    args: tuple[str, ...] = ()
    log_path: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A running incarnation. Owns the process, its pidfd, its pipes and their monitor.

    Args:
        spec: what to start.
        run_dir: folder of the pipes.
        incarnation: this start's number.
        death_fd: read end of the parent's death pipe.

    Raises:
        OSError: the process can not be started.
        StartError: its pipes can not be made.
        RuntimeError: not called from the main thread; PR_SET_PDEATHSIG kills a child when the
            *thread* that started it ends.
    """

    def __init__(
        self, spec: ChildSpec, run_dir: Path, incarnation: WorkerIncarnation, death_fd: int
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("children are started from the main thread only")
        self.incarnation = incarnation
        self.pipe = ParentPipe(f"{run_dir}/{spec.name}-{incarnation_name(incarnation)}")
        self.monitor = SocketMonitor(self.pipe.readable)
        try:
            self._process = _start(spec, self.pipe.path_prefix, incarnation, death_fd)
            self.pid_fd = os.pidfd_open(self._process.pid)
        except BaseException:
            self.monitor.close()
            self.pipe.close()
            raise
        self._connections = 0
        self._was_connected = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def was_connected(self) -> bool:
        """True once the child's sending pipe was there."""
        return self._was_connected

    def is_drained(self) -> bool:
        """True when the child's sending pipe ended: all it sent lies in our queue."""
        for event in self.monitor.drain():
            if event.happening is Happening.ACCEPTED:
                self._connections += 1
                self._was_connected = True
            elif event.happening is Happening.DISCONNECTED:
                self._connections -= 1
        return self._was_connected and self._connections == 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; to this very process, also when its number was given away again."""
        try:
            signal.pidfd_send_signal(self.pid_fd, number)
        except ProcessLookupError:
            pass  # It ended by itself; the pidfd tells the loop.

    def reap(self) -> int:
        """Wait for the end, which the pidfd has announced; its return code, -N for signal N."""
        return self._process.wait()

    def close(self) -> None:
        """Give back pipes and descriptors, after `reap`."""
        self.monitor.close()
        self.pipe.close()
        os.close(self.pid_fd)


def _start(
    spec: ChildSpec, path_prefix: str, incarnation: WorkerIncarnation, death_fd: int
) -> subprocess.Popen[bytes]:
    # -P: a folder `agent/` in the current directory must not shadow the installed package.
    command = [sys.executable, "-P", "-m", spec.module, *spec.args]
    command += ["--pipe", path_prefix, "--incarnation", str(incarnation)]
    command += ["--parent-pid", str(os.getpid()), "--death-fd", str(death_fd)]
    log: int | None = None
    if spec.log_path is not None:
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
        log = os.open(spec.log_path, flags, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **spec.env},
            close_fds=True,
            pass_fds=(death_fd,),
            # In our process group, so that supervisord's killasgroup reaches it.
            start_new_session=False,
        )
    finally:
        if log is not None:
            os.close(log)
