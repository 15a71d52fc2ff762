"""The token's files: two while they rotate, taken in when they change, never a third."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.crypto import KeyPair
from bus.errors import NotFound, StartError, TokenRefused
from bus.keys import FleetToken, load_token, new_token
from bus.secret_files import create_secret_file, replace_private_file
from bus.token_files import (
    FleetTokens,
    previous_file,
    retire_token,
    rotate_token,
)

HEAD = KeyPair.from_secret(bytes(range(32))).public


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "fleet.token"
    create_secret_file(path, new_token(HEAD))
    return path


def ids(tokens: FleetTokens) -> list[bytes]:
    return [token.token_id for token in tokens]


def test_both_tokens_are_valid_while_they_rotate_the_current_one_first(file: Path) -> None:
    tokens = FleetTokens(file)
    (first,) = ids(tokens)
    assert not tokens.refresh()
    rotate_token(file, new_token(HEAD))
    assert tokens.refresh()
    assert ids(tokens) == [load_token(file).token_id, first]
    assert not tokens.refresh()
    retire_token(file)
    assert tokens.refresh()
    assert ids(tokens) == [load_token(file).token_id]
    assert first not in ids(tokens)


def test_both_files_are_their_owners_alone_and_keep_their_age(file: Path) -> None:
    os.utime(file, (1e9, 1e9))
    rotate_token(file, new_token(HEAD))
    for each in (file, previous_file(file)):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    assert previous_file(file).stat().st_mtime == 1e9
    assert file.stat().st_mtime > 1e9


def test_a_third_token_is_refused_until_the_previous_one_is_retired(file: Path) -> None:
    rotate_token(file, new_token(HEAD))
    before = file.read_text()
    with pytest.raises(StartError, match="sfctl token retire"):
        rotate_token(file, new_token(HEAD))
    assert file.read_text() == before
    retire_token(file)
    rotate_token(file, new_token(HEAD))


def test_a_rotation_that_was_cut_short_is_begun_again(file: Path) -> None:
    os.link(file, previous_file(file))
    tokens = FleetTokens(file)
    assert len(tokens) == 1
    rotate_token(file, new_token(HEAD))
    tokens.refresh()
    assert len(tokens) == 2


def test_without_a_token_nothing_is_rotated_or_retired(file: Path) -> None:
    with pytest.raises(NotFound, match="no previous token"):
        retire_token(file)
    file.unlink()
    acts: list[Callable[[], None]] = [
        lambda: rotate_token(file, new_token(HEAD)),
        lambda: retire_token(file),
    ]
    for act in acts:
        with pytest.raises(TokenRefused, match="there is no fleet token"):
            act()


def test_a_file_that_can_not_be_used_changes_nothing_and_is_told_once(file: Path) -> None:
    tokens = FleetTokens(file)
    before = ids(tokens)
    replace_private_file(file, "sft1.no.token.0")
    with pytest.raises(TokenRefused):
        tokens.refresh()
    assert not tokens.refresh()
    assert ids(tokens) == before
    file.chmod(0o644)
    with pytest.raises(TokenRefused, match="chmod 600"):
        tokens.refresh()
    replace_private_file(file, new_token(HEAD))
    assert tokens.refresh()
    assert ids(tokens) != before


def test_a_token_that_is_not_for_here_is_not_taken(file: Path) -> None:
    def refuse(token: FleetToken) -> None:
        raise TokenRefused(f"{token.source} is another head's")

    with pytest.raises(TokenRefused, match=f"{file} is another head's"):
        FleetTokens(file, refuse)
