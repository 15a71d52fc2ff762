"""What a peer lacks is refused before anything is sent to it."""

from __future__ import annotations

import pytest

from bus.capabilities import BLOBS, CAPABILITIES, negotiated, require
from bus.errors import UnsupportedOnFleet
from bus.link import LinkUp, PeerInfo
from tests.harness.endpoint_rig import Rig
from tests.harness.link_identities import head, node


def peer(*capabilities: str) -> PeerInfo:
    return PeerInfo(
        name="gpu-2", role="node", public=bytes(32), incarnation=1, capabilities=capabilities
    )


def test_what_both_have_in_our_order() -> None:
    assert negotiated(("a", "b", "c"), ("c", "x", "a")) == ("a", "c")
    assert negotiated(CAPABILITIES, ()) == ()


def test_a_peer_that_lacks_one_is_named_with_the_remedy() -> None:
    require(peer("rekey", BLOBS), BLOBS, "files with a request")
    with pytest.raises(UnsupportedOnFleet) as caught:
        require(peer("rekey"), BLOBS, "files with a request")
    assert caught.value.code == "unsupported_on_fleet"
    assert caught.value.message == (
        "files with a request can not be used on node gpu-2: its version does not know 'blobs'; "
        "update superfluid on that node"
    )
    assert caught.value.details == {"node": "gpu-2", "capability": "blobs"}


@pytest.mark.parametrize("head_connects", [True, False])
def test_both_sides_know_whichever_dialed(head_connects: bool) -> None:
    ours, theirs = head(), node(capabilities=("probe", "newer"))
    rig = Rig(ours, theirs) if head_connects else Rig(theirs, ours)
    rig.connect()
    for up in (rig.a_events[0], rig.b_events[0]):
        assert isinstance(up, LinkUp)
        assert up.peer.capabilities == ("probe",)
    node_side = rig.a_events[0] if head_connects else rig.b_events[0]
    with pytest.raises(UnsupportedOnFleet, match="node gpu-2"):
        require(node_side.peer, BLOBS, "files with a request")
