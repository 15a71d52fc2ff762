"""Random events against AgentSession, with link losses: a model of what must hold looks on.

Around the node are a head that follows the rules of docs/link-f.md alone, a worker whose tokens
are known from generation and index, a link that is cut and made again, and time. The model keeps
its own account of what the node must hold, by which epoch, with which content and until when. A
failure prints its seed.
"""

from __future__ import annotations

import random

import pytest

from bus.agent_records import SendToHead, SubmitToWorker, ToWorker
from bus.agent_session import AgentSession
from bus.ids import unpack_ids
from bus.messages import worker
from tests.harness.agent_session_account import NodeAccount
from tests.harness.agent_session_head import RuledHead
from tests.harness.agent_session_worker import RandomWorker

#: 937 ids are three quarters: two windows of 768 do not fit, and what is under way then does.
RETAINED_LIMIT = 5000


class Play:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.node = AgentSession(retained_limit=RETAINED_LIMIT)
        self.account = NodeAccount()
        self.worker = RandomWorker(self.random, self.node)
        self.head = RuledHead(self.random, self.account, self.worker)

    def step(self) -> None:
        moves = {
            self.head.place: 2,
            self.head.next_turn: 3,
            self.head.repeat: 2,
            self.deliver: 30,
            self.worker.make: 25,
            self.worker.flush: 20,
            self.head.commit: 8,
            self.wait: 5,
            self.worker.kill: 0.7,
            self.cut: 1,
            self.connect: 4,
            self.crash_head: 0.4,
        }
        self.random.choices(list(moves), list(moves.values()))[0]()
        self.settle()

    # --- the link -----------------------------------------------------------------------------

    def cut(self) -> None:
        if self.head.is_up:
            self.node.link_down(self.now)
        self.account.reconciled = False
        self.head.link_down()

    def connect(self) -> None:
        if self.head.is_up:
            return
        self.node.link_up("head", self.now)
        self.head.link_up()

    def crash_head(self) -> None:
        self.cut()
        self.head.lose_undurable()

    def deliver(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            if not self.head.to_node:
                return
            message = self.head.to_node.popleft()
            self.account.expect(message, self.now, self.head.listed)
            self.node.receive(message, self.now)
            self.settle()

    # --- the node, and time -------------------------------------------------------------------

    def settle(self) -> None:
        """Carry out what the node wants, in order, until it wants nothing."""
        while actions := self.node.actions():
            for action in actions:
                match action:
                    case SendToHead(message=message):
                        self.head.hear(message)
                    case SubmitToWorker(submit=submit):
                        self.submit(submit)
                    case ToWorker(
                        message=worker.Cancel() | worker.Pause() | worker.Resume() as message
                    ):
                        self.worker.take(message)
        self.check()

    def submit(self, submit: worker.Submit) -> None:
        session, epoch = self.head.asked[submit.generation]
        assert list(unpack_ids(submit.context)) == self.account.holdings[session].content
        self.worker.submit(submit, session, epoch)

    def check(self) -> None:
        self.node.validate_state()
        lively = self.account.lively()
        assert {ref.session: ref.epoch for ref in self.node.held()} == lively
        for sequence in self.worker.sequences.values():
            assert lively.get(sequence.session) == sequence.epoch, "it computes for nobody"
        assert self.node.retained_bytes <= RETAINED_LIMIT

    def wait(self) -> None:
        """Time passes; the node may get to something else before its timers."""
        self.now += self.random.choice([0.1, 1.0, 5.0, 11.0])
        if self.random.random() < 0.3:
            return
        self.account.fence(self.now)
        self.node.handle_timeout(self.now)
        due = self.node.next_timeout()
        assert due is None or due > self.now

    # --- the end ------------------------------------------------------------------------------

    def heal(self) -> None:
        """No fault any more: every answer comes to its end."""
        for _ in range(3000):
            self.connect()
            for move in (self.deliver, self.worker.make, self.worker.flush):
                move()
                self.settle()
            self.head.commit_all()
            started = [answer for answer in self.head.answers.values() if answer.epoch]
            on_the_way = self.head.to_node or self.worker.outbox
            if all(answer.ended for answer in started) and not on_the_way:
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
