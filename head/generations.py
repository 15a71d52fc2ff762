"""Generations on nodes: how an answer starts there, goes on over a new link, and leaves.

One transaction keeps admission, place, epoch and generation; what the node is told leaves after it.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.context import TokenContext
from bus.head_session import GenerationPlan, HeadSession
from bus.ids import Epoch, GenerationId, ModelName, NodeIdentity
from bus.messages.api import PlacedEvent, moved_event
from bus.messages.parts import ModelStatus
from bus.timers import Timers
from head.answers import RUNNING, Answer
from head.blobs import BlobDesk, Failed
from head.book import AnswerBook
from head.fleet import Fleet
from head.fleet_node import Node
from head.numbers import Numbers
from head.outbox import Outbox
from head.rows import PutGeneration
from head.sessions import Placed, Session, Sessions
from head.suspects import SETTLED_AFTER_TOKENS

#: Gives up an answer whose node let its wall budget pass: session, now.
Overdue = Callable[[Session, float], None]
#: Acts on a file that did not reach an answer's node: session, place, code, message, now.
FileFailed = Callable[[Session, Placed, str, str, float], None]


class Generations:
    """Owned by the core's runs.

    Invariant: `running` has exactly the sessions whose answer is in stage RUNNING, by generation;
    each has a place, whose link may be down.

    Args:
        lease_s: how long a node goes on without hearing from the head.
        grace_s: how long after the wall budget a node's own `expired` is waited for.
        overdue: called when that is over.
        freed: called when a lane for a model became free.
        file_failed: called when a file that an answer names did not reach its node.
    """

    def __init__(
        self,
        *,
        lease_s: float,
        grace_s: float,
        numbers: Numbers,
        outbox: Outbox,
        book: AnswerBook,
        fleet: Fleet,
        sessions: Sessions,
        blobs: BlobDesk,
        timers: Timers,
        overdue: Overdue,
        freed: Callable[[ModelName, float], None],
        file_failed: FileFailed,
    ) -> None:
        self._lease_ms = round(lease_s * 1000)
        self._grace_s = grace_s
        self._numbers = numbers
        self._outbox = outbox
        self._book = book
        self._fleet = fleet
        self._sessions = sessions
        self._blobs = blobs
        self._timers = timers
        self._overdue = overdue
        self._freed = freed
        self._file_failed = file_failed
        self.running: dict[GenerationId, Session] = {}

    # --- start --------------------------------------------------------------------------------

    def start(self, answer: Answer, identity: NodeIdentity, now: float) -> None:
        """Run an answer on a node, from the tokens that it has."""
        node = self._fleet.get(identity)
        if node is None or node.link is None:
            raise ValueError(f"placed on {identity}, which has no link")
        status = node.models[answer.model]
        session = self._session_of(answer)
        context = session.context_at(len(answer.tokens))
        self._book.store(answer)
        placed, messages = self._place(session, node, answer.qos)
        self._begin(session, placed, status, now)
        if (append := placed.protocol.append(context)) is not None:
            messages.append(append)
        plan = self._plan(session, placed, GenerationId(self._numbers.generations.next()), now)
        self._run(session, placed, plan.generation, now)
        self._outbox.persist(
            PutGeneration(
                generation=plan.generation,
                answer=answer.id,
                session=session.id,
                epoch=placed.protocol.epoch,
                node=identity,
                worker=status.worker,
                numerics=status.numerics,
                first_offset=placed.first_offset,
                used_ms=answer.budget_used_ms(now),
                replays=bool(answer.moved_from) or answer.is_replaying,
            )
        )
        self._outbox.send(node.link, *messages)
        self._generate(session, placed, plan, now)
        self._announce(answer, session, placed)

    def place_idle(self, session: Session, node: Node) -> Placed:
        """Give a session without a turn its place on a node that is up, with its context there."""
        if node.link is None:
            raise ValueError(f"placed on {node.identity}, which has no link")
        placed, messages = self._place(session, node, session.qos)
        if (append := placed.protocol.append(session.context)) is not None:
            messages.append(append)
        self._outbox.send(node.link, *messages)
        return placed

    def _session_of(self, answer: Answer) -> Session:
        session = self._sessions.of(answer)
        if session is None:
            context = TokenContext()
            context.append(answer.prompt)
            session = Session(id=answer.session, model=answer.model, context=context, answer=answer)
            self._sessions.add(session)
        return session

    def _place(self, session: Session, node: Node, qos: int) -> tuple[Placed, list[object]]:
        """Its place on a node: the one that it has, or a new one under a new epoch."""
        placed = session.placed
        if placed is not None and placed.link != node.link:
            self.unplace(session, "moved")
            placed = None
        if placed is not None and not placed.protocol.stopped:
            return placed, []
        epoch = Epoch(self._numbers.epochs.next())
        if placed is not None:
            placed.protocol.raise_epoch(epoch)
        else:
            protocol = HeadSession(session.id, epoch, self._numbers.commands.next)
            placed = Placed(
                node=node.identity,
                incarnation=node.incarnation,
                link=node.link,
                protocol=protocol,
            )
            self._sessions.place(session, placed)
        assign = placed.protocol.assign(session.model, lease_ms=self._lease_ms, qos=qos)
        return placed, [assign]

    def _begin(self, session: Session, placed: Placed, status: ModelStatus, now: float) -> None:
        answer = _answer(session)
        placed.worker, placed.numerics = status.worker, status.numerics
        placed.first_offset = len(answer.tokens)
        answer.node = placed.node
        answer.placed_s = answer.placed_s or now

    def _run(self, session: Session, placed: Placed, generation: GenerationId, now: float) -> None:
        answer = _answer(session)
        answer.stage = RUNNING
        self.running[generation] = session
        self._fleet.claim(placed.node, session.model, generation, now, answer.qos)
        self._watch_budget(session, generation, now)

    def _plan(
        self, session: Session, placed: Placed, generation: GenerationId, now: float
    ) -> GenerationPlan:
        answer = _answer(session)
        return GenerationPlan(
            generation=generation,
            sampling=answer.sampling,
            max_new_tokens=max(answer.max_new - placed.first_offset, 0),
            prompt_tokens=len(session.context),
            generated_tokens=placed.first_offset,
            wall_ms=answer.budget_left_ms(now),
            exact=answer.exact,
            blobs=answer.blobs,
            media=answer.media,
            unread=answer.unread,
        )

    def _announce(self, answer: Answer, session: Session, placed: Placed) -> None:
        event: object = PlacedEvent(node=placed.node, session=session.id)
        if answer.moved_from:
            # Who did not ask for it may have been given what a cache had of another way.
            same = bool(placed.numerics) and placed.numerics == answer.numerics
            exact = same and answer.exact
            offset = len(answer.tokens)
            event = moved_event(
                answer.moved_from, placed.node, offset, exact=exact, reason=answer.failure
            )
            answer.is_replaying = True
            answer.moved_from = NodeIdentity("")
        if not answer.tokens:
            answer.numerics = placed.numerics
        for subscription in answer.subscriptions:
            self._outbox.reply(subscription.event(event))

    def _watch_budget(self, session: Session, generation: GenerationId, now: float) -> None:
        answer = _answer(session)
        if not answer.wall_ms:
            return

        def give_up(at: float) -> None:
            if self.running.get(generation) is session:
                self._overdue(session, at)

        due = answer.budget_ends_s + self._grace_s
        answer.budget_timer = self._timers.at(max(due, now), give_up)

    # --- over links and restarts ----------------------------------------------------------------

    def restore(
        self, answer: Answer, placed: Placed, generation: GenerationId, now: float
    ) -> Session:
        """Take up an answer that ran when the head ended; its node is not here yet."""
        session = self._session_of(answer)
        self._sessions.place(session, placed)
        opening = session.context_at(placed.first_offset)
        placed.protocol.node_has(len(opening), opening.digest())
        placed.protocol.resume(generation, len(answer.tokens) - placed.first_offset)
        answer.stage = RUNNING
        self.running[generation] = session
        self._watch_budget(session, generation, now)
        return session

    def rejoin(self, session: Session, placed: Placed, node: Node, now: float) -> None:
        """The node of a session is back, with what it had; it is asked what that is."""
        placed.link, placed.incarnation = node.link, node.incarnation
        generation = placed.protocol.generation
        if placed.protocol.is_generating and generation is not None:
            self._fleet.reclaim(placed.node, session.model, generation, now, _answer(session).qos)

    def again(self, session: Session, placed: Placed, now: float) -> None:
        """Ask for the same generation again, which the node never began with."""
        generation = placed.protocol.generation
        if placed.link is None or generation is None:
            raise ValueError(f"session {session.id} runs nothing on a link")
        append = placed.protocol.append(session.context_at(placed.first_offset))
        if append is not None:
            self._outbox.send(placed.link, append)
        self._generate(session, placed, self._plan(session, placed, generation, now), now)

    def files_again(self, session: Session, placed: Placed, now: float) -> bool:
        """Send the files of a request again, which the node does not have, and then the request.

        Returns:
            False when that was done already.
        """
        generation = placed.protocol.generation
        if placed.link is None or generation is None:
            return False
        request = placed.protocol.generate(self._plan(session, placed, generation, now))
        failed = self._when_failed(session, placed, generation)
        return self._blobs.missing(placed.link, request, failed, now)

    def _generate(self, session: Session, placed: Placed, plan: GenerationPlan, now: float) -> None:
        """Ask for a generation, once the node has the files that it names."""
        request = placed.protocol.generate(plan)
        if placed.link is not None:
            failed = self._when_failed(session, placed, plan.generation)
            self._blobs.generate(placed.link, request, failed, now)

    def _when_failed(self, session: Session, placed: Placed, generation: GenerationId) -> Failed:
        def failed(code: str, message: str, now: float) -> None:
            if self.running.get(generation) is session and session.placed is placed:
                self._file_failed(session, placed, code, message, now)

        return failed

    # --- ends ---------------------------------------------------------------------------------

    def release(self, session: Session, now: float) -> None:
        """The generation of a session is over for the head: its lane is free."""
        answer, placed = session.answer, session.placed
        if answer is not None:
            self._timers.cancel(answer.budget_timer)
        if placed is None or placed.protocol.generation is None:
            return
        self._blobs.drop(placed.link, placed.protocol.generation, now)
        if self.running.get(placed.protocol.generation) is session:
            del self.running[placed.protocol.generation]
            self._fleet.release(placed.node, placed.protocol.generation)
            self._freed(session.model, now)

    def unplace(self, session: Session, reason: str) -> None:
        """End a session on its node, which is told when its link is up.

        One that is not is told by the next `Reconcile`, which does not list the session.
        """
        placed = self._sessions.unplace(session)
        if placed is not None and placed.link is not None:
            self._outbox.send(placed.link, placed.protocol.revoke(reason))

    def set_apart_on(self, model: ModelName) -> frozenset[NodeIdentity]:
        """Nodes on which an answer that is set apart is yet to make some tokens, and can."""
        return frozenset(
            session.placed.node
            for session in self.running.values()
            if session.model == model
            and session.placed is not None
            and session.answer is not None
            and session.answer.suspicion.set_apart
            and len(session.answer.tokens) - session.placed.first_offset < SETTLED_AFTER_TOKENS
        )


def _answer(session: Session) -> Answer:
    if session.answer is None:
        raise ValueError(f"session {session.id} has no answer that runs")
    return session.answer
