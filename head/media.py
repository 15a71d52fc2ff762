"""Images in requests: found in messages, read by their headers, refused where no model sees them.

An image is a file that was put, named by its SHA-256, or comes inside the message as a `data:` URL
and is then kept like a file that was put. The head fetches nothing and decodes nothing.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bus.errors import BlobMissing, Invalid, SuperfluidError, TooLarge
from bus.fields import kind_of
from bus.header_reader import Read, reader_of
from bus.ids import ModelName
from bus.media_probe import ImageInfo, is_image, probe_image
from bus.messages.api import GenerateRequest
from bus.messages.media import MediaRef, check_media
from bus.messages.parts import BlobRef
from bus.sound_probe import is_sound, probe_sound
from bus.transfer import SHA256_BYTES, BlobStore, name_of
from head.uploads import Uploads, blob_of

#: Images of one request; each becomes some hundred tokens.
MAX_IMAGES = 16
MAX_IMAGE_BYTES = 20 * 1024 * 1024
#: What a worker would have to decode: 48 megapixels, as large cameras have.
MAX_PIXELS = 48 * 1024 * 1024
#: Parts of one message.
MAX_PARTS = 4096

IMAGE_TYPES = frozenset({"image", "image_url"})
AUDIO_TYPES = frozenset({"audio", "input_audio", "audio_url"})
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,32};base64,", re.IGNORECASE)
_HEX_HASH = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image as a message names it: `sha256` of a file, or else `data`, base64."""

    #: Such as `messages[0].content[1]`.
    where: str
    sha256: bytes = b""
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that the head has."""

    where: str
    blob: BlobRef
    info: ImageInfo


#: Gets a request's images in their order, or why there are none.
Taken = Callable[[tuple[Image, ...] | SuperfluidError], None]


def image_parts(messages: Sequence[object]) -> list[ImagePart]:
    """The images that messages name, in order. All other parts are somebody else's to judge.

    Raises:
        Invalid: one names its image wrongly, there is audio, or too much of all; `param` names it.
    """
    found = []
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple):
            continue
        where = f"messages[{number}].content"
        if len(content) > MAX_PARTS:
            raise Invalid(
                f"{where} has {len(content)} parts; {MAX_PARTS} are the most", param=where
            )
        for place, part in enumerate(content):
            if isinstance(part, Mapping) and isinstance(part.get("type"), str):
                found += _images_of(part, f"{where}[{place}]")
    if len(found) > MAX_IMAGES:
        last = found[MAX_IMAGES]
        raise Invalid(
            f"{last.where} is image number {MAX_IMAGES + 1} of this request; {MAX_IMAGES} are the "
            "most",
            param=last.where,
        )
    return found


def _images_of(part: Mapping[str, Any], where: str) -> list[ImagePart]:
    kind = part["type"]
    if kind in AUDIO_TYPES:
        raise Invalid(
            f"{where} is audio, which no chat takes; put the file, have it written down with "
            "transcribe, and send the text",
            param=where,
        )
    if kind not in IMAGE_TYPES:
        return []
    if kind == "image":
        return [ImagePart(where=where, sha256=_hash(part.get("sha256"), where))]
    named = part.get("image_url")
    url = named.get("url") if isinstance(named, Mapping) else named
    return [_of_url(url, where)]


def _hash(value: object, where: str) -> bytes:
    if isinstance(value, bytes) and len(value) == SHA256_BYTES:
        return value
    if isinstance(value, str) and _HEX_HASH.fullmatch(value):
        return bytes.fromhex(value)
    raise Invalid(
        f"{where}.sha256 should be the SHA-256 of a file that was put, {SHA256_BYTES} bytes or "
        f"{2 * SHA256_BYTES} hexadecimal digits",
        param=where,
    )


def _of_url(url: object, where: str) -> ImagePart:
    if not isinstance(url, str):
        raise Invalid(f"{where}.image_url.url should be text, not {kind_of(url)}", param=where)
    match = _DATA_URL.match(url)
    if match is None:
        raise Invalid(
            f"{where}.image_url.url is no data:image/...;base64, URL, and the head fetches "
            "nothing; put the file with put_blob and name it as {type: image, sha256: ...}",
            param=where,
        )
    return ImagePart(where=where, data=url[match.end() :])


def decode_image(part: ImagePart) -> bytes:
    """The bytes of an image that came inside its message.

    Raises:
        Invalid: it is not base64.
        TooLarge: it has more bytes than an image may have.
    """
    if len(part.data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        raise TooLarge(
            f"{part.where} has more than {MAX_IMAGE_BYTES} bytes; send a smaller image",
            param=part.where,
        )
    try:
        return base64.b64decode(part.data, validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(f"{part.where} is not base64", param=part.where) from None


def check_image(info: ImageInfo, length: int, where: str) -> None:
    """See that an image may be used.

    Raises:
        TooLarge: it has too many bytes or pixels.
    """
    if length > MAX_IMAGE_BYTES or info.pixels > MAX_PIXELS:
        raise TooLarge(
            f"{where} has {info.width} x {info.height} pixels and {length} bytes; "
            f"{MAX_PIXELS} pixels and {MAX_IMAGE_BYTES} bytes are the most",
            param=where,
        )


def sees_nothing(model: ModelName, where: str) -> Invalid:
    """The error of an image for a model that takes none."""
    return Invalid(
        f"{where} is an image, and model {model} takes text only, as all models of this version "
        "do; leave the image out or say in words what it shows",
        param=where,
    )


class Media:
    """Owned by the core.

    Args:
        store: where files are.
        uploads: keeps what comes inside messages.
    """

    def __init__(self, store: BlobStore, uploads: Uploads) -> None:
        self._store = store
        self._uploads = uploads
        #: Whether a model takes images. No kind of model that this version knows does.
        self.has_vision: Callable[[ModelName], bool] = lambda model: False

    def check_chat(self, model: ModelName, messages: Sequence[object]) -> list[ImagePart]:
        """The images of a chat, before anything of it is rendered, placed or kept.

        Raises:
            Invalid: one is named wrongly, or the model takes none; `param` names the part.
        """
        parts = image_parts(messages)
        if parts and not self.has_vision(model):
            raise sees_nothing(model, parts[0].where)
        return parts

    def of_prompt(self, asked: GenerateRequest) -> tuple[MediaRef, ...]:
        """What tokens of a prompt stand for, before the request is placed.

        Raises:
            Invalid: the model takes no images, or a reference does not fit the prompt.
        """
        if not asked.media:
            return ()
        if asked.tokens is None:
            raise Invalid("media is about tokens (ids); give those as the prompt", param="media")
        if not self.has_vision(asked.model):
            raise sees_nothing(asked.model, "media[0]")
        check_media(asked.media, len(asked.blobs), len(asked.tokens))
        return asked.media

    def take(self, parts: Sequence[ImagePart], then: Taken) -> None:
        """Read the images of a request and keep those that came inside it.

        Args:
            then: called once, when all are on disk or one can not be had.
        """
        try:
            found = [self._known(part) for part in parts]
        except SuperfluidError as error:
            then(error)
            return
        inside = [(image, data) for image, data in found if data is not None]
        images, waiting, over = tuple(image for image, _ in found), len(inside), False

        def kept(result: BlobRef | SuperfluidError) -> None:
            nonlocal waiting, over
            waiting -= 1
            if not over and (isinstance(result, SuperfluidError) or not waiting):
                over = True
                then(result if isinstance(result, SuperfluidError) else images)

        if not inside:
            then(images)
        for _, data in inside:
            self._uploads.keep(data, kept)

    def probe(self, sha256: bytes) -> dict[str, Any]:
        """What a file is that was put, by its header.

        Raises:
            BlobMissing: it is not here.
            Invalid: it is no image and no sound that is known here.
        """
        length, read = self._open(sha256, "sha256")
        start = read(0, 12)
        try:
            if is_sound(start):
                sound = probe_sound(read, length)
                return {"media": "audio", "bytes": length, **asdict(sound)}
            if is_image(start):
                image = probe_image(read, length)
                return {"media": "image", "bytes": length, **asdict(image)}
        except Invalid as error:
            raise Invalid(f"sha256: {error.message}", param="sha256") from None
        what = "has no image and no sound that is known here" if length else "is empty"
        raise Invalid(
            f"sha256: the file {what}; put a PNG, JPEG, WebP or GIF, or a WAV, FLAC or MP3",
            param="sha256",
        )

    def _open(self, sha256: bytes, where: str) -> tuple[int, Read]:
        length = self._store.length(sha256)
        if length is None:
            raise BlobMissing(
                f"the head does not have {name_of(sha256)}; put it with put_blob, then ask again",
                param=where,
                details={"missing": [sha256.hex()]},
            )
        return length, lambda at, size: self._store.read(sha256, at, size)

    def _known(self, part: ImagePart) -> tuple[Image, bytes | None]:
        """An image and its bytes, if those are yet to be kept."""
        data = None if part.sha256 else decode_image(part)
        if data is None:
            length, read = self._open(part.sha256, part.where)
            blob = BlobRef(sha256=part.sha256, length=length)
        else:
            blob, read = blob_of(data), reader_of(data)
        try:
            info = probe_image(read, blob.length)
        except Invalid as error:
            raise Invalid(f"{part.where}: {error.message}", param=part.where) from None
        check_image(info, blob.length, part.where)
        return Image(where=part.where, blob=blob, info=info), data
