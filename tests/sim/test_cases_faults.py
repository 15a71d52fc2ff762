"""Cases from the field under virtual time: bad paths, clocks and stalls; by their numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from head.core import CorePolicy
from head.runs import RunPolicy
from tests.harness.fleet_checks import check_complete, check_idle
from tests.harness.memory_fleet import MemoryFleet


class Mischief:
    """Does one kind of harm to some frames. Seeded."""

    def __init__(self, kind: str, seed: int, share: float = 0.1) -> None:
        self._do: Callable[[str, bytes], list[bytes]] = getattr(self, f"_{kind}")
        self._rng = random.Random(seed)
        self._share = share
        self._earlier: dict[str, list[bytes]] = {}
        self._held: dict[str, bytes] = {}
        self.done = 0

    def __call__(self, way: str, frame: bytes) -> list[bytes]:
        self._earlier.setdefault(way, []).append(frame)
        if held := self._held.pop(way, b""):
            return [frame, held]
        if self._rng.random() >= self._share:
            return [frame]
        self.done += 1
        return self._do(way, frame)

    def _duplicated(self, way: str, frame: bytes) -> list[bytes]:
        return [frame, frame]

    def _replayed(self, way: str, frame: bytes) -> list[bytes]:
        return [frame, *self._rng.choices(self._earlier[way], k=20)]

    def _swapped(self, way: str, frame: bytes) -> list[bytes]:
        self._held[way] = frame
        return []

    def _cut(self, way: str, frame: bytes) -> list[bytes]:
        return [frame[: self._rng.randrange(len(frame))]]

    def _flipped(self, way: str, frame: bytes) -> list[bytes]:
        changed = bytearray(frame)
        changed[self._rng.randrange(len(frame))] ^= 1 << self._rng.randrange(8)
        return [bytes(changed)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["duplicated", "replayed", "swapped", "cut", "flipped"])
def test_l4_nothing_is_applied_twice_and_the_link_is_made_again(kind: str, seed: int) -> None:
    fleet = MemoryFleet(seed=seed, nodes=2)
    fleet.run(1.0)
    harm = fleet.mangle = Mischief(kind, seed)
    streams = [fleet.generate(f"{kind} {i}", 40) for i in range(6)]
    fleet.finish(*streams, limit_s=300)
    assert harm.done > 0
    for i, stream in enumerate(streams):
        check_complete(stream, f"{kind} {i}", 40)
        if kind in ("duplicated", "replayed"):
            # Old frames are dropped and change nothing at all.
            assert not any(event["type"] == "moved" for event in stream.events)
    fleet.mangle = lambda way, frame: [frame]
    fleet.run(60.0)
    assert fleet.head is not None
    assert all(node.up for node in fleet.head.core.fleet.nodes)
    last = fleet.generate("healed", 10)
    fleet.finish(last)
    check_complete(last, "healed", 10)


@pytest.mark.parametrize("from_start", [True, False])
def test_l4_a_recorded_conversation_played_to_the_head_again_changes_nothing(
    from_start: bool,
) -> None:
    fleet = MemoryFleet()
    recorded: list[bytes] = []

    def record(way: str, frame: bytes) -> list[bytes]:
        if way == "node-1 > head":
            recorded.append(frame)
        return [frame]

    fleet.mangle = record
    stream = fleet.generate("recorded", 20)
    fleet.finish(stream)
    fleet.run(5.0)
    assert fleet.head is not None
    assert len(recorded) > 10
    host, core, before = fleet.head, fleet.head.core, fleet.head.gate.durable_lsn
    if not from_start:
        # The node is away meanwhile, so nobody else is there under its identity.
        fleet.nodes[0].cut = True
        fleet.nodes[0].cut_connection()
        fleet.run(1.0)
        before = host.gate.durable_lsn
    up = [node.up for node in core.fleet.nodes]
    for frame in recorded:
        host.receive(b"stranger", frame)
    fleet.run(20.0)
    assert [node.up for node in core.fleet.nodes] == up
    assert host.acceptor.endpoint(b"stranger") is None
    assert host.acceptor.half_open == 0
    assert host.gate.durable_lsn == before
    assert fleet.disk.tokens(stream.session) == 20


def test_l9_a_wall_clock_that_jumps_moves_no_lease_timer_or_rate() -> None:
    # The cores are handed boot time alone; the head's one wall time at its start names moments in
    # stored rows. Whatever it says, a run is the same to the event.
    def story(wall_offset_s: float) -> list[Any]:
        fleet = MemoryFleet(seed=9)
        assert fleet.head is not None
        fleet.head.core.book._wall_offset_s += wall_offset_s
        streams = [fleet.generate(f"p{i}", 300, credit=500, max_wall_ms=60_000) for i in range(3)]
        fleet.run(40.0)
        return [(stream.events, stream.end) for stream in streams]

    usual = story(0.0)
    assert all(end is not None for _, end in usual)
    assert story(3600.0) == usual
    assert story(-3600.0) == usual


def test_l12_a_head_that_is_stalled_for_more_than_1024_tokens_gets_all_in_order() -> None:
    fleet = MemoryFleet(nodes=2, policy=CorePolicy(runs=RunPolicy(lease_s=300.0)))
    fleet.run(1.0)
    stream = fleet.generate("stalled", 1600, credit=4096)
    fleet.run_until(lambda: len(stream.tokens) > 20)
    node = next(node for node in fleet.nodes if node.worker and node.worker.running)
    (sequence,) = node.worker.running.values()  # type: ignore[union-attr]
    # Nothing is durable within a minute, so nothing is acknowledged for 3,000 steps' time.
    fleet.commit_s = 60.0
    fleet.run(59.0)
    assert sequence.paused
    # The node stops well within its window; of what it keeps nothing is dropped.
    assert sequence.made - len(stream.tokens) <= 1024
    fleet.finish(stream, limit_s=1000)
    check_complete(stream, "stalled", 1600)
    fleet.run(200.0)
    check_idle(fleet)


def test_l12_a_stream_whose_lease_ran_out_behind_a_stalled_disk_goes_on() -> None:
    fleet = MemoryFleet(windows=(4096,))
    fleet.run(1.0)
    stream = fleet.generate("fenced", 3000, credit=4096)
    fleet.run_until(lambda: len(stream.tokens) > 20)
    fleet.commit_s = 30.0
    fleet.run(60.0)
    fleet.commit_s = 0.002
    fleet.finish(stream, limit_s=200.0)
    check_complete(stream, "fenced", 3000)
    moved = [event for event in stream.events if event["type"] == "moved"]
    assert "its lease ran out" in moved[0]["reason"]
    fleet.run(10.0)
    check_idle(fleet)
