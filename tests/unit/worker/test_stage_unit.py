"""Units of work as bytes: what they are, that they come back, and what is refused."""

from __future__ import annotations

import random
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.worker.sequence import make_sequence
from agent.worker.stage_unit import (
    ChunkRun,
    StepRun,
    Unit,
    UnitLimits,
    decode_unit,
    encode_unit,
    unit_of,
)
from agent.worker.work import (
    CopyPrefix,
    DecodeStep,
    DropSaved,
    LaneOp,
    LoadLane,
    MoveLane,
    PrefillChunk,
    SaveLane,
    TakeRestored,
    Transfers,
)
from bus.errors import DecodeError, Internal
from tests.fuzz import stage_units
from tests.harness.engine_run import submit

LIMITS = UnitLimits(lanes=4, window=512, vocab=1000)

lanes = st.integers(0, LIMITS.lanes - 1)
tokens = st.integers(1, LIMITS.window)
entries = st.integers(0, 2**64 - 1)
ids = st.integers(0, LIMITS.vocab - 1)
operations: st.SearchStrategy[LaneOp] = st.one_of(
    st.builds(MoveLane, lanes, lanes, st.integers(0, LIMITS.window)),
    st.builds(CopyPrefix, lanes, lanes, tokens),
    st.builds(SaveLane, lanes, entries, tokens),
    st.builds(LoadLane, entries, lanes, tokens),
    st.builds(DropSaved, entries),
)
chunks = st.builds(
    lambda lane, past, ids: ChunkRun(lane, past, array("I", ids)),
    lanes,
    st.integers(0, LIMITS.window - 256),
    st.lists(ids, min_size=1, max_size=256),
)
steps = st.lists(st.tuples(ids, tokens), min_size=1, max_size=LIMITS.lanes).map(
    lambda rows: StepRun(array("I", [i for i, _ in rows]), array("I", [n for _, n in rows]))
)
units = st.builds(
    Unit, st.integers(0, 2**64 - 1), st.lists(operations, max_size=9), chunks | steps | st.none()
)


@given(units)
def test_a_unit_comes_back_from_its_bytes(unit: Unit) -> None:
    assert decode_unit(encode_unit(unit), LIMITS) == unit


@given(st.binary(max_size=200))
def test_any_bytes_are_a_unit_or_refused(data: bytes) -> None:
    try:
        unit = decode_unit(data, LIMITS)
    except DecodeError:
        return
    assert encode_unit(unit) == data


def test_the_bytes_are_as_written_down() -> None:
    step = Unit(258, [SaveLane(1, 7, 65)], StepRun(array("I", [5, 6]), array("I", [9, 300])))
    assert encode_unit(step) == bytes.fromhex(
        "02 0201000000000000 0100"  # a step, number 258, one operation
        "03 0100 0700000000000000 41000000"
        "0200 05000000 06000000 09000000 2c010000"
    )
    chunk = Unit(0, [], ChunkRun(3, 128, array("I", [65, 66])))
    assert encode_unit(chunk) == bytes.fromhex(
        "01 0000000000000000 0000 0300 80000000 0200 41000000 42000000"
    )


def test_units_of_the_scheduler_leave_its_own_things_behind() -> None:
    sequence = make_sequence(submit(1, [5, 6, 7], 3), arrival=0, window=64, now=0.0)
    chunk = PrefillChunk([], sequence, 2, 1, array("I", [6, 7]), True)
    assert unit_of(4, chunk) == Unit(4, [], ChunkRun(2, 1, array("I", [6, 7])))
    step = DecodeStep([DropSaved(3)], [sequence, None], [7, 9], [3, 12], [0])
    run = StepRun(array("I", [7, 9]), array("I", [3, 12]))
    assert unit_of(5, step) == Unit(5, [DropSaved(3)], run)
    assert unit_of(6, Transfers([MoveLane(1, 0, 4)])) == Unit(6, [MoveLane(1, 0, 4)], None)


def test_what_is_beside_hidden_states_is_small() -> None:
    """At most 128 bytes a token are allowed beside them, with all that frames them."""
    lone = Unit(2**60, [], StepRun(array("I", [1]), array("I", [500])))
    assert len(encode_unit(lone)) == 21
    moved = Unit(2**60, [MoveLane(3, 0, 500)], lone.run)
    assert len(encode_unit(moved)) == 30


def _bad(kind: int = 0, ops: bytes = b"", count: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack("<BQH", kind, 1, count) + ops + rest


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut short"),
        (_bad()[:-1], "cut short"),
        (_bad(count=1), "cut short"),
        (_bad(kind=3), "unknown kind 3"),
        (_bad(rest=b"\0"), "1 bytes behind"),
        (_bad(ops=b"\6", count=1), "unknown operation 6"),
        (_bad(ops=struct.pack("<BHHI", 1, 0, 4, 1), count=1), "lane 4 is none of 4"),
        (_bad(ops=struct.pack("<BHHI", 2, 4, 0, 1), count=1), "lane 4 is none of 4"),
        (_bad(ops=struct.pack("<BHQI", 3, 0, 1, 513), count=1), "513 tokens"),
        (_bad(ops=struct.pack("<BHQI", 4, 0, 1, 0), count=1), "0 tokens"),
        (_bad(1, rest=struct.pack("<HIH", 0, 0, 0)), "a chunk of 0"),
        (_bad(1, rest=struct.pack("<HIH", 0, 0, 257)), "a chunk of 257"),
        (_bad(1, rest=struct.pack("<HIH", 4, 0, 1)), "lane 4"),
        (_bad(1, rest=struct.pack("<HIH", 0, 2**32 - 1, 1)), "4294967296 tokens"),
        (_bad(1, rest=struct.pack("<HIHI", 0, 0, 2, 1)), "cut short"),
        (_bad(1, rest=struct.pack("<HIHI", 0, 0, 1, 1000)), "token id 1000"),
        (_bad(2, rest=struct.pack("<H", 0)), "a step of 0"),
        (_bad(2, rest=struct.pack("<H", 5)), "a step of 5 rows for 4 lanes"),
        (_bad(2, rest=struct.pack("<HII", 1, 1, 0)), "0 tokens"),
        (_bad(2, rest=struct.pack("<HII", 1, 1, 513)), "513 tokens"),
    ],
)
def test_what_no_lane_can_do_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_unit(data, LIMITS)


def test_what_no_other_stage_can_do_has_no_bytes() -> None:
    with pytest.raises(Internal, match="no files"):
        encode_unit(Unit(0, [TakeRestored(1)], None))


@pytest.mark.parametrize("target", stage_units.STAGE_UNITS)
def test_a_short_fuzz(target: str) -> None:
    for number in range(300):
        stage_units.STAGE_UNITS[target](random.Random(f"{target}:{number}"))
