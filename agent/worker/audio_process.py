"""`python -P -m agent.worker.audio_process`: decode one file, for a worker that transcribes.

The file is its standard input. What it writes to its standard output is a row of records:

    kind, one byte | length u32, little-endian | so many bytes

    S   samples: float32 little-endian, mono at 16 kHz, some of them, or none yet
    D   the end, nothing was wrong: how many samples the whole file has, u64 little-endian
    E   why there is no more: a JSON object with code, message, param, length and max

A process of its own, and under limits, since decoders are native code that any file may be made
for: what one does to itself is that file's error and nothing else's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from bus.errors import Internal, SuperfluidError, TooLarge
from bus.transport.orphan import die_with_parent

if TYPE_CHECKING:
    from agent.worker.log_mel import FloatArray

SAMPLES, DONE, ERROR = b"S", b"D", b"E"
HEAD = struct.Struct("<cI")
END = struct.Struct("<Q")
#: Of one record.
MOST_SAMPLE_BYTES = 1 << 20
MOST_ERROR_BYTES = 1 << 16

#: Enough for hours of audio at the highest rate; some seconds are usual.
CPU_S = 600
MEMORY_BYTES = 1 << 30
_FILES = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Decode; gives 0 once all was told, an error too."""
    parser = argparse.ArgumentParser(prog="agent.worker.audio_process")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--skip-samples", type=int, default=0)
    parser.add_argument("--longest-s", type=float, required=True)
    options = parser.parse_args(arguments)
    die_with_parent(options.parent_pid, None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = sys.stdout.buffer
    try:
        _limit()
        samples = 0
        for block in _blocks(options.longest_s):
            for part in _parts(block, max(0, options.skip_samples - samples)):
                _write(out, SAMPLES, part)
            samples += len(block)
        _write(out, DONE, END.pack(samples))
    except SuperfluidError as error:
        _write(out, ERROR, _described(error))
    except MemoryError:
        _write(out, ERROR, _described(_much("memory")))
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - its kind only: its text may quote the file
        fault = Internal(
            f"the audio can not be decoded ({type(error).__name__}); see if others are"
        )
        _write(out, ERROR, _described(fault))
    return 0


def _limit() -> None:
    """Take from this process what decoding does not need."""
    for which, most in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _FILES),
    ):
        hard = resource.getrlimit(which)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (value, value))


def _blocks(longest_s: float) -> Iterator[FloatArray]:
    """The file's samples; what decodes is loaded under the limits, too."""
    from agent.worker.audio_file import AudioLimits, read_audio

    return read_audio(sys.stdin.fileno(), AudioLimits(longest_s))


def _parts(block: FloatArray, skip: int) -> Iterator[memoryview]:
    """Samples behind the first `skip`, in parts that fit a record."""
    raw = memoryview(block[skip:].astype("<f4").tobytes())
    if not raw:
        yield raw  # So that the reader knows that it gets on.
    for start in range(0, len(raw), MOST_SAMPLE_BYTES):
        yield raw[start : start + MOST_SAMPLE_BYTES]


def _much(what: str) -> TooLarge:
    return TooLarge(
        f"the audio file takes more {what} to decode than one file may; convert it to plain WAV",
        param="file",
    )


def _described(error: SuperfluidError) -> bytes:
    described = {
        "code": error.code,
        "message": error.message[:1000],
        "param": error.param or "",
        "length": error.details.get("length", 0),
        "max": error.details.get("max", 0),
    }
    return json.dumps(described).encode()


def _write(out: BinaryIO, kind: bytes, payload: bytes | memoryview) -> None:
    out.write(HEAD.pack(kind, len(payload)))
    out.write(payload)
    out.flush()


if __name__ == "__main__":
    status = main()
    # Nothing is left to tidy, and the reader may be gone.
    os._exit(status)
