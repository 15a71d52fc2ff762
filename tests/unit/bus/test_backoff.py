"""Waits before a link is made again, and a fleet of 200 that comes back to its head (L8)."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial

import pytest

from bus.acceptor import Acceptor
from bus.backoff import FIRST_S, MAX_S, Backoff
from bus.endpoint import Endpoint
from bus.link import LinkDown, LinkUp
from bus.transport.link_options import RECONNECT_MS
from tests.harness.endpoint_rig import Rig
from tests.harness.link_identities import entropy_from, head, key, node


def test_l8_waits_are_drawn_below_a_bound_that_doubles() -> None:
    waits: list[list[float]] = []
    for seed in range(400):
        backoff = Backoff(random.Random(seed))
        waits.append([backoff.ended(100.0) - 100.0 for _ in range(8)])
    for attempt, drawn in enumerate(zip(*waits, strict=True)):
        bound = min(MAX_S, FIRST_S * 2**attempt)
        assert 0.0 <= min(drawn) < 0.05 * bound
        assert 0.95 * bound < max(drawn) <= bound


def test_no_wait_is_so_long_that_the_peer_would_take_the_connection_for_a_stranger_s() -> None:
    backoff = Backoff(random.Random(1), limit_s=2.0)
    waits = [backoff.ended(100.0) - 100.0 for _ in range(100)]
    assert 0.9 < max(waits) <= 1.0


def test_a_steady_link_makes_the_next_wait_a_first_one() -> None:
    backoff = Backoff(random.Random(1))
    for _ in range(10):
        backoff.ended(0.0)
    backoff.up(0.0)
    assert backoff.ended(10.0) <= 10.0 + FIRST_S
    backoff.up(11.0)
    assert backoff.ended(12.0) > 12.0


@pytest.mark.parametrize("code", ["gap", "stale", "auth", "rekey"])
def test_a_broken_link_is_made_again_at_once_but_not_in_a_hot_loop(code: str) -> None:
    backoff = Backoff(random.Random(3))
    now, ends = 0.0, 0
    while now < 60.0:
        backoff.up(now)
        now = max(backoff.ended(now, code), now + 1e-3)  # It breaks as soon as it is up.
        ends += 1
    assert [Backoff(random.Random(9)).ended(5.0, code) for _ in range(3)] == [5.0] * 3
    # Three at once, six more in a minute, and waits of 2.5 s on average between them.
    assert ends <= 3 + 6 + 40


def test_other_ends_wait() -> None:
    for code in ("silent", "replaced", "goodbye", "disconnected", "protocol", ""):
        assert Backoff(random.Random(4)).ended(5.0, code) > 5.0


class World:
    """One head and 200 nodes under virtual time, 1 ms apart; handshakes cost the head CPU."""

    LATENCY_S = 0.001
    HELLO_CPU_S = 0.001

    def __init__(self, nodes: int) -> None:
        self.now = 100.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.free_at = 0.0
        self.said: list[float] = []
        self.acceptor = self.new_head(5)
        self.members = [Member(self, number) for number in range(nodes)]

    def new_head(self, boot: int) -> Acceptor:
        known = {key(f"gpu-{n}").public: (1, 0) for n in range(200)}
        return Acceptor(
            head(incarnation=boot), entropy=entropy_from(b"%d" % boot), last_seen=known.get
        )

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), what))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.now = until

    def to_head(self, address: bytes, frame: bytes) -> None:
        self.free_at = max(self.free_at, self.now + self.LATENCY_S) + self.HELLO_CPU_S
        self.at(self.free_at, lambda: self.head_turn(address, frame))

    def head_turn(self, address: bytes, frame: bytes) -> None:
        self.acceptor.receive(address, frame, self.now)
        self.acceptor.events()
        while frames := self.acceptor.frames_to_send(self.now):
            for where, answer in frames:
                receive = partial(self.members[int(where)].receive, answer)
                self.at(self.now + self.LATENCY_S, receive)


class Member:
    """What a DealerLink does, without sockets."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.address = b"%d" % number
        self.rng = random.Random(number)
        self.identity = node(f"gpu-{number}")
        self.backoff = Backoff(self.rng)
        self.up_at: float | None = None
        self.entropy = entropy_from(self.address)
        self.connect()

    def connect(self) -> None:
        self.endpoint = Endpoint(self.identity, initiator=True, entropy=self.entropy)
        self.world.said.append(self.world.now)
        self.endpoint.connect(self.world.now)
        self.turn()

    def turn(self) -> None:
        now, endpoint = self.world.now, self.endpoint
        for event in endpoint.events():
            if isinstance(event, LinkUp):
                self.up_at = now
                self.backoff.up(now)
            elif isinstance(event, LinkDown):
                self.up_at = None
        while (frame := endpoint.next_frame(now)) is not None:
            self.world.to_head(self.address, frame)
        if self.up_at is None and (due := endpoint.next_timeout()) is not None:
            self.world.at(due, lambda: self.timeout(endpoint))

    def timeout(self, endpoint: Endpoint) -> None:
        if endpoint is self.endpoint and self.up_at is None:
            endpoint.handle_timeout(self.world.now)
            self.turn()

    def receive(self, frame: bytes) -> None:
        self.endpoint.receive(frame, self.world.now)
        self.turn()

    def lose(self) -> None:
        """The head's end closes its connection; libzmq makes it again after its own wait."""
        now = self.world.now
        self.endpoint.disconnected("the head is gone", now)
        self.turn()
        connected = now + self.rng.randint(*RECONNECT_MS) / 1000
        self.world.at(max(connected, self.backoff.ended(now)), self.connect)


def test_links_that_came_up_together_do_not_beat_together() -> None:
    beats = []
    for number in range(200):
        rig = Rig(seed=b"%d" % number).connect()
        assert rig.b.link is not None
        beats.append((rig.b.link.next_timeout() or 0.0) - rig.now)
    assert min(beats) >= 2.5
    assert max(beats) <= 5.0
    tenths = [sum(2.5 + 0.25 * n <= beat < 2.75 + 0.25 * n for beat in beats) for n in range(10)]
    assert max(tenths) < 40


def test_l8_200_nodes_are_back_in_ten_seconds_and_do_not_call_at_once() -> None:
    world = World(200)
    world.run(130.0)
    assert all(member.up_at is not None for member in world.members)
    world.acceptor = world.new_head(6)
    world.said.clear()
    lost_at = world.now
    for member in world.members:
        member.lose()
    world.run(lost_at + 10.0)
    back = [member.up_at for member in world.members if member.up_at is not None]
    assert len(back) == 200
    assert len(list(world.acceptor.links())) == 200
    assert max(back) - lost_at < 10.0
    # libzmq connects again after 100-300 ms, each process after its own; nobody else's call is
    # what a handshake waits for, and all could go on within `reattach` (0.5 s).
    first = sorted(world.said)[:200]
    busiest = max(sum(at <= other < at + 0.05 for other in first) for at in first)
    assert busiest <= 80
    assert first[-1] - first[0] > 0.15
    assert sorted(back)[180] - lost_at < 0.5


def test_l8_nodes_whose_head_was_lost_again_and_again_are_back_in_ten_seconds_too() -> None:
    world = World(200)
    world.run(130.0)
    lost_at = world.now
    for boot in range(6, 16):
        # Before any link is steady, so that every wait is drawn from more than the one before.
        world.acceptor = world.new_head(boot)
        lost_at = world.now
        for member in world.members:
            if member.up_at is not None:
                member.lose()
        world.run(lost_at + 9.0)
    world.run(lost_at + 10.0)
    back = [member.up_at - lost_at for member in world.members if member.up_at is not None]
    assert len(back) == 200
    assert len(list(world.acceptor.links())) == 200
    # Drawn from 0 to 5 s and not all at once: no half a second has a fifth of them.
    assert max(sum(start <= at < start + 0.5 for at in back) for start in back) < 40
