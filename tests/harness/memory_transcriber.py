"""Workers that make up transcripts: each window is a hash of the file, its place and the language.

So a window that was begun at a wrong place, or in a wrong language, shows in what it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath

from bus.ids import GenerationId, NumericsId, WorkerIncarnation
from bus.messages import worker
from bus.messages.worker import SpokenSegment
from tests.harness.memory_text import DIGEST

LANGUAGES = ("en", "de", "is", "fo")
#: Of a file: what says how many seconds it takes to hear.
LENGTH_BYTES = 2


@dataclass(frozen=True, slots=True)
class Window:
    """One window: what is said, where the next one begins, and in which language."""

    segments: tuple[SpokenSegment, ...]
    next_s: float
    language: str


def made_up_sound(duration_s: int, noise: bytes) -> bytes:
    """A file of so many seconds."""
    return duration_s.to_bytes(LENGTH_BYTES, "big") + noise


def duration_of(sound: bytes) -> float:
    return float(int.from_bytes(sound[:LENGTH_BYTES], "big"))


def window_at(sound: bytes, language: str, from_s: float) -> Window:
    """The window of a file that begins at a time; an empty language is the one that is heard."""
    heard = language or LANGUAGES[_hash(sound, "", from_s)[0] % len(LANGUAGES)]
    drawn = _hash(sound, heard, from_s)
    next_s = min(from_s + 10 + drawn[0] % 19, duration_of(sound))
    count = drawn[1] % 3
    width = (next_s - from_s) / max(count, 1)
    segments = tuple(
        SpokenSegment(
            start_s=from_s + place * width,
            end_s=from_s + (place + 1) * width,
            text=drawn[4 + 4 * place : 8 + 4 * place].hex(),
        )
        for place in range(count)
    )
    return Window(segments, next_s, heard)


@lru_cache(maxsize=256)
def windows_of(sound: bytes, language: str, from_s: float) -> tuple[Window, ...]:
    """All windows of a file from a time on."""
    windows = []
    while from_s < duration_of(sound):
        window = window_at(sound, language, from_s)
        windows.append(window)
        language, from_s = window.language, window.next_s
    return tuple(windows)


def _hash(sound: bytes, language: str, from_s: float) -> bytes:
    return hashlib.blake2b(sound + f"{language} {from_s}".encode(), digest_size=16).digest()


@dataclass(slots=True)
class _Heard:
    sound: bytes
    language: str
    from_s: float


@dataclass(slots=True)
class MadeUpTranscriber:
    """One worker process. A step makes `burst` windows of the job that came first.

    `files` are its node's, by hash.
    """

    incarnation: WorkerIncarnation
    files: Mapping[bytes, bytes]
    burst: int = 1
    heard: dict[GenerationId, _Heard] = field(default_factory=dict)

    @property
    def jobs(self) -> list[GenerationId]:
        return list(self.heard)

    @property
    def poisoned(self) -> bool:
        return False

    def ready(self) -> worker.Ready:
        return worker.Ready(
            worker=self.incarnation,
            window_tokens=448,
            lanes=1,
            kv_total_tokens=448,
            numerics=NumericsId("made-up"),
            tokenizer_digest=DIGEST,
            device="none",
            load_s=0.0,
            kind="transcriber",
        )

    def receive(self, message: object, now: float) -> list[object]:
        match message:
            case worker.Transcribe(job=job, file=file, language=language, from_s=from_s):
                sound = self.files.get(bytes.fromhex(PurePath(file).name))
                if sound is None:
                    raise AssertionError(f"job {job} names {file}, which is not there")
                self.heard[job] = _Heard(sound, language, from_s)
            case worker.Cancel(generation=job):
                self.heard.pop(job, None)
            case worker.Ping(nonce=nonce):
                return [worker.Pong(nonce=nonce, stats=worker.WorkerStats())]
        return []

    def step(self, now: float) -> list[object]:
        made: list[object] = []
        for _ in range(self.burst):
            job = next(iter(self.heard), None)
            if job is not None:
                made += self._one(job, self.heard[job])
        return made

    def _one(self, job: GenerationId, heard: _Heard) -> list[object]:
        """One window, and the end when it was the last."""
        made: list[object] = []
        duration_s = duration_of(heard.sound)
        if heard.from_s < duration_s:
            window = window_at(heard.sound, heard.language, heard.from_s)
            heard.language, heard.from_s = window.language, window.next_s
            made.append(
                worker.TranscribedWindow(
                    job=job,
                    segments=window.segments,
                    next_s=window.next_s,
                    language=window.language,
                )
            )
        if heard.from_s >= duration_s:
            del self.heard[job]
            made.append(worker.Transcribed(job=job, language=heard.language, duration_s=duration_s))
        return made
