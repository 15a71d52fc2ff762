"""The head's side of one session placed on one node: its commands, and what it may accept.

Safety rests on epochs, and the head alone checks them: a run of another epoch or generation is
never delivered. Within the epoch the next `event_seq` is accepted once; what came before is a
duplicate that is only acknowledged again; a gap is never skipped, since the link that showed it
is broken and the node keeps the events until they are acknowledged.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from bus.context import EMPTY_DIGEST, TokenContext, context_digest
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
    GenerateCancel,
    GenerateReq,
    SessionAssign,
    SessionRevoke,
)
from bus.messages.link_parking import SessionPark, SessionRestore
from bus.messages.media import MediaRef
from bus.messages.parts import BlobRef, Finish, GenerationView, SessionView, TokenRun
from bus.messages.sampling import SamplingParams


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
    #: Of the new tokens, as in `TokenRun`.
    logprobs: bytes = b""
    cached: int = 0

    def first(self, count: int) -> Receipt:
        """The same with its first `count` tokens alone."""
        total = count_ids(self.ids)
        if count == total:
            return self
        size = len(self.logprobs) // total
        return replace(
            self, ids=slice_ids(self.ids, 0, count), logprobs=self.logprobs[: count * size]
        )


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
    blobs: tuple[BlobRef, ...] = ()
    media: tuple[MediaRef, ...] = ()
    unread: int = 0


class HeadSession:
    """One session on one node. Owned by the head's core, which sends what this returns.

    Invariants: `next_seq` counts the events accepted of the current generation (tokens, then its
    finish); it is the watermark once they are durable. `tokens` and `digest` say what the node's
    context is once it has applied all commands so far.
    """

    __slots__ = (
        "_generate_command",
        "_next_command",
        "digest",
        "epoch",
        "finished",
        "generation",
        "last_append",
        "last_base",
        "next_seq",
        "session",
        "stopped",
        "tokens",
    )

    def __init__(self, session: SessionId, epoch: Epoch, next_command: Callable[[], int]) -> None:
        self.session = session
        self.epoch = epoch
        self.generation: GenerationId | None = None
        self.next_seq = 0
        #: Nothing more is accepted of the generation: its finish was, or it was stopped.
        self.finished = False
        #: The generation was stopped without its finish: what follows it takes a new epoch.
        self.stopped = False
        self.tokens = 0
        self.digest = EMPTY_DIGEST
        #: The last append under this epoch, the only one that a `NeedFull` may be about, and the
        #: length it went on from. One from token 0 carries all, so it can not fail to match.
        self.last_append: CommandId | None = None
        self.last_base = 0
        self._next_command = next_command
        self._generate_command: CommandId | None = None

    @property
    def is_generating(self) -> bool:
        return self.generation is not None and not self.finished

    # --- commands -----------------------------------------------------------------------------

    def assign(self, model: ModelName, *, lease_ms: int, qos: int) -> SessionAssign:
        """Give the session to the node under the present epoch."""
        return SessionAssign(
            command=self._command(),
            session=self.session,
            epoch=self.epoch,
            model=model,
            lease_ms=lease_ms,
            qos=qos,
        )

    def raise_epoch(self, epoch: Epoch) -> None:
        """Go on under a higher epoch on the same node, which keeps the context.

        Raises:
            ValueError: it is not higher.
        """
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not above {self.epoch}")
        self.epoch = epoch
        self.last_append = None
        self._begin(None)

    def append(self, context: TokenContext) -> AppendContent | None:
        """Bring the node's context to `context`: what it lacks, or all when it has other tokens.

        None when it has just that.
        """
        if context.matches(self.tokens, self.digest):
            return None
        if not 0 < self.tokens < len(context):
            return self.append_full(context)
        if context_digest(context.slice(0, self.tokens)) != self.digest:
            return self.append_full(context)
        return self._append(context, self.tokens, self.digest)

    def append_full(self, context: TokenContext) -> AppendContent:
        """The whole context, from its first token (the answer to `NeedFull`)."""
        return self._append(context, 0, EMPTY_DIGEST)

    def _append(self, context: TokenContext, base: int, digest: bytes) -> AppendContent:
        self.node_has(len(context), context.digest())
        self.last_append, self.last_base = self._command(), base
        return AppendContent(
            command=self.last_append,
            session=self.session,
            epoch=self.epoch,
            base_tokens=base,
            base_digest=digest,
            ids=context.slice(base),
            segments=context.slice_segments(base),
        )

    def node_has(self, tokens: int, digest: bytes) -> None:
        """What the node's context is, as it said or as it will be."""
        self.tokens, self.digest = tokens, digest

    def generate(self, plan: GenerationPlan) -> GenerateReq:
        """Start a generation on the context; one at a time.

        The generation that runs already is asked for again under the same command, which a node
        that has it answers by sending its events again.
        """
        if plan.generation != self.generation:
            self._begin(plan.generation)
        if self._generate_command is None:
            self._generate_command = self._command()
        return GenerateReq(
            command=self._generate_command,
            session=self.session,
            epoch=self.epoch,
            generation=plan.generation,
            sampling=plan.sampling,
            max_new_tokens=plan.max_new_tokens,
            prompt_tokens=plan.prompt_tokens,
            generated_tokens=plan.generated_tokens,
            wall_ms=plan.wall_ms,
            exact=plan.exact,
            blobs=plan.blobs,
            media=plan.media,
            unread=plan.unread,
        )

    def resume(self, generation: GenerationId, next_seq: int) -> None:
        """Take a generation up that an earlier start of the head began."""
        self._begin(generation)
        self.next_seq = next_seq

    def cancel(self) -> GenerateCancel | None:
        """Stop the generation that runs, if one does."""
        if self.generation is None or self.finished:
            return None
        self.finished = self.stopped = True
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

    def park(self) -> SessionPark:
        """End the session on its node, which keeps what it computed in a file."""
        return SessionPark(command=self._command(), session=self.session, epoch=self.epoch)

    def restore(self) -> SessionRestore:
        """Have the node take up what it kept of the context, which it has by now."""
        return SessionRestore(command=self._command(), session=self.session, epoch=self.epoch)

    # --- what the node says -------------------------------------------------------------------

    def accept(self, run: TokenRun) -> Receipt:
        """Take a run of token events, or say why not. Changes state only for fresh ones."""
        if run.epoch != self.epoch or run.generation != self.generation:
            return Receipt(verdict=Verdict.STALE)
        end = run.first_seq + count_ids(run.ids) + (run.finish is not None)
        if self.finished or end <= self.next_seq:
            return Receipt(verdict=Verdict.DUPLICATE)
        if run.first_seq > self.next_seq:
            return Receipt(verdict=Verdict.GAP)
        known = self.next_seq - run.first_seq
        record_bytes = len(run.logprobs) // max(count_ids(run.ids), 1)
        receipt = Receipt(
            verdict=Verdict.FRESH,
            first_seq=self.next_seq,
            ids=slice_ids(run.ids, known),
            finish=run.finish,
            logprobs=run.logprobs[known * record_bytes :],
            cached=run.cached,
        )
        self.next_seq = end
        self.finished = run.finish is not None
        return receipt

    def view(self) -> SessionView:
        """The session as `Reconcile` lists it. A generation that was stopped is not."""
        generations: tuple[GenerationView, ...] = ()
        if self.generation is not None and not self.stopped:
            view = GenerationView(
                generation=self.generation, committed=self.next_seq, finished=self.finished
            )
            generations = (view,)
        return SessionView(
            session=self.session,
            epoch=self.epoch,
            tokens=self.tokens,
            digest=self.digest,
            generations=generations,
        )

    def _begin(self, generation: GenerationId | None) -> None:
        self.generation = generation
        self.next_seq = 0
        self.finished = self.stopped = False
        self._generate_command = None

    def _command(self) -> CommandId:
        return CommandId(self._next_command())
