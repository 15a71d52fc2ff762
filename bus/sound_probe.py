"""What a sound file is, from its header alone: format, rate, channels, and how long it plays.

Nothing is decoded. Whatever the bytes are, the answer is an `AudioInfo` or `Invalid`, after a
bounded number of reads.

Source: RIFF/WAVE and RF64 (EBU Tech 3306), FLAC (RFC 9639), MPEG audio (ISO 11172-3, 13818-3) with
the Xing and VBRI headers that encoders put into its first frame, ID3v2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from bus.errors import Invalid
from bus.header_reader import MAX_STEPS, HeaderReader, Read, reader_of

MAX_RATE = 768_000
MAX_CHANNELS = 64
#: A data chunk of this size is one whose writer did not know.
_UNKNOWN = 0xFFFFFFFF
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE

#: kbit/s of layer III by the header's index: of MPEG 1, and of 2 and 2.5.
_BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
#: Hz by version bits (2.5, reserved, 2, 1) and index.
_RATES = {0: (11025, 12000, 8000), 2: (22050, 24000, 16000), 3: (44100, 48000, 32000)}
_LAYER_3 = 1
_MONO = 3
#: Bytes behind a tag in which the first frame may begin.
_SYNC_WITHIN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioInfo:
    """A sound file as its header describes it; `seconds` None when that does not say.

    Of an MP3 without a count of its frames they are worked out from its length.
    """

    format: str
    rate: int
    channels: int
    seconds: float | None


def is_sound(start: bytes) -> bool:
    """Whether a file that begins so may be one that `probe_sound` knows.

    Args:
        start: its first 12 bytes, or all.
    """
    if start[:4] in (b"RIFF", b"RF64") and start[8:12] == b"WAVE":
        return True
    return start[:4] == b"fLaC" or start[:3] == b"ID3" or _frame(start[:4]) is not None


def probe_sound(read: Read, length: int) -> AudioInfo:
    """What a sound file is.

    Args:
        read: gives bytes of the file.
        length: of the file.

    Raises:
        Invalid: it is no WAV, FLAC or MP3, or its header is damaged; whatever `read` raises.
    """
    file = HeaderReader(read, length, "sound")
    start = file.take(0, min(12, length))
    if not is_sound(start):
        raise Invalid("this is no WAV, FLAC or MP3; convert it to one of them")
    if start[:4] in (b"RIFF", b"RF64"):
        return _wav(file)
    if start[:4] == b"fLaC":
        return _flac(file)
    return _mp3(file)


def probe_sound_bytes(data: bytes) -> AudioInfo:
    """The same for a file that is in memory."""
    return probe_sound(reader_of(data), len(data))


def _checked(kind: str, rate: int, channels: int, seconds: float | None) -> AudioInfo:
    if not (0 < rate <= MAX_RATE and 0 < channels <= MAX_CHANNELS):
        raise Invalid(
            f"the {kind} says that it has {channels} channels at {rate} Hz; it is damaged"
        )
    return AudioInfo(format=kind, rate=rate, channels=channels, seconds=seconds)


# --- WAV --------------------------------------------------------------------------------------


def _wav(file: HeaderReader) -> AudioInfo:
    at, form, long_size = 12, b"", 0
    for _ in range(MAX_STEPS):
        kind, size = struct.unpack("<4sI", file.take(at, 8))
        if kind == b"ds64" and size >= 16:
            (long_size,) = struct.unpack("<8xQ", file.take(at + 8, 16))
        elif kind == b"fmt " and size >= 16:
            form = file.take(at + 8, 16)
        elif kind == b"data":
            known = long_size or (size if size != _UNKNOWN else 0)
            rest = file.length - at - 8
            return _wav_info(form, min(known, rest) if known else rest)
        at += 8 + size + (size & 1)
    raise file.too_far()


def _wav_info(form: bytes, size: int) -> AudioInfo:
    if not form:
        raise Invalid("the wav has no format before its data; it is damaged")
    kind, channels, rate, byte_rate, frame = struct.unpack("<HHIIH2x", form)
    seconds = None
    if kind in (_PCM, _FLOAT, _EXTENSIBLE) and frame and rate:
        seconds = size // frame / rate
    elif byte_rate:
        seconds = size / byte_rate
    return _checked("wav", rate, channels, seconds)


# --- FLAC -------------------------------------------------------------------------------------


def _flac(file: HeaderReader) -> AudioInfo:
    head = file.take(4, 4)
    if head[0] & 0x7F or int.from_bytes(head[1:], "big") != 34:
        raise Invalid("the flac does not begin with its stream's facts; it is damaged")
    bits = int.from_bytes(file.take(18, 8), "big")
    rate, channels, samples = bits >> 44, 1 + (bits >> 41 & 7), bits & (1 << 36) - 1
    seconds = samples / rate if samples and rate else None
    return _checked("flac", rate, channels, seconds)


# --- MP3 --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Frame:
    """The header of one frame of layer III."""

    is_1: bool
    rate: int
    channels: int
    bits_per_s: int
    is_padded: bool
    #: From the frame's begin to the Xing header, if there is one.
    tag_at: int

    @property
    def samples(self) -> int:
        return 1152 if self.is_1 else 576

    @property
    def size(self) -> int:
        """Bytes to the next frame."""
        return self.samples // 8 * self.bits_per_s // self.rate + self.is_padded


def _frame(header: bytes) -> _Frame | None:
    """A frame's header; None when these bytes are none."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    index, rate = header[2] >> 4, header[2] >> 2 & 3
    if layer != _LAYER_3 or version not in _RATES or rate == 3 or not 0 < index < 15:
        return None
    is_1, is_mono = version == 3, header[3] >> 6 == _MONO
    side = (17 if is_mono else 32) if is_1 else (9 if is_mono else 17)
    return _Frame(
        is_1=is_1,
        rate=_RATES[version][rate],
        channels=1 if is_mono else 2,
        bits_per_s=1000 * _BITRATES[0 if is_1 else 1][index],
        is_padded=bool(header[2] & 2),
        tag_at=4 + side,
    )


def _mp3(file: HeaderReader) -> AudioInfo:
    at = _behind_tags(file)
    near = file.take(at, min(_SYNC_WITHIN, file.length - at))
    for offset in range(len(near) - 3):
        found = _frame(near[offset : offset + 4])
        if found is not None and _is_followed(file, at + offset + found.size, found):
            seconds = _mp3_seconds(file, at + offset, found)
            return _checked("mp3", found.rate, found.channels, seconds)
    raise Invalid("the mp3 has no frame of layer III near its beginning; convert it")


def _behind_tags(file: HeaderReader) -> int:
    """Where the sound of an MP3 may begin."""
    at = 0
    for _ in range(MAX_STEPS):
        if file.take(at, 3) != b"ID3":
            return at
        # Seven bits of each byte; a footer of ten bytes when flagged.
        *_, flags, a, b, c, d = file.take(at, 10)
        at += 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if flags & 0x10 else 0)
    raise file.too_far()


def _is_followed(file: HeaderReader, at: int, frame: _Frame) -> bool:
    """Whether a frame of the same kind comes next, or the end: a lone header may be anything."""
    if at + 4 > file.length:
        return at <= file.length
    following = _frame(file.take(at, 4))
    return following is not None and (following.is_1, following.rate) == (frame.is_1, frame.rate)


def _mp3_seconds(file: HeaderReader, at: int, frame: _Frame) -> float:
    frames = 0
    if at + 56 <= file.length:
        kind, flags, count = struct.unpack(">4sII", file.take(at + frame.tag_at, 12))
        if kind in (b"Xing", b"Info") and flags & 1:
            frames = count
        elif file.take(at + 36, 4) == b"VBRI":
            (frames,) = struct.unpack(">I", file.take(at + 36 + 14, 4))
    if frames:
        return frames * frame.samples / frame.rate
    return (file.length - at) * 8 / frame.bits_per_s
