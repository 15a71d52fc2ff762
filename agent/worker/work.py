"""Units of work that the scheduler gives the engine, and what comes back. Data only.

A unit carries operations on lanes and on host memory. They are done in their order, before its
run: a lane that an earlier operation reads may be written by a later one.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from agent.worker.sequence import Sequence
from bus.errors import SuperfluidError
from bus.ids import GenerationId
from bus.messages.parts import Finish


@dataclass(frozen=True, slots=True)
class MoveLane:
    """Copy the first `tokens` tokens of lane `src` to lane `dst`; `src` is free then."""

    src: int
    dst: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CopyPrefix:
    """Copy the first `tokens` tokens of lane `src`, which goes on, to lane `dst`."""

    src: int
    dst: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SaveLane:
    """Keep the first `tokens` tokens of a lane in host memory as `entry`."""

    lane: int
    entry: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LoadLane:
    """Write the first `tokens` tokens of `entry` into a lane; the entry stays."""

    entry: int
    lane: int
    tokens: int


@dataclass(frozen=True, slots=True)
class DropSaved:
    """Free `entry`."""

    entry: int


@dataclass(frozen=True, slots=True)
class TakeRestored:
    """Keep as `entry` what was read from a file."""

    entry: int


LaneOp = MoveLane | CopyPrefix | SaveLane | LoadLane | DropSaved | TakeRestored


@dataclass(frozen=True, slots=True)
class Transfers:
    """Operations alone, when nothing is to be run."""

    ops: list[LaneOp]


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Feed `ids` to a lane that holds `past` tokens; `draw` when the next token follows from it."""

    ops: list[LaneOp]
    sequence: Sequence
    lane: int
    past: int
    ids: array[int]
    draw: bool


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Feed one token to each of rows 0 to B-1.

    Attributes:
        rows: the sequence of each row, or None for one that runs along and is not advanced.
        ids: the token of each row.
        lengths: tokens in each lane after the step.
        drawing: rows whose next token follows from this step.
    """

    ops: list[LaneOp]
    rows: list[Sequence | None]
    ids: list[int]
    lengths: list[int]
    drawing: list[int]


Work = PrefillChunk | DecodeStep | Transfers


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row that drew gave.

    Attributes:
        token: None when nothing could be drawn: `error` says why, or logits were no numbers.
        logprobs: its record, if the request wants them.
        reason: "" to go on; "eos" or "stop" when the token ends the sequence.
        stop: the stop string that it completed.
    """

    token: int | None
    logprobs: bytes = b""
    reason: str = ""
    stop: str = ""
    error: SuperfluidError | None = None


@dataclass(frozen=True, slots=True)
class Emission:
    """A token, or the end of a generation, or both. `index` counts from the generation's start.

    `cached` are tokens of the context that were not computed.
    """

    generation: GenerationId
    index: int
    token: int | None
    finish: Finish | None
    logprobs: bytes = b""
    cached: int = 0
