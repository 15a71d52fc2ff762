"""Exactness over the toy under everything at once, on lanes and host memory that are tight.

Whatever a request took over, whoever ran beside it or pushed it out, its ids and log-probabilities
are, when it asks `exact`, bit by bit those of a worker that it has for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from agent.models.folder import ModelFolder
from agent.worker.model_runner import ModelRunner
from bus.errors import QueueFull
from bus.ids import count_ids, unpack_ids
from bus.messages.parts import Segment
from bus.messages.worker import Submit
from tests.harness.engine_run import GREEDY, EngineRun, alone, submit
from tests.harness.models import smollm2_folder, toy_model_folder

LANES = 4
#: Of a lane.
WINDOW = 256
#: In tokens, which is less than what two lanes may hold.
HOST_TOKENS = 390
RULE = replace(GREEDY, logprobs=1)
#: Ids of the toy's vocabulary: printable ASCII.
LOW, HIGH = 32, 127
#: A chunk of so many tokens more than whole tiles would round its last row like a step.
TILE = 64


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(toy_model_folder, id="toy"),
        pytest.param(smollm2_folder, id="smollm2", marks=pytest.mark.model),
    ],
)
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    make: Callable[[], ModelFolder] = request.param
    folder = make()
    kv_bytes = LANES * WINDOW * folder.kv_bytes_per_token()
    return ModelRunner(folder, device="cpu", lanes=LANES, kv_bytes=kv_bytes, threads=1)


def new_run(runner: ModelRunner) -> EngineRun:
    return EngineRun(runner, host_kv_bytes=HOST_TOKENS * runner.folder.kv_bytes_per_token())


def differing(runner: ModelRunner, run: EngineRun, messages: list[Submit]) -> list[str]:
    """What of exact requests is not as it is alone; of one that was cut short, as far as it got."""
    found = []
    for message in messages:
        number = int(message.generation)
        ids, logprobs = run.ids[number], run.logprobs[number]
        if not message.exact or not ids:
            continue
        alone_ids, alone_logprobs = alone(runner, message)
        if (ids, logprobs) != (alone_ids[: len(ids)], alone_logprobs[: len(logprobs)]):
            usage = run.ends[number].usage
            found.append(f"{number}: {usage.cached_tokens} of {usage.prompt_tokens} tokens cached")
    return found


@dataclass
class Script:
    """Makes requests that go on from each other, and does things to those that run."""

    random: Random
    run: EngineRun
    made: list[Submit] = field(default_factory=list)

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(LOW, HIGH) for _ in range(count)]

    def beginning(self) -> tuple[list[int], tuple[Segment, ...]]:
        """A context and how it is to be computed: new, another's beginning, or its next turn."""
        kind = self.random.random()
        if not self.made or kind < 0.1:
            return self.ids(self.random.randrange(1, 200)), ()
        before = self.random.choice(self.made)
        ids = list(unpack_ids(before.context))
        if kind < 0.55 or not self.run.ids[int(before.generation)]:
            cut = self.random.randrange(1, len(ids) + 1)
            # Often just so that whole tiles and a token are left behind what is shared.
            left = self.random.choice((1, 2, TILE, TILE + 1, 2 * TILE + 1, 20, 33))
            ids = ids[:cut] + self.ids(min(left, WINDOW - 12 - cut))
            return ids, ()
        answer = self.run.ids[int(before.generation)]
        segments = before.segments or (Segment(tokens=len(ids)),)
        appended = self.random.choice((1, 1, 2, 5, TILE + 1))
        # Few ids, so that turns with one token and with more begin alike.
        more = [self.random.choice((40, 41)) for _ in range(appended)]
        segments += (Segment(tokens=len(answer), by_step=True), Segment(tokens=appended))
        return [*ids, *answer, *more], segments

    def submit(self) -> None:
        ids, segments = self.beginning()
        if len(ids) > WINDOW - 12:
            return
        message = submit(
            len(self.made),
            ids,
            self.random.randrange(1, 12),
            RULE,
            qos=self.random.choice((0, 1, 3, 3)),
            exact=self.random.random() < 0.8,
            segments=segments,
        )
        try:
            self.run.submit(message)
        except QueueFull:
            del self.run.ids[int(message.generation)]
            return
        self.made.append(message)

    def act(self) -> None:
        scheduler = self.run.engine.scheduler
        running = [m.generation for m in self.made if int(m.generation) not in self.run.ends]
        kind = self.random.random()
        if kind < 0.05 and running:
            scheduler.cancel(self.random.choice(running))
        elif kind < 0.12 and running:
            scheduler.pause(self.random.choice(running), self.run.now)
        elif kind < 0.2:
            for generation in running:
                scheduler.resume(generation)
        elif kind < 0.25:
            scheduler.pacer.chunk_rate = self.random.choice((1.0, 700.0, 1300.0, 1e6))


@pytest.mark.parametrize("seed", range(4))
def test_exact_requests_are_as_alone_whatever_happens(runner: ModelRunner, seed: int) -> None:
    toy = runner.folder.name == "toy"
    script = Script(Random(seed), new_run(runner))
    run = script.run
    while len(script.made) < (90 if toy else 14):
        for _ in range(script.random.choice((1, 1, 3, 9))):
            script.submit()
        for _ in range(script.random.randrange(1, 12)):
            script.act()
            run.turn()
    for message in script.made:
        run.engine.scheduler.resume(message.generation)
    run.finish()
    assert not differing(runner, run, script.made)
    stats = run.engine.stats()
    assert stats.cached_tokens > 0
    if toy:
        assert stats.preemptions > 0
        assert sum(m.exact and count_ids(m.context) > TILE for m in script.made) > 30


@pytest.mark.parametrize("left", [2, 3, TILE, TILE + 1, TILE + 2, 2 * TILE + 1])
def test_a_prompt_with_any_rest_behind_a_running_ones_beginning(
    runner: ModelRunner, left: int
) -> None:
    random = Random(left)
    prompt = [random.randrange(LOW, HIGH) for _ in range(235)]
    shared = len(prompt) - left
    other = [*prompt[:shared], 126 if prompt[shared] != 126 else 125, *prompt[shared + 1 :]]
    run = new_run(runner)
    messages = [submit(n, ids, 8, RULE, qos=3, exact=True) for n, ids in ((0, other), (1, prompt))]
    run.submit(*messages)
    run.finish()
    assert run.ends[1].usage.cached_tokens == shared
    assert not differing(runner, run, messages)


@pytest.mark.parametrize("seed", range(3))
def test_a_token_that_was_a_chunk_of_its_own_stands_for_none_of_a_longer_one(
    runner: ModelRunner, seed: int
) -> None:
    """Two turns go on from one answer: by a token, and by five that begin with it."""
    random = Random(seed)
    prompt = [random.randrange(LOW, HIGH) for _ in range(100)]
    run = new_run(runner)
    first = submit(0, prompt, 6, RULE, exact=True)
    run.submit(first)
    run.finish()
    before = (Segment(tokens=100), Segment(tokens=6, by_step=True))
    token = random.randrange(LOW, HIGH)
    context = [*prompt, *run.ids[0], token]
    # Its answer is long enough for its lane to be kept.
    one = submit(1, context, 40, RULE, exact=True, segments=(*before, Segment(tokens=1)))
    more = [*context, 42, 43, 44, 45]
    five = submit(2, more, 6, RULE, exact=True, segments=(*before, Segment(tokens=5)))
    for message in (one, five):
        run.submit(message)
        run.finish()
    assert [run.ends[n].usage.cached_tokens for n in (1, 2)] == [105, 106]
    assert not differing(runner, run, [first, one, five])
