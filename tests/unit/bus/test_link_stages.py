"""The bytes of messages about chains of stages, and their limits."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bus.capabilities import CAPABILITIES
from bus.crypto import TAG_BYTES
from bus.errors import DecodeError
from bus.frames import HEADER
from bus.ids import GenerationId, ModelName, NumericsId, WorkerIncarnation
from bus.messages.link import LINK, NodeStatus
from bus.messages.link_stages import StageClose, StageOpen, StageOpened, StageRun
from bus.messages.parts import ModelStatus, StageStatus
from bus.messages.worker_stages import MAX_HIDDEN_BYTES, MAX_UNIT_BYTES

CHAIN = 3 << 32 | 7
STAGE = StageStatus(
    model=ModelName("toy"),
    whole="w",
    index=0,
    stages=2,
    first=0,
    end=15,
    layers=30,
    hidden=576,
    hidden_type="float16",
    folder=ModelName("toy.1of2"),
)


@pytest.mark.parametrize(
    ("message", "values", "priority"),
    [
        (
            StageOpen(
                chain=CHAIN, model=ModelName("toy.1of2"), index=0, stages=2, groups=2, lanes=8
            ),
            [48, CHAIN, "toy.1of2", 0, 2, 2, 8, 0, None, "float32", []],
            1,
        ),
        (
            StageOpen(
                chain=CHAIN,
                model=ModelName("toy"),
                index=1,
                stages=2,
                groups=2,
                lanes=8,
                window=2048,
                host_tokens=100,
                hidden_type="float16",
                numerics=(NumericsId("n"),),
            ),
            [48, CHAIN, "toy", 1, 2, 2, 8, 2048, 100, "float16", ["n"]],
            1,
        ),
        (
            StageOpened(
                chain=CHAIN,
                index=1,
                window=64,
                lanes=8,
                host_tokens=5,
                numerics=NumericsId("n"),
            ),
            [49, CHAIN, 1, 64, 8, 5, "n", "", ""],
            1,
        ),
        (
            StageOpened(chain=CHAIN, index=0, code="config_invalid", message="no room"),
            [49, CHAIN, 0, 0, 0, 0, "", "config_invalid", "no room"],
            1,
        ),
        (
            StageRun(chain=CHAIN, hop=1, group=1, unit=b"unit", hidden=b"\0\0\0\0"),
            [50, CHAIN, 1, 1, b"unit", b"\0\0\0\0"],
            3,
        ),
        (
            StageClose(
                chain=CHAIN,
                reason="it died",
                worker=WorkerIncarnation(9),
                generations=(GenerationId(4),),
            ),
            [51, CHAIN, "it died", 9, [4]],
            1,
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
        [48, CHAIN, "m", 0, 2, 0, 8],
        [48, CHAIN, "m", 0, 0, 1, 8],
        [48, CHAIN, "m", 0, 2, 2, 0],
        [48, CHAIN, "m", 256, 2, 2, 8],
        [48, CHAIN, "m", 0, 2, 2, 8, 0, None, "bfloat16"],
        [48, -1, "m", 0, 2, 2, 8],
        [49, CHAIN, 0, -1],
        [50, CHAIN, 256, 0, b""],
        [50, CHAIN, 0, 256, b""],
        [50, CHAIN, 0, 0, bytes(MAX_UNIT_BYTES + 1)],
        [50, CHAIN, 0, 0, b"", bytes(MAX_HIDDEN_BYTES + 1)],
        [50, CHAIN, 0, 0, "text"],
        [51, CHAIN, "x" * 2049],
    ],
)
def test_what_is_over_its_limit_is_refused(values: list[Any]) -> None:
    with pytest.raises(DecodeError):
        LINK.decode(msgpack.packb(values))


def test_a_status_says_which_part_of_a_model_it_is_of() -> None:
    model = ModelStatus(name=ModelName("toy.1of2"), phase="ready", kind="stage", stage=STAGE)
    data = LINK.encode(NodeStatus(models=(model,)))
    decoded = LINK.decode(data)
    assert isinstance(decoded, NodeStatus)
    assert decoded.models == (model,)
    (fields,) = msgpack.unpackb(data)[1]
    assert fields[-1] == ["toy", "w", 0, 2, 0, 15, 30, 576, "float16", "toy.1of2"]
    # A node of an earlier version says nothing of it, and an earlier head passes it over.
    older = msgpack.packb([24 | 0x40, [fields[:-1]]])
    status = LINK.decode(older)
    assert isinstance(status, NodeStatus)
    assert status.models[0].stage is None


def test_around_the_hidden_states_of_a_token_are_few_bytes() -> None:
    """A step of one row has 21 bytes of unit (see the worker's); all else is framing."""
    hidden = bytes(2304)
    run = StageRun(chain=2**64 - 1, hop=255, group=255, unit=bytes(21), hidden=hidden)
    framed = HEADER.size + TAG_BYTES + len(LINK.encode(run))
    assert framed - len(hidden) <= 128


def test_the_capability_is_told() -> None:
    assert "stages" in CAPABILITIES
