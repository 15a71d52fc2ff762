"""Random events against AgentSession: its invariants hold, and the head gets the worker's tokens.

The head's side is played by rules of docs/link-f.md alone: it accepts the next event of the present
epoch, once. A failure prints its seed.
"""

from __future__ import annotations

import random

import pytest

from bus.agent_records import SendToHead, SubmitToWorker, ToWorker
from bus.agent_session import AgentSession
from bus.context import EMPTY_DIGEST
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
from bus.messages import link, worker

MODEL, SESSION = ModelName("toy"), SessionId("s")
LEASE_S = 20.0


class Play:
    """A head, a worker and time around one AgentSession; one session, one generation at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = AgentSession()
        self.now = 0.0
        self.command = 0
        self.epoch = 0
        self.generation = 0
        #: What the worker made and what the head accepted of the present generation.
        self.made: list[int] = []
        self.accepted: list[int] = []
        self.running = False
        self.paused = False
        self.ended = False
        self.last: link.GenerateReq | None = None
        self.node.link_up(0.0)

    def next_command(self) -> CommandId:
        self.command += 1
        return CommandId(self.command)

    def step(self) -> None:
        move = self.random.choices(
            [self.place, self.repeat, self.make, self.acknowledge, self.wait, self.kill, self.cut],
            [3, 2, 30, 8, 4, 1, 0.5],
        )[0]
        move()
        self.node.validate_state()
        for action in self.node.actions():
            match action:
                case SubmitToWorker():
                    self.running, self.paused, self.made = True, False, []
                    self.node.worker_accepted(action.submit.generation)
                case ToWorker(message=worker.Pause()):
                    self.paused = True
                case ToWorker(message=worker.Resume()):
                    self.paused = False
                case ToWorker(message=worker.Cancel()):
                    self.running = False
                case SendToHead(message=link.TokenEvents() as events):
                    self.receive(events)
                case SendToHead(message=link.LeaseRenew() as renew):
                    self.grant(renew)

    def place(self) -> None:
        """Assign under a higher epoch, give the prompt, generate."""
        self.epoch += 1
        self.generation += 1
        self.accepted, self.ended = [], False
        prompt = pack_ids(range(self.random.randint(1, 5)))
        session, epoch = SESSION, Epoch(self.epoch)
        self.last = link.GenerateReq(
            command=self.next_command(),
            session=session,
            epoch=epoch,
            generation=GenerationId(self.generation),
            sampling=link.SamplingParams(),
            max_new_tokens=10_000,
            prompt_tokens=len(prompt) // 4,
        )
        assign = link.SessionAssign(
            command=self.next_command(),
            session=session,
            epoch=epoch,
            model=MODEL,
            lease_ms=round(LEASE_S * 1000),
        )
        append = link.AppendContent(
            command=self.next_command(),
            session=session,
            epoch=epoch,
            base_tokens=0,
            base_digest=EMPTY_DIGEST,
            ids=prompt,
        )
        for message in (assign, append, self.last):
            self.node.receive(message, self.now)

    def repeat(self) -> None:
        """The same command again: what is not acknowledged comes again."""
        if self.last is not None:
            self.node.receive(self.last, self.now)

    def make(self) -> None:
        """The worker makes some tokens, or ends."""
        if not self.running or self.paused:
            return
        ids = [self.random.randrange(1000) for _ in range(self.random.randint(0, 40))]
        finish = link.Finish(reason="eos") if self.random.random() < 0.05 else None
        run = worker.OutputRun(
            generation=GenerationId(self.generation),
            first_index=len(self.made),
            ids=pack_ids(ids),
            finish=finish,
        )
        self.made += ids
        self.running = finish is None
        self.node.worker_output(MODEL, WorkerIncarnation(1), [run])

    def receive(self, events: link.TokenEvents) -> None:
        for run in events.runs:
            assert run.epoch == self.epoch
            assert run.generation == self.generation
            assert run.first_seq <= len(self.accepted), "a gap"
            fresh = list(unpack_ids(run.ids))[len(self.accepted) - run.first_seq :]
            self.accepted += fresh
            self.ended = self.ended or run.finish is not None
        assert self.accepted == self.made

    def acknowledge(self) -> None:
        committed = self.random.randint(0, len(self.accepted)) + self.ended
        mark = link.Watermark(generation=GenerationId(self.generation), committed=committed)
        self.node.receive(link.WatermarkAck(watermarks=(mark,)), self.now)

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 5.0, 11.0])
        self.node.handle_timeout(self.now)
        due = self.node.next_timeout()
        assert due is None or due > self.now

    def grant(self, renew: link.LeaseRenew) -> None:
        if self.random.random() < 0.7:
            self.node.receive(
                link.LeaseGrant(
                    sent_at_s=renew.sent_at_s,
                    lease_ms=round(LEASE_S * 1000),
                    leases=renew.leases,
                ),
                self.now,
            )

    def kill(self) -> None:
        self.node.worker_lost(MODEL, WorkerIncarnation(1), "killed")
        self.running = False

    def cut(self) -> None:
        self.node.link_down(self.now)
        self.node.link_up(self.now)
        self.last = None


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_the_head_has_exactly_what_the_worker_made(seed: int) -> None:
    play = Play(seed)
    for _ in range(300):
        play.step()
