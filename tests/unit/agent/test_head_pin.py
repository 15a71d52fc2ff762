"""A node without a token knows its head by the key that came first."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agent.head_pin import HeadPin
from bus.errors import StartError
from bus.keys import INSECURE_TOKEN
from bus.link import HandshakeRefused, PeerInfo, Refusal
from tests.harness.link_identities import key, token


def head(name: str, token_id: bytes = INSECURE_TOKEN.token_id) -> PeerInfo:
    return PeerInfo(
        name=name, role="head", public=key(name).public, incarnation=1, token_id=token_id
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "head.pin"


def test_the_first_head_is_remembered_and_another_refused_naming_both_and_the_file(
    file: Path,
) -> None:
    pin = HeadPin(file)
    pin.check(head("first"))
    pin.note(head("first"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for each in (pin, HeadPin(file)):
        each.check(head("first"))
        with pytest.raises(HandshakeRefused) as caught:
            each.check(head("second"))
        assert caught.value.refusal is Refusal.PEER_KEY_DIFFERS
        for part in (head("first").fingerprint, head("second").fingerprint, f"remove {file}"):
            assert part in caught.value.message


def test_removing_the_file_needs_no_restart(file: Path) -> None:
    pin = HeadPin(file)
    pin.note(head("first"))
    file.unlink()
    pin.check(head("second"))
    pin.note(head("second"))
    assert file.read_text().strip() == head("second").fingerprint


def test_a_head_that_a_token_names_is_no_matter_of_the_file(file: Path) -> None:
    pin = HeadPin(file)
    pin.note(head("first", token().token_id))
    assert not file.exists()
    pin.note(head("first"))
    pin.check(head("second", token().token_id))


def test_a_file_that_can_not_be_read_is_told_at_start_and_at_a_handshake(file: Path) -> None:
    pin = HeadPin(file)
    file.mkdir()
    with pytest.raises(StartError, match="remove it"):
        HeadPin(file)
    with pytest.raises(HandshakeRefused, match="remove it"):
        pin.check(head("first"))
