"""The shell of a text process: takes a job, runs its handler under limits, sends the reply.

A text can cost far more than it looks, and most of the work is native code that no exception
reaches. So the limits are the kernel's, and the end of the process is the end of the job: the
parent makes that job's error of it and starts the next process.

- CPU time: the soft RLIMIT_CPU is raised before each job by what one may take; beyond it SIGXCPU,
  left at its default, ends the process wherever it is. The hard limit stays as it was found: an
  ordinary process that lowered it could not raise it again for its next job.
- Time by the clock, where a job narrows its limits: on a busy machine CPU time takes long to use
  up, and the next job waits. SIGALRM, left at its default, ends the process.
- Memory: RLIMIT_AS for the life of the process.
- No core dumps, since they would hold people's texts.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

from bus.errors import Internal, SuperfluidError
from bus.messages.text import TEXT, TextFailed, TextReady
from bus.transport.orphan import die_with_parent
from bus.transport.pipes import WorkerPipe

log = logging.getLogger(__name__)

DEFAULT_CPU_S = 10
DEFAULT_MEMORY_BYTES = 2 * 1024**3
#: What a TextFailed has room for: characters of at most four bytes, and bytes.
_MESSAGE_CHARACTERS, _PARAM_BYTES = 1000, 128

Handler = Callable[[Any], object]


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that a text process is started with."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--pipe", required=True, help="path prefix of the two pipes")
    parser.add_argument("--incarnation", type=int, required=True, help="number of this start")
    parser.add_argument("--parent-pid", type=int, required=True, help="end when this one ends")
    parser.add_argument("--death-fd", type=int, help="read end of the parent's death pipe")
    parser.add_argument("--cpu-s", type=int, default=DEFAULT_CPU_S, help="CPU seconds of one job")
    parser.add_argument(
        "--memory-bytes", type=int, default=DEFAULT_MEMORY_BYTES, help="memory of the process"
    )
    return parser


def main(
    make_handlers: Callable[[], Mapping[type, Handler]],
    description: str,
    argv: Sequence[str] | None = None,
) -> None:
    """Run a text process until its parent ends it.

    Args:
        make_handlers: handler of each job message; called under the memory limit.
    """
    options = arguments(description).parse_args(argv)
    die_with_parent(options.parent_pid, options.death_fd)
    # Ctrl-C goes to every process of a terminal; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, options.memory_bytes)
    with WorkerPipe(options.pipe) as pipe:
        serve(make_handlers(), pipe, options.cpu_s)


def serve(handlers: Mapping[type, Handler], pipe: WorkerPipe, cpu_s: int) -> None:
    """Answer jobs, one after the other, for as long as the process lives.

    Raises:
        Internal: the parent does not take replies any more.
        DecodeError: the parent sent what is no message.
    """
    _send(pipe, TextReady())
    while True:
        data = pipe.recv(None)
        if data is None:
            continue
        job = TEXT.decode(data)
        if job is None:
            continue
        grant_cpu_time(cpu_s)
        _send(pipe, answer(handlers, job))


def answer(handlers: Mapping[type, Handler], job: Any) -> object:
    """The reply to a job; whatever its handler raises becomes a `TextFailed`."""
    handler = handlers.get(type(job))
    try:
        if handler is None:
            raise Internal(f"this text process does no {type(job).__name__}; is the sender newer?")
        return handler(job)
    except SuperfluidError as error:
        return _failed(job, error.code, error.message, error.param or "")
    except MemoryError:
        return _failed(
            job, "too_large", "the text takes more memory than one text may; send a shorter one"
        )
    except Exception as error:  # noqa: BLE001 - one job's fault is that job's error only
        # Its kind and place only: the text of an error may quote the text of a user.
        kind = type(error).__name__
        place = "".join(traceback.format_tb(error.__traceback__))
        log.error("text_job_failed job=%s error=%s\n%s", type(job).__name__, kind, place)
        return _failed(
            job, "internal", f"the text process failed on this text ({kind}); see the head's log"
        )


def grant_cpu_time(seconds: int) -> None:
    """Let this process use so many more seconds of CPU time, up to one more by rounding."""
    _limit(resource.RLIMIT_CPU, _used_cpu_s() + seconds)


@contextmanager
def narrow_limits(cpu_s: int, wall_s: float, growth_bytes: int) -> Iterator[None]:
    """Inside, this process may use less than its job may; what goes beyond ends the process.

    Args:
        cpu_s: further seconds of CPU time, up to one more by rounding.
        wall_s: seconds that may pass; SIGALRM then ends the process, in native code too.
        growth_bytes: memory beside what it has now.
    """
    before = {
        which: resource.getrlimit(which)[0] for which in (resource.RLIMIT_CPU, resource.RLIMIT_AS)
    }
    _lower(resource.RLIMIT_CPU, _used_cpu_s() + cpu_s)
    _lower(resource.RLIMIT_AS, _address_space() + growth_bytes)
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for which, soft in before.items():
            resource.setrlimit(which, (soft, resource.getrlimit(which)[1]))


def _used_cpu_s() -> int:
    """Seconds of CPU time that this process took, rounded up as RLIMIT_CPU counts them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ceil(used.ru_utime + used.ru_stime)


def _address_space() -> int:
    """Bytes of this process's address space, which RLIMIT_AS counts."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _lower(which: int, value: int) -> None:
    soft, hard = resource.getrlimit(which)
    limits = [value, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(which, (min(limits), hard))


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _failed(job: Any, code: str, message: str, param: str = "") -> TextFailed:
    # It may quote what it is about, which may have half a character in it.
    whole = message.encode("utf-8", "backslashreplace").decode()
    short = whole if len(whole) <= _MESSAGE_CHARACTERS else whole[:_MESSAGE_CHARACTERS] + "..."
    # Places in messages and tools are long; names in them may be any text.
    place = param.encode("utf-8", "replace")[:_PARAM_BYTES].decode("utf-8", "ignore")
    return TextFailed(job=job.job, code=code, message=short, param=place)


def _send(pipe: WorkerPipe, reply: object) -> None:
    if not pipe.send(TEXT.encode(reply)):
        raise Internal("the parent takes no replies any more; the text process ends")
