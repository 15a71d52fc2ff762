"""Units of work as bytes, for the stages that hold a model's other layers. Pure.

    kind u8 | number u64 | operations u16 | operation ...
    chunk:  lane u16 | past u32 | tokens u16 | id u32 ...
    step:   rows u16 | id u32 ... | length u32 ...

All little-endian; an operation is a byte that names it, then lanes (u16), an entry (u64) and tokens
(u32) as its class has them. Numbers count up by one in each group, so that a unit that went astray
is noticed. A unit comes from another machine: what decodes keeps within the limits of the lanes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from agent.worker.turns import LONE_CHUNK_TOKENS
from agent.worker.work import (
    CopyPrefix,
    DecodeStep,
    DropSaved,
    LaneOp,
    LoadLane,
    MoveLane,
    PrefillChunk,
    SaveLane,
    Work,
)
from bus.errors import DecodeError, Internal
from bus.ids import pack_ids, unpack_ids

_HEAD = struct.Struct("<BQH")
_CHUNK = struct.Struct("<HIH")
_COUNT = struct.Struct("<H")
_IDLE, _CHUNKED, _STEPPED = range(3)
_ID_BYTES = 4
#: As many as the head can say. One saved lane may push out many.
MAX_OPS = 0xFFFF


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """What the lanes of a group allow.

    Attributes:
        lanes: rows of the slab.
        window: tokens of a lane.
        vocab: token ids are below.
    """

    lanes: int
    window: int
    vocab: int


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Feed `ids` to a lane that holds `past` tokens."""

    lane: int
    past: int
    ids: array[int]


@dataclass(frozen=True, slots=True)
class StepRun:
    """Feed one token to each of lanes 0 to B-1, which then hold `lengths` tokens."""

    ids: array[int]
    lengths: array[int]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a stage is to do: operations in their order, then a run, if there is one."""

    number: int
    ops: list[LaneOp]
    run: ChunkRun | StepRun | None

    @property
    def tokens(self) -> int:
        """Tokens that are fed, each of which has a row of hidden states."""
        return 0 if self.run is None else len(self.run.ids)


# --- to bytes -----------------------------------------------------------------------------------


def unit_of(number: int, work: Work) -> Unit:
    """What other stages are to do of the scheduler's unit of work."""
    if isinstance(work, PrefillChunk):
        return Unit(number, work.ops, ChunkRun(work.lane, work.past, work.ids))
    if isinstance(work, DecodeStep):
        return Unit(number, work.ops, StepRun(array("I", work.ids), array("I", work.lengths)))
    return Unit(number, work.ops, None)


def encode_unit(unit: Unit) -> bytes:
    """The bytes of a unit of work.

    Raises:
        Internal: it has what no other stage can do.
    """
    if len(unit.ops) > MAX_OPS:
        raise Internal(f"a unit with {len(unit.ops)} operations has no bytes")
    ops = b"".join(map(_encode_op, unit.ops))
    match unit.run:
        case ChunkRun(lane, past, ids):
            kind, run = _CHUNKED, _CHUNK.pack(lane, past, len(ids)) + pack_ids(ids)
        case StepRun(ids, lengths):
            kind, run = _STEPPED, _COUNT.pack(len(ids)) + pack_ids(ids) + pack_ids(lengths)
        case None:
            kind, run = _IDLE, b""
    return _HEAD.pack(kind, unit.number, len(unit.ops)) + ops + run


def _encode_op(op: LaneOp) -> bytes:
    match op:
        case MoveLane() | CopyPrefix():
            return _TWO_LANES.pack(_CODES[type(op)], op.src, op.dst, op.tokens)
        case SaveLane() | LoadLane():
            return _LANE_AND_ENTRY.pack(_CODES[type(op)], op.lane, op.entry, op.tokens)
        case DropSaved():
            return _ENTRY.pack(_CODES[DropSaved], op.entry)
        case _:
            raise Internal(f"{op} has no bytes: sessions of stages have no files")


_TWO_LANES = struct.Struct("<BHHI")
_LANE_AND_ENTRY = struct.Struct("<BHQI")
_ENTRY = struct.Struct("<BQ")
_CODES: dict[type, int] = {MoveLane: 1, CopyPrefix: 2, SaveLane: 3, LoadLane: 4, DropSaved: 5}


# --- from bytes ---------------------------------------------------------------------------------


def decode_unit(data: bytes, limits: UnitLimits) -> Unit:
    """The unit in `data`.

    Raises:
        DecodeError: it is none, or none for these lanes.
    """
    reader = _Reader(data, limits)
    kind, number, count = reader.take(_HEAD)
    ops = [reader.op() for _ in range(count)]
    run: ChunkRun | StepRun | None = None
    if kind == _CHUNKED:
        run = reader.chunk()
    elif kind == _STEPPED:
        run = reader.step()
    elif kind != _IDLE:
        raise DecodeError(f"a unit of work of unknown kind {kind}; is the peer newer?")
    reader.end()
    return Unit(number, ops, run)


class _Reader:
    """Takes values off the front of a unit's bytes, and holds them to the limits."""

    def __init__(self, data: bytes, limits: UnitLimits) -> None:
        self._data = data
        self._limits = limits
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        """The next values."""
        try:
            values = form.unpack_from(self._data, self._at)
        except struct.error:
            raise DecodeError("a unit of work is cut short") from None
        self._at += form.size
        return values

    def end(self) -> None:
        """See that nothing is left."""
        if self._at != len(self._data):
            raise DecodeError(f"{len(self._data) - self._at} bytes behind a unit of work")

    def op(self) -> LaneOp:
        """The next operation."""
        if self._at >= len(self._data):
            raise DecodeError("a unit of work is cut short")
        read = _READERS.get(self._data[self._at])
        if read is None:
            raise DecodeError(f"unknown operation {self._data[self._at]}; is the peer newer?")
        return read(self)

    def move(self) -> LaneOp:
        _, src, dst, tokens = self._two_lanes()
        return MoveLane(src, dst, tokens)

    def copy(self) -> LaneOp:
        _, src, dst, tokens = self._two_lanes()
        return CopyPrefix(src, dst, tokens)

    def save(self) -> LaneOp:
        lane, entry, tokens = self._lane_and_entry()
        return SaveLane(lane, entry, tokens)

    def load(self) -> LaneOp:
        lane, entry, tokens = self._lane_and_entry()
        return LoadLane(entry, lane, tokens)

    def drop(self) -> LaneOp:
        return DropSaved(self.take(_ENTRY)[1])

    def chunk(self) -> ChunkRun:
        lane, past, count = self.take(_CHUNK)
        if not 1 <= count <= LONE_CHUNK_TOKENS:
            raise DecodeError(f"a chunk of {count} tokens")
        self._check_lane(lane)
        self._check_tokens(past + count, 1)
        return ChunkRun(lane, past, self._ids(count))

    def step(self) -> StepRun:
        (count,) = self.take(_COUNT)
        if not 1 <= count <= self._limits.lanes:
            raise DecodeError(f"a step of {count} rows for {self._limits.lanes} lanes")
        ids, lengths = self._ids(count), self._numbers(count)
        self._check_tokens(max(lengths), 1)
        self._check_tokens(min(lengths), 1)
        return StepRun(ids, lengths)

    def _two_lanes(self) -> tuple[int, ...]:
        values = self.take(_TWO_LANES)
        self._check_lane(max(values[1:3]))
        self._check_tokens(values[3], 0)
        return values

    def _lane_and_entry(self) -> tuple[int, int, int]:
        _, lane, entry, tokens = self.take(_LANE_AND_ENTRY)
        self._check_lane(lane)
        self._check_tokens(tokens, 1)
        return lane, entry, tokens

    def _ids(self, count: int) -> array[int]:
        ids = self._numbers(count)
        if max(ids) >= self._limits.vocab:
            raise DecodeError(f"token id {max(ids)} is none of {self._limits.vocab}")
        return ids

    def _numbers(self, count: int) -> array[int]:
        end = self._at + _ID_BYTES * count
        if end > len(self._data):
            raise DecodeError("a unit of work is cut short")
        numbers = unpack_ids(self._data[self._at : end])
        self._at = end
        return numbers

    def _check_lane(self, lane: int) -> None:
        if lane >= self._limits.lanes:
            raise DecodeError(f"lane {lane} is none of {self._limits.lanes}")

    def _check_tokens(self, tokens: int, least: int) -> None:
        if not least <= tokens <= self._limits.window:
            raise DecodeError(f"{tokens} tokens in a lane that holds {self._limits.window}")


_READERS: dict[int, Callable[[_Reader], LaneOp]] = {
    _CODES[MoveLane]: _Reader.move,
    _CODES[CopyPrefix]: _Reader.copy,
    _CODES[SaveLane]: _Reader.save,
    _CODES[LoadLane]: _Reader.load,
    _CODES[DropSaved]: _Reader.drop,
}
