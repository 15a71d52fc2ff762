"""The head's side of one session placed on one node: its commands, and what it may accept.

Safety rests on epochs, and the head alone checks them: a run of another epoch or generation is
never delivered. Within the epoch the next `event_seq` is accepted once; what came before is a
duplicate that is only acknowledged again; a gap is never skipped, since the link that showed it
is broken and the node keeps the events until they are acknowledged.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from bus.context import EMPTY_DIGEST
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    PackedIds,
    SessionId,
    count_ids,
    slice_ids,
)
from bus.messages.link import (
    AppendContent,
    Finish,
    GenerateCancel,
    GenerateReq,
    SamplingParams,
    Segment,
    SessionAssign,
    SessionRevoke,
    TokenRun,
)


class Verdict(enum.Enum):
    """What a run is to the head."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    STALE = "stale"
    GAP = "gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a run brought: the tokens that are new, and the finish when it is new."""

    verdict: Verdict
    first_seq: int = 0
    ids: PackedIds = PackedIds(b"")
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """One run of the model, as the head wants it."""

    generation: GenerationId
    sampling: SamplingParams
    max_new_tokens: int
    prompt_tokens: int
    generated_tokens: int
    wall_ms: int
    exact: bool


class HeadSession:
    """One session under one epoch. Owned by the head's core, which sends what this returns.

    Invariant: `next_seq` counts the events accepted of the current generation (tokens, then its
    finish); it is the watermark once they are durable.
    """

    __slots__ = (
        "_context",
        "_next_command",
        "_segments",
        "epoch",
        "finished",
        "generation",
        "model",
        "next_seq",
        "session",
    )

    def __init__(
        self,
        session: SessionId,
        model: ModelName,
        epoch: Epoch,
        next_command: Callable[[], int],
    ) -> None:
        self.session = session
        self.model = model
        self.epoch = epoch
        self.generation: GenerationId | None = None
        self.next_seq = 0
        self.finished = False
        self._next_command = next_command
        self._context = PackedIds(b"")
        self._segments: tuple[Segment, ...] = ()

    def open(
        self, context: PackedIds, segments: tuple[Segment, ...], *, lease_ms: int, qos: int
    ) -> list[object]:
        """Assign the session and give it its whole context."""
        self._context, self._segments = context, segments
        assign = SessionAssign(
            command=self._command(),
            session=self.session,
            epoch=self.epoch,
            model=self.model,
            lease_ms=lease_ms,
            qos=qos,
        )
        return [assign, self.append_full()]

    def append_full(self) -> AppendContent:
        """The whole context again, from its first token (the answer to `NeedFull`)."""
        return AppendContent(
            command=self._command(),
            session=self.session,
            epoch=self.epoch,
            base_tokens=0,
            base_digest=EMPTY_DIGEST,
            ids=self._context,
            segments=self._segments,
        )

    def generate(self, plan: GenerationPlan) -> GenerateReq:
        """Start a generation on the context; one at a time."""
        self.generation = plan.generation
        self.next_seq = 0
        self.finished = False
        return GenerateReq(
            command=self._command(),
            session=self.session,
            epoch=self.epoch,
            generation=plan.generation,
            sampling=plan.sampling,
            max_new_tokens=plan.max_new_tokens,
            prompt_tokens=plan.prompt_tokens,
            generated_tokens=plan.generated_tokens,
            wall_ms=plan.wall_ms,
            exact=plan.exact,
        )

    def cancel(self) -> GenerateCancel | None:
        """Stop the generation that runs, if one does."""
        if self.generation is None or self.finished:
            return None
        self.finished = True
        return GenerateCancel(
            command=self._command(),
            session=self.session,
            epoch=self.epoch,
            generation=self.generation,
        )

    def revoke(self, reason: str) -> SessionRevoke:
        """End the session on its node."""
        return SessionRevoke(
            command=self._command(), session=self.session, epoch=self.epoch, reason=reason
        )

    def accept(self, run: TokenRun) -> Receipt:
        """Take a run of token events, or say why not. Changes state only for fresh ones."""
        if run.epoch != self.epoch or run.generation != self.generation:
            return Receipt(verdict=Verdict.STALE)
        end = run.first_seq + count_ids(run.ids) + (run.finish is not None)
        if self.finished or end <= self.next_seq:
            return Receipt(verdict=Verdict.DUPLICATE)
        if run.first_seq > self.next_seq:
            return Receipt(verdict=Verdict.GAP)
        fresh = slice_ids(run.ids, self.next_seq - run.first_seq)
        receipt = Receipt(
            verdict=Verdict.FRESH, first_seq=self.next_seq, ids=fresh, finish=run.finish
        )
        self.next_seq = end
        self.finished = run.finish is not None
        return receipt

    def _command(self) -> CommandId:
        return CommandId(self._next_command())
