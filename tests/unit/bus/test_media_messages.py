"""References from a prompt's tokens to files: checked the same at head and node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import DecodeError, Invalid
from bus.ids import CommandId, Epoch, GenerationId, SessionId
from bus.messages.link import LINK, GenerateReq
from bus.messages.media import MediaRef, check_media
from bus.messages.parts import BlobRef
from bus.messages.sampling import SamplingParams

FIRST = MediaRef(offset=2, blob=0, tokens=3)
SECOND = MediaRef(offset=5, blob=1, tokens=5)
REQUEST = GenerateReq(
    command=CommandId(1),
    session=SessionId("s"),
    epoch=Epoch(1),
    generation=GenerationId(1),
    sampling=SamplingParams(),
    max_new_tokens=1,
    prompt_tokens=10,
    blobs=(BlobRef(sha256=bytes(32), length=1), BlobRef(sha256=bytes(32), length=2)),
    media=(FIRST, SECOND),
)


def test_a_request_carries_them() -> None:
    assert LINK.decode(LINK.encode(REQUEST)) == REQUEST
    check_media(REQUEST.media, 2, 10)
    check_media((), 0, 0)
    check_media((replace(SECOND, blob=0), replace(SECOND, offset=10)), 2, 15)


@pytest.mark.parametrize(
    ("media", "param"),
    [
        ((replace(FIRST, blob=2),), "media[0].blob"),
        ((FIRST, replace(SECOND, offset=4)), "media[1].offset"),
        ((SECOND, FIRST), "media[1].offset"),
        ((FIRST, replace(SECOND, tokens=6)), "media[1].tokens"),
        ((replace(FIRST, tokens=0),), "media[0].tokens"),
        ((replace(FIRST, offset=2**32 - 1),), "media[0].tokens"),
    ],
)
def test_what_does_not_fit_the_prompt_is_named(media: tuple[MediaRef, ...], param: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_media(media, 2, 10)
    assert caught.value.param == param


def test_no_tokens_and_file_64_are_no_message() -> None:
    for changed in (replace(FIRST, tokens=0), replace(FIRST, blob=64)):
        with pytest.raises(DecodeError):
            LINK.decode(LINK.encode(replace(REQUEST, media=(changed,))))
