"""Answers that wait for a node: one queue per model, placed whenever something may have changed.

Work waits here and not at nodes. An answer that no node can take now is refused with every node's
reason, unless a node may be about to take it: the head or a link is new, the model loads, or a
node declined for a reason that passes. One that was running and lost its node waits for another
for `failover_wait_s` before it ends with `node_lost`. One whose prefix a full node holds may wait
for that node while others are open (head/placement.py); those behind it go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from bus.errors import Expired, Internal, NodeLost, NoNode, SuperfluidError
from bus.ids import ModelName, NodeIdentity
from bus.messages.api import QueuedEvent
from bus.qos import LOWEST_CLASS, MAY_PREEMPT
from bus.timers import Timers
from head.affinity import Affinity, ContextOf
from head.answers import QUEUED, Answer
from head.book import AnswerBook
from head.fleet import RETURN_S, Fleet
from head.outbox import Outbox
from head.placement import DEFAULT_OPTIONS, Placement, PlacementOptions
from head.placer import Holder, Placer, SetApart
from head.queueing import DEFAULT_LIMIT, LOOK_AHEAD, Entry, RequestQueue
from head.snapshot import PlacementRequest
from head.texts import TextDesk

#: How long a node that declined for a passing reason is left alone by the answer, and how often.
REST_S = 0.25
MAX_RESTS = 40
#: How soon a queue whose answers wait for a node is looked at again; statuses come in between.
RECHECK_S = 1.0

#: Starts an answer on the node that was chosen.
Start = Callable[[Answer, NodeIdentity, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPolicy:
    """Which node is chosen, how many may wait, and how long for a node that may come."""

    placement: str = "load-aware"
    options: PlacementOptions = DEFAULT_OPTIONS
    return_s: float = RETURN_S
    queue_limit: int = DEFAULT_LIMIT
    node_wait_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A decision that was not carried out, with the model's queue and the place in it."""

    policy: str
    placement: Placement
    queue: RequestQueue | None
    position: int


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
        context_of: ContextOf,
        set_apart_on: SetApart,
        failover_wait_s: float,
    ) -> None:
        self._policy = policy
        self._failover_wait_s = failover_wait_s
        self._outbox = outbox
        self._book = book
        self._fleet = fleet
        self._timers = timers
        self._start = start
        self._affinity = Affinity(context_of)
        fleet.on_worker_gone = self._affinity.worker_gone
        self._placer = Placer(
            policy=policy.placement,
            options=policy.options,
            fleet=fleet,
            texts=texts,
            affinity=self._affinity,
            holder=holder,
            set_apart_on=set_apart_on,
        )
        self.wanted = self._placer.wanted
        self.where_at_once = self._placer.where_at_once
        self._queues: dict[ModelName, RequestQueue] = {}
        #: The one timer of each queue that looks again, and when it is due.
        self._rechecks: dict[ModelName, tuple[int, float]] = {}
        self._started_s = now
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
        expires_s = answer.budget_ends_s
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
        if self._placer.keeps_prefixes:
            self._affinity.queued(answer)
        self.schedule(answer.model, now)
        if answer.stage == QUEUED:
            self._refuse_hopeless(answer, now)
        if answer.stage == QUEUED:
            if answer.key is not None or answer.is_turn:
                self._book.store(answer)
            self._announce_queued(answer, queue)
            if answer.wall_ms:
                answer.budget_timer = self._timers.at(expires_s, lambda at: self._expire(queue, at))

    def remove(self, answer: Answer) -> None:
        """Take an answer out that ends for another reason."""
        self._timers.cancel(answer.budget_timer)
        self._affinity.ended(answer)
        queue = self._queues.get(answer.model)
        if queue is not None:
            queue.remove(answer.id)

    def place_on(self, answer: Answer, identity: NodeIdentity, now: float) -> None:
        """Run an answer on the node that was chosen; it is in no queue."""
        self._timers.cancel(answer.budget_timer)
        node = self._fleet.get(identity)
        if self._placer.keeps_prefixes and node is not None:
            self._affinity.started(answer, identity, node.models[answer.model].worker)
        self._start(answer, identity, now)

    def began(self, answer: Answer) -> None:
        """The first token came since an answer was placed."""
        self._affinity.began(answer)

    def finished(self, answer: Answer, cached_tokens: int) -> None:
        """A node ended an answer's generation, and says how much of its context it had."""
        self._affinity.finished(answer, cached_tokens)

    def ended(self, answer: Answer) -> None:
        """An answer is over, however it ended."""
        self._affinity.ended(answer)

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

    def explain(
        self, request: PlacementRequest, qos: int, now: float, holder: NodeIdentity | None = None
    ) -> Explained:
        """Where a request would go that came now, and who would go before it.

        Args:
            holder: the node that its session is on.
        """
        queue = self._queues.get(request.model)
        return Explained(
            policy=self._placer.policy,
            placement=self._placer.where_new(replace(request, qos=qos), now, holder),
            queue=queue,
            position=queue.would_wait_behind(qos, now) if queue is not None else 0,
        )

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
        awaited: Counter[NodeIdentity] = Counter()
        full_from = LOWEST_CLASS + 1
        for entry in queue.candidates(LOOK_AHEAD + self._affinity.preferring):
            if entry.qos >= full_from:
                continue
            answer = self._book.get(entry.answer)
            if answer is None:
                raise ValueError(f"answer {entry.answer} waits and is in no book")
            if (node := self._still_prefers(answer, now)) is not None:
                awaited[node] += 1
                continue
            placement = self._placer.where(answer, now, awaited)
            if placement.node is not None:
                queue.take(entry.answer, now)
                self.place_on(answer, placement.node, now)
            elif placement.waits_for is not None:
                awaited[placement.waits_for] += 1
                self._affinity.prefers(answer.id, placement.waits_for, placement.wait_s, now)
                self.recheck(model, now + placement.wait_s)
            elif placement.fails is not None and not self._may_wait(answer, placement.fails, now):
                self._refuse(answer, placement, now)
            elif not self._fleet.has_room(model, entry.qos, now):
                # Those that may take lanes from others may still find some.
                full_from = min(full_from, entry.qos, MAY_PREEMPT + 1)
                if full_from == 0:
                    return False
        return True

    def _refuse_hopeless(self, answer: Answer, now: float) -> None:
        """End an answer now that would be refused once those before it are gone."""
        placement = self._placer.where(answer, now)
        if placement.fails is not None and not self._may_wait(answer, placement.fails, now):
            self._refuse(answer, placement, now)

    def _refuse(self, answer: Answer, placement: Placement, now: float) -> None:
        self.remove(answer)
        self._book.end(answer, "error", now, self._no_place(answer, placement, now))

    def _still_prefers(self, answer: Answer, now: float) -> NodeIdentity | None:
        """The node that an answer goes on to wait for; None when it is to be placed anew.

        That is when any node that holds its prefix has a free lane, or it has waited long enough.
        """
        wanted = self._affinity.preference(answer.id)
        if wanted is None or now >= wanted.until_s:
            return None
        holders = {wanted.node, *self._affinity.cached(answer)}
        if any(self._fleet.has_lane_on(node, answer.model, answer.qos) for node in holders):
            return None
        self.recheck(answer.model, wanted.until_s)
        return wanted.node

    def _may_wait(self, answer: Answer, fails: type[SuperfluidError], now: float) -> bool:
        """Whether a node may come in time for an answer that no node can take now."""
        if answer.resting:
            return True
        if self._placer.avoided(answer):
            self.recheck(answer.model, now + RECHECK_S)
            return True
        if answer.failed_s is not None:
            until = self._alone_since_s(answer) + self._failover_wait_s
            # A node that has come is waited for as long as it takes to load, which has a limit.
            if now >= until and not self._fleet.loading(answer.model):
                return False
            at = now + RECHECK_S
            self.recheck(answer.model, min(until, at) if now < until else at)
            return True
        until = self._alone_since_s(answer) + self._policy.node_wait_s
        if fails is not NoNode or now >= until:
            return False
        settling = now < self._settled_s and not answer.tried
        if not settling and not self._fleet.loading(answer.model):
            return False
        self.recheck(answer.model, min(until, max(self._settled_s, now + RECHECK_S)))
        return True

    def _alone_since_s(self, answer: Answer) -> float:
        """From when on an answer that no node can take waits for one to come.

        While a node served its model, it waited for room there, which is no fault of the fleet.
        """
        own_s = answer.accepted_s if answer.failed_s is None else answer.failed_s
        return max(own_s, self._started_s, self._fleet.served_until_s(answer.model))

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

    def _no_place(self, answer: Answer, placement: Placement, now: float) -> SuperfluidError:
        error = placement.error or Internal("no placement and no reason")
        refusals = self._placer.refusals(answer)
        said = "; ".join(f"{node}: {why}" for node, why in sorted(refusals.items()))
        if answer.failed_s is not None:
            return self._node_lost(answer, said or error.message, now)
        if isinstance(error, NoNode) and refusals:
            return NoNode(
                f"every node declined the request ({said}); ask again, or look at them with: "
                "sfctl node ls",
                details=error.details,
            )
        return error

    def _node_lost(self, answer: Answer, why_none: str, now: float) -> NodeLost:
        offset = len(answer.tokens)
        waited_s = now - self._alone_since_s(answer)
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
