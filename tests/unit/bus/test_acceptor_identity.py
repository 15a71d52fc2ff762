"""Two processes with one key at a ROUTER: who is probed, replaced, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from bus.crypto import KeyPair, SecretKey
from bus.link import (
    HandshakeRefused,
    LinkDown,
    LinkIdentity,
    LinkUp,
    MessageReceived,
    PeerInfo,
    PeerRefused,
    Refusal,
)
from bus.messages.link import NodeStatus
from bus.messages.parts import ProcessInfo
from tests.harness.acceptor_fleet import Fleet
from tests.harness.link_identities import head, key, node


def process(number: int, host: str = "alpha") -> ProcessInfo:
    return ProcessInfo(
        nonce=bytes([number]) * 16, pid=1000 + number, host=host, started_at_s=1.7e9 + number
    )


def run(number: int, boot: int = 3, **changes: Any) -> LinkIdentity:
    return node(boot=boot, **{"process": process(number), **changes})


def unplug(fleet: Fleet, address: bytes) -> None:
    """Its network is gone without a word, or it is dead and nobody noticed."""
    del fleet.peers[address]


def pass_time(fleet: Fleet, seconds: float) -> None:
    fleet.now += seconds
    fleet.acceptor.handle_timeout(fleet.now)
    fleet.settle()


@pytest.mark.parametrize("boot", [3, 4])
def test_l10_a_copied_state_folder_is_refused_while_the_first_answers(boot: int) -> None:
    fleet = Fleet()
    first = fleet.join(b"first", run(1))
    copy = run(2, boot, process=process(2, "beta"))
    if boot == 3:  # A Hello of the same incarnation has to be newer.
        for _ in range(5):
            copy.hello_counter.next()
    newcomer = fleet.join(b"copy", copy)
    fleet.settle()
    assert fleet.up() == [b"first"]
    assert fleet.codes(LinkDown) == []
    assert fleet.codes(PeerRefused) == [(b"copy", "identity_in_use")]
    (refused,) = newcomer.events()
    assert isinstance(refused, PeerRefused)
    assert (refused.code, refused.by_peer) == ("identity_in_use", True)
    assert "process 1001 on alpha, running since 2023-11-14 22:13:21 UTC" in refused.reason
    assert "process 1002 on beta" in refused.reason
    assert "Stop one of them" in refused.reason
    assert newcomer.state == "connecting"
    # The first is undisturbed, and its link works.
    assert [type(e) for e in first.events()] == [LinkUp]
    first.send(NodeStatus(models=()))
    fleet.settle()
    assert fleet.events[-1] == (b"first", MessageReceived(NodeStatus(models=())))


def test_l10_the_first_links_again_after_a_copy_tried() -> None:
    fleet = Fleet()
    original = run(1)
    fleet.join(b"first", original)
    fleet.join(b"copy", run(2, boot=4))
    fleet.settle()
    fleet.acceptor.disconnected(b"first", "cable", fleet.now)
    unplug(fleet, b"copy")
    fleet.join(b"again", original)
    assert fleet.up() == [b"again"]


def test_l10_when_the_copy_got_the_place_the_first_is_told_who_has_it() -> None:
    fleet = Fleet()
    original = run(1)
    fleet.join(b"first", original)
    fleet.acceptor.disconnected(b"first", "cable", fleet.now)
    fleet.join(b"copy", run(2, boot=4))
    assert fleet.up() == [b"copy"]
    fleet.join(b"again", original)
    assert fleet.up() == [b"copy"]
    reasons = [e.reason for _, e in fleet.events if isinstance(e, PeerRefused)]
    assert len(reasons) == 1
    assert "process 1002 on alpha" in reasons[0]


@pytest.mark.parametrize("boot", [3, 4])
def test_l11_a_restart_takes_the_place_of_a_link_that_does_not_answer(boot: int) -> None:
    fleet = Fleet()
    fleet.join(b"old", run(1))
    unplug(fleet, b"old")
    again = run(2, boot)
    again.hello_counter.next()
    new = fleet.join(b"new", again)
    assert fleet.up() == [b"old"]
    assert fleet.peers[b"new"].state == "confirming"
    pass_time(fleet, 1.99)
    assert fleet.up() == [b"old"]
    assert fleet.acceptor.next_timeout() == pytest.approx(fleet.now + 0.01)
    pass_time(fleet, 0.01)
    assert fleet.up() == [b"new"]
    assert new.state == "up"
    kinds = [(a, type(e)) for a, e in fleet.events]
    assert kinds == [(b"old", LinkUp), (b"old", LinkDown), (b"new", LinkUp)]
    assert fleet.codes(LinkDown) == [(b"old", "replaced")]


def test_l11_a_restart_has_its_place_at_once_when_the_old_connection_was_reset() -> None:
    fleet = Fleet()
    fleet.join(b"old", run(1))
    fleet.acceptor.disconnected(b"old", "reset", fleet.now)
    fleet.join(b"new", run(2, boot=4))
    assert fleet.up() == [b"new"]


def test_l11_a_reset_while_the_newcomer_waits_ends_the_wait() -> None:
    fleet = Fleet()
    fleet.join(b"old", run(1))
    unplug(fleet, b"old")
    new = fleet.join(b"new", run(2, boot=4))
    fleet.acceptor.disconnected(b"old", "reset", fleet.now + 0.1)
    fleet.settle()
    fleet.settle()
    assert fleet.up() == [b"new"]
    assert new.state == "up"


@pytest.mark.parametrize("silent", [True, False])
def test_l11_the_end_of_the_old_link_is_told_before_the_new_one(silent: bool) -> None:
    """Found by the simulator: the head took the end of the old link for that of the new one."""
    fleet = Fleet()
    fleet.join(b"old", run(1))
    unplug(fleet, b"old")
    old = fleet.acceptor.endpoint(b"old")
    assert old is not None
    for _ in range(59):
        pass_time(fleet, 0.5)
    if not silent:
        old.disconnected("reset", fleet.now)  # The acceptor has not looked at it since.
    fleet.join(b"new", run(2, boot=4))
    pass_time(fleet, 0.5)
    assert fleet.up() == [b"new"]
    kinds = [(a, type(e)) for a, e in fleet.events]
    assert kinds == [(b"old", LinkUp), (b"old", LinkDown), (b"new", LinkUp)]
    assert fleet.codes(LinkDown) == [(b"old", "silent" if silent else "disconnected")]


def test_the_same_process_on_a_new_connection_is_not_kept_waiting() -> None:
    fleet = Fleet()
    identity = run(1)
    fleet.join(b"old", identity)
    unplug(fleet, b"old")
    fleet.join(b"new", identity)
    assert fleet.up() == [b"new"]
    assert fleet.codes(LinkDown) == [(b"old", "replaced")]


def test_a_superseded_process_reads_who_took_its_place() -> None:
    fleet = Fleet()
    old = fleet.join(b"old", run(1))
    unplug(fleet, b"old")  # It is stopped (SIGSTOP): nothing is read, nothing answered.
    old.events()
    fleet.join(b"new", run(2, boot=4))
    pass_time(fleet, 2.0)
    assert fleet.up() == [b"new"]
    for frame in fleet.answers[b"old"]:
        old.receive(frame, fleet.now)
    down = old.events()[-1]
    assert isinstance(down, LinkDown)
    assert (down.code, down.by_peer) == ("replaced", True)
    assert "process 1002 on alpha" in down.reason


def test_a_newcomer_that_leaves_while_it_waits_is_forgotten() -> None:
    fleet = Fleet()
    fleet.join(b"old", run(1))
    unplug(fleet, b"old")
    fleet.join(b"new", run(2, boot=4))
    fleet.acceptor.disconnected(b"new", "gone", fleet.now)
    pass_time(fleet, 3.0)
    assert fleet.up() == [b"old"]
    assert len(fleet.acceptor._succession) == 0
    assert fleet.acceptor.half_open == 0


def test_two_newcomers_that_wait_end_with_one() -> None:
    fleet = Fleet()
    fleet.join(b"old", run(1))
    unplug(fleet, b"old")
    fleet.join(b"b", run(2, boot=4))
    fleet.join(b"c", run(3, boot=5))
    pass_time(fleet, 2.0)
    fleet.settle()
    assert len(fleet.up()) == 1
    assert fleet.codes(PeerRefused)[-1][1] == "identity_in_use"


def test_more_than_three_replacements_a_minute_refuse_the_newest() -> None:
    fleet = Fleet()
    for number in range(6):
        for address in list(fleet.peers):
            unplug(fleet, address)
        fleet.join(b"%d" % number, run(number + 1, boot=number + 3))
        pass_time(fleet, 2.0)
    assert fleet.up() == [b"3"]
    refused = [e for _, e in fleet.events if isinstance(e, PeerRefused)]
    assert [e.code for e in refused] == ["identity_in_use"] * 2
    assert "two processes share its state folder" in refused[0].reason
    pass_time(fleet, 61.0)
    fleet.join(b"later", run(9, boot=20))
    pass_time(fleet, 2.0)
    assert fleet.up() == [b"later"]


def test_a_peer_that_can_not_be_probed_is_replaced_after_two_seconds() -> None:
    fleet = Fleet()
    fleet.join(b"old", run(1, capabilities=()))
    fleet.join(b"new", run(2, boot=4))
    assert fleet.up() == [b"old"]
    pass_time(fleet, 2.0)
    assert fleet.up() == [b"new"]


def test_heads_with_one_key_at_a_node() -> None:
    fleet = Fleet(node())
    fleet.join(b"1", head(process=process(1)))
    fleet.join(b"2", head(incarnation=6, process=process(2)))
    fleet.settle()
    assert fleet.up() == [b"1"]
    assert fleet.codes(PeerRefused) == [(b"2", "identity_in_use")]


def test_a_peer_that_proved_its_key_may_still_be_refused_in_a_sealed_word() -> None:
    asked: list[PeerInfo] = []

    def closed(peer: PeerInfo) -> None:
        asked.append(peer)
        raise HandshakeRefused(Refusal.NOT_ENROLLED, f"{peer.name} waits; sfctl node approve")

    fleet = Fleet(admit_proven=closed)
    # Who only claims the key is not asked for.
    forged = node("gpu-2", static=KeyPair(SecretKey(b"\x07" * 32), key("gpu-2").public))
    fleet.join(b"forged", forged)
    assert asked == []
    peer = fleet.join(b"a", node())
    assert [each.name for each in asked] == ["gpu-2"]
    assert fleet.codes(PeerRefused) == [(b"a", "not_enrolled")]
    (refused,) = peer.events()
    assert isinstance(refused, PeerRefused)
    assert (refused.code, refused.by_peer) == ("not_enrolled", True)
    assert refused.reason.endswith("refused the link: gpu-2 waits; sfctl node approve")
    assert peer.retry_at is not None
    assert fleet.up() == []


def test_what_both_sides_can_do_is_known_on_both() -> None:
    fleet = Fleet(head(capabilities=("rekey", "probe", "blobs")))
    peer = fleet.join(b"a", node(capabilities=("blobs", "later", "rekey")))
    (up,) = peer.events()
    assert isinstance(up, LinkUp)
    seen = fleet.events[0][1]
    assert isinstance(seen, LinkUp)
    assert up.peer.capabilities == ("blobs", "rekey")
    assert seen.peer.capabilities == ("rekey", "blobs")
