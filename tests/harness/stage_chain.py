"""Stages of a model in one process: a driver's engine and executors, connected by calls.

What goes from one to the other waits in queues, and who does something next is drawn, so that
units of several groups overtake each other and answers take their time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from agent.models.assemble import ModelSource, assemble
from agent.models.folder import ModelFolder
from agent.models.toy import CONFIG, ToyWeights, vocabulary
from agent.worker.draws import GrammarSource
from agent.worker.driver import DriverEngine
from agent.worker.executor import Executor
from agent.worker.stage_runner import StageRunner
from bus.messages.parts import Finish
from bus.messages.worker import Submit
from bus.messages.worker_stages import StageFailed, StageOpen, StageOpened, StageUnit
from tests.harness.models import cached_model

DEEP = replace(CONFIG, layers=4)


def deep_toy_folder() -> ModelFolder:
    """The toy with four layers, for three stages."""
    source = ModelSource(
        config=DEEP,
        weights=ToyWeights(DEEP),
        vocabulary=vocabulary(),
        origin={"kind": "toy", "seed": "7", "layers": "4"},
        quantization={"affine 4-bit": 28, "8-bit": 1, "F32": 9},
    )
    return cached_model("toy4", lambda target: assemble(source, target))


def open_stages(folders: Sequence[ModelFolder]) -> list[StageRunner]:
    """The stages' sessions, for any number of chains."""
    return [StageRunner(folder, device="cpu", threads=1) for folder in folders]


class StageChain:
    """Drives a chain, and keeps what each generation gave.

    Args:
        runners: of the stages in order.
        random: draws who is next.
        lanes: of all groups.
        window: of a lane.
        host_tokens: of all groups.
        groups: as many as there are stages by default.
    """

    def __init__(
        self,
        runners: Sequence[StageRunner],
        random: Random,
        *,
        lanes: int = 4,
        window: int = 256,
        host_tokens: int = 4096,
        groups: int = 0,
        hidden_type: str = "float32",
        depth: int = 1,
        grammars: GrammarSource | None = None,
    ) -> None:
        self.random = random
        self.now = 0.0
        self.ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, bytes] = {}
        self.ends: dict[int, Finish] = {}
        self.failed: list[StageFailed] = []
        #: What is on its way into each stage.
        self.queues: list[deque[StageUnit]] = [deque() for _ in runners]
        #: Of all units and hidden states that went over a hop.
        self.sent_bytes = 0
        *before, last = runners
        self.executors = [
            Executor(
                runner,
                kv_bytes=lanes * window * runner.token_bytes,
                host_kv_bytes=host_tokens * runner.token_bytes,
            )
            for runner in before
        ]
        self.engine = DriverEngine(
            last,
            kv_bytes=lanes * window * last.token_bytes,
            host_kv_bytes=host_tokens * last.token_bytes,
            grammars=grammars,
        )
        self.order = StageOpen(
            chain=1,
            groups=groups or len(runners),
            lanes=lanes,
            hidden_type=hidden_type,
            depth=depth,
        )
        self.opened = self.open(1)

    def open(self, chain: int) -> StageOpened:
        """Open a chain, the driver last."""
        order = replace(self.order, chain=chain)
        opened = [executor.open(order) for executor in self.executors]
        assert not any(one.code for one in opened), opened
        return self.engine.open(
            replace(
                order,
                window=min(one.window for one in opened),
                host_tokens=min(one.host_tokens for one in opened),
                numerics=tuple(one.numerics for one in opened),
            )
        )

    def close(self, chain: int) -> None:
        """Close a chain everywhere; what is on its way stays so."""
        for executor in self.executors:
            executor.close(chain)
        self.engine.close(chain)

    def submit(self, *messages: Submit) -> None:
        for message in messages:
            self.ids[int(message.generation)] = []
            self.logprobs[int(message.generation)] = b""
            self.engine.submit(message, self.now)

    def turn(self) -> None:
        """Somebody who has something to do does it."""
        able = [
            place
            for place, queue in enumerate(self.queues)
            if queue or (place == len(self.executors) and self.engine.has_work)
        ]
        place = self.random.choice(able or [len(self.executors)])
        if place < len(self.executors):
            self._execute(place)
        else:
            self._drive()

    def finish(self) -> None:
        """Turn until nothing is left."""
        while not self.engine.idle:
            self.turn()

    def _execute(self, place: int) -> None:
        failed = self.executors[place].take(self.queues[place].popleft())
        reply = failed or self.executors[place].turn()
        if isinstance(reply, StageFailed):
            self.failed.append(reply)
        elif reply is not None:
            self.queues[place + 1].append(reply)
            self.sent_bytes += len(reply.unit) + len(reply.hidden)

    def _drive(self) -> None:
        arrived = self.queues[-1]
        if arrived and self.random.random() < 0.7:
            self.engine.arrived(arrived.popleft())
        self.now += 0.02
        emissions = self.engine.turn(self.now)
        for message in self.engine.take_messages():
            if isinstance(message, StageFailed):
                self.failed.append(message)
            else:
                self.queues[0].append(message)
        for emission in emissions:
            generation = int(emission.generation)
            if emission.token is not None:
                assert emission.index == len(self.ids[generation])
                self.ids[generation].append(emission.token)
                self.logprobs[generation] += emission.logprobs
            if emission.finish is not None:
                assert generation not in self.ends
                self.ends[generation] = emission.finish
        self.engine.check_integrity()
