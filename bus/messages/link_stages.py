"""Link-F messages about chains of stages, which serve one model together (capability `stages`).

    head ── StageOpen ──▶ every executor ── StageOpened ──▶ head ── StageOpen ──▶ driver
    driver ── StageRun, hop 0 ──▶ head ──▶ stage 0 ── hop 1 ──▶ head ──▶ stage 1 ── ... ──▶ driver
    StageClose from whoever sees that the chain is broken, and from the head to all others

A chain is one worker of each stage, in order. The last one is the driver: sessions are placed on
its node, and it alone makes units of work. The others are executors, which do what units say.
What comes for a chain that is closed is late and counts for nothing; the next one has another
number. A chain ends with the link of any of its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, MaxItems, OneLine, OneOf, Range
from bus.ids import GenerationId, ModelName, NumericsId, WorkerIncarnation
from bus.messages.link_codec import LINK
from bus.messages.parts import U8, U32, U63, Name
from bus.messages.worker_stages import (
    HIDDEN_TYPES,
    MAX_HIDDEN_BYTES,
    MAX_STAGES,
    MAX_UNIT_BYTES,
    Chain,
)

#: Of a reason, in UTF-8.
MAX_REASON_BYTES = 2048
Reason = Annotated[str, MaxBytes(MAX_REASON_BYTES), OneLine()]


@LINK.message(tag=48, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpen:
    """Be stage `index` of a chain of `stages`, with this model's worker. Answered by StageOpened.

    `model` is as the node's status names it. The driver, which is stage `stages - 1`, is asked when
    all others have opened. The rest is as in the message of this name to a worker.
    """

    chain: Chain
    model: Annotated[ModelName, MaxBytes(256), OneLine()]
    index: U8
    stages: Annotated[int, Range(1, MAX_STAGES)]
    groups: Annotated[int, Range(1, 255)]
    lanes: Annotated[int, Range(1, 65_535)]
    window: U32 = 0
    host_tokens: U63 | None = None
    hidden_type: Annotated[str, OneOf(HIDDEN_TYPES)] = "float32"
    numerics: Annotated[tuple[NumericsId, ...], MaxItems(MAX_STAGES)] = ()


@LINK.message(tag=49, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpened:
    """What stage `index` of a chain has for it, or with a code why it has nothing.

    A driver's worker that has opened is ready, as its node's status says then.
    """

    chain: Chain
    index: U8
    window: U32 = 0
    lanes: U32 = 0
    host_tokens: U63 = 0
    numerics: NumericsId = NumericsId("")
    code: Name = ""
    message: Reason = ""


@LINK.message(tag=50, priority=3)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """A unit of work on its way to stage `hop` of a chain; the head passes it on as it is.

    `unit` and `hidden` as in `StageUnit` of workers. The head takes it of the stage before `hop`
    alone, and of a group only in turn: 0, 1, ... up to the driver, then 0 again.
    """

    chain: Chain
    hop: U8
    group: U8
    unit: Annotated[bytes, MaxBytes(MAX_UNIT_BYTES)]
    hidden: Annotated[bytes, MaxBytes(MAX_HIDDEN_BYTES)] = b""


@LINK.message(tag=51, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageClose:
    """A chain is over; an unknown one is passed over.

    From a node: one of its stages can not go on, and `worker` is its worker if that died. From the
    driver's node always, also when it was told: `generations` are all that the chain had, those
    among them that were ended and had not left it, and a Lost of each that still runs follows.
    """

    chain: Chain
    reason: Reason = ""
    worker: WorkerIncarnation = WorkerIncarnation(0)
    generations: Annotated[tuple[GenerationId, ...], MaxItems(131_072)] = ()
