"""What nodes may compute: only sessions that are theirs, within leases and windows."""

from __future__ import annotations

from bus.event_window import WINDOW_EVENTS
from bus.ids import Epoch, GenerationId, SessionId
from bus.messages.link import (
    Declined,
    GenerateReq,
    LeaseGrant,
    Lost,
    Reconcile,
    ReconcileAck,
    Refused,
    SessionAssign,
    WatermarkAck,
)
from bus.messages.worker import Submit
from tests.harness.memory_node import NodeHost
from tests.harness.memory_worker import TOKEN_BITS
from tests.sim.world.record import Record, Violation

#: A fence may come so late: a turn of the loop.
FENCE_S = 0.05


class NodeRules:
    """Args: the record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        #: By node: what it answered to the latest Reconcile.
        self.reconciled: dict[str, list[ReconcileAck]] = {}
        #: Links are being cut when everything is over: nothing may be left to reconcile.
        self.must_agree = False
        #: Links on which a node has the whole list of the head.
        self._listed: set[int] = set()
        #: By node: the sessions of the head's latest list.
        self._views: dict[str, dict[SessionId, Epoch]] = {}

    # --- what nodes and head are told -----------------------------------------------------------

    def node_took(self, node: NodeHost, link_id: int, message: object, now: float) -> None:
        record, name = self._record, node.name
        match message:
            case SessionAssign():
                if link_id not in self._listed:
                    return  # Before the head has said what it means: to be refused.
                place = record.assigned.setdefault((message.session, message.epoch), name)
                if place != name:
                    raise Violation(f"epoch {message.epoch:x} is on {place} and on {name}")
                lease = (name, message.session, message.epoch)
                until = now + message.lease_ms / 1000 / node.rate
                record.leases[lease] = max(until, record.leases.get(lease, 0.0))
            case LeaseGrant():
                until = node.true_time(message.sent_at_s + message.lease_ms / 1000)
                for ref in message.leases:
                    lease = (name, ref.session, ref.epoch)
                    former = record.leases.get(lease, until)
                    if now >= former:
                        record.lapsed.add(lease)
                    record.leases[lease] = max(until, former)
            case GenerateReq():
                run = record.runs.get(message.generation)
                if run is None or run.row.node != name or run.row.epoch != message.epoch:
                    raise Violation(f"{name} was given a generation that is not its own")
                run.read_late |= run.row.worker != record.node(name).worker
            case WatermarkAck():
                for mark in message.watermarks:
                    self._acknowledged(mark.generation, mark.committed)
            case Reconcile():
                if not message.more:
                    self._listed.add(link_id)
                if not message.page:
                    self._views[name] = {}
                for view in message.sessions:
                    self._views[name][view.session] = view.epoch
                    for known in view.generations:
                        self._acknowledged(known.generation, known.committed)

    def _acknowledged(self, generation: GenerationId, committed: int) -> None:
        acknowledged = self._record.acknowledged
        acknowledged[generation] = max(committed, acknowledged.get(generation, 0))

    def head_died(self) -> None:
        """What it heard of runs that it had not replaced on disk is known to nobody."""
        for answer in self._record.answers.values():
            if answer.latest is not None and answer.finish is None:
                answer.latest.declined = False

    def head_took(self, node: str, message: object, now: float) -> None:
        match message:
            case Lost() | Declined():
                run = self._record.runs.get(message.generation)
                if run is not None:
                    run.given_up = True
                    run.declined = isinstance(message, Declined)
            case Refused():
                generation = self._record.epochs.get(message.epoch)
                if generation is not None:
                    self._record.runs[generation].given_up = True
            case ReconcileAck():
                if not message.page:
                    self.reconciled[node] = []
                self.reconciled[node].append(message)
                if not message.more:
                    self._record.node(node).has_reconciled = True
                    self._check_held(node, now)
                if self.must_agree and self._is_left(message):
                    raise Violation(f"{node} had something left when all was over: {message}")

    def _check_held(self, node: str, now: float) -> None:
        """What the head has placed on a node is there, for as long as its lease runs."""
        pages = self.reconciled[node]
        held = {(view.session, view.epoch) for page in pages for view in page.sessions}
        for session, epoch in self._views[node].items():
            lease = (node, session, epoch)
            until = self._record.leases.get(lease, 0.0)
            is_over = now >= until - FENCE_S or lease in self._record.lapsed
            if (session, epoch) not in held and not is_over:
                raise Violation(f"{node} has lost session {session}, whose lease runs on")

    def _is_left(self, message: ReconcileAck) -> bool:
        """Whether a node still has what is over; a made session may be given up when it is idle."""
        record = self._record
        dropped = {ref.session for ref in message.dropped}
        is_over = dropped - record.contexts.keys() or dropped & record.ended
        return bool(is_over) or any(view.generations for view in message.sessions)

    # --- what workers do ----------------------------------------------------------------------

    def submitted(self, node: NodeHost, submit: Submit, now: float) -> None:
        run = self._record.runs.get(submit.generation)
        if run is None:
            raise Violation(f"{node.name} runs generation {submit.generation:x}: never placed")
        run.submitted = True
        row, plan = run.row, run.answer.plan
        if row.node != node.name:
            raise Violation(f"generation {row.generation:x} of {row.node} runs on {node.name}")
        if submit.context != run.answer.context(row.first_offset):
            raise Violation(f"{node.name} runs {plan and plan.name} on a wrong context")
        if plan is None:
            return
        asked = (submit.sampling.seed, submit.max_new_tokens, submit.generated_tokens)
        if asked != (plan.seed, plan.max_new - row.first_offset, row.first_offset):
            raise Violation(f"{node.name} runs {plan.name} with wrong options: {submit}")
        covered = sum(segment.tokens for segment in submit.segments)
        by_step = sum(segment.tokens for segment in submit.segments if segment.by_step)
        if submit.segments and covered != len(submit.context) // 4:
            raise Violation("segments do not cover the context")
        wanted = plan.by_step + row.first_offset if plan.exact else 0
        if by_step != wanted:
            raise Violation(f"{by_step} tokens are computed by step, not {wanted}")

    def computed(self, node: NodeHost, generation: GenerationId, index: int, now: float) -> None:
        record = self._record
        run = record.runs[generation]
        record.made[generation] = max(index + 1, record.made.get(generation, 0))
        kept = index + 1 - record.acknowledged.get(generation, 0)
        if kept > WINDOW_EVENTS:
            raise Violation(f"{node.name} keeps {kept} events of one generation")
        facts = record.node(node.name)
        if facts.paused_since is not None or now - facts.resumed_s < FENCE_S:
            return  # Its agent can not fence while it is stopped.
        until = record.leases.get((node.name, run.row.session, run.row.epoch))
        if until is None or now > until + FENCE_S:
            raise Violation(f"{node.name} computes {now - (until or 0):.1f} s after its lease")

    def worker_died(self, name: str, running: list[GenerationId]) -> None:
        for answer in self._record.answers.values():
            run = answer.latest
            if run is None or run.submitted or answer.finish is not None or run.row.node != name:
                continue
            # Its node has the session and not the generation: the head can not tell why.
            if (run.row.session, run.row.epoch) in self._record.assigned and not run.declined:
                answer.deaths += 1
        for generation in running:
            run = self._record.runs.get(generation)
            if run is None:
                continue
            run.answer.deaths += 1

    def mark(self, generation: GenerationId) -> int:
        return self._record.mark(generation)


__all__ = ["TOKEN_BITS", "NodeRules"]
