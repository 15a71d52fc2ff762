"""The scheduler under everything at once, from a seed that a failure prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import pytest

from agent.worker.prefix_cache import BLOCK_TOKENS
from agent.worker.work import CopyPrefix, LoadLane, SaveLane
from bus.errors import ConstraintReplayFailed, QueueFull
from bus.ids import GenerationId, unpack_ids
from bus.messages.parts import Segment
from bus.messages.worker import Submit
from tests.harness.scheduler_driver import TOKEN_BYTES, Driver, submit, telling_token

GENERATIONS = 60
SEEDS = 8


@dataclass
class Script:
    """Makes requests that share beginnings, and does things to those that run."""

    random: Random
    driver: Driver
    made: list[Submit] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    paused: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stems = [
            [self.random.randrange(10, 4000) for _ in range(length)]
            for length in (70, 130, 300, 320, 450)
        ]

    def request(self) -> Submit:
        random = self.random
        stem = random.choice(self.stems)
        ids = stem[: random.randrange(1, len(stem) + 1)] if random.random() < 0.3 else list(stem)
        ids += [random.randrange(10, 4000) for _ in range(random.randrange(1, 90))]
        if self.made and random.random() < 0.2:  # another turn of a conversation
            before = random.choice(self.made)
            ids = list(unpack_ids(before.context)) + self.driver.ids(int(before.generation))
            ids = ids[:500] + [random.randrange(10, 4000) for _ in range(7)]
        return submit(
            len(self.made),
            ids,
            max_new=random.randrange(0, 40),
            wall_ms=random.choice((0, 0, 0, 300, 3000)),
            segments=self.segments(len(ids)),
            qos=random.choice((0, 1, 2, 3, 3)),
            exact=random.random() < 0.3,
            salt=random.choice((b"", b"", b"s")),
        )

    def segments(self, tokens: int) -> tuple[Segment, ...]:
        if self.random.random() < 0.6:
            return ()
        steps = self.random.randrange(0, min(20, tokens))
        tail = self.random.choice((0, min(3, tokens - steps)))
        return (
            Segment(tokens=tokens - steps - tail),
            Segment(tokens=steps, by_step=True),
            Segment(tokens=tail),
        )

    def submit(self) -> None:
        message = self.request()
        held = self.random.random() < 0.1
        try:
            self.driver.submit(message, held=held)
        except QueueFull:
            return
        self.made.append(message)
        if held:
            self.held.append(int(message.generation))

    def disturb(self) -> None:
        random, driver = self.random, self.driver
        dice, who = random.random(), random.randrange(max(1, len(self.made)))
        if dice < 0.03:
            driver.cancel(who)
        elif dice < 0.08:
            driver.pause(who)
            self.paused.add(who)
        elif dice < 0.16 and self.paused:
            driver.resume(self.paused.pop())
        elif dice < 0.20 and self.held:
            one = GenerationId(self.held.pop())
            if random.random() < 0.3:
                driver.scheduler.refuse(one, ConstraintReplayFailed("does not fit"))
            else:
                driver.scheduler.release(one)
            driver.check()
        elif dice < 0.22:
            driver.now += random.choice((0.5, 5.0))

    def wind_up(self) -> None:
        """Let all that is left run to its end."""
        self.driver.transfers.failing = frozenset()
        self.driver.failing = ""
        for generation in self.held:
            self.driver.scheduler.release(GenerationId(generation))
        for generation in self.paused:
            self.driver.resume(generation)
        self.driver.run()


@lru_cache
def play(seed: int, *, host_tokens: int, faults: bool = False, grid: bool = False) -> Script:
    random = Random(seed)
    driver = Driver(
        lanes=random.choice((1, 3, 5)),
        window=600,
        host_bytes=host_tokens * TOKEN_BYTES,
        chunk_rate=random.choice((400.0, 20_000.0)),
        step_s=random.choice((0.001, 0.04)),
        telling=True,
        grid=grid,
    )
    script = Script(random, driver)
    while len(script.made) < GENERATIONS:
        if random.random() < random.choice((0.02, 0.2, 0.9)):
            script.submit()
        script.disturb()
        if faults:
            kinds = (LoadLane, SaveLane, CopyPrefix)
            fails = random.random() < 0.2
            driver.transfers.failing = frozenset({random.choice(kinds)} if fails else ())
            driver.failing = random.choice(("run", "draw")) if random.random() < 0.03 else ""
        driver.turn()
    script.wind_up()
    return script


def check_answers(script: Script) -> None:
    """Every generation ended once, with the tokens that its context gives, in order."""
    driver = script.driver
    for message in script.made:
        generation = int(message.generation)
        finish = driver.finish(generation)
        context = list(unpack_ids(message.context))
        for token in driver.ids(generation):
            assert token == telling_token(context)
            context.append(token)
        assert finish.usage.cached_tokens <= len(unpack_ids(message.context))
        if finish.reason == "length":
            assert len(context) == min(
                len(unpack_ids(message.context)) + message.max_new_tokens, driver.window
            )
        assert finish.reason in {"length", "cancelled", "expired", "error"}
    assert driver.scheduler.idle
    assert driver.scheduler.kv_live_tokens == driver.scheduler.lanes_used == 0
    assert driver.scheduler.queued == 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_generation_ends_once_with_its_own_tokens(seed: int) -> None:
    script = play(seed, host_tokens=3000)
    check_answers(script)
    assert script.driver.scheduler.cached_tokens > BLOCK_TOKENS


@pytest.mark.parametrize("seed", range(4))
def test_so_it_does_without_host_memory(seed: int) -> None:
    script = play(seed, host_tokens=0)
    check_answers(script)
    assert script.driver.scheduler.preemptions == 0
    assert not [op for op in script.driver.ops if isinstance(op, SaveLane)]


@pytest.mark.parametrize("host_tokens", [64, 700])
@pytest.mark.parametrize("seed", [200, 201])
def test_so_it_does_with_host_memory_for_about_one_lane(seed: int, host_tokens: int) -> None:
    check_answers(play(seed, host_tokens=host_tokens))


@pytest.mark.parametrize("seed", range(4))
def test_so_it_does_when_copies_runs_and_draws_fail(seed: int) -> None:
    script = play(seed, host_tokens=2000, faults=True)
    check_answers(script)
    assert any(e.finish and e.finish.error_code == "internal" for e in script.driver.emitted)


@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_so_it_does_when_chunks_must_keep_to_the_middles_of_blocks(seed: int) -> None:
    script = play(seed, host_tokens=3000, grid=True)
    check_answers(script)
    assert script.driver.scheduler.cached_tokens > BLOCK_TOKENS


def test_the_scripts_reach_what_they_are_for() -> None:
    scripts = [play(seed, host_tokens=3000) for seed in range(SEEDS)]
    kinds = {type(op) for script in scripts for op in script.driver.ops}
    assert {kind.__name__ for kind in kinds} == {
        "MoveLane",
        "CopyPrefix",
        "SaveLane",
        "LoadLane",
        "DropSaved",
    }
    assert sum(script.driver.scheduler.preemptions for script in scripts) > 20
