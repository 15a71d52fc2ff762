"""Image headers: sizes of files that another program made, and bytes that are no image."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from bus.errors import Invalid
from bus.header_reader import MAX_READS, WINDOW_BYTES
from bus.media_probe import ImageInfo, probe_image, probe_image_bytes

_FILE = Path(__file__).parents[2] / "vectors" / "images.json"
#: Made by an image library, see `source` there.
VECTORS: list[dict[str, Any]] = json.loads(_FILE.read_text())["images"]
DATA = {each["name"]: base64.b64decode(each["data"]) for each in VECTORS}


def expected(vector: dict[str, Any]) -> ImageInfo:
    return ImageInfo(
        format=vector["format"],
        width=vector["width"],
        height=vector["height"],
        animated=vector["animated"],
    )


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_images_of_another_program(vector: dict[str, Any]) -> None:
    assert probe_image_bytes(DATA[vector["name"]]) == expected(vector)


@pytest.mark.parametrize("name", DATA)
def test_an_image_that_is_cut_is_refused_or_known(name: str) -> None:
    data, whole = DATA[name], probe_image_bytes(DATA[name])
    for length in range(len(data)):
        try:
            found = probe_image_bytes(data[:length])
        except Invalid:
            continue
        assert (found.format, found.width, found.height) == (
            whole.format,
            whole.width,
            whole.height,
        )


def png(width: int, height: int, depth: int = 8, colour: int = 2, crc: int | None = None) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    check = zlib.crc32(header) if crc is None else crc
    return DATA["png"][:8] + struct.pack(">I", 13) + header + struct.pack(">I", check)


IDAT = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no PNG, JPEG, WebP or GIF"),
        (b"BM" + bytes(100), "no PNG, JPEG, WebP or GIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG, JPEG, WebP or GIF"),
        (png(0, 5) + IDAT, "0 x 5 pixels"),
        (png(2**31, 5) + IDAT, "2147483648 x 5 pixels"),
        (png(5, 5, depth=3) + IDAT, "colour type 2 with 3 bits"),
        (png(5, 5, crc=1) + IDAT, "checksum"),
        (png(5, 5) + struct.pack(">I", 0) + b"IEND" + bytes(4), "no pixels"),
        (png(5, 5), "cut off"),
        (b"\xff\xd8\xff\xd9", "no size before its pixels"),
        (b"\xff\xd8\xff\xe0\x00\x01", "a segment of 1 bytes"),
        (b"\xff\xd8\x00\x00\x00\x00", "no marker at byte 2"),
        (b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x00\x00\x05\x01\x01\x11\x00", "height is not in"),
        (b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x05\x00\x05\x03\x01\x11\x00", "makes no sense"),
        (b"RIFF\x04\x00\x00\x00WEBP" + bytes(20), "begins with no image"),
        (b"RIFF\xff\x00\x00\x00WEBPVP8L", "cut off after 16 of 263 bytes"),
        (b"GIF89a\x05\x00\x05\x00\x00\x00\x00\x3b", "it has no image"),
        (b"GIF89a\x05\x00\x05\x00\x00\x00\x00\x77", "an unknown block"),
        (b"GIF89a\x00\x00\x05\x00\x00\x00\x00\x2c" + bytes(12), "0 x 5 pixels"),
    ],
)
def test_what_is_no_image_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        probe_image_bytes(data)


def test_metadata_before_the_size_is_passed_over() -> None:
    extra = b"\xff\xe2\xff\xff" + bytes(65_533)
    jpeg = DATA["jpeg"]
    assert probe_image_bytes(jpeg[:2] + 40 * extra + jpeg[2:]) == probe_image_bytes(jpeg)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff\xe1\x00\x02" * 200_000,
        b"\xff\xd8" + b"\xff" * 200_000,
        b"\xff\xd8" + 600 * (b"\xff\xe1\xff\xff" + bytes(65_533)),
        png(5, 5) + (struct.pack(">I", 0) + b"teXt" + bytes(4)) * 100_000,
        DATA["gif"][:6] + b"\x05\x00\x05\x00\x00\x00\x00" + b"\x21\xff\x00" * 100_000,
        DATA["gif"][:6] + b"\x05\x00\x05\x00\x00\x00\x00\x2c" + bytes(10) + b"\x01a" * 100_000,
    ],
    ids=["segments", "fill", "large", "chunks", "extensions", "blocks"],
)
def test_little_of_a_file_is_looked_at(data: bytes) -> None:
    reads = []

    def read(offset: int, size: int) -> bytes:
        reads.append(size)
        return data[offset : offset + size]

    try:
        probe_image(read, len(data))
    except Invalid as error:
        why = error.message
    else:
        why = ""
    assert not why or "near its beginning" in why
    assert len(reads) <= MAX_READS
    assert set(reads) == {WINDOW_BYTES}


def test_a_large_gif_moves_when_it_is_said_to_repeat() -> None:
    start = DATA["gif"][:6] + b"\x05\x00\x05\x00\x00\x00\x00"
    repeats = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
    image = b"\x2c" + bytes(9) + b"\x02" + b"\x01a" * 100_000
    assert probe_image_bytes(start + repeats + image).animated is True
    assert probe_image_bytes(start + image).animated is False


def test_a_file_that_is_shorter_than_was_said_is_refused() -> None:
    with pytest.raises(Invalid, match="cut off"):
        probe_image(lambda offset, size: DATA["jpeg"][offset:][:10], 600)
