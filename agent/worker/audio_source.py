"""The samples of an audio file, from a process that decodes it under limits."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from agent.worker.audio_process import (
    DONE,
    END,
    ERROR,
    HEAD,
    MOST_ERROR_BYTES,
    MOST_SAMPLE_BYTES,
    SAMPLES,
)
from agent.worker.log_mel import RATE, FloatArray
from bus.errors import BlobMissing, Internal, Invalid, SuperfluidError, TooLarge

#: Longest audio, in seconds.
LONGEST_S = 4 * 3600.0
_READ_BYTES = 1 << 18
#: Reads of one `fill`: samples that are left out are many, and its caller has other work.
_READS = 8
#: Decoded ahead, while the model is busy with what came before.
_AHEAD_BYTES = 1 << 20
#: Errors that the process may name.
_NAMED = {error.code: error for error in (Invalid, TooLarge, Internal)}
#: A decoder that says nothing for so long while it is waited for stands still.
STILL_S = 120.0
#: Samples may go beyond 1 by so much; further out they are cut.
_LOUDEST = 8.0


class AudioSource:
    """Owns the process; `close` ends it.

    Args:
        path: of the file.
        from_s: what lies before it is decoded and left out.
        longest_s: of the whole file.

    Raises:
        BlobMissing: there is no such file.
        Internal: there can be no process.
    """

    def __init__(self, path: Path, *, from_s: float = 0.0, longest_s: float = LONGEST_S) -> None:
        with _opened(path) as file:
            self._process = _started(file, round(from_s * RATE), longest_s)
        if self._process.stdout is None:
            raise ValueError("a process without its pipe")
        self._out = self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        if sys.platform == "linux":
            # Where a process may have no pipe of that size, less is decoded ahead.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._out.fileno(), fcntl.F_SETPIPE_SZ, _AHEAD_BYTES)
        self._raw = bytearray()
        self._parts: list[FloatArray] = []
        self._ready = 0
        self._error: SuperfluidError | None = None
        #: With some for the resampler's rounding.
        self._most_samples = round(longest_s * RATE) + RATE
        #: How long it was waited for since it last said something.
        self._waited_s = 0.0
        self.ended = False
        #: Samples of the whole file, also of what was left out; known at its end.
        self.samples = 0

    @property
    def ready(self) -> int:
        """Samples that can be taken."""
        return self._ready

    def fill(self, samples: int, wait_s: float) -> bool:
        """Read some of what is missing until so many samples can be taken, or there are no more.

        Args:
            samples: wanted.
            wait_s: how long one read waits for the process to say something.

        Returns:
            Whether there are, or the file has ended with fewer; if not, it is to be called again.

        Raises:
            SuperfluidError: what is wrong with the file before there were so many samples.
        """
        for _ in range(_READS):
            if self._ready >= samples or self.ended:
                return True
            if self._error is not None:
                raise self._error
            if not self._read(wait_s):
                break
        return self._ready >= samples or self.ended

    def take(self, samples: int) -> FloatArray:
        """The next samples, or all that are ready when those are fewer."""
        joined = np.concatenate([np.zeros(0, np.float32), *self._parts])
        taken, rest = joined[:samples], joined[samples:]
        self._parts, self._ready = [rest], len(rest)
        return taken

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._out.close()
        self._process.wait()

    def _read(self, wait_s: float) -> bool:
        """Take what the process has said; False when it said nothing in time."""
        if not select.select([self._out], [], [], wait_s)[0]:
            self._waited_s += wait_s
            if self._waited_s > STILL_S:
                self._error = Internal(
                    f"the decoder of the audio file has stood still for {STILL_S:.0f} s; ask again"
                )
            return self._error is not None
        self._waited_s = 0.0
        data = self._out.read(_READ_BYTES)
        if data:
            self._raw += data
            self._take_records()
        elif not self.ended and self._error is None:
            self._error = self._died()
        return True

    def _take_records(self) -> None:
        while len(self._raw) >= HEAD.size and self._error is None:
            kind, length = HEAD.unpack_from(self._raw)
            if length > (MOST_SAMPLE_BYTES if kind == SAMPLES else MOST_ERROR_BYTES):
                self._error = self._strange()
                return
            if len(self._raw) < HEAD.size + length:
                return
            payload = bytes(self._raw[HEAD.size : HEAD.size + length])
            del self._raw[: HEAD.size + length]
            self._take_record(kind, payload)

    def _take_record(self, kind: bytes, payload: bytes) -> None:
        if kind == SAMPLES and len(payload) % 4 == 0:
            values = np.nan_to_num(np.frombuffer(payload, "<f4"), posinf=0.0, neginf=0.0)
            part = np.clip(values, -_LOUDEST, _LOUDEST).astype(np.float32, copy=False)
            self._parts.append(part)
            self._ready += len(part)
        elif kind == DONE and len(payload) == END.size:
            (self.samples,) = END.unpack(payload)
            self.ended = self.samples <= self._most_samples
            self._error = None if self.ended else self._strange()
        elif kind == ERROR:
            self._error = self._told(payload)
        else:
            self._error = self._strange()

    def _told(self, payload: bytes) -> SuperfluidError:
        try:
            told: dict[str, Any] = json.loads(payload)
            details = {key: int(told[key]) for key in ("length", "max") if told[key]}
            kind = _NAMED[told["code"]]
            return kind(str(told["message"]), param=str(told["param"]) or None, details=details)
        except (ValueError, KeyError, TypeError):
            return self._strange()

    def _strange(self) -> SuperfluidError:
        return Internal("the audio decoder said what is no record; the file may be made to harm")

    def _died(self) -> SuperfluidError:
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return TooLarge(
                "the audio file takes more time to decode than one file may; convert it to plain "
                "WAV",
                param="file",
            )
        name = signal.Signals(-code).name if code < 0 else f"status {code}"
        return Invalid(
            f"the audio file is damaged: its decoder ended by {name}; convert it to plain WAV",
            param="file",
        )


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise BlobMissing(
            f"the audio file can not be read here ({error.strerror}); send it again"
        ) from error


def _started(file: BinaryIO, skip_samples: int, longest_s: float) -> subprocess.Popen[bytes]:
    """The process that decodes a file."""
    command = (
        *(sys.executable, "-P", "-m", "agent.worker.audio_process"),
        *("--parent-pid", str(os.getpid())),
        *("--skip-samples", str(skip_samples)),
        *("--longest-s", str(longest_s)),
    )
    try:
        return subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # `select` knows nothing of a buffer.
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    except OSError as error:
        raise Internal(
            f"no process can be started that decodes the audio ({error.strerror}); look at the "
            "limits of processes and memory on this node, and ask again"
        ) from error
