"""Fuzz targets for images and sound: facts or `Invalid`, whatever the bytes or the message."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from pathlib import Path

from bus.errors import Invalid, TooLarge
from bus.header_reader import MAX_READS
from bus.media_probe import MAX_SIDE, probe_image, probe_image_bytes
from bus.sound_probe import MAX_RATE, probe_sound
from bus.transfer import SHA256_BYTES
from head.media import AUDIO_TYPES, IMAGE_TYPES, decode_image, image_parts
from tests.fuzz.decoders import Case, Wrong
from tests.fuzz.generate import change_bytes, random_bytes

_VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "images.json").read_text())
_IMAGES = [base64.b64decode(each["data"]) for each in _VECTORS["images"]]
_STARTS = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"RIFF\xff\x00\x00\x00WEBP", b"GIF89a"]


def _image(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return rng.choice(_STARTS) + random_bytes(rng)
    data = change_bytes(rng, rng.choice(_IMAGES))
    if rng.random() < 0.2:
        data += random_bytes(rng) * rng.randrange(1000)
    return data


def image_case(rng: random.Random) -> None:
    """Probe an image that may be damaged anywhere."""
    data, reads = _image(rng), 0

    def read(offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return data[offset : offset + size]

    try:
        found = probe_image(read, len(data))
    except Invalid:
        found = None
    if found is not None and not (0 < found.width <= MAX_SIDE and 0 < found.height <= MAX_SIDE):
        raise Wrong(f"{found} is no size")
    if reads > MAX_READS:
        raise Wrong(f"{reads} reads of one image")


_SOUNDS = [
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00"
    b"\x02\x00\x10\x00data\x40\x00\x00\x00" + bytes(64),
    b"fLaC\x80\x00\x00\x22" + bytes(10) + b"\x0a\xc4\x42\xf0\x00\x00\x00\x09" + bytes(16),
    b"ID3\x04\x00\x00\x00\x00\x00\x05hello" + (b"\xff\xfb\x90\x00" + bytes(413)) * 3,
]


def sound_case(rng: random.Random) -> None:
    """Probe a sound file that may be damaged anywhere."""
    data, reads = change_bytes(rng, rng.choice(_SOUNDS)), 0
    if rng.random() < 0.2:
        data += random_bytes(rng)

    def read(offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return data[offset : offset + size]

    try:
        found = probe_sound(read, len(data))
    except Invalid:
        found = None
    if found is not None and not 0 < found.rate <= MAX_RATE:
        raise Wrong(f"{found} is no rate")
    if found is not None and found.seconds is not None and not 0 <= found.seconds < 2**37:
        raise Wrong(f"{found} is no length")
    if reads > MAX_READS:
        raise Wrong(f"{reads} reads of one file")


def _value(rng: random.Random, depth: int = 0) -> object:
    """Anything that a message's part may hold, often what it should."""
    data = base64.b64encode(change_bytes(rng, rng.choice(_IMAGES[:1]))).decode()
    kind = rng.choice(sorted(IMAGE_TYPES | AUDIO_TYPES | {"text", ""}))
    plain = (None, True, 7, "x", kind, data, rng.randbytes(32), rng.randbytes(32).hex())
    url = rng.choice(("data:image/png;base64,", "data:,", "https://", "")) + data
    if depth > 2 or rng.random() < 0.4:
        return rng.choice((*plain, url, url[: rng.randrange(len(url) + 1)]))
    if rng.random() < 0.3:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(20))]
    keys = ("type", "sha256", "image_url", "url", "content", "role")
    found = {key: _value(rng, depth + 1) for key in keys if rng.random() < 0.6}
    return {**found, "type": kind} if rng.random() < 0.8 else found


def parts_case(rng: random.Random) -> None:
    """Find the images of messages, and read those that came inside."""
    messages = [{"role": "user", "content": _value(rng)} for _ in range(rng.randrange(3))]
    try:
        for part in image_parts([*messages, _value(rng)]):
            if not part.sha256:
                probe_image_bytes(decode_image(part))
            elif len(part.sha256) != SHA256_BYTES:
                raise Wrong(f"{part} has no hash")
    except (Invalid, TooLarge):
        return


MEDIA: Mapping[str, Case] = {"image": image_case, "image-parts": parts_case, "sound": sound_case}
