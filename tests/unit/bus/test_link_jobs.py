"""The bytes of job messages, and their limits."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bus.capabilities import CAPABILITIES
from bus.errors import DecodeError, Invalid
from bus.frames import PART_BYTES
from bus.ids import GenerationId, ModelName, PackedIds, pack_ids
from bus.messages.job_bodies import EmbedBody, EmbedPart, pack_body, unpack_body
from bus.messages.link import LINK
from bus.messages.link_jobs import (
    MAX_JOB_BYTES,
    MAX_PART_BYTES,
    JobCancel,
    JobEnd,
    JobMore,
    JobPart,
    JobStart,
)
from bus.messages.parts import BlobRef

JOB, MODEL = GenerationId(5), ModelName("m")
HASH = bytes(range(32))


@pytest.mark.parametrize(
    ("message", "values", "priority"),
    [
        (
            JobStart(job=JOB, model=MODEL, kind="embed", body=b"\x80", qos=2, wall_ms=9),
            [40, 5, "m", "embed", b"\x80", [], 2, 9],
            2,
        ),
        (
            JobStart(job=JOB, model=MODEL, kind="k", blobs=(BlobRef(sha256=HASH, length=3),)),
            [40, 5, "m", "k", b"\x80", [[HASH, 3]], 0, 0],
            2,
        ),
        (JobMore(job=JOB, parts=17), [41, 5, 17], 1),
        (JobCancel(job=JOB), [42, 5], 2),
        (JobPart(job=JOB, seq=3, body=b"abc"), [43, 5, 3, b"abc"], 3),
        (JobEnd(job=JOB, parts=4, body=b"z"), [44, 5, 4, b"z", "", "", "", 0, 0], 3),
        (
            JobEnd(job=JOB, code="invalid", message="no", param="input", length=7, max=6),
            [44, 5, 0, b"\x80", "invalid", "no", "input", 7, 6],
            3,
        ),
    ],
)
def test_the_bytes_on_the_wire(message: Any, values: list[Any], priority: int) -> None:
    assert LINK.encode(message) == msgpack.packb(values)
    assert LINK.decode(msgpack.packb(values)) == message
    assert LINK.priority(message) == priority


@pytest.mark.parametrize(
    "values",
    [
        [40, 5, "m", "embed", bytes(MAX_JOB_BYTES + 1)],
        [40, 5, "m" * 257, "embed"],
        [40, 5, "m", "k" * 129],
        [40, 5, "m", "k", b"\x80", [[HASH, 3]] * 65],
        [40, -1, "m", "embed"],
        [40, 5, "m"],
        [41, 5, 2**32],
        [43, 5, 0, bytes(MAX_PART_BYTES + 1)],
        [43, 5, 0, "text"],
        [44, 5, 0, b"\x80", "invalid", "x" * 2049],
        [44, 5, 0, bytes(MAX_PART_BYTES + 1)],
    ],
)
def test_what_is_over_its_limit_is_refused(values: list[Any]) -> None:
    with pytest.raises(DecodeError):
        LINK.decode(msgpack.packb(values))


def test_words_of_a_peer_are_one_line() -> None:
    end = LINK.decode(msgpack.packb([44, 5, 0, b"\x80", "invalid", "two\nlines"]))
    assert end == JobEnd(job=JOB, code="invalid", message="two\\nlines")


def test_a_part_travels_in_one_frame() -> None:
    part = JobPart(job=GenerationId(2**63), seq=2**32 - 1, body=bytes(MAX_PART_BYTES))
    assert len(LINK.encode(part)) <= PART_BYTES


def test_the_capability_is_told() -> None:
    assert "jobs" in CAPABILITIES


def test_bodies_are_maps_that_may_grow() -> None:
    body = EmbedBody(inputs=(pack_ids([1, 2]), pack_ids([])), normalize=True)
    packed = pack_body(body)
    assert msgpack.unpackb(packed) == {
        "inputs": [b"\1\0\0\0\2\0\0\0", b""],
        "pooling": "",
        "normalize": True,
    }
    assert unpack_body(EmbedBody, packed) == body
    newer = msgpack.packb({**msgpack.unpackb(packed), "new": [1]})
    assert unpack_body(EmbedBody, newer) == body
    assert unpack_body(EmbedBody, msgpack.packb({"inputs": []})) == EmbedBody(inputs=())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": [b"abc"]},
        {"inputs": ["text"]},
        {"inputs": [b""] * 1025},
        {"inputs": [], "pooling": "max"},
        {"inputs": [], "normalize": 1},
        [],
        5,
    ],
)
def test_bodies_that_are_none_are_refused(body: Any) -> None:
    with pytest.raises(Invalid):
        unpack_body(EmbedBody, msgpack.packb(body))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81", b"\x80\x80"])
def test_bodies_that_are_no_msgpack_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack_body(EmbedPart, data)


def test_the_largest_request_fits_a_job() -> None:
    """1,048,576 tokens, which the head takes of one request, in 1,024 texts."""
    ids = PackedIds(bytes(4096))
    assert len(pack_body(EmbedBody(inputs=(ids,) * 1024))) <= MAX_JOB_BYTES
