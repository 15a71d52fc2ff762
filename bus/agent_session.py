"""All sessions of one node, seen from the node: what it holds, computes and still has to say.

    assign(epoch) ──▶ held ──append──▶ held ──generate──▶ running ──finish──▶ held
                        │                                   │
                        └── lease over ──▶ fenced ◀─────────┘   only a higher epoch lifts a fence
    revoked, not listed by the head of a new link, another head ──▶ gone

Safety rests on epochs, which the head alone checks. The node's part is to never mix them: what
belongs to an epoch ends with it, and a fenced epoch emits nothing ever again. The head's log is
the truth about a context: tokens that a generation made join it only when the head appends them.

A link that goes down ends no session: generations run on into their windows and leases by the
clock. On the next link the head says first what it still means (bus/agent_reconcile.py), and until
it has said all of that, nothing about sessions is sent. What would have been said meanwhile is
dropped: the events stay in their windows, and everything else is in the answer to the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bus.agent_commands import SessionCommands
from bus.agent_generations import RETAINED_BYTES, NodeGenerations
from bus.agent_parking import NodeParking
from bus.agent_reconcile import ReconcilePages, ack_pages, events_again, held_view, keep_listed
from bus.agent_records import (
    Action,
    ActionQueue,
    Generation,
    Held,
    SendToHead,
    declined,
    lost,
)
from bus.errors import WireError
from bus.ids import Epoch, GenerationId, ModelName, SessionId, WorkerIncarnation
from bus.link import goodbye_text
from bus.messages import link, parts, worker
from bus.node_leases import NodeLeases

#: The worker of a Lost that is not about a worker's death.
NO_WORKER = WorkerIncarnation(0)
#: What it takes beside commands.
_ABOUT_SESSIONS = (link.Reconcile, link.WatermarkAck, link.LeaseGrant)


class AgentSession:
    """The sessions of one node under one head. Does no I/O; driven by the node's core.

    Feed it messages, worker events and time; take `actions` after each and carry them out in
    order. Invariant: a generation belongs to exactly one held session and its present epoch.

    Args:
        retained_limit: bytes of unacknowledged events in all, where every generation pauses.
    """

    def __init__(self, *, retained_limit: int = RETAINED_BYTES) -> None:
        self._held: dict[SessionId, Held] = {}
        self._actions = ActionQueue()
        self._generations = NodeGenerations(self._actions.do, retained_limit=retained_limit)
        self._leases = NodeLeases()
        self.parking = NodeParking(self._actions)
        self._commands = SessionCommands(
            self._held, self._generations, self._leases, self.parking, self._actions
        )
        self._head: str | None = None
        #: The head of the present link has said what it means, and may be told of sessions.
        self._is_reconciled = False
        #: The head broke the protocol; nothing more is taken from it over this link.
        self._is_refused = False
        self._pages = ReconcilePages()

    # --- what it shows ------------------------------------------------------------------------

    @property
    def highest_epoch(self) -> Epoch:
        """The highest epoch it ever saw."""
        return self._commands.highest_epoch

    @property
    def is_generating(self) -> bool:
        """Whether any generation has not finished yet."""
        return self._generations.is_generating

    @property
    def retained_bytes(self) -> int:
        """Bytes of events that no head has acknowledged."""
        return self._generations.retained_bytes

    def blobs_of(self, generation: GenerationId) -> tuple[parts.BlobRef, ...]:
        """The files that a generation names."""
        found = self._generations.get(generation)
        return () if found is None else found.request.blobs

    def blobs_in_use(self) -> set[bytes]:
        """Hashes of the files that running generations name."""
        running = (found for found in self._generations if found.is_running)
        return {blob.sha256 for found in running for blob in found.request.blobs}

    def held(self) -> tuple[parts.LeaseRef, ...]:
        """Sessions that are not fenced, with their epochs."""
        return tuple(held.ref for held in self._held.values() if not held.fenced)

    def actions(self) -> list[Action]:
        """What to do since the last call, in order."""
        return self._actions.take()

    # --- the link -----------------------------------------------------------------------------

    def link_up(self, head: str, now: float) -> None:
        """A link is up; another head than the last one finds nothing of that one's.

        Args:
            head: its identity.
        """
        if self._head is not None and self._head != head:
            for held in list(self._held.values()):
                self._commands.drop(held)
        self._head = head
        self._be_silent()

    def link_down(self, now: float) -> None:
        """The link is gone; the sessions go on without it."""
        self._be_silent()

    def _be_silent(self) -> None:
        """Nothing for the head goes out, also of what waits, before it has reconciled."""
        self._is_reconciled = self._is_refused = False
        self._pages = ReconcilePages()
        self._leases.link_lost()
        self._actions.silence()

    def receive(self, message: object, now: float) -> bool:
        """Take a Link-F message; False when it is none about sessions."""
        command = self._commands.handlers.get(type(message))
        if command is None and not isinstance(message, _ABOUT_SESSIONS):
            return False
        if self._is_refused:
            return True
        if command is not None:
            self._command(command, message, now)
            return True
        match message:
            case link.Reconcile():
                self._reconcile(message, now)
            case link.WatermarkAck():
                self._acknowledge(message)
            case link.LeaseGrant():
                self._leases.grant(message, now)
        return True

    def _command(self, apply: Callable[[Any, float], None], message: object, now: float) -> None:
        if self._is_reconciled:
            apply(message, now)
        else:
            name = type(message).__name__
            self._refuse_head(f"a {name} came before the last page of Reconcile")

    def _acknowledge(self, message: link.WatermarkAck) -> None:
        for mark in message.watermarks:
            found = self._generations.get(mark.generation)
            if found is not None:
                self._generations.acknowledge(found, mark.committed)

    def _refuse_head(self, why: str) -> None:
        """End the link: the other side does so at a Goodbye, and it is made again."""
        self._be_silent()
        self._is_refused = True
        goodbye = link.Goodbye(reason=goodbye_text("protocol", why))
        self._actions.do(SendToHead(message=goodbye))

    def _reconcile(self, message: link.Reconcile, now: float) -> None:
        try:
            listed = self._pages.add(message)
        except WireError as error:
            self._refuse_head(error.message)
            return
        if listed is None:
            return
        self.parking.keep(self._pages.parked)
        self._pages = ReconcilePages()
        self._fence_expired(now)
        dropped = [held for held in self._held.values() if not held.is_listed(listed)]
        for held in dropped:
            self._commands.drop(held)
        kept = {
            held.session: keep_listed(held, listed[held.session], self._generations)
            for held in self._held.values()
        }
        self._is_reconciled = True
        self._actions.open()
        views = [held_view(held, kept[held.session]) for held in self._held.values()]
        for page in ack_pages(views, [held.ref for held in dropped]):
            self._actions.send(page)
        for events in events_again(found for each in kept.values() for found in each):
            self._actions.send(events)
        for renewal in self._leases.link_found(now):
            self._actions.send(renewal)

    # --- workers ------------------------------------------------------------------------------

    def worker_output(
        self, model: ModelName, incarnation: WorkerIncarnation, runs: Iterable[worker.OutputRun]
    ) -> None:
        """Take what a model's worker made; all runs leave as one message."""
        numbered = [
            made for run in runs if (made := self._number(model, incarnation, run)) is not None
        ]
        if numbered:
            self._actions.send(link.TokenEvents(runs=tuple(numbered)))
        for made in numbered:
            found = self._generations.get(made.generation)
            if found is not None:
                self._generations.pace(found)
        self._generations.pace_all()

    def _number(
        self, model: ModelName, incarnation: WorkerIncarnation, run: worker.OutputRun
    ) -> parts.TokenRun | None:
        """The run under its event numbers; None when it is of no living generation."""
        found = self._generations.heard_from(model, run)
        if found is None:
            return None
        why = ""
        if run.first_index != found.window.tokens:
            why = f"the worker sent token {run.first_index} when {found.window.tokens} was next"
        elif not found.window.fits(run.ids, run.logprobs):
            why = "the worker sent other log-probabilities than were asked for"
        if why:
            self._lose(found, incarnation, why, is_over=run.finish is not None)
            return None
        return self._generations.add(found, run)

    def worker_accepted(self, generation: GenerationId) -> None:
        """The worker has the submit of a generation; its death takes it along from now on."""
        found = self._generations.get(generation)
        if found is not None:
            found.accepted = True

    def worker_lost(self, model: ModelName, incarnation: WorkerIncarnation, reason: str) -> None:
        """A model's worker died, and its unfinished generations with it.

        Also those that it had not accepted: a worker that dies of a request at once takes its word
        that it accepted it along.
        """
        if self._generations.running_on(model):
            had = self._generations.on_worker(model)
            self._actions.send(link.WorkerDied(model=model, worker=incarnation, generations=had))
        for found in self._generations.running_on(model):
            self._lose(found, incarnation, reason, is_over=True)
        self._generations.worker_died(model)
        self.parking.worker_died(model, reason)

    def runs_on(self, model: ModelName) -> bool:
        """Whether a generation runs on a model's worker, or is about to."""
        return bool(self._generations.running_on(model))

    def model_gone(self, model: ModelName, reason: str) -> None:
        """The node gives a model up, whose worker is no reason for that: its generations move."""
        for found in self._generations.running_on(model):
            self._lose(found, NO_WORKER, reason, is_over=False)

    def chain_closed(
        self,
        model: ModelName,
        reason: str,
        notice: Callable[[tuple[GenerationId, ...]], object],
    ) -> None:
        """A model's worker goes on, but without all that it had: its generations move.

        Args:
            notice: makes what the head is told before, of all generations that the worker had.
        """
        self._actions.send(notice(self._generations.on_worker(model)))
        for found in self._generations.running_on(model):
            self._lose(found, NO_WORKER, reason, is_over=True)
        self._generations.worker_died(model)

    def decline(
        self, generation: GenerationId, code: str, message: str, length: int = 0, limit: int = 0
    ) -> None:
        """The worker (or the node for it) can not run what was submitted.

        Args:
            length, limit: figures of the reason, as in `Declined`.
        """
        found = self._generations.rejected(generation)
        if found is None:
            return
        self._give_up(found, is_over=True)
        self._actions.send(declined(found.request, code, message, length=length, limit=limit))

    def _lose(
        self, found: Generation, incarnation: WorkerIncarnation, reason: str, *, is_over: bool
    ) -> None:
        self._give_up(found, is_over=is_over)
        self._actions.send(lost(found.request, incarnation, reason))

    def _give_up(self, found: Generation, *, is_over: bool) -> None:
        """The head decides what follows; the same command again is a new one.

        Args:
            is_over: the worker has nothing more to say of it.
        """
        self._held[found.session].commands.pop(found.request.command, None)
        if is_over:
            self._generations.forget(found)
        else:
            self._generations.end(found)

    # --- time ---------------------------------------------------------------------------------

    def handle_timeout(self, now: float) -> None:
        """Fence what has no lease any more, then ask for the others."""
        self._fence_expired(now)
        for renewal in self._leases.renew(now):
            self._actions.send(renewal)

    def _fence_expired(self, now: float) -> None:
        for session in self._leases.expired(now):
            held = self._held[session]
            held.fenced = True
            found = self._generations.running_of(session)
            if found is not None:
                # No event of the epoch: without it a head that lives would wait for ever.
                why = "its lease ran out before the head renewed it"
                self._lose(found, NO_WORKER, why, is_over=False)
            self._generations.end_session(session)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due (seconds), or None."""
        return self._leases.next_timeout()

    # --- for tests ----------------------------------------------------------------------------

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        self._generations.validate_state()
        for held in self._held.values():
            held.context.validate_state()
            if held.fenced == (held.session in self._leases):
                raise ValueError(f"session {held.session} is held without a lease")
        for found in self._generations:
            owner = self._held.get(found.session)
            if owner is None or owner.epoch != found.epoch or owner.fenced:
                raise ValueError(f"generation {found.generation} outlived its epoch")
