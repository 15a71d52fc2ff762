"""A worker under an AgentSession whose tokens are known from generation and index."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from bus.agent_session import AgentSession
from bus.ids import GenerationId, ModelName, SessionId, WorkerIncarnation, pack_ids
from bus.messages import parts, worker

MODEL = ModelName("toy")


def token(generation: int, index: int) -> int:
    return (generation * 1009 + index * 31) % 50_000


@dataclass
class Sequence:
    session: SessionId
    epoch: int
    total: int
    made: int = 0
    paused: bool = False


class RandomWorker:
    """Makes tokens when told to, in runs of random length, for the node that it works for."""

    def __init__(self, rng: random.Random, node: AgentSession) -> None:
        self.random = rng
        self.node = node
        self.incarnation = 1
        self.sequences: dict[int, Sequence] = {}
        self.outbox: deque[worker.OutputRun] = deque()

    def submit(self, submit: worker.Submit, session: SessionId, epoch: int) -> None:
        """Begin a generation, or decline it."""
        assert submit.generation not in self.sequences
        assert not any(run.generation == submit.generation for run in self.outbox), "late output"
        if self.random.random() < 0.05:
            self.node.decline(submit.generation, "queue_full", "the worker is full")
            return
        self.sequences[submit.generation] = Sequence(session, epoch, submit.max_new_tokens)
        if self.random.random() < 0.8:
            self.node.worker_accepted(submit.generation)

    def take(self, message: worker.Cancel | worker.Pause | worker.Resume) -> None:
        """Stop a sequence for good or for a while, or go on with it."""
        if isinstance(message, worker.Cancel):
            stopped = self.sequences.pop(message.generation, None)
            if stopped is not None:
                self._end(message.generation, stopped, "cancelled")
        elif message.generation in self.sequences:
            self.sequences[message.generation].paused = isinstance(message, worker.Pause)

    def _end(self, generation: int, sequence: Sequence, reason: str) -> None:
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
            self._end(generation, sequence, "length")
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
        """The node gets some of the output that waits."""
        runs = [self.outbox.popleft() for _ in range(self.random.randint(0, len(self.outbox)))]
        self.node.worker_output(MODEL, WorkerIncarnation(self.incarnation), runs)

    def kill(self) -> None:
        """It dies, and another comes."""
        self.sequences.clear()
        self.outbox.clear()
        self.node.worker_lost(MODEL, WorkerIncarnation(self.incarnation), "killed")
        self.incarnation += 1
