"""Which nodes may link: the three ways of enrolment, and what an operator decides."""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import Invalid, NotFound, SuperfluidError
from bus.keys import fingerprint
from bus.link import HandshakeRefused, PeerInfo, Refusal
from head.enrolment import MAX_PENDING, Enrolment, Way
from head.outbox import Outbox
from head.rows import ForgetNodeKey, PutNodeKey, PutSetting, Row
from tests.harness.link_identities import key

WALL_S = 1e9


def peer(name: str = "gpu-1", secret: str = "", host: str = "10.0.0.7") -> PeerInfo:
    return PeerInfo(
        name=name, role="node", public=key(secret or name).public, incarnation=1, host=host
    )


class Desk:
    """An enrolment, and the rows that it keeps; `again` is the head after its restart."""

    def __init__(self, way: Way, rows: tuple[Row, ...] = ()) -> None:
        self.rows = list(rows)
        self.outbox = Outbox()
        keys: dict[bytes, PutNodeKey] = {}
        settings: dict[str, PutSetting] = {}
        for row in rows:
            match row:
                case PutNodeKey():
                    keys[row.public] = row
                case ForgetNodeKey():
                    del keys[row.public]
                case PutSetting():
                    settings[row.name] = row
        self.enrolment = Enrolment(way, self.outbox, keys.values(), settings.values())

    def link(self, who: PeerInfo, **own: Any) -> None:
        self.enrolment.check(who, WALL_S, **own)
        self.enrolment.linked(who, WALL_S)

    def refusal(self, who: PeerInfo) -> HandshakeRefused:
        with pytest.raises(HandshakeRefused) as caught:
            self.link(who)
        return caught.value

    def states(self) -> dict[str, str]:
        return {found["identity"]: found["state"] for found in self.enrolment.report()["keys"]}

    def again(self, way: Way) -> Desk:
        persist = self.outbox.drain().persist
        self.rows += persist.rows if persist else ()
        return Desk(way, tuple(self.rows))


def test_open_enrols_a_key_once_its_link_is_up() -> None:
    desk = Desk("open")
    desk.enrolment.check(peer(), WALL_S)
    assert desk.states() == {}
    desk.enrolment.linked(peer(), WALL_S)
    assert desk.states() == {"gpu-1": "enrolled"}
    desk.link(peer())
    persist = desk.outbox.drain().persist
    assert persist is not None
    assert persist.rows == (
        PutNodeKey(
            public=key("gpu-1").public,
            identity="gpu-1",  # type: ignore[arg-type]
            state="enrolled",
            host="10.0.0.7",
            changed_wall_s=WALL_S,
        ),
    )


def test_approve_lets_a_node_in_once_it_was_approved() -> None:
    desk = Desk("approve")
    error = desk.refusal(peer())
    assert error.refusal is Refusal.NOT_ENROLLED
    assert peer().fingerprint in error.message
    assert "sfctl node approve gpu-1" in error.message
    desk.refusal(peer())
    (waiting,) = desk.enrolment.report()["keys"]
    assert waiting == {
        "identity": "gpu-1",
        "state": "pending",
        "key": peer().fingerprint,
        "host": "10.0.0.7",
        "changed_wall_s": WALL_S,
        "token": "",
    }
    desk = desk.again("approve")
    assert desk.enrolment.approve("gpu-1", WALL_S).public == key("gpu-1").public
    desk.link(peer())
    desk = desk.again("closed")
    desk.link(peer())


def test_a_name_that_a_shell_would_run_is_quoted_in_commands() -> None:
    error = Desk("approve").refusal(peer("n; rm -r ~"))
    assert error.message.endswith("sfctl node approve 'n; rm -r ~'")


def test_closed_refuses_and_notes_nothing() -> None:
    desk = Desk("closed")
    error = desk.refusal(peer())
    assert error.refusal is Refusal.NOT_ENROLLED
    assert "takes no new nodes" in error.message
    assert desk.states() == {}


@pytest.mark.parametrize("way", ["open", "approve", "closed"])
def test_a_known_identity_with_another_key_is_refused_naming_both(way: Way) -> None:
    enrolled = Desk("open")
    enrolled.link(peer())
    desk = enrolled.again(way)
    thief = peer(secret="thief")
    error = desk.refusal(thief)
    assert error.refusal is Refusal.PEER_KEY_DIFFERS
    assert peer().fingerprint in error.message
    assert thief.fingerprint in error.message
    assert "sfctl node forget gpu-1" in error.message
    assert desk.states() == {"gpu-1": "enrolled"}
    desk.link(peer())


@pytest.mark.parametrize("way", ["approve", "closed"])
def test_an_enrolled_key_keeps_its_name_whoever_says_another(way: Way) -> None:
    enrolled = Desk("open")
    enrolled.link(peer())
    desk = enrolled.again(way)
    error = desk.refusal(peer("other", secret="gpu-1"))
    assert error.refusal is Refusal.NOT_ENROLLED
    assert "enrolled as gpu-1" in error.message
    assert desk.states() == {"gpu-1": "enrolled"}


def test_open_takes_a_key_under_its_new_name() -> None:
    desk = Desk("open")
    desk.link(peer())
    desk.link(peer("renamed", secret="gpu-1"))
    assert desk.states() == {"renamed": "enrolled"}


def test_a_node_of_the_heads_own_state_folder_needs_no_approval() -> None:
    desk = Desk("approve")
    desk.link(peer(), own=lambda public: public == key("gpu-1").public)
    assert desk.states() == {"gpu-1": "enrolled"}
    closed = Desk("closed")
    with pytest.raises(HandshakeRefused):
        closed.link(peer(), own=lambda _: True)


def test_the_oldest_of_too_many_that_wait_is_dropped() -> None:
    desk = Desk("approve")
    for number in range(MAX_PENDING + 2):
        desk.refusal(peer(f"n{number}"))
    desk = desk.again("approve")
    states = desk.states()
    assert len(states) == MAX_PENDING
    assert {"n0", "n1"} & states.keys() == set()
    assert {"n2", f"n{MAX_PENDING + 1}"} <= states.keys()


def test_a_crowd_from_one_machine_pushes_nobody_else_off_the_list() -> None:
    """A member makes keys without end, while the node that an operator waits for came once."""
    desk = Desk("approve")
    desk.refusal(peer(host="10.0.0.7"))
    for number in range(2 * MAX_PENDING):
        desk.refusal(peer(f"n{number}", host=f"2001:db8::{number:x}"))
    states = desk.again("approve").states()
    assert len(states) == MAX_PENDING
    assert states["gpu-1"] == "pending"
    assert "n0" not in states


def test_nobody_is_noted_before_it_proved_its_key() -> None:
    """Whoever has the token can claim any key in its Hello, under any name."""
    desk = Desk("approve")
    desk.refusal(peer())
    desk.enrolment.check_claim(peer("forged", secret="gpu-1"))
    desk.enrolment.check_claim(peer("another"))
    assert desk.states() == {"gpu-1": "pending"}


def test_an_identity_that_looks_like_a_key_is_refused() -> None:
    """Else `approve KEY` could take the node that calls itself so."""
    desk = Desk("approve")
    named = fingerprint(key("gpu-1").public)
    error = desk.refusal(peer(named, secret="thief"))
    assert error.refusal is Refusal.IDENTITY_IN_USE
    assert "give it another" in error.message
    assert desk.states() == {}
    desk.refusal(peer())
    assert desk.enrolment.approve(named, WALL_S).public == key("gpu-1").public


def test_a_name_with_two_keys_is_not_approved_by_who_comes_between() -> None:
    """The operator looked, another key came under the same name, and only then the command."""
    desk = Desk("approve")
    desk.refusal(peer())
    desk.refusal(peer(secret="thief"))
    with pytest.raises(Invalid, match="2 keys wait under the name gpu-1"):
        desk.enrolment.approve("gpu-1", WALL_S)
    assert set(desk.states().values()) == {"pending"}


def test_of_two_keys_under_one_name_an_operator_says_which() -> None:
    desk = Desk("approve")
    right, thief = peer(), peer(secret="thief", host="10.9.9.9")
    desk.refusal(thief)
    desk.refusal(right)
    with pytest.raises(Invalid) as caught:
        desk.enrolment.approve("gpu-1", WALL_S)
    for each in (right, thief):
        assert f"{each.fingerprint} from {each.host}" in caught.value.message
    assert desk.enrolment.approve_all(WALL_S) == []
    desk.enrolment.approve(right.fingerprint, WALL_S)
    assert [found["key"] for found in desk.enrolment.report()["keys"]] == [right.fingerprint]
    desk.link(right)
    assert desk.refusal(thief).refusal is Refusal.PEER_KEY_DIFFERS


def test_all_that_wait_are_approved_at_once() -> None:
    desk = Desk("approve")
    for name in ("a", "b"):
        desk.refusal(peer(name))
    assert {found.identity for found in desk.enrolment.approve_all(WALL_S)} == {"a", "b"}
    assert desk.states() == {"a": "enrolled", "b": "enrolled"}


def test_a_revoked_key_is_refused_and_open_becomes_approve_also_after_a_restart() -> None:
    desk = Desk("open")
    desk.link(peer())
    done = desk.enrolment.revoke("gpu-1", WALL_S)
    assert (done.unpinned, done.now_approves) == (("gpu-1",), True)
    for each in (desk, desk.again("open")):
        error = each.refusal(peer())
        assert error.refusal is Refusal.REVOKED
        assert "sfctl node forget gpu-1" in error.message
        # The same machine under a new key.
        assert each.refusal(peer(secret="new")).refusal is Refusal.NOT_ENROLLED
    again = desk.again("open")
    assert again.enrolment.way == "approve"
    assert again.enrolment.restore_way() == "open"
    assert again.again("open").enrolment.way == "open"


@pytest.mark.parametrize("way", ["approve", "closed"])
def test_a_revocation_leaves_a_stricter_way_alone(way: Way) -> None:
    opened = Desk("open")
    opened.link(peer())
    desk = opened.again(way)
    assert not desk.enrolment.revoke(peer().fingerprint, WALL_S).now_approves
    assert desk.enrolment.way == way


def test_revoking_a_former_key_again_is_about_no_link() -> None:
    desk = Desk("open")
    desk.link(peer())
    desk.enrolment.revoke("gpu-1", WALL_S)
    new = peer(secret="new")
    desk.refusal(new)
    desk.enrolment.approve(new.fingerprint, WALL_S)
    assert desk.enrolment.revoke(peer().fingerprint, WALL_S).unpinned == ()
    desk.link(new)


def test_what_is_forgotten_may_come_as_new() -> None:
    desk = Desk("open")
    desk.link(peer())
    assert [found.identity for found in desk.enrolment.forget("gpu-1")] == ["gpu-1"]
    desk = desk.again("open")
    desk.link(peer(secret="new"))
    desk.enrolment.revoke("gpu-1", WALL_S)
    desk.enrolment.forget(peer(secret="new").fingerprint)
    desk.refusal(peer(secret="new"))
    assert desk.states() == {"gpu-1": "pending"}


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("nobody", NotFound, "waiting: waits"),
        ("in", Invalid, "is enrolled already"),
        ("out", Invalid, "sfctl node forget out"),
        (fingerprint(key("in").public), Invalid, "is enrolled already"),
    ],
)
def test_what_can_not_be_approved(name: str, kind: type[SuperfluidError], said: str) -> None:
    first = Desk("open")
    for each in ("in", "out"):
        first.link(peer(each))
    first.enrolment.revoke("out", WALL_S)
    desk = first.again("approve")
    desk.refusal(peer("waits"))
    with pytest.raises(kind, match=said):
        desk.enrolment.approve(name, WALL_S)
    with pytest.raises(NotFound, match="sfctl node ls"):
        desk.enrolment.revoke("nobody", WALL_S)
