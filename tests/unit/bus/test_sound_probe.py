"""Headers of sound files: lengths of files that another program made, and bytes that are none."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from bus.errors import Invalid
from bus.header_reader import reader_of
from bus.sound_probe import AudioInfo, is_sound, probe_sound, probe_sound_bytes


def written(form: str, subtype: str, rate: int, channels: int, frames: int) -> bytes:
    """A file of noise, made by libsndfile."""
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, (frames, channels))
    data = io.BytesIO()
    soundfile.write(data, noise, rate, format=form, subtype=subtype)
    return data.getvalue()


@pytest.mark.parametrize(
    ("form", "subtype", "rate", "channels", "frames"),
    [
        ("WAV", "PCM_16", 16_000, 1, 24_000),
        ("WAV", "PCM_24", 44_100, 2, 1),
        ("WAV", "FLOAT", 48_000, 6, 12_345),
        ("WAVEX", "PCM_16", 22_050, 2, 3000),
        ("WAV", "ULAW", 8000, 1, 4000),
        ("RF64", "PCM_16", 16_000, 1, 5000),
        ("FLAC", "PCM_16", 44_100, 2, 100_000),
        ("FLAC", "PCM_24", 96_000, 1, 777),
    ],
)
def test_files_of_another_program(
    form: str, subtype: str, rate: int, channels: int, frames: int
) -> None:
    data = written(form, subtype, rate, channels, frames)
    name = "flac" if form == "FLAC" else "wav"
    expected = AudioInfo(format=name, rate=rate, channels=channels, seconds=frames / rate)
    assert is_sound(data[:12])
    assert probe_sound_bytes(data) == expected


@pytest.mark.parametrize(
    ("rate", "channels", "seconds"),
    [(44_100, 2, 3.0), (48_000, 1, 0.5), (16_000, 1, 10.0), (22_050, 2, 1.0), (8000, 1, 2.0)],
)
@pytest.mark.parametrize("tag_bytes", [0, 300, 50_000])
def test_mp3_files(rate: int, channels: int, seconds: float, tag_bytes: int) -> None:
    data = written("MP3", "MPEG_LAYER_III", rate, channels, round(rate * seconds))
    if tag_bytes:
        size = bytes(tag_bytes >> shift & 0x7F for shift in (21, 14, 7, 0))
        data = b"ID3\x04\x00\x00" + size + bytes(tag_bytes) + data
    found = probe_sound_bytes(data)
    assert (found.format, found.rate, found.channels) == ("mp3", rate, channels)
    # An encoder begins with some thousand samples of silence and fills its last frame.
    assert found.seconds is not None
    assert seconds <= found.seconds <= seconds + 4 * 1152 / rate + 0.03


def test_an_mp3_without_a_count_is_as_long_as_its_bytes_say() -> None:
    frame = b"\xff\xfb\x90\x00" + bytes(413)
    found = probe_sound_bytes(frame * 100)
    assert found.seconds == pytest.approx(41_700 * 8 / 128_000)


def test_a_wav_that_was_streamed_is_as_long_as_it_is() -> None:
    data = bytearray(written("WAV", "PCM_16", 16_000, 1, 16_000))
    at = data.index(b"data") + 4
    for size in (0, 0xFFFFFFFF, 0x7FFFFFFE):
        struct.pack_into("<I", data, at, size)
        assert probe_sound_bytes(bytes(data)).seconds == 1.0


def test_a_flac_that_was_streamed_has_no_length() -> None:
    data = bytearray(written("FLAC", "PCM_16", 16_000, 1, 16_000))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    assert probe_sound_bytes(bytes(data)).seconds is None


WAV = b"RIFF\x00\x00\x00\x00WAVE"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no WAV, FLAC or MP3"),
        (b"OggS" + bytes(100), "no WAV, FLAC or MP3"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "no WAV, FLAC or MP3"),
        (WAV, "cut off after 12 bytes"),
        (WAV + b"data\x00\x00\x00\x00", "no format before its data"),
        (WAV + b"fmt \x10\x00\x00\x00" + bytes(16) + b"data\x04\x00\x00\x00", "0 channels at 0 Hz"),
        (WAV + b"LIST\x00\x00\x00\x00" * 5000, "does not stand near"),
        (b"fLaC\x04\x00\x00\x22" + bytes(34), "does not begin with its stream's facts"),
        (b"fLaC\x00\x00\x00\x22" + bytes(34), "channels at 0 Hz"),
        (b"ID3\x04\x00\x00\x00\x00\x00\x00" * 9000, "does not stand near"),
        (b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f", "cut off"),
        (b"ID3\x04\x00\x00\x00\x00\x00\x00" + bytes(5000), "no frame of layer III"),
        (b"\xff\xfb\x90\x00" + bytes(2000), "no frame of layer III"),
    ],
)
def test_what_is_no_sound_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        probe_sound_bytes(data)


def test_every_cut_is_refused_or_known() -> None:
    for form, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III")):
        data = written(form, subtype, 16_000, 1, 2000)
        for length in range(0, len(data), 7):
            try:
                found = probe_sound(reader_of(data), length)
            except Invalid:
                continue
            assert (found.rate, found.channels) == (16_000, 1)
