"""How long a refused side waits, by the reason of the refusal."""

from __future__ import annotations

import pytest

from bus.endpoint import Endpoint
from bus.link import HandshakeRefused, LinkLimits, PeerInfo, PeerRefused, Refusal
from bus.redial import Redial
from tests.harness.acceptor_fleet import Fleet
from tests.harness.endpoint_rig import Rig, refusals
from tests.harness.link_identities import entropy_from, head, node, token


def waits(code: str, count: int = 40) -> list[float]:
    redial = Redial(node(), entropy_from(b"w"), LinkLimits())
    found = []
    for _ in range(count):
        redial.hello(100.0)
        redial.refused(100.0, code)
        assert redial.due_at is not None
        found.append(redial.due_at - 100.0)
    return found


def test_a_node_that_waits_for_approval_asks_every_5_to_10_s_however_long_it_takes() -> None:
    found = waits("not_enrolled", 200)
    assert 5.0 <= min(found) < 5.2
    assert 9.8 < max(found) <= 10.0


@pytest.mark.parametrize("code", ["too_many_handshakes", "hello_not_newer"])
def test_what_passes_by_itself_is_tried_again_within_5_s(code: str) -> None:
    found = waits(code)
    assert all(1.0 <= wait <= 5.0 for wait in found)


@pytest.mark.parametrize("code", ["revoked", "peer_key_differs", "token_refused", "auth"])
def test_what_a_person_has_to_mend_is_tried_less_and_less(code: str) -> None:
    found = waits(code)
    assert 1.0 <= found[0] <= 2.0
    assert max(found[:4]) <= 16.0
    assert 40.0 < max(found) <= 60.0


def test_refusals_of_an_earlier_endpoint_count() -> None:
    peer = Endpoint(node(), initiator=True, entropy=entropy_from(b"x"))
    peer.connect(0.0, rejects=20)
    assert peer.rejects == 20
    assert peer.retry_at is None
    peer.connect(0.0)
    assert peer.rejects == 0


def test_a_refused_side_is_not_told_that_nobody_listens() -> None:
    """Its handshake takes no time while it waits to ask again."""

    def closed(peer: PeerInfo) -> None:
        raise HandshakeRefused(Refusal.NOT_ENROLLED, f"node {peer.name} is not enrolled")

    fleet = Fleet(admit=closed)
    peer = fleet.join(b"a", node())
    for _ in range(20):
        retry_at = peer.retry_at
        assert retry_at is not None
        assert 5.0 <= retry_at - fleet.now <= 10.0
        assert peer.next_timeout() == retry_at
        fleet.now = retry_at
        peer.handle_timeout(fleet.now)
        assert not peer._redial.waits
        fleet.settle()
    codes = {event.code for event in peer.events() if isinstance(event, PeerRefused)}
    assert codes == {"not_enrolled"}


def test_a_forged_reject_costs_one_wait_and_a_link_that_is_up_nothing() -> None:
    rig = Rig(node(tokens=(token("other"),)), head())
    rig.connect()
    reject = next(frame for frame in rig.seen if frame[5] == 6)
    linked = Rig().connect()
    assert linked.a.link_id is not None
    for end in (linked.a, linked.b):
        end.receive(reject[:6] + linked.a.link_id.to_bytes(8, "big") + reject[14:], linked.now)
    linked.settle()
    assert linked.states() == ("up", "up")
    assert refusals(linked.a_events) + refusals(linked.b_events) == []
