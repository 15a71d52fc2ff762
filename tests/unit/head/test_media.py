"""Images in messages: found, checked, kept; refused by name before anything is done with a chat."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.capabilities import CAPABILITIES, MEDIA
from bus.errors import BlobMissing, Invalid, StorageFull, SuperfluidError, TooLarge
from bus.ids import ModelName
from bus.messages.api import MARK, encode_body
from bus.messages.link import SessionAssign
from bus.timers import Timers
from head.media import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_PARTS,
    Image,
    ImagePart,
    Media,
    decode_image,
    image_parts,
)
from head.outbox import Outbox
from head.rows import PutAnswer
from head.uploads import Uploads
from tests.harness.blob_rig import BlobsInMemory, blob_of
from tests.harness.head_bench import CLIENT, TOY, Bench

_VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "images.json").read_text())
IMAGES = {each["name"]: base64.b64decode(each["data"]) for each in _VECTORS["images"]}
PNG, JPEG = IMAGES["png"], IMAGES["jpeg"]
HASH = blob_of(PNG).sha256


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def user(*parts: object) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


TEXT = {"type": "text", "text": "What is this?"}
PUT = {"type": "image", "sha256": HASH}
INSIDE = {"type": "image_url", "image_url": {"url": data_url(JPEG)}}


def test_images_are_found_in_order() -> None:
    messages = [
        {"role": "system", "content": "Look."},
        user(TEXT, PUT),
        {"role": "assistant", "content": None},
        user({"type": "image", "sha256": HASH.hex()}, "text", 7, {"type": "dance"}, INSIDE),
    ]
    assert image_parts(messages) == [
        ImagePart(where="messages[1].content[1]", sha256=HASH),
        ImagePart(where="messages[3].content[0]", sha256=HASH),
        ImagePart(where="messages[3].content[4]", data=base64.b64encode(JPEG).decode()),
    ]
    assert image_parts([7, {"content": {}}, {}, user({"type": 5}, {})]) == []


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "image"}, "sha256 should be"),
        ({"type": "image", "sha256": b"short"}, "sha256 should be"),
        ({"type": "image", "sha256": "0" * 63}, "sha256 should be"),
        ({"type": "image_url"}, "url should be text"),
        ({"type": "image_url", "image_url": {"url": 7}}, "url should be text"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "fetches nothi"),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, "fetches nothing"),
        ({"type": "image_url", "image_url": {"url": "data:text/html;base64,eA=="}}, "fetches"),
        ({"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}, "transcribe"),
        ({"type": "audio_url", "audio_url": {"url": "x"}}, "transcribe"),
    ],
)
def test_a_part_that_can_not_be_taken_is_named(part: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        image_parts([user(TEXT, part)])
    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.message.startswith("messages[0].content[1]")


def test_how_much_there_may_be() -> None:
    assert len(image_parts([user(*[PUT] * MAX_IMAGES)])) == MAX_IMAGES
    with pytest.raises(Invalid, match="16 are the most") as caught:
        image_parts([user(*[PUT] * 10), user(*[PUT] * 10)])
    assert caught.value.param == "messages[1].content[6]"
    with pytest.raises(Invalid, match="4096 are the most") as caught:
        image_parts([user(*[1] * (MAX_PARTS + 1))])
    assert caught.value.param == "messages[0].content"


@pytest.mark.parametrize(
    ("data", "kind"),
    [("&&&&", Invalid), ("abc", Invalid), ("\u00e9", Invalid), ("A" * 28_000_000, TooLarge)],
)
def test_what_is_no_base64_or_too_long_is_refused(data: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        decode_image(ImagePart(where="messages[0].content[0]", data=data))


# --- taking them --------------------------------------------------------------------------------


class Desk:
    """Media over a store in memory, and what it gave."""

    def __init__(self, budget_bytes: int = 1 << 40) -> None:
        self.store = BlobsInMemory(budget_bytes)
        self.uploads = Uploads(Outbox(), self.store, Timers(), set)
        self.media = Media(self.store, self.uploads)
        self.media.has_vision = lambda model: model == "seer"
        self.taken: list[tuple[Image, ...] | SuperfluidError] = []

    def take(self, *parts: dict[str, Any]) -> None:
        found = self.media.check_chat(ModelName("seer"), [user(*parts)])
        self.media.take(found, self.taken.append)
        self.uploads.settle()

    def error(self, *parts: dict[str, Any]) -> SuperfluidError:
        self.take(*parts)
        (error,) = self.taken
        assert isinstance(error, SuperfluidError)
        self.taken.clear()
        return error


def test_images_inside_a_message_are_kept_like_files_that_were_put() -> None:
    desk = Desk()
    desk.store.put(PNG)
    desk.store.slow = True
    desk.take(TEXT, PUT, INSIDE, INSIDE)
    assert desk.taken == []
    desk.store.sync()
    desk.uploads.settle()
    (images,) = desk.taken
    assert isinstance(images, tuple)
    first, second, third = images
    assert (first.blob, first.where) == (blob_of(PNG), "messages[0].content[1]")
    assert (first.info.width, first.info.height) == (3, 2)
    assert (second.blob, second.info.format) == (blob_of(JPEG), "jpeg")
    assert (third.blob, third.where) == (blob_of(JPEG), "messages[0].content[3]")
    assert desk.store.data == {HASH: PNG, blob_of(JPEG).sha256: JPEG}
    desk.taken.clear()
    desk.take(PUT, INSIDE)
    assert len(desk.taken) == 1


def test_images_that_can_not_be_had_are_named() -> None:
    desk = Desk()
    missing = desk.error(TEXT, PUT)
    assert isinstance(missing, BlobMissing)
    assert (missing.param, missing.details) == (
        "messages[0].content[1]",
        {"missing": [HASH.hex()]},
    )
    no_image = desk.store.put(b"only text")
    error = desk.error({"type": "image", "sha256": no_image.sha256})
    assert "no PNG, JPEG, WebP or GIF" in error.message
    cut = desk.error({"type": "image_url", "image_url": {"url": data_url(PNG[:20])}})
    assert (type(cut), cut.param) == (Invalid, "messages[0].content[0]")
    assert list(desk.store.data) == [no_image.sha256]


def test_limits_on_pixels_and_bytes() -> None:
    header = b"IHDR" + struct.pack(">IIBBBBB", 7000, 8000, 8, 2, 0, 0, 0)
    large = PNG[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    large += struct.pack(">I", 0) + b"IDAT"
    error = Desk().error({"type": "image_url", "image_url": {"url": data_url(large)}})
    assert isinstance(error, TooLarge)
    assert "7000 x 8000 pixels" in error.message
    desk = Desk()
    long = desk.store.put(PNG + bytes(MAX_IMAGE_BYTES))
    assert isinstance(desk.error({"type": "image", "sha256": long.sha256}), TooLarge)


def test_a_full_store_is_told_and_leaves_nothing_open() -> None:
    desk = Desk(budget_bytes=1 << 20)
    desk.store.disk_bytes = 100
    assert isinstance(desk.error(INSIDE), StorageFull)
    desk.store.disk_bytes = 1 << 20
    desk.take(INSIDE)
    assert len(desk.taken) == 1
    assert desk.store.begun == {}


# --- the operations -----------------------------------------------------------------------------


class Head(Bench):
    """A head with files, and what clients are told."""

    def __init__(self) -> None:
        super().__init__()
        self.files = BlobsInMemory()
        self.core.uploads = Uploads(self.core.outbox, self.files, Timers(), set)
        self.core.media = Media(self.files, self.core.uploads)

    def call(self, op: str, **body: Any) -> dict[str, Any]:
        asked = {"op": op, "id": b"%d" % len(self.replies), **body}
        self.core.client_request(CLIENT, [MARK, encode_body(asked)], self.now)
        self.settle()
        return self.replies[-1]


@pytest.mark.parametrize("part", [PUT, INSIDE], ids=["put", "inside"])
def test_a_chat_with_an_image_is_refused_before_anything_is_done(part: dict[str, Any]) -> None:
    head = Head()
    head.node(1)
    messages = [{"role": "system", "content": "x"}, user(TEXT, part)]
    error = head.call("chat", model=TOY, messages=messages)["error"]
    assert (error["code"], error["param"]) == ("invalid", "messages[1].content[1]")
    assert "messages[1].content[1] is an image, and model toy takes text only" in error["message"]
    audio = user({"type": "input_audio", "input_audio": {}})
    error = head.call("chat", model=TOY, messages=[audio])["error"]
    assert (error["code"], error["param"]) == ("invalid", "messages[0].content[0]")
    assert "transcribe" in error["message"]
    assert head.files.data == {}
    assert head.on(1, SessionAssign) == []
    assert len(head.core.book) == 0


@pytest.mark.parametrize(
    ("name", "size"), [("png", (3, 2)), ("webp-lossless", (300, 200)), ("jpeg", (17, 9))]
)
def test_probe_says_what_a_file_is(name: str, size: tuple[int, int]) -> None:
    head = Head()
    blob = head.files.put(IMAGES[name])
    found = head.call("media.probe", sha256=blob.sha256)
    assert found["kind"] == "end"
    assert (found["media"], found["format"]) == ("image", name.split("-")[0])
    assert (found["width"], found["height"]) == size
    assert (found["animated"], found["bytes"]) == (False, len(IMAGES[name]))


def test_probe_says_what_a_sound_is() -> None:
    head = Head()
    wav = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 0, b"WAVE", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    blob = head.files.put(wav + b"data" + struct.pack("<I", 4000) + bytes(4000))
    found = head.call("media.probe", sha256=blob.sha256)
    assert found["kind"] == "end"
    assert (found["media"], found["format"], found["bytes"]) == ("audio", "wav", 4044)
    assert (found["seconds"], found["rate"], found["channels"]) == (0.25, 8000, 1)


def test_probe_of_what_is_no_image_or_not_there() -> None:
    head = Head()
    error = head.call("media.probe", sha256=HASH)["error"]
    assert (error["code"], error["param"]) == ("blob_missing", "sha256")
    error = head.call("media.probe", sha256=b"short")["error"]
    assert (error["code"], error["param"]) == ("invalid", "sha256")
    others = (b"%PDF-1.7", b"OggS" + bytes(60), b"FORM\0\0\0\x20AIFF" + bytes(60), b"\xff\xe1\x07")
    for content, what in (*((one, "no image and no sound") for one in others), (b"", "is empty")):
        blob = head.files.put(content)
        error = head.call("media.probe", sha256=blob.sha256)["error"]
        assert (error["code"], error["param"]) == ("invalid", "sha256")
        assert what in error["message"]
        assert "PNG, JPEG, WebP or GIF, or a WAV, FLAC or MP3" in error["message"]


def test_a_prompt_whose_tokens_stand_for_a_file() -> None:
    head = Head()
    head.files.put(PNG)
    media = [{"offset": 1, "blob": 0, "tokens": 2}]
    asked: dict[str, Any] = {"tokens": [1, 2, 3, 4], "blobs": [HASH], "media": media}
    error = head.call("generate", model=TOY, **asked)["error"]
    assert (error["code"], error["param"]) == ("invalid", "media[0]")
    assert "model toy takes text only" in error["message"]
    head.core.media.has_vision = lambda model: True
    error = head.call("generate", model=TOY, prompt="hi", media=media)["error"]
    assert error["param"] == "media"
    error = head.call("generate", model=TOY, **{**asked, "blobs": []})["error"]
    assert error["param"] == "media[0].blob"
    head.node(1, capabilities=tuple(name for name in CAPABILITIES if name != MEDIA))
    error = head.call("generate", model=TOY, **asked)["error"]
    assert error["code"] == "unsupported_on_fleet"
    assert "n1 run versions that do not know blobs, media" in error["message"]
    head.node(2, name="n2")
    head.call("generate", model=TOY, **asked)
    (row,) = [row for row in head.rows if isinstance(row, PutAnswer)]
    assert msgpack.unpackb(row.options)["media"] == media
