"""Silence of one link, of most, and a loop that stood still (L7)."""

from __future__ import annotations

import pytest

from bus.link import LinkDown, LinkLimits
from bus.liveness import Liveness
from bus.self_suspicion import SelfSuspicion
from tests.harness.acceptor_fleet import Fleet
from tests.harness.link_identities import node


def links(count: int, now: float = 0.0) -> tuple[SelfSuspicion, list[Liveness]]:
    suspicion = SelfSuspicion()
    made = [
        Liveness(now, heartbeat_s=5.0, busy_heartbeat_s=1.0, silence_s=30.0) for _ in range(count)
    ]
    for liveness in made:
        suspicion.add(liveness)
    return suspicion, made


@pytest.mark.parametrize(
    ("count", "silent", "forgiven"),
    [(4, 3, True), (4, 2, False), (3, 3, False), (5, 3, True), (200, 101, True), (200, 100, False)],
)
def test_most_of_four_or_more(count: int, silent: int, forgiven: bool) -> None:
    suspicion, made = links(count)
    for liveness in made[silent:]:
        liveness.heard(28.0)
    assert made[0].lost(30.0)
    assert suspicion.forgives(made[0], 30.0) is forgiven
    assert made[0].lost(30.0) is not forgiven


def test_forgiven_once_until_heard_again() -> None:
    suspicion, made = links(4)
    assert suspicion.forgives(made[0], 30.0)
    assert not made[3].lost(59.9)
    assert made[0].lost(60.0)
    assert not suspicion.forgives(made[0], 60.0)
    made[0].heard(61.0)
    for liveness in made[1:]:
        liveness.heard(61.0)
    assert suspicion.forgives(made[0], 91.0)


def test_links_that_ended_do_not_count() -> None:
    suspicion, made = links(6)
    for liveness in made[3:]:
        suspicion.remove(liveness)
    assert not suspicion.forgives(made[0], 30.0)


def test_a_loop_that_stood_still_starts_all_silences_anew() -> None:
    suspicion, made = links(2)
    assert not suspicion.stood_still(10.0, 15.0)
    assert not suspicion.stood_still(None, 99.0)
    assert suspicion.stood_still(5.0, 45.0)
    assert not made[0].lost(74.9)
    assert made[1].lost(75.0)


def run(fleet: Fleet, seconds: float, *, peers: bool) -> None:
    """Let time pass in the order of the timers; without `peers` nothing passes the network."""
    end = fleet.now + seconds
    while (due := fleet.acceptor.next_timeout()) is not None and due <= end:
        fleet.now = max(fleet.now, due)
        fleet.acceptor.handle_timeout(fleet.now)
        if peers:
            for peer in fleet.peers.values():
                peer.handle_timeout(fleet.now)
            fleet.settle()
        else:
            fleet.acceptor.frames_to_send(fleet.now)
            fleet.events += fleet.acceptor.events()
    fleet.now = end


def test_l7_a_network_that_is_away_costs_every_link_one_more_silence_limit() -> None:
    fleet = Fleet()
    for number in range(8):
        fleet.now += 0.5
        fleet.join(b"%d" % number, node(f"gpu-{number}"))
    run(fleet, 40.0, peers=False)
    assert fleet.codes(LinkDown) == []
    run(fleet, 35.0, peers=False)
    assert [code for _, code in fleet.codes(LinkDown)] == ["silent"] * 8


def test_l7_one_silent_link_of_many_is_lost_after_its_limit() -> None:
    fleet = Fleet()
    for number in range(8):
        fleet.join(b"%d" % number, node(f"gpu-{number}"))
    del fleet.peers[b"3"]
    run(fleet, 31.0, peers=True)
    assert fleet.codes(LinkDown) == [(b"3", "silent")]


@pytest.mark.parametrize("nodes", [1, 8])
def test_l7_a_head_that_was_suspended_for_40_s_loses_nobody(nodes: int) -> None:
    fleet = Fleet()
    for number in range(nodes):
        fleet.join(b"%d" % number, node(f"gpu-{number}"))
        fleet.peers[b"%d" % number].limits = LinkLimits(silence_s=0.0)
    fleet.now += 40.0
    fleet.acceptor.handle_timeout(fleet.now)
    fleet.settle()
    run(fleet, 20.0, peers=True)
    assert fleet.codes(LinkDown) == []
    assert len(fleet.up()) == nodes


def test_closed_connections_are_no_silence() -> None:
    fleet = Fleet()
    for number in range(8):
        fleet.join(b"%d" % number, node(f"gpu-{number}"))
    for number in range(7):
        fleet.acceptor.disconnected(b"%d" % number, "reset", fleet.now)
    fleet.settle()
    assert len(fleet.codes(LinkDown)) == 7
