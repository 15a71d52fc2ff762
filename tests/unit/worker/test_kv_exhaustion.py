"""More requests than lanes, whose keys and values fill all there is: all complete, none changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import pytest

from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from agent.worker.scheduler import EXTRA_WAITING
from bus.errors import QueueFull
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit
from tests.harness.models import toy_model_folder

TOKEN_BYTES = 1024
WINDOW = 128
REQUESTS = 32


@cache
def runner_with(lanes: int) -> ModelRunner:
    kv_bytes = lanes * WINDOW * TOKEN_BYTES
    runner = ModelRunner(
        toy_model_folder(), device="cpu", lanes=lanes, kv_bytes=kv_bytes, threads=1
    )
    assert runner.window == WINDOW
    return runner


def request(number: int, *, qos: int | None = None) -> Submit:
    """Fills its lane to the last token; every second one has a beginning that others have."""
    length = 70 + number % 40
    start = [65] * 66 if number % 2 else [48 + number] * 66
    ids = start + [33 + (number * place) % 90 for place in range(length - 66)]
    return Submit(
        generation=GenerationId(number),
        context=pack_ids(ids),
        sampling=SamplingParams(temperature=0.9, seed=number, ignore_eos=True),
        max_new_tokens=2**32 - 1,
        prompt_tokens=length,
        qos=number % 4 if qos is None else qos,
        exact=True,
    )


@dataclass
class Collected:
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)

    def turn(self, engine: Engine, now: float) -> None:
        for emission in engine.turn(now):
            generation = int(emission.generation)
            if emission.token is not None:
                self.tokens.setdefault(generation, []).append(emission.token)
            if emission.finish is not None:
                assert generation not in self.finishes
                self.finishes[generation] = emission.finish.reason
        engine.check_integrity()

    def drain(self, engine: Engine, now: float) -> None:
        while not engine.idle:
            self.turn(engine, now)


@cache
def alone() -> dict[int, list[int]]:
    """What each gives with nobody beside it."""
    engine, found = Engine(runner_with(8), host_kv_bytes=0), Collected()
    for number in range(REQUESTS + 1):
        engine.submit(request(number), 0.0)
        found.drain(engine, 0.0)
    return found.tokens


@pytest.mark.parametrize("host_tokens", [0, WINDOW, 100 * WINDOW], ids=["none", "a lane", "much"])
@pytest.mark.parametrize("lanes", [8, 2])
def test_32_requests_complete_and_a_fresh_one_is_served_then(lanes: int, host_tokens: int) -> None:
    engine, found = Engine(runner_with(lanes), host_kv_bytes=host_tokens * TOKEN_BYTES), Collected()
    now, number = 0.0, 0
    # The lower classes come first, and the better ones one by one while all lanes are busy.
    order = sorted(range(REQUESTS), key=lambda number: -(number % 4))
    while order or not engine.idle:
        if order and (number < 20 or number % 5 == 0):
            engine.submit(request(order.pop(0)), now)
        number += 1
        now += 0.01
        found.turn(engine, now)
    assert found.finishes == dict.fromkeys(range(REQUESTS), "length")
    assert found.tokens == {number: alone()[number] for number in range(REQUESTS)}
    stats = engine.stats()
    assert (stats.lanes_used, stats.queued, stats.kv_live_tokens) == (0, 0, 0)
    assert stats.kv_host_bytes <= host_tokens * TOKEN_BYTES
    assert bool(stats.preemptions) == bool(host_tokens)
    turns = engine.stats().steps
    engine.submit(request(REQUESTS), now)
    found.drain(engine, now)
    assert found.tokens[REQUESTS] == alone()[REQUESTS]
    assert engine.stats().steps - turns <= WINDOW, "nobody was in its way"


def test_those_beyond_lanes_and_queue_are_refused_by_type_and_come_in_when_one_has_ended() -> None:
    engine, found = Engine(runner_with(2), host_kv_bytes=0), Collected()
    for number in range(2 + EXTRA_WAITING):
        engine.submit(request(number), 0.0)
    with pytest.raises(QueueFull):
        engine.submit(request(90), 0.0)
    while not found.finishes:
        found.turn(engine, 0.0)
    engine.submit(request(90), 0.0)
    found.drain(engine, 0.0)
    assert set(found.finishes) == {*range(2 + EXTRA_WAITING), 90}
    assert set(found.finishes.values()) == {"length"}


def test_paused_ones_on_every_lane_leave_them_when_host_memory_has_room() -> None:
    """Nobody reads them: others run meanwhile, and they go on where they were."""
    engine, found = Engine(runner_with(2), host_kv_bytes=2 * WINDOW * TOKEN_BYTES), Collected()
    for number in (0, 2):
        engine.submit(request(number, qos=0), 0.0)
    while len(found.tokens) < 2:
        found.turn(engine, 0.0)
    for number in (0, 2):
        engine.pause(GenerationId(number), 0.0)
    engine.submit(request(4, qos=3), 1.0)
    found.turn(engine, 1.0)
    assert engine.idle
    due = engine.next_deadline()
    assert due is not None
    while 4 not in found.finishes:
        found.turn(engine, 2.0)
    for number in (0, 2):
        engine.resume(GenerationId(number))
    found.drain(engine, 3.0)
    assert found.tokens == {number: alone()[number] for number in (0, 2, 4)}
    assert engine.stats().lanes_used == 0
