"""What an image is, from its header alone: format, size in pixels, whether it moves.

No pixel is decoded, and nothing of the file is taken for true but its numbers. Whatever the bytes
are, the answer is an `ImageInfo` or `Invalid`, after at most `MAX_READS` reads and `MAX_STEPS`
blocks of the file.

Source: PNG 1.2 and APNG, JPEG (ITU-T T.81 annex B), WebP container and VP8/VP8L bitstream headers
(RFC 9649, RFC 6386), GIF89a.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

from bus.errors import Invalid
from bus.header_reader import MAX_STEPS, HeaderReader, Read, reader_of

#: What the formats can say at most; a WebP of the extended kind has 24 bits a side.
MAX_SIDE = 2**31 - 1

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_GIF = (b"GIF87a", b"GIF89a")
#: Of a start of frame; the others of C0 to CF are tables.
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
#: Markers that stand alone: TEM, and restarts.
_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
#: Bit depths that PNG has for each colour type.
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """An image as its header describes it; of an animation the size of its canvas.

    `width` and `height` are of the pixels as they are stored, before any rotation that metadata
    asks for.
    """

    format: str
    width: int
    height: int
    animated: bool = False

    @property
    def pixels(self) -> int:
        return self.width * self.height


def is_image(start: bytes) -> bool:
    """Whether a file that begins so may be one that `probe_image` knows.

    Args:
        start: its first 12 bytes, or all.
    """
    is_webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    return is_webp or start.startswith((_PNG, _JPEG, *_GIF))


def probe_image(read: Read, length: int) -> ImageInfo:
    """What an image is.

    Args:
        read: gives bytes of the file; fewer than asked for only at its end.
        length: of the file.

    Raises:
        Invalid: it is no PNG, JPEG, WebP or GIF, or its header is damaged; whatever `read` raises.
    """
    file = HeaderReader(read, length, "image")
    start = file.take(0, min(12, length))
    if not is_image(start):
        raise Invalid("this is no PNG, JPEG, WebP or GIF; convert it to one of them")
    if start.startswith(_PNG):
        return _png(file)
    if start.startswith(_JPEG):
        return _jpeg(file)
    if start.startswith(_GIF):
        return _gif(file)
    return _webp(file)


def probe_image_bytes(data: bytes) -> ImageInfo:
    """The same for a file that is in memory."""
    return probe_image(reader_of(data), len(data))


def _sized(kind: str, width: int, height: int, *, animated: bool = False) -> ImageInfo:
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise Invalid(f"the {kind} image says that it has {width} x {height} pixels; it is damaged")
    return ImageInfo(format=kind, width=width, height=height, animated=animated)


def _damaged(kind: str, what: str) -> Invalid:
    return Invalid(f"the {kind} image is damaged: {what}; save it again")


# --- PNG --------------------------------------------------------------------------------------


def _png(file: HeaderReader) -> ImageInfo:
    size, kind = struct.unpack(">I4s", file.take(8, 8))
    if (size, kind) != (13, b"IHDR"):
        raise _damaged("png", "it does not begin with its header")
    header = file.take(12, 17)
    if struct.unpack(">I", file.take(29, 4)) != (zlib.crc32(header),):
        raise _damaged("png", "the checksum of its header is wrong")
    width, height, depth, colour = struct.unpack(">4xIIBB3x", header)
    if depth not in _PNG_DEPTHS.get(colour, ()):
        raise _damaged("png", f"it has colour type {colour} with {depth} bits")
    return _sized("png", width, height, animated=_png_moves(file))


def _png_moves(file: HeaderReader) -> bool:
    """Whether an animation is announced, which stands before the first pixels."""
    at, moves = 33, False
    for _ in range(MAX_STEPS):
        size, kind = struct.unpack(">I4s", file.take(at, 8))
        if kind == b"IDAT":
            return moves
        if kind == b"IEND" or size > MAX_SIDE:
            raise _damaged("png", "it has no pixels")
        moves = moves or kind == b"acTL"
        at += 12 + size
    raise file.too_far()


# --- JPEG -------------------------------------------------------------------------------------


def _jpeg(file: HeaderReader) -> ImageInfo:
    at = 2
    for _ in range(MAX_STEPS):
        begin, marker = file.take(at, 2)
        if begin != 0xFF:
            raise _damaged("jpeg", f"no marker at byte {at}")
        if marker == 0xFF:
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        if marker in _SIZES:
            return _jpeg_size(file, at + 2)
        if marker in (0x00, 0xD8, 0xD9, 0xDA):
            raise _damaged("jpeg", "it has no size before its pixels")
        (size,) = struct.unpack(">H", file.take(at + 2, 2))
        if size < 2:
            raise _damaged("jpeg", f"a segment of {size} bytes")
        at += 2 + size
    raise file.too_far()


def _jpeg_size(file: HeaderReader, at: int) -> ImageInfo:
    size, bits, height, width, components = struct.unpack(">HBHHB", file.take(at, 8))
    if not 1 <= components <= 4 or size != 8 + 3 * components or not 2 <= bits <= 16:
        raise _damaged("jpeg", "its frame header makes no sense")
    if not height:
        raise _damaged("jpeg", "its height is not in its header")
    return _sized("jpeg", width, height)


# --- WebP -------------------------------------------------------------------------------------


def _webp(file: HeaderReader) -> ImageInfo:
    (riff,) = struct.unpack("<I", file.take(4, 4))
    if riff + 8 > file.length:
        raise Invalid(f"the image is cut off after {file.length} of {riff + 8} bytes")
    kind, size = struct.unpack("<4sI", file.take(12, 8))
    if kind == b"VP8X" and size >= 10:
        flags, w, w_high, h, h_high = struct.unpack("<B3xHBHB", file.take(20, 10))
        width, height = 1 + (w | w_high << 16), 1 + (h | h_high << 16)
        return _sized("webp", width, height, animated=bool(flags & 0x02))
    if kind == b"VP8L" and size >= 5:
        signature, bits = struct.unpack("<BI", file.take(20, 5))
        if signature != 0x2F:
            raise _damaged("webp", "its lossless data has a wrong signature")
        return _sized("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and size >= 10:
        tag, code, width, height = struct.unpack("<B2x3sHH", file.take(20, 10))
        if tag & 1 or code != b"\x9d\x01\x2a":
            raise _damaged("webp", "its pixels do not begin with a key frame")
        return _sized("webp", width & 0x3FFF, height & 0x3FFF)
    raise _damaged("webp", "it begins with no image")


# --- GIF --------------------------------------------------------------------------------------


def _gif(file: HeaderReader) -> ImageInfo:
    width, height, flags = struct.unpack("<HHB", file.take(6, 5))
    still = _sized("gif", width, height)
    return replace(still, animated=_GifBlocks(file, 13 + _table_bytes(flags)).moves())


def _table_bytes(flags: int) -> int:
    """Length of a colour table, 0 when there is none."""
    return 3 * 2 ** (1 + (flags & 7)) if flags & 0x80 else 0


class _GifBlocks:
    """A walk through a GIF's blocks until it is known whether it has a second image."""

    def __init__(self, file: HeaderReader, at: int) -> None:
        self._file = file
        self._at = at
        self._steps = 0

    def moves(self) -> bool:
        """Whether it is an animation; of a large one that is what its repeat count tells."""
        images, repeats = 0, False
        while images < 2:
            self._steps += 1
            if images and self._at == self._file.length:
                return False  # Many lack the last byte.
            (kind,) = self._file.take(self._at, 1)
            if kind == 0x3B and images:
                return False
            if kind == 0x21:
                self._at += 2
                repeats = self._skip() == b"NETSCAPE2.0" or repeats
            elif kind == 0x2C:
                images += 1
                (flags,) = self._file.take(self._at + 9, 1)
                self._at += 11 + _table_bytes(flags)
                self._skip()
            else:
                raise _damaged("gif", "it has no image" if kind == 0x3B else "an unknown block")
            if self._steps > MAX_STEPS:
                return repeats
        return True

    def _skip(self) -> bytes:
        """Pass over data in parts; gives the first part, at most 255 bytes."""
        first = b""
        while (size := self._file.take(self._at, 1)[0]) and self._steps <= MAX_STEPS:
            if not first:
                first = self._file.take(self._at + 1, size)
            self._at += 1 + size
            self._steps += 1
        self._at += 1
        return first
