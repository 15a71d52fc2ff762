"""Random events against AgentSession, with link losses: a model of what must hold looks on.

Around the node are a head that follows the rules of docs/link-f.md alone, a worker whose tokens
are known from generation and index, a link that is cut and made again, and time. The model keeps
its own account of what the node must hold, by which epoch, with which content and until when. A
failure prints its seed.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.agent_records import SendToHead, SubmitToWorker, ToWorker
from bus.agent_session import AgentSession
from bus.context import context_digest
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    SessionId,
    WorkerIncarnation,
    pack_ids,
    unpack_ids,
)
from bus.messages import link, parts, worker
from bus.messages.sampling import SamplingParams

MODEL = ModelName("toy")
SESSIONS = [SessionId(f"s{number}") for number in range(3)]
LEASE_S = 20.0
#: 937 ids are three quarters: two windows of 768 do not fit, and what is under way then does.
RETAINED_LIMIT = 5000
MOST_TOKENS = 2000


def token(generation: int, index: int) -> int:
    return (generation * 1009 + index * 31) % 50_000


@dataclass
class Answer:
    """A session as the head has it; placed on the node."""

    session: SessionId
    epoch: int = 0
    content: list[int] = field(default_factory=list)
    request: link.GenerateReq | None = None
    sent_to: int = 0
    accepted: list[int] = field(default_factory=list)
    total: int = 0
    ended: bool = False
    stopped: bool = False
    committed: int = 0
    #: Those of the present epoch.
    commands: list[object] = field(default_factory=list)
    #: What the node's context is once it has all commands.
    node_has: list[int] = field(default_factory=list)

    @property
    def generation(self) -> int:
        return 0 if self.request is None else self.request.generation

    @property
    def next_seq(self) -> int:
        return len(self.accepted) + self.ended

    def view(self) -> parts.SessionView:
        packed = pack_ids(self.node_has)
        known = parts.GenerationView(
            generation=GenerationId(self.generation),
            committed=self.committed,
            finished=self.ended and self.committed == self.next_seq,
        )
        return parts.SessionView(
            session=self.session,
            epoch=Epoch(self.epoch),
            tokens=len(self.node_has),
            digest=context_digest(packed),
            generations=() if self.stopped or not self.request else (known,),
        )


@dataclass
class Sequence:
    session: SessionId
    epoch: int
    total: int
    made: int = 0
    paused: bool = False


@dataclass
class Holding:
    """What the node must have of a session, by the model's account."""

    epoch: int
    until: float
    content: list[int] = field(default_factory=list)
    fenced: bool = False
    applied: set[int] = field(default_factory=set)


class Play:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = AgentSession(retained_limit=RETAINED_LIMIT)
        self.now = 0.0
        self.numbers = 0
        self.answers = {session: Answer(session) for session in SESSIONS}
        self.asked: dict[int, tuple[SessionId, int]] = {}
        self.incarnation = 1
        self.sequences: dict[int, Sequence] = {}
        self.outbox: deque[worker.OutputRun] = deque()
        self.holdings: dict[SessionId, Holding] = {}
        self.is_up = False
        self.to_node: deque[Any] = deque()
        #: What the last Reconcile of this link listed; None until its last page was delivered.
        self.listed: dict[SessionId, parts.SessionView] = {}
        self.reconciled = False
        self.ack: list[link.ReconcileAck] = []

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def step(self) -> None:
        moves = {
            self.place: 2,
            self.next_turn: 3,
            self.repeat: 2,
            self.deliver: 30,
            self.make: 25,
            self.flush: 20,
            self.commit: 8,
            self.wait: 5,
            self.kill: 0.7,
            self.cut: 1,
            self.connect: 4,
            self.crash_head: 0.4,
        }
        self.random.choices(list(moves), list(moves.values()))[0]()
        self.settle()

    # --- the head -----------------------------------------------------------------------------

    def place(self, answer: Answer | None = None) -> None:
        """Give a session its place under a higher epoch, stopping what ran; its tokens stay."""
        answer = answer or self.random.choice(list(self.answers.values()))
        answer.content += answer.accepted
        if answer.request is not None and self.random.random() < 0.5:
            self.tell(
                link.GenerateCancel(generation=GenerationId(answer.generation), **self.of(answer))
            )
        answer.epoch = self.number()
        assign = link.SessionAssign(model=MODEL, lease_ms=20_000, **self.of(answer))
        answer.commands = [assign]
        self.tell(assign)
        self.turn(answer)

    def turn(self, answer: Answer) -> None:
        answer.content += [self.random.randrange(99) for _ in range(self.random.randint(1, 4))]
        answer.accepted, answer.ended, answer.stopped, answer.committed = [], False, False, 0
        answer.total = self.random.choice([0, 5, 60, MOST_TOKENS])
        self.append(answer)
        answer.request = link.GenerateReq(
            generation=GenerationId(self.number()),
            sampling=SamplingParams(),
            max_new_tokens=answer.total,
            prompt_tokens=len(answer.content),
            **self.of(answer),
        )
        answer.sent_to = self.incarnation
        answer.commands.append(answer.request)
        self.asked[answer.generation] = answer.session, answer.epoch
        self.tell(answer.request)

    def append(self, answer: Answer) -> None:
        if answer.node_has == answer.content:
            return
        base = answer.node_has if self.random.random() < 0.8 else []
        if answer.content[: len(base)] != base:
            base = []
        append = link.AppendContent(
            base_tokens=len(base),
            base_digest=context_digest(pack_ids(base)),
            ids=pack_ids(answer.content[len(base) :]),
            **self.of(answer),
        )
        answer.node_has = list(answer.content)
        answer.commands.append(append)
        self.tell(append)

    def next_turn(self) -> None:
        """The next turn of one whose finish is durable, under the same epoch."""
        answer = self.random.choice(list(self.answers.values()))
        if answer.ended and answer.committed == answer.next_seq:
            answer.content += answer.accepted
            self.turn(answer)

    def repeat(self) -> None:
        """The same command again changes nothing."""
        answer = self.random.choice(list(self.answers.values()))
        if answer.commands:
            self.tell(self.random.choice(answer.commands))

    def commit(self) -> None:
        answer = self.random.choice(list(self.answers.values()))
        answer.committed = self.random.randint(answer.committed, answer.next_seq)
        mark = parts.Watermark(
            generation=GenerationId(answer.generation), committed=answer.committed
        )
        self.tell(link.WatermarkAck(watermarks=(mark,)))

    def of(self, answer: Answer) -> dict[str, Any]:
        return {
            "command": CommandId(self.number()),
            "session": answer.session,
            "epoch": Epoch(answer.epoch),
        }

    def tell(self, message: object) -> None:
        if self.is_up:
            self.to_node.append(message)

    def hear(self, message: object) -> None:
        """What the node says; only after the head has said all it means."""
        assert self.reconciled, f"{message} before the last page"
        if isinstance(message, link.ReconcileAck):
            assert message.page == len(self.ack)
            self.ack.append(message)
            if not message.more:
                self.compare(self.ack)
            return
        assert self.ack, f"{message} before ReconcileAck"
        assert not self.ack[-1].more, f"{message} among ReconcileAck"
        match message:
            case link.TokenEvents():
                for run in message.runs:
                    self.accept(run)
            case link.Lost() | link.Declined() | link.Refused():
                answer = self.answers[message.session]
                if isinstance(message, link.Refused):
                    answer.node_has = []
                if answer.epoch == message.epoch:
                    self.place(answer)
            case link.LeaseRenew() if self.random.random() < 0.8:
                self.grant(message)
            case link.NeedFull():
                # Its Generate is declined; the next place brings everything.
                self.answers[message.session].node_has = []

    def accept(self, run: parts.TokenRun) -> None:
        holding = self.holdings[run.session]
        assert holding.epoch == run.epoch
        assert not holding.fenced
        answer = self.answers[run.session]
        if (run.epoch, run.generation) != (answer.epoch, answer.generation) or answer.ended:
            return
        assert run.first_seq <= answer.next_seq, "a gap"
        fresh = list(unpack_ids(run.ids))[answer.next_seq - run.first_seq :]
        for made in fresh:
            assert made == token(run.generation, len(answer.accepted))
            answer.accepted.append(made)
        if run.finish is not None:
            answer.ended = True
            assert run.finish.reason == "cancelled" or len(answer.accepted) == answer.total

    def compare(self, pages: list[link.ReconcileAck]) -> None:
        """What the node holds against what was listed; move on or go on."""
        held = {view.session: view for page in pages for view in page.sessions}
        assert set(held) == set(self.holdings)
        for session, listed in self.listed.items():
            answer = self.answers[session]
            if answer.epoch != listed.epoch:
                continue
            if session not in held:
                answer.node_has = []
                self.place(answer)
                continue
            self.compare_held(answer, listed, held[session])

    def compare_held(self, answer: Answer, listed: parts.SessionView, held: parts.HeldView) -> None:
        content = self.holdings[answer.session].content
        assert (held.tokens, held.digest) == (len(content), context_digest(pack_ids(content)))
        answer.node_has = list(content)
        known = {view.generation: view.committed for view in listed.generations}
        assert all(known[view.generation] == view.first_seq for view in held.generations)
        if not listed.generations or listed.generations[0].finished:
            assert held.generations == ()
        elif not held.generations:
            if answer.next_seq == 0 and answer.sent_to == self.incarnation:
                self.append(answer)
                self.tell(answer.request)
            else:
                self.place(answer)

    def grant(self, renew: link.LeaseRenew) -> None:
        refs = tuple(ref for ref in renew.leases if self.answers[ref.session].epoch == ref.epoch)
        self.tell(link.LeaseGrant(sent_at_s=renew.sent_at_s, lease_ms=20_000, leases=refs))

    def crash_head(self) -> None:
        """kill -9 of the head: what was not durable is gone."""
        self.cut()
        for answer in self.answers.values():
            answer.ended = answer.ended and answer.committed == answer.next_seq
            del answer.accepted[answer.committed :]

    # --- the link -----------------------------------------------------------------------------

    def cut(self) -> None:
        if self.is_up:
            self.node.link_down(self.now)
        self.is_up = self.reconciled = False
        self.to_node.clear()

    def connect(self) -> None:
        if self.is_up:
            return
        self.is_up, self.ack = True, []
        self.node.link_up("head", self.now)
        views = [answer.view() for answer in self.answers.values() if answer.epoch]
        self.listed = {view.session: view for view in views}
        for page, view in enumerate(views[:-1]):
            self.tell(link.Reconcile(page=page, more=True, sessions=(view,)))
        self.tell(
            link.Reconcile(page=max(0, len(views) - 1), more=False, sessions=tuple(views[-1:]))
        )

    def deliver(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            if not self.to_node:
                return
            message = self.to_node.popleft()
            self.expect(message)
            self.node.receive(message, self.now)
            self.settle()

    # --- the model's account of the node ------------------------------------------------------

    def expect(self, message: object) -> None:
        match message:
            case link.Reconcile(more=False):
                self.reconciled = True
                self.fence()
                self.holdings = {
                    session: holding
                    for session, holding in self.holdings.items()
                    if session in self.listed
                    and self.listed[session].epoch == holding.epoch
                    and not holding.fenced
                }
            case link.SessionAssign():
                self.expect_assign(message)
            case link.AppendContent():
                self.expect_append(message)
            case link.LeaseGrant():
                for ref in message.leases:
                    granted = self.holdings.get(ref.session)
                    if granted and granted.epoch == ref.epoch and not granted.fenced:
                        granted.until = max(granted.until, message.sent_at_s + LEASE_S)

    def expect_assign(self, message: link.SessionAssign) -> None:
        old = self.holdings.get(message.session)
        if old is not None and (message.command in old.applied or message.epoch <= old.epoch):
            return
        content, applied = ([], set()) if old is None else (old.content, old.applied)
        applied.add(message.command)
        self.holdings[message.session] = Holding(
            message.epoch, self.now + LEASE_S, content, applied=applied
        )

    def expect_append(self, message: link.AppendContent) -> None:
        holding = self.holdings.get(message.session)
        if holding is None or holding.epoch != message.epoch or holding.fenced:
            return
        if message.command in holding.applied:
            return
        held = (len(holding.content), context_digest(pack_ids(holding.content)))
        if message.base_tokens == 0:
            holding.content = list(unpack_ids(message.ids))
        elif held == (message.base_tokens, message.base_digest):
            holding.content += unpack_ids(message.ids)
        else:
            return
        holding.applied.add(message.command)

    def fence(self) -> None:
        for holding in self.holdings.values():
            holding.fenced = holding.fenced or holding.until <= self.now

    def check(self) -> None:
        self.node.validate_state()
        lively = {s: holding.epoch for s, holding in self.holdings.items() if not holding.fenced}
        assert {ref.session: ref.epoch for ref in self.node.held()} == lively
        for sequence in self.sequences.values():
            assert lively.get(sequence.session) == sequence.epoch, "it computes for nobody"
        assert self.node.retained_bytes <= RETAINED_LIMIT

    # --- worker and time ----------------------------------------------------------------------

    def settle(self) -> None:
        """Carry out what the node wants, in order, until it wants nothing."""
        while actions := self.node.actions():
            for action in actions:
                match action:
                    case SendToHead(message=message):
                        self.hear(message)
                    case SubmitToWorker(submit=submit):
                        self.submit(submit)
                    case ToWorker(message=worker.Cancel() as cancel):
                        stopped = self.sequences.pop(cancel.generation, None)
                        if stopped is not None:
                            self.end(cancel.generation, stopped, "cancelled")
                    case ToWorker(message=message):
                        if message.generation in self.sequences:
                            paused = isinstance(message, worker.Pause)
                            self.sequences[message.generation].paused = paused
        self.check()

    def submit(self, submit: worker.Submit) -> None:
        session, epoch = self.asked[submit.generation]
        assert list(unpack_ids(submit.context)) == self.holdings[session].content
        assert submit.generation not in self.sequences
        assert not any(run.generation == submit.generation for run in self.outbox), "late output"
        if self.random.random() < 0.05:
            self.node.decline(submit.generation, "queue_full", "the worker is full")
            return
        self.sequences[submit.generation] = Sequence(session, epoch, submit.max_new_tokens)
        if self.random.random() < 0.8:
            self.node.worker_accepted(submit.generation)

    def end(self, generation: int, sequence: Sequence, reason: str) -> None:
        self.outbox.append(
            worker.OutputRun(
                generation=GenerationId(generation),
                first_index=sequence.made,
                finish=parts.Finish(reason=reason),
            )
        )

    def make(self) -> None:
        """The worker makes some tokens, or ends; they wait for the flush."""
        ready = [item for item in self.sequences.items() if not item[1].paused]
        if not ready or len(self.outbox) >= 6:
            return
        generation, sequence = self.random.choice(ready)
        if sequence.made == sequence.total:
            del self.sequences[generation]
            self.end(generation, sequence, "length")
            return
        count = min(self.random.randint(1, 40), sequence.total - sequence.made)
        indices = range(sequence.made, sequence.made + count)
        self.outbox.append(
            worker.OutputRun(
                generation=GenerationId(generation),
                first_index=sequence.made,
                ids=pack_ids(token(generation, index) for index in indices),
            )
        )
        sequence.made += count

    def flush(self) -> None:
        runs = [self.outbox.popleft() for _ in range(self.random.randint(0, len(self.outbox)))]
        self.node.worker_output(MODEL, WorkerIncarnation(self.incarnation), runs)

    def kill(self) -> None:
        self.sequences.clear()
        self.outbox.clear()
        self.node.worker_lost(MODEL, WorkerIncarnation(self.incarnation), "killed")
        self.incarnation += 1

    def wait(self) -> None:
        """Time passes; the node may get to something else before its timers."""
        self.now += self.random.choice([0.1, 1.0, 5.0, 11.0])
        if self.random.random() < 0.3:
            return
        self.fence()
        self.node.handle_timeout(self.now)
        due = self.node.next_timeout()
        assert due is None or due > self.now

    # --- the end ------------------------------------------------------------------------------

    def heal(self) -> None:
        """No fault any more: every answer comes to its end."""
        for _ in range(3000):
            self.connect()
            for move in (self.deliver, self.make, self.flush):
                move()
                self.settle()
            for answer in self.answers.values():
                if answer.committed < answer.next_seq:
                    answer.committed = answer.next_seq
                    mark = parts.Watermark(
                        generation=GenerationId(answer.generation), committed=answer.committed
                    )
                    self.tell(link.WatermarkAck(watermarks=(mark,)))
            started = [answer for answer in self.answers.values() if answer.epoch]
            if all(answer.ended for answer in started) and not self.to_node and not self.outbox:
                break
        for answer in started:
            assert answer.ended, f"{answer.session} never ends"
        assert self.node.retained_bytes == 0
        assert not self.node.is_generating


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_the_head_has_exactly_what_the_worker_made(seed: int) -> None:
    play = Play(seed)
    for _ in range(400):
        play.step()
    play.heal()
