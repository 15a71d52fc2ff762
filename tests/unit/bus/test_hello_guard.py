"""Which Hellos are old, and that a forged one stands in nobody's way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus import hello_guard
from bus.hello_guard import HelloGuard
from bus.link import HandshakeRefused, PeerInfo
from tests.harness.link_identities import HEAD_KEY, key

NODE = PeerInfo(name="gpu-2", role="node", public=key("gpu-2").public, incarnation=3)


def hello(counter: int, boot: int = 3, copy: bytes = b"") -> PeerInfo:
    digest = copy or b"%d.%d" % (boot, counter)
    return replace(NODE, incarnation=boot, hello_counter=counter, hello=digest)


def test_a_hello_must_be_newer_than_the_last_link_of_its_key() -> None:
    guard = HelloGuard({NODE.public: (3, 10)}.get)
    assert guard.knows(NODE.public)
    assert not guard.knows(HEAD_KEY.public)
    for counter in (9, 10):
        with pytest.raises(HandshakeRefused, match="boot counter"):
            guard.check(hello(counter))
    guard.check(hello(11))
    guard.linked(hello(11))
    with pytest.raises(HandshakeRefused, match="3, 11 was linked"):
        guard.check(hello(11, copy=b"another"))
    guard.check(hello(12))


def test_a_recorded_hello_is_refused_before_and_after_its_link() -> None:
    guard = HelloGuard(lambda _: None)
    guard.check(hello(1))
    with pytest.raises(HandshakeRefused, match="came a second time"):
        guard.check(hello(1))
    guard.linked(hello(1))
    with pytest.raises(HandshakeRefused):
        guard.check(hello(1))


def test_forged_numbers_shut_nobody_out() -> None:
    """Another member names the key, its incarnation, and the highest counter there is."""
    guard = HelloGuard({NODE.public: (3, 10)}.get)
    for number in range(50):
        guard.check(hello(2**60 + number, copy=b"forged %d" % number))
        guard.check(hello(1, boot=2**60 + number, copy=b"forged boot %d" % number))
        guard.check(hello(11 + number, copy=b"forged next %d" % number))
    for counter in range(11, 61):
        guard.check(hello(counter))
        guard.linked(hello(counter))


def test_of_two_copies_of_a_folder_the_linked_one_may_come_again() -> None:
    guard = HelloGuard(lambda _: None)
    guard.linked(hello(5))
    guard.check(hello(1, boot=4))
    guard.check(hello(6))
    guard.linked(hello(1, boot=4))
    with pytest.raises(HandshakeRefused):
        guard.check(hello(7))


def test_what_a_hello_guard_remembers_is_bounded() -> None:
    guard = HelloGuard(lambda _: None)
    for number in range(hello_guard.MAX_HELLOS + 5):
        other = replace(hello(number), public=number.to_bytes(32, "big"))
        guard.check(other)
        guard.linked(replace(other, hello=b""))
    assert len(guard._hellos) == hello_guard.MAX_HELLOS
    assert len(guard._linked) == hello_guard.MAX_KEYS


def test_a_hello_that_made_a_link_takes_no_memory_of_its_own() -> None:
    """The key's mark refuses it; a node that links for ever must not fill the memory of Hellos."""
    guard = HelloGuard(lambda _: None)
    for number in range(100):
        guard.check(hello(number))
        guard.linked(hello(number))
    assert not guard._hellos
    for number in range(100):
        with pytest.raises(HandshakeRefused, match="3, 99 was linked"):
            guard.check(hello(number))
