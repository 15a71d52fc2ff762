"""Faults that a test causes from outside in a worker whose PYTHONPATH has this folder.

Python imports this at its start. For FAULT_S seconds, and without ever letting go of the GIL,

    SIGUSR1  keeps the main thread computing
    SIGUSR2  lets it sleep

and then one line of JSON on stderr says that it is over. With CRASH_ON set, a worker ends by a
segmentation fault when that token comes four times in a row in what it prefills.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

SECONDS = int(os.environ.get("FAULT_S", "60"))
CRASH_ON = os.environ.get("CRASH_ON")
RUNNER = "agent.worker.model_runner"


class _Over(Exception):
    """The time is over."""


def _say_over() -> None:
    os.write(2, b'{"event": "fault_over"}\n')


def _raise_over(number: int, frame: FrameType | None) -> None:
    raise _Over


def _compute(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGALRM, _raise_over)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        # 2**60 ways to fail; matching looks for signals now and then, but keeps the GIL.
        re.match(r"(?:a|a)+$", "a" * 60 + "b")
    except _Over:
        _say_over()


def _sleep(number: int, frame: FrameType | None) -> None:
    ctypes.PyDLL(None).sleep(SECONDS)
    _say_over()


class _CrashingLoader(importlib.machinery.SourceFileLoader):
    """Loads the model runner so that its prefill has a fault that one input shows."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        runner: Any = module
        prefill = runner.ModelRunner.prefill_chunk

        def prefill_chunk(self: Any, lane: int, ids: Sequence[int], past: int) -> Any:
            if " ".join([CRASH_ON or ""] * 4) in " ".join(map(str, ids)):
                os.kill(os.getpid(), signal.SIGSEGV)
            return prefill(self, lane, ids, past)

        runner.ModelRunner.prefill_chunk = prefill_chunk


class _CrashingFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == RUNNER else None
        if spec is not None and spec.origin is not None:
            spec.loader = _CrashingLoader(name, spec.origin)
        return spec


if "agent.worker" in sys.orig_argv:
    if CRASH_ON:
        sys.meta_path.insert(0, _CrashingFinder())
    signal.signal(signal.SIGUSR1, _compute)
    signal.signal(signal.SIGUSR2, _sleep)
