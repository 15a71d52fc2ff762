"""Audio files: what they sound like at 16 kHz, and what is wrong with others."""

from __future__ import annotations

import os
import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from agent.worker.audio_file import AudioLimits, read_audio
from bus.errors import Invalid, SuperfluidError, TooLarge
from tests.harness.sounds import FORMATS, FloatArray, tone, write_sound


def read(path: Path, longest_s: float = 60.0) -> FloatArray:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = list(read_audio(descriptor, AudioLimits(longest_s)))
    finally:
        os.close(descriptor)
    return np.concatenate([*parts, np.zeros(0, np.float32)])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_a_tone_is_read_from_every_format(tmp_path: Path, kind: str, rate: int) -> None:
    found = read(write_sound(tmp_path / f"a.{kind}", tone(2.0, rate), rate))
    known = tone(2.0)
    assert abs(len(found) - len(known)) <= 2
    most = 0.02 if kind == "mp3" else 2e-3
    assert np.abs(found[2000:30_000] - known[2000:30_000]).max() < most


def test_channels_are_mixed(tmp_path: Path) -> None:
    both = np.stack([tone(1.0), -tone(1.0)], axis=1)
    assert np.abs(read(write_sound(tmp_path / "a.wav", both))).max() < 1e-4
    left = np.stack([tone(1.0), np.zeros(16_000, np.float32)], axis=1)
    found = read(write_sound(tmp_path / "b.flac", left))
    assert np.abs(found - tone(1.0) / 2).max() < 1e-4


def test_values_that_are_no_numbers_are_silence(tmp_path: Path) -> None:
    samples = tone(0.1)
    samples[100], samples[200] = np.nan, np.inf
    found = read(write_sound(tmp_path / "a.wav", samples, subtype="FLOAT"))
    assert np.isfinite(found).all()
    assert found[100] == found[200] == 0


def test_a_wav_of_unknown_length_is_read_to_its_end(tmp_path: Path) -> None:
    raw = bytearray(write_sound(tmp_path / "a.wav", tone(1.0)).read_bytes())
    place = raw.index(b"data")
    raw[4:8] = raw[place + 4 : place + 8] = b"\xff" * 4
    (tmp_path / "b.wav").write_bytes(raw)
    assert len(read(tmp_path / "b.wav")) == 16_000


def test_a_wav_whose_writer_was_stopped_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Its length was to be written at the end."""
    raw = bytearray(write_sound(tmp_path / "a.wav", tone(1.0)).read_bytes())
    place = raw.index(b"data")
    raw[place + 4 : place + 8] = bytes(4)
    (tmp_path / "b.wav").write_bytes(raw)
    with pytest.raises(Invalid, match="data chunk should be empty, and 32000 bytes follow"):
        read(tmp_path / "b.wav")
    for behind in (b"", b"LIST" + struct.pack("<I", 4) + b"INFO"):
        (tmp_path / "c.wav").write_bytes(raw[: place + 8] + behind)
        assert len(read(tmp_path / "c.wav")) == 0


def test_a_flac_of_unknown_length_is_read_to_its_end(tmp_path: Path) -> None:
    """As encoders write it to a pipe: the samples of the stream, 36 bits, are 0 (RFC 9639, 8.2)."""
    raw = bytearray(write_sound(tmp_path / "a.flac", tone(1.0)).read_bytes())
    assert int.from_bytes(raw[18:26], "big") & (1 << 36) - 1 == 16_000
    raw[21] &= 0xF0
    raw[22:26] = bytes(4)
    (tmp_path / "b.flac").write_bytes(raw)
    assert np.array_equal(read(tmp_path / "b.flac"), read(tmp_path / "a.flac"))
    with pytest.raises(TooLarge, match="taken at most"):
        read(tmp_path / "b.flac", longest_s=0.5)


def test_long_audio_is_refused_with_figures(tmp_path: Path) -> None:
    file = write_sound(tmp_path / "a.flac", tone(3.0))
    with pytest.raises(TooLarge, match="3 s long and 2 s are taken") as refused:
        read(file, longest_s=2.0)
    assert (refused.value.param, refused.value.details) == ("file", {"length": 3, "max": 2})


def spoiled(path: Path, start: float, kind: str) -> bytes:
    """A file of a tone whose bytes are random from a share of it on, or cut off there."""
    raw = write_sound(path, tone(5.0)).read_bytes()
    place = int(len(raw) * start)
    return raw[:place] + (b"" if kind == "cut" else random.Random(1).randbytes(len(raw) - place))


@pytest.mark.parametrize(
    ("name", "start", "kind", "says"),
    [
        ("a.wav", 0.5, "cut", r"data chunk has \d+ bytes and should have 160000"),
        ("a.wav", 0.0001, "cut", "no data chunk"),
        ("a.flac", 0.5, "cut", r"FLAC data can not be decoded after \d\.\d s"),
        ("a.flac", 0.5, "noise", r"FLAC data can not be decoded after \d\.\d s"),
        ("a.flac", 0.001, "cut", "FLAC header can not be read"),
        ("a.mp3", 0.5, "cut", r"MP3 data breaks off after \d\.\d s of 5\.0 s"),
        ("a.mp3", 0.5, "noise", "MP3 data (can not be decoded|breaks off) after"),
        ("a.mp3", 0.002, "cut", "MP3 header can not be read"),
    ],
)
def test_damaged_files_are_told_by_their_part(
    tmp_path: Path, name: str, start: float, kind: str, says: str
) -> None:
    content = spoiled(tmp_path / name, start, kind)
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(Invalid, match=says) as refused:
        read(tmp_path / "bad")
    assert refused.value.param == "file"
    # Nothing of libsndfile's, which tells of files that do not exist.
    told = r"the audio file is damaged: [^()]+; send it again, whole"
    assert re.fullmatch(told, refused.value.message)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"OggS" + bytes(100), "no WAV, FLAC or MP3"),
        (b"FORM\0\0\0\x20AIFF" + bytes(100), "no WAV, FLAC or MP3"),
        (b"hello, this is a text", "no WAV, FLAC or MP3"),
        (b"RIFF\0\0\0\0AVI " + bytes(100), "no WAV, FLAC or MP3"),
        # Begins as a frame of MP3 does, and has no layer.
        (b"\xff\xe1" + random.Random(1).randbytes(500), "no WAV, FLAC or MP3"),
    ],
)
def test_other_files_are_no_audio(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Invalid, match=says):
        read(tmp_path / "a")


def wav_header(channels: int, rate: int) -> bytes:
    data = bytes(2 * channels * 16)
    head = struct.pack("<HHIIHH", 1, channels, rate, 2 * rate * channels, 2 * channels, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", len(body) + len(data)) + body + data


@pytest.mark.parametrize(
    ("channels", "rate", "says"),
    [(1, 1000, "1000 samples a second"), (64, 16_000, "64 channels; 32 are taken")],
)
def test_odd_audio_is_refused(tmp_path: Path, channels: int, rate: int, says: str) -> None:
    (tmp_path / "a.wav").write_bytes(wav_header(channels, rate))
    with pytest.raises(Invalid, match=says):
        read(tmp_path / "a.wav")


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_changed_bytes_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    whole = write_sound(tmp_path / f"a.{kind}", tone(0.3)).read_bytes()
    ends: set[str] = set()
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            content[rng.randrange(min(len(content), 200))] = rng.randrange(256)
        (tmp_path / "b").write_bytes(content)
        try:
            ends.add("sound" if len(read(tmp_path / "b")) else "nothing")
        except SuperfluidError as error:
            ends.add(error.code)
    assert "invalid" in ends
    assert ends <= {"sound", "nothing", "invalid", "too_large"}
