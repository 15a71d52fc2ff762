"""`node.*` against the real core: who is approved, cut off and forgotten, and what is answered."""

from __future__ import annotations

from typing import Any

import pytest

from bus.ids import NodeIdentity
from bus.link import HandshakeRefused, PeerInfo
from bus.messages.api import MARK, encode_body
from bus.messages.link import NodeConfirm
from head.core import CorePolicy, HeadCore
from head.effects import CloseLink, Reply
from head.enrolment import Way
from head.rows import StoredState
from tests.harness.link_identities import key

CLIENT = b"c"
WALL_S = 1e9


class Bench:
    """A core whose outputs are kept."""

    def __init__(self, way: Way = "approve") -> None:
        stored = StoredState(boot=3, head_id="h", answers=())
        policy = CorePolicy(enrolment=way)
        self.core = HeadCore(policy, stored, entropy=bytes, now=0.0, wall_s=WALL_S)
        self.closed: list[tuple[int, str]] = []

    def ask(self, op: str, **body: Any) -> dict[str, Any]:
        """The one reply of an operation."""
        asked = encode_body({"op": op, "id": b"r", **body})
        self.core.client_request(CLIENT, [MARK, asked], 5.0)
        replies = []
        for tagged in self.core.effects().outputs:
            match tagged.output:
                case Reply(body=reply):
                    replies.append(reply)
                case CloseLink(link=link, reason=reason):
                    self.closed.append((link, reason))
        (reply,) = replies
        assert isinstance(reply, dict)
        return reply

    def knock(self, name: str) -> bool:
        """Whether a node may link."""
        peer = PeerInfo(name=name, role="node", public=key(name).public, incarnation=1)
        try:
            self.core.enrolment.check(peer, WALL_S)
        except HandshakeRefused:
            return False
        self.core.enrolment.linked(peer, WALL_S)
        return True

    def link(self, link: int, name: str) -> None:
        assert self.knock(name)
        confirm = NodeConfirm(identity=NodeIdentity(name), incarnation=1, software="x")
        self.core.link_up(link, confirm, 1.0)

    def states(self) -> dict[str, str]:
        return {node["identity"]: node["state"] for node in self.ask("nodes")["nodes"]}


def test_an_approved_node_may_link() -> None:
    bench = Bench()
    assert not bench.knock("gpu-1")
    (approved,) = bench.ask("node.approve", name="gpu-1")["approved"]
    assert (approved["identity"], approved["state"]) == ("gpu-1", "enrolled")
    assert approved["changed_wall_s"] == WALL_S + 5.0
    assert bench.knock("gpu-1")
    assert [k["state"] for k in bench.ask("status")["enrolment"]["keys"]] == ["enrolled"]


def test_all_are_approved() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.knock(name)
    reply = bench.ask("node.approve", all=True)
    assert [found["identity"] for found in reply["approved"]] == ["a", "b"]


@pytest.mark.parametrize("body", [{}, {"name": "a", "all": True}])
def test_approve_takes_one_of_name_and_all(body: dict[str, Any]) -> None:
    assert Bench().ask("node.approve", **body)["error"]["code"] == "invalid"


@pytest.mark.parametrize("op", ["node.approve", "node.revoke", "node.forget"])
def test_a_node_that_is_not_known_is_not_found(op: str) -> None:
    assert Bench().ask(op, name="nobody")["error"]["code"] == "not_found"


def test_a_revoked_node_is_cut_off_as_if_it_had_left() -> None:
    bench = Bench("open")
    bench.link(7, "gpu-1")
    reply = bench.ask("node.revoke", name="gpu-1")
    assert (reply["cut"], reply["now_approves"], reply["way"]) == (["gpu-1"], True, "approve")
    assert bench.closed == [(7, "the key of gpu-1 was revoked")]
    assert bench.states() == {"gpu-1": "left"}
    assert not bench.knock("gpu-1")
    # What the transport says of the link's end afterwards changes nothing.
    bench.core.link_down(7, "closed", 6.0)
    assert bench.states() == {"gpu-1": "left"}
    assert bench.ask("node.enrolment", restore=True)["way"] == "open"
    assert not bench.knock("gpu-1")


def test_revoking_a_key_that_waits_cuts_nobody() -> None:
    bench = Bench()
    bench.knock("gpu-1")
    reply = bench.ask("node.revoke", name="gpu-1")
    assert (reply["cut"], reply["now_approves"], bench.closed) == ([], False, [])


def test_a_node_that_is_up_is_not_forgotten() -> None:
    bench = Bench("open")
    bench.link(7, "gpu-1")
    error = bench.ask("node.forget", name="gpu-1")["error"]
    assert error["code"] == "invalid"
    assert "sfctl node revoke gpu-1" in error["message"]
    bench.core.link_down(7, "gone", 2.0)
    assert bench.ask("node.forget", name="gpu-1")["forgotten"] == ["gpu-1"]
    assert bench.states() == {}
    assert bench.ask("node.enrolment")["keys"] == []
    assert bench.ask("node.forget", name="gpu-1")["error"]["code"] == "not_found"


def test_the_mark_of_a_former_key_is_forgotten_beside_a_node_that_is_up() -> None:
    bench = Bench("open")
    bench.link(7, "gpu-1")
    (revoked,) = bench.ask("node.revoke", name="gpu-1")["revoked"]
    bench.ask("node.enrolment", restore=True)
    other = PeerInfo(name="gpu-1", role="node", public=key("new").public, incarnation=1)
    bench.core.enrolment.check(other, WALL_S)
    bench.core.enrolment.linked(other, WALL_S)
    confirm = NodeConfirm(identity=NodeIdentity("gpu-1"), incarnation=1, software="x")
    bench.core.link_up(8, confirm, 6.0)
    assert bench.ask("node.forget", name=revoked["key"])["forgotten"] == ["gpu-1"]
    assert bench.states() == {"gpu-1": "up"}
    assert bench.closed == [(7, "the key of gpu-1 was revoked")]
