"""The process that decodes an audio file: its samples, its limits, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agent.worker import audio_process, audio_source
from agent.worker.audio_source import AudioSource
from bus.errors import BlobMissing, Internal, Invalid, TooLarge
from tests.harness.sounds import FORMATS, FloatArray, tone, write_sound

PATIENCE_S = 30.0


@contextmanager
def source(path: Path, from_s: float = 0.0, longest_s: float = 100.0) -> Iterator[AudioSource]:
    opened = AudioSource(path, from_s=from_s, longest_s=longest_s)
    try:
        yield opened
    finally:
        opened.close()


def fill(opened: AudioSource, samples: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while not opened.fill(samples, 0.2):
        assert time.monotonic() < until


def whole(opened: AudioSource) -> FloatArray:
    parts = []
    while not opened.ended or opened.ready:
        fill(opened, 20_000)
        parts.append(opened.take(20_000))
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", FORMATS)
def test_samples_are_the_files(tmp_path: Path, kind: str) -> None:
    file = write_sound(tmp_path / f"a.{kind}", tone(4.0, 24_000), 24_000)
    with source(file) as opened:
        found = whole(opened)
    assert abs(len(found) - 64_000) <= 2
    assert np.abs(found[2000:60_000] - tone(4.0)[2000:60_000]).max() < 0.02


def test_what_lies_before_a_place_is_left_out(tmp_path: Path) -> None:
    file = write_sound(tmp_path / "a.flac", tone(40.0, 8000), 8000)
    with source(file) as opened:
        all_of_it = whole(opened)
        assert opened.samples == len(all_of_it)
    with source(file, from_s=31.52) as opened:
        assert np.array_equal(whole(opened), all_of_it[round(31.52 * 16_000) :])
        assert opened.samples == len(all_of_it)
    with source(file, from_s=90.0) as opened:
        assert len(whole(opened)) == 0
        assert opened.samples == len(all_of_it)


def test_one_call_reads_boundedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is left out before the first sample: whoever calls has other work."""
    monkeypatch.setattr(audio_source, "_READ_BYTES", 16)
    with source(write_sound(tmp_path / "a.wav", tone(1.0))) as opened:
        assert not opened.fill(1000, PATIENCE_S)
        assert opened.ready < 1000
        fill(opened, 1000)
        assert np.abs(opened.take(1000) - tone(1.0)[:1000]).max() < 1e-3


def test_a_damaged_file_gives_what_is_before_the_damage(tmp_path: Path) -> None:
    raw = write_sound(tmp_path / "a.flac", tone(20.0)).read_bytes()
    (tmp_path / "b").write_bytes(raw[: len(raw) // 2])
    with source(tmp_path / "b") as opened:
        fill(opened, 16_000)
        assert np.abs(opened.take(16_000) - tone(1.0)).max() < 1e-3
        with pytest.raises(Invalid, match="FLAC data can not be decoded after") as refused:
            fill(opened, 20 * 16_000)
    assert refused.value.param == "file"


def test_errors_come_with_their_figures(tmp_path: Path) -> None:
    file = write_sound(tmp_path / "a.wav", tone(3.0))
    with source(file, longest_s=2.0) as opened, pytest.raises(TooLarge) as refused:
        fill(opened, 1)
    assert refused.value.details == {"length": 3, "max": 2}
    with pytest.raises(BlobMissing, match="No such file"):
        AudioSource(tmp_path / "none")


def test_a_machine_without_room_for_the_process_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_sound(tmp_path / "a.wav", tone(1.0))
    # A size that no pipe can have: it is one of the usual size then.
    monkeypatch.setattr(audio_source, "_AHEAD_BYTES", -1)
    with source(file) as opened:
        assert len(whole(opened)) == 16_000
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(Internal, match=r"decodes the audio \(No such file"):
        AudioSource(file)


def test_closing_ends_the_process(tmp_path: Path) -> None:
    with source(write_sound(tmp_path / "a.wav", tone(90.0))) as opened:
        fill(opened, 16_000)
        pid = opened._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_decoder_that_dies_is_the_files_fault(tmp_path: Path) -> None:
    with source(write_sound(tmp_path / "a.wav", tone(90.0))) as opened:
        fill(opened, 16_000)
        opened._process.send_signal(signal.SIGSEGV)
        with pytest.raises(Invalid, match="its decoder ended by SIGSEGV"):
            fill(opened, 90 * 16_000)


def test_a_decoder_that_takes_too_long_is_told_as_that(tmp_path: Path) -> None:
    with source(write_sound(tmp_path / "a.wav", tone(90.0))) as opened:
        fill(opened, 16_000)
        # What the kernel sends when the CPU time is used up.
        opened._process.send_signal(signal.SIGXCPU)
        with pytest.raises(TooLarge, match="takes more time to decode"):
            fill(opened, 90 * 16_000)


def test_a_decoder_that_stands_still_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio_source, "STILL_S", 0.5)
    with source(write_sound(tmp_path / "a.wav", tone(90.0))) as opened:
        fill(opened, 16_000)
        opened._process.send_signal(signal.SIGSTOP)
        with pytest.raises(Internal, match="has stood still"):
            fill(opened, 90 * 16_000)


def test_the_process_limits_itself(tmp_path: Path) -> None:
    program = (
        "import resource, json\n"
        "from agent.worker import audio_process\n"
        "audio_process._limit()\n"
        "names = ('RLIMIT_CPU', 'RLIMIT_AS', 'RLIMIT_CORE', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE')\n"
        "print([resource.getrlimit(getattr(resource, name)) for name in names])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    limits = [audio_process.CPU_S, audio_process.MEMORY_BYTES, 0, 0, 16]
    assert done.stdout.strip() == str([(most, most) for most in limits])
