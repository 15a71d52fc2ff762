"""An audio file as mono samples at 16 kHz, a block at a time.

The file is anybody's, so this runs in a process of its own (`audio_process`). libsndfile reads
many formats; only those that were asked for reach it, told by their first bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import soundfile

from agent.worker.log_mel import RATE, FloatArray
from agent.worker.resampling import Resampler
from bus.errors import Invalid, TooLarge
from bus.sound_probe import is_sound

#: What libsndfile calls the formats that are read, and what people do.
_FORMATS = {"WAV": "WAV", "WAVEX": "WAV", "RF64": "WAV", "FLAC": "FLAC", "MP3": "MP3"}
_LEAST_RATE, _MOST_RATE = 4_000, 384_000
_MOST_CHANNELS = 32
_BLOCK_VALUES = 1 << 15
#: Length of a chunk that a program wrote which did not know it.
_UNKNOWN_LENGTH = 0xFFFFFFFF
#: What libsndfile says of a file that does not tell how long it is, as a FLAC from a pipe.
_UNKNOWN_FRAMES = 2**63 - 1
#: MP3 decoders leave out what they can not read; so much may be missing before the file is damaged.
_MISSING_S, _MISSING_SHARE = 0.5, 0.02


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """The longest audio that is taken, in seconds."""

    longest_s: float


class _ForwardFile(soundfile.SoundFile):  # type: ignore[misc]
    """A file that is read from its beginning to its end.

    Of one that can be moved in, soundfile sets the place anew after each read, and MP3 decoders
    lose what they knew of the frames before it: the sound has a gap there.
    """

    def seekable(self) -> bool:
        return False


def read_audio(descriptor: int, limits: AudioLimits) -> Iterator[FloatArray]:
    """Decode a file.

    Args:
        descriptor: of the open file.
        limits: of its length.

    Yields:
        Mono samples at 16 kHz, in -1 to 1 but for files that go beyond.

    Raises:
        Invalid: no audio of a format that is read, or a damaged one; says which part.
        TooLarge: longer than the limit.
    """
    kind = _kind(descriptor)
    try:
        file = _ForwardFile(descriptor, closefd=False)
    except soundfile.LibsndfileError as error:
        if kind == "MP3" and not is_sound(os.pread(descriptor, 12, 0)):
            raise _no_audio() from error
        raise _damaged(f"its {kind} header can not be read") from error
    with file:
        _check(file, limits)
        yield from _blocks(file, _FORMATS[file.format], limits)


def _kind(descriptor: int) -> str:
    """What a file's first bytes say that it is; of WAV also that its chunks are all there."""
    head = os.pread(descriptor, 12, 0)
    if head[:4] in (b"RIFF", b"RF64") and head[8:] == b"WAVE":
        if head[:4] == b"RIFF":
            _check_chunks(descriptor)
        return "WAV"
    if head[:4] == b"fLaC":
        return "FLAC"
    if head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0):
        return "MP3"
    if not head:
        raise Invalid("the file is empty; send audio", param="file")
    raise _no_audio()


def _check_chunks(descriptor: int) -> None:
    """Compare the lengths of a WAV's chunks with the file's."""
    size, place = os.fstat(descriptor).st_size, 12
    while place + 8 <= size:
        head = os.pread(descriptor, 8, place)
        name, length = head[:4], int.from_bytes(head[4:], "little")
        if name == b"data":
            there = size - place - 8
            if length != _UNKNOWN_LENGTH and length > there:
                raise _damaged(f"its data chunk has {there} bytes and should have {length}")
            if not length and there and not _is_chunk(os.pread(descriptor, 8, place + 8), there):
                # libsndfile would read none of it.
                raise _damaged(f"its data chunk should be empty, and {there} bytes follow")
            return
        place += 8 + length + length % 2
    raise _damaged("it has no data chunk")


def _is_chunk(head: bytes, there: int) -> bool:
    """Whether a chunk may begin so, where so many bytes are left."""
    return (
        head[:4].isascii()
        and head[:4].decode("ascii").isprintable()
        and (int.from_bytes(head[4:], "little") + 8 <= there)
    )


def _check(file: soundfile.SoundFile, limits: AudioLimits) -> None:
    if file.format not in _FORMATS:
        raise Invalid(
            f"the file is {file.format[:20]} audio; convert it to WAV, FLAC or MP3", param="file"
        )
    if not _LEAST_RATE <= file.samplerate <= _MOST_RATE:
        raise Invalid(
            f"the audio has {file.samplerate} samples a second; {_LEAST_RATE} to {_MOST_RATE} are "
            "taken",
            param="file",
        )
    if not 1 <= file.channels <= _MOST_CHANNELS:
        raise Invalid(
            f"the audio has {file.channels} channels; {_MOST_CHANNELS} are taken at most",
            param="file",
        )
    if _frames(file) > limits.longest_s * file.samplerate:
        raise _too_long(_frames(file) / file.samplerate, limits)


def _frames(file: soundfile.SoundFile) -> int:
    """How many samples of each channel a file should have; 0 where it does not say."""
    frames = int(file.frames)
    return 0 if frames == _UNKNOWN_FRAMES else frames


def _blocks(file: soundfile.SoundFile, kind: str, limits: AudioLimits) -> Iterator[FloatArray]:
    rate, expected, frames = file.samplerate, _frames(file), 0
    resampler = Resampler(rate, RATE)
    count = max(1, _BLOCK_VALUES // file.channels)
    while True:
        try:
            block = file.read(count, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            why = f"its {kind} data can not be decoded after {frames / rate:.1f} s"
            raise _damaged(why) from error
        if not len(block):
            break
        frames += len(block)
        if frames > limits.longest_s * rate:
            raise _too_long(frames / rate, limits)
        yield resampler.push(_mono(block))
    missing = (expected - frames) / rate
    spared = _MISSING_S + _MISSING_SHARE * expected / rate if kind == "MP3" else 0.0
    if missing > spared:
        raise _damaged(
            f"its {kind} data breaks off after {frames / rate:.1f} s of {expected / rate:.1f} s"
        )
    yield resampler.finish()


def _mono(block: FloatArray) -> FloatArray:
    """The mean of all channels; what is no number is silence."""
    mixed = block.mean(axis=1, dtype=np.float32)
    return np.asarray(np.nan_to_num(mixed, nan=0.0, posinf=0.0, neginf=0.0), np.float32)


def _no_audio() -> Invalid:
    return Invalid("the file is no WAV, FLAC or MP3 audio; convert it to one of them", param="file")


def _damaged(fact: str) -> Invalid:
    return Invalid(f"the audio file is damaged: {fact}; send it again, whole", param="file")


def _too_long(seconds: float, limits: AudioLimits) -> TooLarge:
    return TooLarge(
        f"the audio is {seconds:.0f} s long and {limits.longest_s:.0f} s are taken at most; cut it "
        "into parts",
        param="file",
        details={"length": int(seconds), "max": int(limits.longest_s)},
    )
