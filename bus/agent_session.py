"""All sessions of one node, seen from the node: what it holds, computes and still has to say.

    assign(epoch) ──▶ held ──append──▶ held ──generate──▶ running ──finish──▶ held
                        │                                   │
                        └── lease over ──▶ fenced ◀─────────┘   only a higher epoch lifts a fence
    revoke, link down ──▶ gone

Safety rests on epochs, which the head alone checks. The node's part is to never mix them: what
belongs to an epoch ends with it, and a fenced epoch emits nothing ever again. The head's log is
the truth about a context: tokens that a generation made join it only when the head appends them.

A link that goes down ends every session of the node at once; taking them up again over the next
link is not implemented yet, so the head assigns them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bus.agent_records import (
    Action,
    Generation,
    Held,
    SendToHead,
    SubmitToWorker,
    ToWorker,
    declined,
    need_full,
)
from bus.errors import Invalid
from bus.ids import Epoch, GenerationId, ModelName, SessionId, WorkerIncarnation
from bus.messages import link, worker
from bus.node_leases import NodeLeases

#: The lowest class of service; what lies above counts as it.
QOS_LOWEST = 3

#: Reasons of Refused and Declined beside the codes of bus/errors.py.
STALE_EPOCH = "stale_epoch"
UNKNOWN_SESSION = "unknown_session"
UNKNOWN_EPOCH = "unknown_epoch"
FENCED = "fenced"
CONTEXT_MISMATCH = "context_mismatch"
WORKER_LOST = "worker_lost"
#: The worker of a Lost that is not about a worker's death.
NO_WORKER = WorkerIncarnation(0)


class AgentSession:
    """The sessions of one node under one head. Does no I/O; driven by the node's core.

    Feed it messages, worker events and time; take `actions` after each and carry them out in
    order. Invariant: a generation belongs to exactly one held session and its present epoch.
    """

    def __init__(self) -> None:
        self._held: dict[SessionId, Held] = {}
        self._generations: dict[GenerationId, Generation] = {}
        self._leases = NodeLeases()
        self._actions: list[Action] = []
        self._highest_epoch = Epoch(0)
        self._commands: dict[type, Callable[[Any, float], None]] = {
            link.SessionAssign: self._assign,
            link.SessionRevoke: self._revoke,
            link.AppendContent: self._append,
            link.GenerateReq: self._generate,
            link.GenerateCancel: self._cancel,
            link.WatermarkAck: self._acknowledge,
            link.LeaseGrant: self._grant,
        }

    # --- what it shows ------------------------------------------------------------------------

    @property
    def highest_epoch(self) -> Epoch:
        """The highest epoch it ever saw."""
        return self._highest_epoch

    @property
    def is_generating(self) -> bool:
        """Whether any generation has not finished yet."""
        return any(found.is_running for found in self._generations.values())

    def held(self) -> tuple[link.LeaseRef, ...]:
        """Sessions that are not fenced, with their epochs."""
        return tuple(
            link.LeaseRef(session=held.session, epoch=held.epoch)
            for held in self._held.values()
            if not held.fenced
        )

    def actions(self) -> list[Action]:
        """What to do since the last call, in order."""
        taken, self._actions = self._actions, []
        return taken

    # --- events -------------------------------------------------------------------------------

    def receive(self, message: object, now: float) -> bool:
        """Take a Link-F message; False when it is none about sessions."""
        handle = self._commands.get(type(message))
        if handle is None:
            return False
        handle(message, now)
        return True

    def link_up(self, now: float) -> None:
        """A link to the head is up; it begins without sessions."""
        self._end_all()

    def link_down(self, now: float) -> None:
        """The link is gone; every session of it ends."""
        self._end_all()

    def worker_output(
        self, model: ModelName, incarnation: WorkerIncarnation, runs: Iterable[worker.OutputRun]
    ) -> None:
        """Take what a model's worker made; all runs leave as one message."""
        numbered = [
            made for run in runs if (made := self._number(model, incarnation, run)) is not None
        ]
        if numbered:
            self._send(link.TokenEvents(runs=tuple(numbered)))
        for run in numbered:
            self._pace(self._generations.get(run.generation))

    def worker_accepted(self, generation: GenerationId) -> None:
        """The worker has the submit of a generation; its death takes it along from now on."""
        found = self._generations.get(generation)
        if found is not None:
            found.accepted = True

    def worker_lost(self, model: ModelName, incarnation: WorkerIncarnation, reason: str) -> None:
        """A model's worker died, and its unfinished generations with it.

        What it had not accepted yet was not computed, and is declined.
        """
        for found in list(self._generations.values()):
            if found.model != model or not found.is_running:
                continue
            if found.accepted:
                self._lose(found, incarnation, reason)
            else:
                self.decline(found.generation, WORKER_LOST, f"its worker died: {reason}")

    def decline(
        self, generation: GenerationId, code: str, message: str, length: int = 0, limit: int = 0
    ) -> None:
        """The worker (or the node for it) can not run what was submitted.

        Args:
            length, limit: figures of the reason, as in `Declined`.
        """
        found = self._generations.get(generation)
        if found is None or found.accepted or not found.is_running:
            return
        self._forget(found)
        held = self._held[found.session]
        held.commands.pop(found.request.command, None)
        self._send(declined(found.request, code, message, length=length, limit=limit))

    def handle_timeout(self, now: float) -> None:
        """Fence what has no lease any more, then ask for the others."""
        for session in self._leases.expired(now):
            held = self._held[session]
            held.fenced = True
            unfinished = [self._generations[held.generation]] if held.generation else []
            self._end_generations(held)
            for found in unfinished:
                # No event of the epoch: without it a head that lives would wait for ever.
                self._lose(found, NO_WORKER, "its lease ran out before the head renewed it")
        for renewal in self._leases.renew(now):
            self._send(renewal)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due (seconds), or None."""
        return self._leases.next_timeout()

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        for found in self._generations.values():
            held = self._held.get(found.session)
            if held is None or held.epoch != found.epoch or held.fenced:
                raise ValueError(f"generation {found.generation} outlived its epoch")
            if found.is_running != (held.generation == found.generation):
                raise ValueError(f"generation {found.generation} runs unknown to its session")
            found.window.validate_state()
        for held in self._held.values():
            held.context.validate_state()
            if held.fenced == (held.session in self._leases):
                raise ValueError(f"session {held.session} is held without a lease")
            if held.generation is not None and held.generation not in self._generations:
                raise ValueError(f"session {held.session} runs a generation that is gone")

    # --- commands of the head -----------------------------------------------------------------

    def _assign(self, message: link.SessionAssign, now: float) -> None:
        held = self._held.get(message.session)
        if held is not None:
            if message.epoch < held.epoch:
                self._refuse(message, STALE_EPOCH, _why(STALE_EPOCH))
                return
            if message.command in held.commands:
                return
            if message.epoch == held.epoch and held.fenced:
                self._refuse(message, FENCED, _why(FENCED))
                return
        if held is None:
            held = self._held[message.session] = Held(session=message.session)
        if message.epoch > held.epoch:
            self._end_generations(held)
            held.fenced = False
        held.epoch, held.model = message.epoch, message.model
        held.qos = min(message.qos, QOS_LOWEST)
        held.applied(message.command)
        self._highest_epoch = max(self._highest_epoch, message.epoch)
        self._leases.start(held.session, held.epoch, since=now, length_s=message.lease_ms / 1000)

    def _revoke(self, message: link.SessionRevoke, now: float) -> None:
        held = self._held.get(message.session)
        if held is None:
            return
        if message.epoch < held.epoch:
            self._refuse(message, STALE_EPOCH, _why(STALE_EPOCH))
            return
        self._end_generations(held)
        self._leases.end(held.session)
        del self._held[held.session]

    def _append(self, message: link.AppendContent, now: float) -> None:
        held = self._held_for(message)
        if isinstance(held, str):
            self._refuse(message, held, _why(held))
            return
        if message.command in held.commands:
            return
        try:
            matched = held.extend(message)
        except Invalid as error:
            self._refuse(message, error.code, error.message)
            return
        if matched:
            held.applied(message.command)
            return
        self._send(need_full(message.command, held))

    def _generate(self, message: link.GenerateReq, now: float) -> None:
        held = self._held_for(message)
        if isinstance(held, str):
            self._send(declined(message, held, _why(held)))
            return
        if message.command in held.commands:
            self._send_again(message.generation)
            return
        if held.generation is not None:
            why = "a generation of this session runs already; cancel it first"
            self._send(declined(message, "session_busy", why))
            return
        if message.generation in self._generations:
            why = "this generation id is in use; take a new one"
            self._send(declined(message, "invalid", why))
            return
        expected = message.prompt_tokens + message.generated_tokens
        if held.incomplete or expected != len(held.context):
            why = (
                f"the node holds {len(held.context)} tokens of this session and the request is "
                f"for {expected}; append the whole context"
            )
            self._send(declined(message, CONTEXT_MISMATCH, why))
            return
        held.applied(message.command)
        self._start(held, message)

    def _start(self, held: Held, message: link.GenerateReq) -> None:
        generation = Generation(request=message, model=held.model)
        self._generations[message.generation] = generation
        held.generation = message.generation
        self._actions.append(SubmitToWorker(model=held.model, submit=generation.submit(held)))

    def _cancel(self, message: link.GenerateCancel, now: float) -> None:
        held = self._held_for(message)
        if isinstance(held, str):
            self._refuse(message, held, _why(held))
            return
        held.applied(message.command)
        # One that has just finished needs no cancel: its finish is on its way to the head.
        if held.generation == message.generation:
            cancel = worker.Cancel(generation=message.generation)
            self._actions.append(ToWorker(model=held.model, message=cancel))

    def _acknowledge(self, message: link.WatermarkAck, now: float) -> None:
        for mark in message.watermarks:
            found = self._generations.get(mark.generation)
            if found is None:
                continue
            found.window.acknowledge(mark.committed)
            if found.window.is_acknowledged:
                self._forget(found)
            else:
                self._pace(found)

    def _grant(self, message: link.LeaseGrant, now: float) -> None:
        self._leases.grant(message, now)

    # --- token events -------------------------------------------------------------------------

    def _number(
        self, model: ModelName, incarnation: WorkerIncarnation, run: worker.OutputRun
    ) -> link.TokenRun | None:
        """The run under its event numbers; None when it is of no living generation."""
        found = self._generations.get(run.generation)
        if found is None or found.model != model or not found.is_running:
            return None
        if run.first_index != found.window.tokens:
            self._actions.append(
                ToWorker(model=model, message=worker.Cancel(generation=run.generation))
            )
            why = f"the worker sent token {run.first_index} when {found.window.tokens} was next"
            self._lose(found, incarnation, why)
            return None
        first_seq = found.window.tokens
        found.accepted = True
        found.window.add(run.ids, run.finish)
        if run.finish is not None:
            self._held[found.session].generation = None
        return found.token_run(first_seq, run.ids, run.finish)

    def _send_again(self, generation: GenerationId) -> None:
        """What the head may not have; nothing when it acknowledged all of it."""
        found = self._generations.get(generation)
        if found is None:
            return
        first_seq, ids, finish = found.window.retained()
        if ids or finish is not None:
            self._send(link.TokenEvents(runs=(found.token_run(first_seq, ids, finish),)))

    def _pace(self, found: Generation | None) -> None:
        """Pause the worker when much is unacknowledged, let it go on when little is."""
        if found is None:
            return
        if found.window.wants_pause():
            found.window.paused = True
            pause = worker.Pause(generation=found.generation)
            self._actions.append(ToWorker(model=found.model, message=pause))
        elif found.window.wants_resume():
            found.window.paused = False
            resume = worker.Resume(generation=found.generation)
            self._actions.append(ToWorker(model=found.model, message=resume))

    def _lose(self, found: Generation, incarnation: WorkerIncarnation, reason: str) -> None:
        self._forget(found)
        self._send(
            link.Lost(
                session=found.session,
                epoch=found.epoch,
                generation=found.generation,
                worker=incarnation,
                reason=reason,
            )
        )

    # --- endings ------------------------------------------------------------------------------

    def _end_generations(self, held: Held) -> None:
        """Stop and forget every generation of a session, finished ones too."""
        for found in [g for g in self._generations.values() if g.session == held.session]:
            if found.is_running:
                cancel = worker.Cancel(generation=found.generation)
                self._actions.append(ToWorker(model=found.model, message=cancel))
            self._forget(found)

    def _forget(self, found: Generation) -> None:
        self._generations.pop(found.generation, None)
        held = self._held.get(found.session)
        if held is not None and held.generation == found.generation:
            held.generation = None

    def _end_all(self) -> None:
        for held in self._held.values():
            self._end_generations(held)
        self._held.clear()
        self._leases.clear()

    # --- answers ------------------------------------------------------------------------------

    def _send(self, message: object) -> None:
        self._actions.append(SendToHead(message=message))

    def _held_for(
        self, message: link.AppendContent | link.GenerateReq | link.GenerateCancel
    ) -> Held | str:
        """The session that a command is for, or why it can not be applied."""
        held = self._held.get(message.session)
        if held is None:
            return UNKNOWN_SESSION
        if message.epoch != held.epoch:
            return STALE_EPOCH if message.epoch < held.epoch else UNKNOWN_EPOCH
        return FENCED if held.fenced else held

    def _refuse(self, message: Any, code: str, why: str) -> None:
        held = self._held.get(message.session)
        self._send(
            link.Refused(
                command=message.command,
                session=message.session,
                epoch=message.epoch,
                code=code,
                message=why,
                known_epoch=Epoch(0) if held is None else held.epoch,
            )
        )


def _why(code: str) -> str:
    return {
        UNKNOWN_SESSION: "the node does not hold this session; assign it first",
        STALE_EPOCH: "a higher epoch was assigned here",
        UNKNOWN_EPOCH: "this epoch was not assigned here; assign it first",
        FENCED: "its lease ran out; assign a higher epoch",
    }[code]
