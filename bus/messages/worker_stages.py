"""Messages between an agent and a worker whose model is a stage: a range of a model's layers.

    agent ── StageOpen ──▶ worker ── StageOpened ──▶ agent        or StageOpened with a code
    agent ── StageUnit ──▶ executor ── StageUnit ──▶ agent        one for each, in their order
             StageUnit ──▶ driver   ── StageUnit ──▶              a new one; to the first stage
    agent ── StageClose ─▶ worker                                 nothing more comes of the chain
             StageFailed ◀── worker                               the worker has closed it itself

A chain is one worker of each stage, in order. The *driver* is the last stage's: it has the
generations, makes units of work and draws. The others are *executors*: they do what units say.
`Ready` comes once, when the stage is loaded; generations only run while a chain is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, MaxItems, OneLine, OneOf, Range
from bus.ids import U64_MAX, NumericsId
from bus.messages.parts import U8, U32, U63, Name
from bus.messages.worker import WORKER

Chain = Annotated[int, Range(0, U64_MAX)]
#: Operations on lanes and saved ones, and token ids.
MAX_UNIT_BYTES = 1024 * 1024
#: Of a chunk of 256 tokens, each up to 32,768 numbers wide.
MAX_HIDDEN_BYTES = 32 * 1024 * 1024
MAX_STAGES = 256
HIDDEN_TYPES = frozenset({"float32", "float16"})
Reason = Annotated[str, MaxBytes(2048), OneLine()]


@WORKER.message(tag=13)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpen:
    """Make room for a chain. Executors are asked first, then the driver with what they gave.

    `lanes` are of all `groups` together, each of which gets as many. `window` and `host_tokens`
    are the most that may be had, and 0 or None ask for as many as there are: tokens of a lane, and
    of all groups' lanes that are saved in host memory. A driver is told what each of the others
    has at least, and in `numerics` the ids of these stages, in order; executors need none.
    """

    chain: Chain
    groups: Annotated[int, Range(1, 255)]
    lanes: Annotated[int, Range(1, 65_535)]
    window: U32 = 0
    host_tokens: U63 | None = None
    hidden_type: Annotated[str, OneOf(HIDDEN_TYPES)] = "float32"
    numerics: Annotated[tuple[NumericsId, ...], MaxItems(MAX_STAGES)] = ()
    #: Units of a group that may be under way at once: chunks of a prompt, behind each other.
    depth: Annotated[int, Range(1, 255)] = 1


@WORKER.message(tag=14)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageUnit:
    """A unit of work on its way through a chain; see agent/worker/stage_unit.py.

    `hidden` are the hidden states that go into the stage it is sent to, dense, little-endian, of
    the chain's type: empty at the first stage, and where nothing is to be run.
    """

    chain: Chain
    group: U8
    unit: Annotated[bytes, MaxBytes(MAX_UNIT_BYTES)]
    hidden: Annotated[bytes, MaxBytes(MAX_HIDDEN_BYTES)] = b""


@WORKER.message(tag=15)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageClose:
    """Give up a chain; an unknown one is passed over.

    A driver forgets its generations without a word: the agent knows them, and they are lost.
    """

    chain: Chain
    reason: Reason = ""


@WORKER.message(tag=46)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpened:
    """What a worker has for a chain, or with a code why it has nothing.

    Of a driver, `numerics` is that of the whole chain; of an executor, its own. `window` and
    `host_tokens` are not above what was asked for.
    """

    chain: Chain
    window: U32 = 0
    lanes: U32 = 0
    host_tokens: U63 = 0
    numerics: NumericsId = NumericsId("")
    code: Name = ""
    message: Reason = ""


@WORKER.message(tag=47)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """A unit could not be done or was none, and the worker has closed the chain."""

    chain: Chain
    code: Name
    message: Reason
