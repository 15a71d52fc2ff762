"""What each side of the handshake checks, and what an operator reads when it fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from bus.crypto import KeyPair
from bus.errors import AuthError, DecodeError
from bus.frames import FrameKind, pack_header, parse_frame
from bus.handshake import (
    MAX_HELLO_BYTES,
    InitiatorHandshake,
    answer_hello,
    explain_reject,
    pack_reject,
)
from bus.ids import NodeIdentity
from bus.keys import INSECURE_TOKEN, FleetToken, fingerprint, new_token, parse_token
from bus.link import HandshakeRefused, LinkIdentity, PeerInfo, Refusal
from bus.messages.link import HeadConfirm, NodeConfirm

HEAD_KEY = KeyPair.from_secret(bytes(range(32)))
NODE_KEY = KeyPair.from_secret(bytes(range(32, 64)))
LINK = 77


def entropy_from(seed: bytes) -> Callable[[int], bytes]:
    state = [0]

    def entropy(count: int) -> bytes:
        state[0] += 1
        return hashlib.shake_256(seed + state[0].to_bytes(8, "big")).digest(count)

    return entropy


def token(label: bytes = b"current", head: KeyPair = HEAD_KEY) -> FleetToken:
    text = new_token(head.public, entropy_from(label))
    return parse_token(text, source=f"keys/{label.decode()}")


HEAD = LinkIdentity(
    role="head",
    name="head-1",
    static=HEAD_KEY,
    tokens=(token(),),
    incarnation=5,
    confirm=lambda: HeadConfirm(identity="head-1", boot=5, software="0.1.0"),
    capabilities=("blobs",),
)
NODE = LinkIdentity(
    role="node",
    name="gpu-2",
    static=NODE_KEY,
    tokens=(token(),),
    incarnation=3,
    confirm=lambda: NodeConfirm(identity=NodeIdentity("gpu-2"), incarnation=3, software="0.1.0"),
)


def admit_all(_: PeerInfo) -> None:
    pass


def shake(initiator: LinkIdentity, responder: LinkIdentity) -> tuple[PeerInfo, PeerInfo]:
    """Run a handshake; gives what the initiator and the responder learned of each other."""
    hello = InitiatorHandshake(initiator, initiator.tokens[0], LINK, entropy_from(b"i"))
    ack, theirs = answer_hello(responder, parse_frame(hello.hello), entropy_from(b"r"), admit_all)
    ours = hello.read_ack(parse_frame(ack))
    sealed = ours.sealer.seal(FrameKind.CONFIRM, 0, b"up")
    assert theirs.opener.open(parse_frame(sealed)) == b"up"
    sealed = theirs.sealer.seal(FrameKind.DATA, 3, b"down")
    assert ours.opener.open(parse_frame(sealed)) == b"down"
    return ours.peer, theirs.peer


def refusal(initiator: LinkIdentity, responder: LinkIdentity) -> HandshakeRefused:
    with pytest.raises(HandshakeRefused) as caught:
        shake(initiator, responder)
    return caught.value


@pytest.mark.parametrize("head_connects", [True, False])
def test_both_roles_may_connect(head_connects: bool) -> None:
    head_saw, node_saw = shake(HEAD, NODE) if head_connects else shake(NODE, HEAD)[::-1]
    assert (head_saw.name, head_saw.role, head_saw.incarnation) == ("gpu-2", "node", 3)
    assert (node_saw.name, node_saw.role, node_saw.incarnation) == ("head-1", "head", 5)
    assert head_saw.public == NODE_KEY.public
    assert node_saw.fingerprint == fingerprint(HEAD_KEY.public)
    assert node_saw.version == head_saw.version == 1
    if not head_connects:
        assert node_saw.capabilities == ("blobs",)


def test_the_insecure_token_still_seals() -> None:
    insecure = (INSECURE_TOKEN,)
    shake(replace(NODE, tokens=insecure), replace(HEAD, tokens=insecure))


def test_an_older_token_is_accepted_while_they_rotate() -> None:
    old = token(b"previous")
    shake(replace(NODE, tokens=(old,)), replace(HEAD, tokens=(token(), old)))


def test_another_token_names_the_files_of_both_sides() -> None:
    other = replace(NODE, tokens=(token(b"other"),))
    error = refusal(other, HEAD)
    assert error.refusal is Refusal.TOKEN_REFUSED
    assert "keys/current" in error.message
    reject = parse_frame(pack_reject(HEAD, LINK, error.refusal))
    code, text = explain_reject(other, other.tokens[0], reject)
    assert code is Refusal.TOKEN_REFUSED
    assert "refused the fleet token in keys/other" in text
    assert "copy the head's token file" in text


def test_a_head_with_another_key_is_refused_by_the_node() -> None:
    impostor = KeyPair.from_secret(b"\x09" * 32)
    for error in (
        refusal(NODE, replace(HEAD, static=impostor)),
        refusal(replace(HEAD, static=impostor), NODE),
    ):
        assert error.refusal is Refusal.PEER_KEY_DIFFERS
        assert fingerprint(impostor.public) in error.message
        assert fingerprint(HEAD_KEY.public) in error.message
        assert "keys/current" in error.message


def test_a_pinned_node_key_is_checked() -> None:
    shake(replace(HEAD, peer_fingerprint=fingerprint(NODE_KEY.public)), NODE)
    pinned = replace(HEAD, peer_fingerprint=fingerprint(HEAD_KEY.public))
    assert refusal(pinned, NODE).refusal is Refusal.PEER_KEY_DIFFERS


def test_the_same_role_and_the_same_key_are_refused() -> None:
    assert refusal(HEAD, HEAD).refusal is Refusal.WRONG_ROLE
    assert refusal(NODE, NODE).refusal is Refusal.WRONG_ROLE
    assert refusal(replace(NODE, static=HEAD_KEY), HEAD).refusal is Refusal.OWN_KEY


def test_versions_without_overlap_show_both_ranges() -> None:
    error = refusal(replace(NODE, versions=(3, 4)), replace(HEAD, versions=(1, 2)))
    assert error.refusal is Refusal.NO_COMMON_VERSION
    assert "3 to 4" in error.message
    assert "1 to 2" in error.message
    reject = parse_frame(pack_reject(replace(HEAD, versions=(1, 2)), LINK, error.refusal))
    _, text = explain_reject(replace(NODE, versions=(3, 4)), NODE.tokens[0], reject)
    assert "3 to 4" in text
    assert "1 to 2" in text


def test_the_highest_common_version_is_chosen() -> None:
    ours, theirs = shake(replace(NODE, versions=(1, 3)), replace(HEAD, versions=(2, 9)))
    assert ours.version == theirs.version == 3


def answer_bytes(data: bytes) -> None:
    frame = parse_frame(data)
    if frame.kind is not FrameKind.HELLO:
        raise DecodeError("another kind, which is no Hello")
    answer_hello(HEAD, frame, entropy_from(b"r"), admit_all)


def test_every_flipped_bit_of_hello_is_refused() -> None:
    hello = InitiatorHandshake(NODE, NODE.tokens[0], LINK, entropy_from(b"i")).hello
    for bit in range(8 * len(hello)):
        changed = bytearray(hello)
        changed[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises((AuthError, DecodeError, HandshakeRefused)):
            answer_bytes(bytes(changed))


def test_every_flipped_bit_of_the_answer_is_refused() -> None:
    hello = InitiatorHandshake(NODE, NODE.tokens[0], LINK, entropy_from(b"i")).hello
    ack, _ = answer_hello(HEAD, parse_frame(hello), entropy_from(b"r"), admit_all)
    for bit in range(8 * 24, 8 * len(ack)):
        changed = bytearray(ack)
        changed[bit // 8] ^= 1 << (bit % 8)
        again = InitiatorHandshake(NODE, NODE.tokens[0], LINK, entropy_from(b"i"))
        with pytest.raises((AuthError, DecodeError)):
            again.read_ack(parse_frame(bytes(changed)))


def test_a_peer_is_refused_before_any_diffie_hellman() -> None:
    hello = InitiatorHandshake(NODE, NODE.tokens[0], LINK, entropy_from(b"i")).hello
    seen: list[PeerInfo] = []

    def refuse(peer: PeerInfo) -> None:
        seen.append(peer)
        raise HandshakeRefused(Refusal.NOT_ENROLLED, "not enrolled")

    def no_entropy(_: int) -> bytes:
        raise RuntimeError("an ephemeral key was made, without which there is no exchange")

    with pytest.raises(HandshakeRefused, match="not enrolled"):
        answer_hello(HEAD, parse_frame(hello), no_entropy, refuse)
    assert (seen[0].name, seen[0].public) == ("gpu-2", NODE_KEY.public)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x16",
        b"\x00",
        bytes(40),
        b"\x16" + bytes(22),
        b"\xff" + bytes(300),
        bytes(MAX_HELLO_BYTES),
    ],
)
def test_malformed_hellos_are_refused(payload: bytes) -> None:
    frame = parse_frame(pack_header(FrameKind.HELLO, LINK) + payload)
    with pytest.raises((AuthError, DecodeError, HandshakeRefused)):
        answer_hello(HEAD, frame, entropy_from(b"r"), admit_all)


def test_a_hello_is_small() -> None:
    hello = InitiatorHandshake(replace(NODE, name="n" * 128), token(), LINK, entropy_from(b"i"))
    assert len(hello.hello) < MAX_HELLO_BYTES // 2


def test_hints_of_newer_peers_are_readable() -> None:
    frame = parse_frame(pack_header(FrameKind.REJECT, LINK) + b"\xc8\x01\x01")
    assert explain_reject(NODE, token(), frame)[0] is Refusal.HANDSHAKE_FAILED
    with pytest.raises(DecodeError):
        explain_reject(NODE, token(), parse_frame(pack_header(FrameKind.REJECT, LINK)))


@pytest.mark.parametrize("name", ["gpu\n2", "\x1b[2Jgpu", "gpu\u202e", "", "  ", "\x9b1m"])
def test_a_name_that_can_not_be_printed_is_refused_by_either_side(name: str) -> None:
    hello = InitiatorHandshake(replace(NODE, name=name), token(), LINK, entropy_from(b"i")).hello
    with pytest.raises(HandshakeRefused, match="give it another identity") as caught:
        answer_hello(HEAD, parse_frame(hello), entropy_from(b"r"), admit_all)
    assert caught.value.message.isprintable()
    asks = InitiatorHandshake(NODE, token(), LINK, entropy_from(b"i"))
    ack, _ = answer_hello(
        replace(HEAD, name=name), parse_frame(asks.hello), entropy_from(b"r"), admit_all
    )
    with pytest.raises(HandshakeRefused, match="can not be printed"):
        asks.read_ack(parse_frame(ack))
