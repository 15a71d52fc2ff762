"""The Noise handshake against published vectors, an independent implementation, and tampering."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from noise.connection import Keypair, NoiseConnection

from bus.crypto import KeyPair, SecretKey, aead_open, noise_hkdf, x25519
from bus.errors import AuthError
from bus.noise import IX_PSK0, NoiseHandshake, Pattern

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "noise_cacophony.json").read_text()
)
INIT_STATIC = KeyPair.from_secret(bytes(range(32)))
RESP_STATIC = KeyPair.from_secret(bytes(range(32, 64)))
PSK = SecretKey(bytes(range(64, 96)))
PROLOGUE = b"version 1, head to node"


def fixed(value: bytes) -> Any:
    """An entropy source that gives one known key."""

    def entropy(count: int) -> bytes:
        assert count == len(value)
        return value

    return entropy


def side(*, initiator: bool, psk: SecretKey = PSK, prologue: bytes = PROLOGUE) -> NoiseHandshake:
    return NoiseHandshake(
        initiator=initiator,
        static=INIT_STATIC if initiator else RESP_STATIC,
        psk=psk,
        prologue=prologue,
        entropy=fixed(b"\x11" * 32 if initiator else b"\x22" * 32),
    )


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda v: v["pattern"])
def test_published_vectors(vector: dict[str, Any]) -> None:
    pattern = Pattern(vector["pattern"], tuple(map(tuple, vector["messages"])))
    sides = [
        NoiseHandshake(
            initiator=who == "init",
            static=KeyPair.from_secret(bytes.fromhex(VECTORS[f"{who}_static"])),
            psk=SecretKey(bytes.fromhex(VECTORS["psk"])),
            prologue=bytes.fromhex(VECTORS["prologue"]),
            entropy=fixed(bytes.fromhex(VECTORS[f"{who}_ephemeral"])),
            pattern=pattern,
        )
        for who in ("init", "resp")
    ]
    pairs = [
        (bytes.fromhex(p), bytes.fromhex(c))
        for p, c in zip(VECTORS["payloads"], vector["ciphertexts"], strict=True)
    ]
    for turn in (0, 1):
        payload, ciphertext = pairs[turn]
        assert sides[turn].write(payload) == ciphertext
        assert sides[1 - turn].read(ciphertext) == payload
    assert sides[0].handshake_hash == sides[1].handshake_hash
    # The transport messages show that the chaining key is right too.
    keys = [key[:32] for key in noise_hkdf(sides[0].chaining_key, b"", 2)]
    for index, (payload, ciphertext) in enumerate(pairs[2:]):
        assert aead_open(keys[index % 2], index // 2, b"", ciphertext) == payload


def independent(*, initiator: bool) -> NoiseConnection:
    peer = NoiseConnection.from_name(IX_PSK0.protocol_name)
    peer.set_psks(psk=PSK.reveal())
    peer.set_prologue(PROLOGUE)
    static = INIT_STATIC if initiator else RESP_STATIC
    peer.set_keypair_from_private_bytes(Keypair.STATIC, static.secret.reveal())
    if initiator:
        peer.set_as_initiator()
    else:
        peer.set_as_responder()
    peer.start_handshake()
    return peer


def test_initiator_with_the_independent_implementation() -> None:
    ours, theirs = side(initiator=True), independent(initiator=False)
    assert theirs.read_message(ours.write(b"hello")) == b"hello"
    assert ours.read(bytes(theirs.write_message(b"welcome"))) == b"welcome"
    assert ours.complete
    assert ours.remote_static == RESP_STATIC.public
    assert ours.handshake_hash == theirs.get_handshake_hash()
    key = noise_hkdf(ours.chaining_key, b"", 2)[1][:32]
    assert aead_open(key, 0, b"", theirs.encrypt(b"data")) == b"data"


def test_responder_with_the_independent_implementation() -> None:
    ours, theirs = side(initiator=False), independent(initiator=True)
    assert ours.read(bytes(theirs.write_message(b"hello"))) == b"hello"
    assert ours.remote_static == INIT_STATIC.public
    assert theirs.read_message(ours.write(b"welcome")) == b"welcome"
    assert ours.handshake_hash == theirs.get_handshake_hash()
    key = noise_hkdf(ours.chaining_key, b"", 2)[0][:32]
    assert aead_open(key, 0, b"", theirs.encrypt(b"data")) == b"data"


def test_every_flipped_bit_of_the_first_message_is_refused() -> None:
    message = side(initiator=True).write(b"identity")
    assert side(initiator=False).read(message) == b"identity"
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(AuthError):
            side(initiator=False).read(bytes(changed))


def test_every_flipped_bit_of_the_second_message_is_refused() -> None:
    responder = side(initiator=False)
    responder.read(side(initiator=True).write(b"identity"))
    message = responder.write(b"welcome")
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << (bit % 8)
        initiator = side(initiator=True)
        initiator.write(b"identity")
        with pytest.raises(AuthError):
            initiator.read(bytes(changed))


def test_every_cut_of_both_messages_is_refused() -> None:
    first = side(initiator=True).write(b"")
    for length in range(len(first)):
        with pytest.raises(AuthError):
            side(initiator=False).read(first[:length])
    responder = side(initiator=False)
    responder.read(first)
    second = responder.write(b"")
    for length in range(len(second)):
        initiator = side(initiator=True)
        initiator.write(b"")
        with pytest.raises(AuthError):
            initiator.read(second[:length])


def test_another_psk_or_prologue_is_refused() -> None:
    message = side(initiator=True).write(b"identity")
    with pytest.raises(AuthError):
        side(initiator=False, psk=SecretKey(bytes(32))).read(message)
    with pytest.raises(AuthError):
        side(initiator=False, prologue=b"version 2, head to node").read(message)


def test_messages_out_of_turn_are_refused() -> None:
    with pytest.raises(AuthError):
        side(initiator=False).write(b"")
    with pytest.raises(AuthError):
        side(initiator=True).read(bytes(96))
    done = side(initiator=True)
    done.write(b"")
    with pytest.raises(AuthError):
        done.write(b"")


@pytest.mark.parametrize("low_order", [bytes(32), b"\x01" + bytes(31)])
def test_low_order_keys_are_refused(low_order: bytes) -> None:
    with pytest.raises(AuthError):
        x25519(INIT_STATIC.secret, low_order)


@pytest.mark.parametrize("length", [0, 1, 31, 33])
def test_wrong_key_lengths_never_reach_the_library(length: int) -> None:
    with pytest.raises(AuthError):
        x25519(INIT_STATIC.secret, bytes(length))
    with pytest.raises(AuthError):
        SecretKey(bytes(length))


def test_a_secret_key_shows_nothing() -> None:
    key = SecretKey(b"\x42" * 32)
    assert "42" not in repr(key)
    assert "B" * 4 not in f"{KeyPair.from_secret(key.reveal())!r}".replace("SecretKey", "")
