"""A head above an AgentSession that follows the rules of docs/link-f.md alone."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bus.context import context_digest
from bus.ids import CommandId, Epoch, GenerationId, SessionId, pack_ids, unpack_ids
from bus.messages import link, parts
from bus.messages.sampling import SamplingParams
from tests.harness.agent_session_account import NodeAccount
from tests.harness.agent_session_worker import MODEL, RandomWorker, token

SESSIONS = [SessionId(f"s{number}") for number in range(3)]
MOST_TOKENS = 2000


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


class RuledHead:
    """Places sessions, asks for answers, and holds what it hears against the node's account."""

    def __init__(self, rng: random.Random, account: NodeAccount, worker: RandomWorker) -> None:
        self.random = rng
        self.account = account
        self.worker = worker
        self.numbers = 0
        self.answers = {session: Answer(session) for session in SESSIONS}
        self.asked: dict[int, tuple[SessionId, int]] = {}
        self.is_up = False
        self.to_node: deque[Any] = deque()
        #: What the Reconcile of this link lists.
        self.listed: dict[SessionId, parts.SessionView] = {}
        self.ack: list[link.ReconcileAck] = []

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def place(self, answer: Answer | None = None) -> None:
        """Give a session its place under a higher epoch, stopping what ran; its tokens stay."""
        answer = answer or self.random.choice(list(self.answers.values()))
        answer.content += answer.accepted
        if answer.request is not None and self.random.random() < 0.5:
            self.tell(
                link.GenerateCancel(generation=GenerationId(answer.generation), **self._of(answer))
            )
        answer.epoch = self._number()
        assign = link.SessionAssign(model=MODEL, lease_ms=20_000, **self._of(answer))
        answer.commands = [assign]
        self.tell(assign)
        self._turn(answer)

    def _turn(self, answer: Answer) -> None:
        answer.content += [self.random.randrange(99) for _ in range(self.random.randint(1, 4))]
        answer.accepted, answer.ended, answer.stopped, answer.committed = [], False, False, 0
        answer.total = self.random.choice([0, 5, 60, MOST_TOKENS])
        self._append(answer)
        answer.request = link.GenerateReq(
            generation=GenerationId(self._number()),
            sampling=SamplingParams(),
            max_new_tokens=answer.total,
            prompt_tokens=len(answer.content),
            **self._of(answer),
        )
        answer.sent_to = self.worker.incarnation
        answer.commands.append(answer.request)
        self.asked[answer.generation] = answer.session, answer.epoch
        self.tell(answer.request)

    def _append(self, answer: Answer) -> None:
        if answer.node_has == answer.content:
            return
        base = answer.node_has if self.random.random() < 0.8 else []
        if answer.content[: len(base)] != base:
            base = []
        append = link.AppendContent(
            base_tokens=len(base),
            base_digest=context_digest(pack_ids(base)),
            ids=pack_ids(answer.content[len(base) :]),
            **self._of(answer),
        )
        answer.node_has = list(answer.content)
        answer.commands.append(append)
        self.tell(append)

    def next_turn(self) -> None:
        """The next turn of one whose finish is durable, under the same epoch."""
        answer = self.random.choice(list(self.answers.values()))
        if answer.ended and answer.committed == answer.next_seq:
            answer.content += answer.accepted
            self._turn(answer)

    def repeat(self) -> None:
        """The same command again changes nothing."""
        answer = self.random.choice(list(self.answers.values()))
        if answer.commands:
            self.tell(self.random.choice(answer.commands))

    def commit(self) -> None:
        """Some more of what came is durable."""
        answer = self.random.choice(list(self.answers.values()))
        answer.committed = self.random.randint(answer.committed, answer.next_seq)
        self._say_committed(answer)

    def _say_committed(self, answer: Answer) -> None:
        mark = parts.Watermark(
            generation=GenerationId(answer.generation), committed=answer.committed
        )
        self.tell(link.WatermarkAck(watermarks=(mark,)))

    def _of(self, answer: Answer) -> dict[str, Any]:
        return {
            "command": CommandId(self._number()),
            "session": answer.session,
            "epoch": Epoch(answer.epoch),
        }

    def tell(self, message: object) -> None:
        if self.is_up:
            self.to_node.append(message)

    def hear(self, message: object) -> None:
        """What the node says; only after the head has said all it means."""
        assert self.account.reconciled, f"{message} before the last page"
        if isinstance(message, link.ReconcileAck):
            assert message.page == len(self.ack)
            self.ack.append(message)
            if not message.more:
                self._compare(self.ack)
            return
        assert self.ack, f"{message} before ReconcileAck"
        assert not self.ack[-1].more, f"{message} among ReconcileAck"
        match message:
            case link.TokenEvents():
                for run in message.runs:
                    self._accept(run)
            case link.Lost() | link.Declined() | link.Refused():
                answer = self.answers[message.session]
                if isinstance(message, link.Refused):
                    answer.node_has = []
                if answer.epoch == message.epoch:
                    self.place(answer)
            case link.LeaseRenew() if self.random.random() < 0.8:
                self._grant(message)
            case link.NeedFull():
                # Its Generate is declined; the next place brings everything.
                self.answers[message.session].node_has = []

    def _accept(self, run: parts.TokenRun) -> None:
        holding = self.account.holdings[run.session]
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

    def _compare(self, pages: list[link.ReconcileAck]) -> None:
        """What the node holds against what was listed; move on or go on."""
        held = {view.session: view for page in pages for view in page.sessions}
        assert set(held) == set(self.account.holdings)
        for session, listed in self.listed.items():
            answer = self.answers[session]
            if answer.epoch != listed.epoch:
                continue
            if session not in held:
                answer.node_has = []
                self.place(answer)
                continue
            self._compare_held(answer, listed, held[session])

    def _compare_held(
        self, answer: Answer, listed: parts.SessionView, held: parts.HeldView
    ) -> None:
        content = self.account.holdings[answer.session].content
        assert (held.tokens, held.digest) == (len(content), context_digest(pack_ids(content)))
        answer.node_has = list(content)
        known = {view.generation: view.committed for view in listed.generations}
        assert all(known[view.generation] == view.first_seq for view in held.generations)
        if not listed.generations or listed.generations[0].finished:
            assert held.generations == ()
        elif not held.generations:
            if answer.next_seq == 0 and answer.sent_to == self.worker.incarnation:
                self._append(answer)
                self.tell(answer.request)
            else:
                self.place(answer)

    def _grant(self, renew: link.LeaseRenew) -> None:
        refs = tuple(ref for ref in renew.leases if self.answers[ref.session].epoch == ref.epoch)
        self.tell(link.LeaseGrant(sent_at_s=renew.sent_at_s, lease_ms=20_000, leases=refs))

    def commit_all(self) -> None:
        """Everything that came is durable now."""
        for answer in self.answers.values():
            if answer.committed < answer.next_seq:
                answer.committed = answer.next_seq
                self._say_committed(answer)

    def lose_undurable(self) -> None:
        """kill -9 of the head: what was not durable is gone."""
        for answer in self.answers.values():
            answer.ended = answer.ended and answer.committed == answer.next_seq
            del answer.accepted[answer.committed :]

    def link_down(self) -> None:
        """What was on the way is lost."""
        self.is_up = False
        self.to_node.clear()

    def link_up(self) -> None:
        """Begin a link: list, in pages, what is placed on the node."""
        self.is_up, self.ack = True, []
        views = [answer.view() for answer in self.answers.values() if answer.epoch]
        self.listed = {view.session: view for view in views}
        for page, view in enumerate(views[:-1]):
            self.tell(link.Reconcile(page=page, more=True, sessions=(view,)))
        self.tell(
            link.Reconcile(page=max(0, len(views) - 1), more=False, sessions=tuple(views[-1:]))
        )
