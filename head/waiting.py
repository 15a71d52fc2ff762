"""Answers that wait for a node: one queue per model, placed whenever something may have changed.

Work waits here and not at nodes. An answer that no node can take now is refused with every node's
reason, unless a node may be about to take it: the head or a link is new, the model loads, or a
node declined for a reason that passes. One that was running and lost its node waits for another
for `failover_wait_s` before it ends with `node_lost`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bus.capabilities import BLOBS, SAMPLING
from bus.errors import Expired, Internal, NodeLost, NoNode, SuperfluidError
from bus.ids import ModelName, NodeIdentity, NumericsId
from bus.messages.api import QueuedEvent
from bus.timers import Timers
from head.answers import QUEUED, Answer
from head.book import AnswerBook
from head.fleet import Fleet
from head.outbox import Outbox
from head.placement import Placement, place
from head.queueing import DEFAULT_LIMIT, Entry, RequestQueue
from head.snapshot import FleetSnapshot, PlacementRequest
from head.texts import TextDesk

#: How long a node that declined for a passing reason is left alone by the answer, and how often.
REST_S = 0.25
MAX_RESTS = 40
#: How soon a queue whose answers wait for a node is looked at again; statuses come in between.
RECHECK_S = 1.0

#: Starts an answer on the node that was chosen.
Start = Callable[[Answer, NodeIdentity, float], None]
#: The node that holds an answer's session already, if one does.
Holder = Callable[[Answer], NodeIdentity | None]
#: The nodes on which an answer that is set apart of this model stands alone for now.
SetApart = Callable[[ModelName], frozenset[NodeIdentity]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPolicy:
    """Which node is chosen, how many may wait, and how long for a node that may come."""

    placement: str = "load-aware"
    queue_limit: int = DEFAULT_LIMIT
    node_wait_s: float = 10.0


class WaitingLine:
    """Owned by the core's runs. Invariant: exactly the answers in stage QUEUED are in a queue."""

    def __init__(
        self,
        *,
        policy: WaitingPolicy,
        now: float,
        outbox: Outbox,
        book: AnswerBook,
        fleet: Fleet,
        texts: TextDesk,
        timers: Timers,
        start: Start,
        holder: Holder,
        set_apart_on: SetApart,
        failover_wait_s: float,
    ) -> None:
        self._policy = policy
        self._failover_wait_s = failover_wait_s
        self._holder = holder
        self._set_apart_on = set_apart_on
        self._outbox = outbox
        self._book = book
        self._fleet = fleet
        self._texts = texts
        self._timers = timers
        self._start = start
        self._queues: dict[ModelName, RequestQueue] = {}
        #: The one timer of each queue that looks again, and when it is due.
        self._rechecks: dict[ModelName, tuple[int, float]] = {}
        #: Until then nodes may be on their way: the head or a link to a node is new.
        self._settled_s = now + policy.node_wait_s

    def counts(self) -> dict[ModelName, int]:
        """How many answers wait, by model."""
        return {model: len(queue) for model, queue in self._queues.items() if len(queue)}

    def add(self, answer: Answer, now: float) -> None:
        """Let an answer wait for a node, or place it at once.

        Raises:
            QueueFull: the model's queue holds all it may.
        """
        queue = self._queues.get(answer.model)
        if queue is None:
            queue = RequestQueue(answer.model, self._policy.queue_limit)
            self._queues[answer.model] = queue
        expires_s = answer.accepted_s + answer.wall_ms / 1000 if answer.wall_ms else math.inf
        entry = Entry(
            answer=answer.id,
            owner=answer.owner,
            qos=answer.qos,
            cost_tokens=answer.context_tokens + answer.remaining,
            queued_s=answer.accepted_s,
            expires_s=expires_s,
        )
        queue.readmit(entry) if answer.stored else queue.push(entry)
        answer.stage = QUEUED
        if answer.key is not None or answer.is_turn:
            self._book.store(answer)
        self.schedule(answer.model, now)
        if answer.stage == QUEUED:
            self._announce_queued(answer, queue)
            if answer.wall_ms:
                answer.budget_timer = self._timers.at(expires_s, lambda at: self._expire(queue, at))

    def remove(self, answer: Answer) -> None:
        """Take an answer out that ends for another reason."""
        self._timers.cancel(answer.budget_timer)
        queue = self._queues.get(answer.model)
        if queue is not None:
            queue.remove(answer.id)

    def unsettle(self, now: float) -> None:
        """A node's link ended: it may come back."""
        self._settled_s = max(self._settled_s, now + self._policy.node_wait_s)

    def rest(
        self, answer: Answer, node: NodeIdentity, incarnation: int, why: str, now: float
    ) -> None:
        """Leave a node alone for a moment that declined for a passing reason."""
        answer.rests[node] = answer.rests.get(node, 0) + 1
        if answer.rests[node] > MAX_RESTS:
            answer.tried[node] = (incarnation, why)
            return

        def rested(at: float) -> None:
            answer.resting.pop(node, None)
            self.recheck(answer.model, at)

        answer.resting[node] = why
        self._timers.at(now + REST_S, rested)

    def where(self, answer: Answer, now: float) -> Placement:
        """Where an answer that runs could go on at once; nothing changes."""
        return self._place(answer, now)

    def recheck(self, model: ModelName, at: float) -> None:
        """Look at a model's queue again at a time; of several the earliest counts."""
        pending = self._rechecks.get(model)
        if pending is not None:
            if pending[1] <= at:
                return
            self._timers.cancel(pending[0])

        def look(now: float) -> None:
            del self._rechecks[model]
            self.schedule(model, now)

        self._rechecks[model] = (self._timers.at(at, look), at)

    def schedule_all(self, now: float) -> None:
        for model in list(self._queues):
            self.schedule(model, now)

    def schedule(self, model: ModelName, now: float) -> None:
        """Place what can be placed of one model's queue, in its order."""
        queue = self._queues.get(model)
        while queue is not None and len(queue):
            before = len(queue)
            if not self._schedule_some(model, queue, now) or len(queue) == before:
                return

    def _schedule_some(self, model: ModelName, queue: RequestQueue, now: float) -> bool:
        """Try the queue's next candidates; False when there is no room for any more."""
        for entry in queue.candidates():
            answer = self._book.get(entry.answer)
            if answer is None:
                raise ValueError(f"answer {entry.answer} waits and is in no book")
            placement = self._place(answer, now)
            if placement.node is not None:
                queue.take(entry.answer, now)
                self._timers.cancel(answer.budget_timer)
                self._start(answer, placement.node, now)
            elif placement.error is not None and not self._may_wait(answer, placement.error, now):
                self.remove(answer)
                self._book.end(answer, "error", now, self._no_place(answer, placement, now))
            elif not self._fleet.has_room(model):
                return False
        return True

    def _may_wait(self, answer: Answer, error: SuperfluidError, now: float) -> bool:
        """Whether a node may come in time for an answer that no node can take now."""
        if answer.resting:
            return True
        if self._avoided(answer):
            self.recheck(answer.model, now + RECHECK_S)
            return True
        if answer.failed_s is not None:
            until = answer.failed_s + self._failover_wait_s
            if now < until:
                self.recheck(answer.model, min(until, now + RECHECK_S))
            return now < until
        if not isinstance(error, NoNode):
            return False
        until = answer.accepted_s + self._policy.node_wait_s
        settling = now < self._settled_s and not answer.tried
        coming = settling or self._fleet.loading(answer.model)
        if not coming or now >= until:
            return False
        self.recheck(answer.model, min(until, max(self._settled_s, now + RECHECK_S)))
        return True

    def _expire(self, queue: RequestQueue, now: float) -> None:
        for entry in queue.expired(now):
            answer = self._book.get(entry.answer)
            if answer is not None and answer.tokens:
                self._book.end(answer, "expired", now)
            elif answer is not None:
                error = Expired(
                    f"the wall budget of {answer.wall_ms} ms ended while the request waited for "
                    "a node; give it a larger max_wall_ms, or add a node"
                )
                self._book.end(answer, "error", now, error)

    def _place(self, answer: Answer, now: float) -> Placement:
        digest = self._texts.digest(answer.model)
        request = PlacementRequest(
            model=answer.model,
            prompt_tokens=answer.context_tokens,
            expected_tokens=answer.remaining,
            tokenizer_digest=digest,
            prefer_numerics=NumericsId(answer.numerics if answer.tokens else ""),
            excluded=frozenset(self._refusals(answer)) | self._avoided(answer),
            needs=_needs(answer),
        )
        snapshot = self._fleet.snapshot(answer.model, digest, now)
        holder = self._holder(answer)
        if holder is not None and _has_free_lane(snapshot, holder, request):
            return Placement(holder, (), None)
        return place(self._policy.placement, snapshot, request)

    def _refusals(self, answer: Answer) -> dict[NodeIdentity, str]:
        """The nodes that an answer does not go to now, with why. One that restarted is new."""
        tried = {
            node: why
            for node, (incarnation, why) in answer.tried.items()
            if (known := self._fleet.get(node)) and known.incarnation == incarnation
        }
        return tried | answer.resting

    def _avoided(self, answer: Answer) -> frozenset[NodeIdentity]:
        if not answer.suspicion.set_apart:
            return frozenset()
        return self._set_apart_on(answer.model)

    def _no_place(self, answer: Answer, placement: Placement, now: float) -> SuperfluidError:
        error = placement.error or Internal("no placement and no reason")
        refusals = self._refusals(answer)
        said = "; ".join(f"{node}: {why}" for node, why in sorted(refusals.items()))
        if answer.failed_s is not None:
            return self._node_lost(answer, said or error.message, now)
        if isinstance(error, NoNode) and refusals:
            return NoNode(f"every node declined the request ({said})", details=error.details)
        return error

    def _node_lost(self, answer: Answer, why_none: str, now: float) -> NodeLost:
        offset = len(answer.tokens)
        waited_s = now - (answer.failed_s or now)
        return NodeLost(
            f"{answer.failure} after {offset} tokens of the answer, and within {waited_s:.0f} s no "
            f"node could go on ({why_none}); the tokens are kept: attach with session "
            f"{answer.session}, or ask again",
            details={"offset": offset, "session": answer.session},
        )

    def _announce_queued(self, answer: Answer, queue: RequestQueue) -> None:
        position = queue.position(answer.id) or 0
        for subscription in answer.subscriptions:
            self._outbox.reply(subscription.event(QueuedEvent(position=position)))


def _needs(answer: Answer) -> tuple[str, ...]:
    """The capabilities that a node must have to run it as asked."""
    wanted = {BLOBS: bool(answer.blobs), SAMPLING: not answer.sampling.is_plain}
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def _has_free_lane(
    snapshot: FleetSnapshot, identity: NodeIdentity, request: PlacementRequest
) -> bool:
    """Whether a node, which holds the request's session, could begin with it at once."""
    one = FleetSnapshot(nodes=tuple(n for n in snapshot.nodes if n.identity == identity))
    found = place("least-loaded", one, request).node is not None
    return found and all(
        node.serving is not None and node.serving.in_flight < node.serving.lanes_total
        for node in one.nodes
    )
