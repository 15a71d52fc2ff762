"""Which token or key was refused, as either side reads it, and who is asked before a link is up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bus.endpoint import Endpoint
from bus.frames import parse_frame
from bus.handshake import InitiatorHandshake, answer_hello, explain_reject, pack_reject
from bus.keys import FleetToken
from bus.link import (
    HandshakeRefused,
    LinkIdentity,
    LinkUp,
    PeerInfo,
    PeerRefused,
    Refusal,
)
from tests.harness.link_identities import entropy_from, head, key, node, token

LINK = 77
NEW, OLD, OTHER = token("new"), token("old"), token("other")


def explained(ours: LinkIdentity, refusal: Refusal, said_with: FleetToken | None = None) -> str:
    return explain_reject(ours, said_with, parse_frame(pack_reject(head(), LINK, refusal)))[1]


@pytest.mark.parametrize(
    ("tokens", "used", "named"),
    [
        ((NEW, OLD), NEW, f"the current fleet token in keys/new (id {NEW.token_id[:4].hex()})"),
        ((NEW, OLD), OLD, f"the previous fleet token in keys/old (id {OLD.token_id[:4].hex()})"),
        ((NEW,), NEW, f"the fleet token in keys/new (id {NEW.token_id[:4].hex()})"),
    ],
)
def test_who_came_with_a_refused_token_reads_which_it_was(
    tokens: Sequence[FleetToken], used: FleetToken, named: str
) -> None:
    text = explained(node(tokens=tokens), Refusal.TOKEN_REFUSED, used)
    assert text.startswith(f"the head refused {named}:")
    assert "copy the head's token file" in text


def test_who_refused_it_reads_its_id_and_which_files_it_is_not_in() -> None:
    hello = InitiatorHandshake(node(), OTHER, LINK, entropy_from(b"i")).hello
    ours = head(tokens=(NEW, OLD))
    with pytest.raises(HandshakeRefused) as caught:
        answer_hello(ours, parse_frame(hello), entropy_from(b"r"), lambda _: None)
    assert caught.value.refusal is Refusal.TOKEN_REFUSED
    for part in (
        f"unknown id {OTHER.token_id[:4].hex()}",
        f"keys/new (id {NEW.token_id[:4].hex()})",
        f"keys/old (id {OLD.token_id[:4].hex()})",
    ):
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("ours", "refusal", "said"),
    [
        (node("gpu-7"), Refusal.NOT_ENROLLED, "on the head with: sfctl node approve gpu-7"),
        (node("gpu-7"), Refusal.REVOKED, "on the head with: sfctl node forget gpu-7"),
        (node("gpu-7"), Refusal.PEER_KEY_DIFFERS, "on the head with: sfctl node forget gpu-7"),
        (node("{x}"), Refusal.NOT_ENROLLED, "sfctl node approve {x}"),
        (head(), Refusal.PEER_KEY_DIFFERS, "copy this head's token file to it"),
    ],
)
def test_a_refused_key_is_explained_with_the_command(
    ours: LinkIdentity, refusal: Refusal, said: str
) -> None:
    assert said in explained(ours, refusal)


def shake(first: Endpoint, second: Endpoint) -> tuple[list[object], list[object]]:
    """What both saw once nothing more is to be sent; `first` connects."""
    first.connect(0.0)
    while True:
        frames = [
            (other, frame)
            for one, other in ((first, second), (second, first))
            if (frame := one.next_frame(0.0)) is not None
        ]
        if not frames:
            return list(first.events()), list(second.events())
        for other, frame in frames:
            other.receive(frame, 0.0)


@pytest.mark.parametrize("refuses", [True, False])
def test_whoever_connects_checks_the_peer_before_the_link_is_up(refuses: bool) -> None:
    asked: list[PeerInfo] = []

    def admit(peer: PeerInfo) -> None:
        asked.append(peer)
        if refuses:
            raise HandshakeRefused(Refusal.NOT_ENROLLED, "gpu-2 waits for approval")

    caller = Endpoint(head(), initiator=True, entropy=entropy_from(b"i"), admit=admit)
    called = Endpoint(node(), initiator=False, entropy=entropy_from(b"r"))
    ours, theirs = shake(caller, called)
    (peer,) = asked
    assert (peer.name, peer.public, peer.token_id) == (
        "gpu-2",
        key("gpu-2").public,
        token().token_id,
    )
    if not refuses:
        assert [type(event) for event in ours + theirs] == [LinkUp, LinkUp]
        return
    (here,), (there,) = ours, theirs
    assert isinstance(here, PeerRefused)
    assert isinstance(there, PeerRefused)
    assert (here.code, here.reason) == ("not_enrolled", "gpu-2 waits for approval")
    assert there.code == "not_enrolled"
    assert "sfctl node approve gpu-2" in there.reason
