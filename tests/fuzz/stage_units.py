"""Fuzz targets on what a stage is sent: units of work and hidden states, from any machine."""

from __future__ import annotations

import random
from array import array

import numpy as np

from agent.worker.hidden_states import TYPES, unpack_hidden
from agent.worker.stage_unit import (
    ChunkRun,
    StepRun,
    Unit,
    UnitLimits,
    decode_unit,
    encode_unit,
)
from agent.worker.work import CopyPrefix, DropSaved, LaneOp, LoadLane, MoveLane, SaveLane
from bus.errors import DecodeError
from tests.fuzz.decoders import Case, Wrong
from tests.fuzz.generate import change_bytes, random_bytes

LIMITS = UnitLimits(lanes=5, window=600, vocab=260)


def unit_of(rng: random.Random, limits: UnitLimits = LIMITS) -> Unit:
    """A unit that these lanes can do."""
    ops = [_op(rng, limits) for _ in range(rng.choice((0, 0, 1, 2, 9)))]
    run: ChunkRun | StepRun | None = None
    kind = rng.randrange(3)
    if kind == 0:
        count = rng.choice((1, 2, 33, 256))
        past = rng.randrange(limits.window - count + 1)
        run = ChunkRun(rng.randrange(limits.lanes), past, _numbers(rng, count, 0, limits.vocab))
    elif kind == 1:
        rows = rng.randrange(1, limits.lanes + 1)
        lengths = _numbers(rng, rows, 1, limits.window + 1)
        run = StepRun(_numbers(rng, rows, 0, limits.vocab), lengths)
    return Unit(rng.choice((0, 1, 2**32, 2**64 - 1)), ops, run)


def _op(rng: random.Random, limits: UnitLimits) -> LaneOp:
    lane, other = rng.randrange(limits.lanes), rng.randrange(limits.lanes)
    entry, tokens = rng.choice((0, 7, 2**40)), rng.randrange(1, limits.window + 1)
    return rng.choice(
        (
            MoveLane(lane, other, rng.choice((0, tokens))),
            CopyPrefix(lane, other, tokens),
            SaveLane(lane, entry, tokens),
            LoadLane(entry, lane, tokens),
            DropSaved(entry),
        )
    )


def _numbers(rng: random.Random, count: int, low: int, high: int) -> array[int]:
    return array("I", [rng.randrange(low, high) for _ in range(count)])


def unit_case(rng: random.Random) -> None:
    """What decodes is within the limits, and has the bytes that it came in."""
    data = encode_unit(unit_of(rng))
    how = rng.randrange(4)
    if how == 0:
        data = change_bytes(rng, data)
    elif how == 1:
        data = data[: rng.randrange(len(data))] + rng.randbytes(rng.choice((0, 0, 1, 4)))
    elif how == 2 and rng.random() < 0.3:
        data = random_bytes(rng)
    try:
        unit = decode_unit(data, LIMITS)
    except DecodeError:
        return
    if encode_unit(unit) != data:
        raise Wrong(f"{data.hex()} was read as {unit}")
    _check(unit)


def _check(unit: Unit) -> None:
    run = unit.run
    if isinstance(run, ChunkRun):
        lanes, lengths, ids = [run.lane], [run.past + len(run.ids)], run.ids
    elif isinstance(run, StepRun):
        lanes, lengths, ids = list(range(len(run.ids))), list(run.lengths), run.ids
    else:
        return
    sound = max(lanes) < LIMITS.lanes and 1 <= min(lengths) <= max(lengths) <= LIMITS.window
    if not sound or max(ids) >= LIMITS.vocab:
        raise Wrong(f"{unit} is none for {LIMITS}")


def hidden_case(rng: random.Random) -> None:
    """Hidden states are of just so many tokens, or refused."""
    tokens, width, kind = rng.randrange(1, 5), rng.choice((16, 64)), rng.choice(sorted(TYPES))
    size = tokens * width * TYPES[kind].itemsize
    data = rng.randbytes(rng.choice((0, size, size, size - 1, size + 1, size // 2)))
    try:
        hidden = unpack_hidden(data, tokens, width, kind)
    except DecodeError:
        if len(data) == size:
            raise Wrong(f"{size} bytes were refused") from None
        return
    if hidden.shape != (tokens, width) or np.asarray(hidden).tobytes() != data:
        raise Wrong(f"{len(data)} bytes were read as {hidden.shape}")


STAGE_UNITS: dict[str, Case] = {"stage_unit": unit_case, "hidden": hidden_case}
