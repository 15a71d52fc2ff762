"""Fleet tokens, key files and the boot counter."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bus.crypto import KeyPair
from bus.errors import StoreCorrupt, TokenRefused
from bus.keys import (
    INSECURE_TOKEN,
    fingerprint,
    load_or_create_static_key,
    load_token,
    new_token,
    next_boot,
    parse_token,
)
from bus.secret_files import create_secret_file

HEAD = KeyPair.from_secret(bytes(range(32)))


def test_a_token_is_what_its_description_says() -> None:
    text = new_token(HEAD.public, lambda n: b"\x07" * n)
    prefix, print_, secret, checksum = text.split(".")
    assert prefix == "sft1"
    assert print_ == fingerprint(HEAD.public)
    assert secret == "a4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dq"
    assert checksum == f"{zlib.crc32(text.rpartition('.')[0].encode()):08x}"
    token = parse_token(text, source="f")
    assert token.head_fingerprint == print_
    expected = hashlib.blake2b(key=b"\x07" * 32, person=b"sf fleet psk", digest_size=32)
    assert token.psk.reveal() == expected.digest()
    expected = hashlib.blake2b(key=b"\x07" * 32, person=b"sf token id", digest_size=16)
    assert token.token_id == expected.digest()


def test_tokens_differ_and_show_no_secret() -> None:
    first, second = new_token(HEAD.public), new_token(HEAD.public)
    assert first != second
    token = parse_token(first, source="f")
    assert token.psk != parse_token(second, source="f").psk
    shown = repr(token)
    assert first.split(".")[2] not in shown
    assert token.psk.reveal().hex() not in shown
    assert "hidden" in shown


def test_a_trailing_newline_is_no_part_of_the_token(tmp_path: Path) -> None:
    text = new_token(HEAD.public)
    create_secret_file(tmp_path / "token", text)
    assert (tmp_path / "token").read_text() == text + "\n"
    assert load_token(tmp_path / "token").psk == parse_token(text, source="f").psk
    (tmp_path / "token").write_text(text + "\r\n\n")
    assert load_token(tmp_path / "token").psk == parse_token(text, source="f").psk


def test_every_changed_character_is_refused_with_the_file_named(tmp_path: Path) -> None:
    text = new_token(HEAD.public)
    for index in range(len(text)):
        changed = text[:index] + ("x" if text[index] != "x" else "y") + text[index + 1 :]
        with pytest.raises(TokenRefused, match="tokens/fleet"):
            parse_token(changed, source="tokens/fleet")


@pytest.mark.parametrize(
    "text", ["", "sft1", "secret", "sft1...", "sft2.a.b.c", "sft1.a.b.00000000", "\x00"]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        parse_token(text, source="f")


def test_one_secret_has_one_spelling() -> None:
    text = new_token(HEAD.public, lambda n: b"\x07" * n)
    body = text.rpartition(".")[0]
    assert body.endswith("q")
    same_bits = body[:-1] + "r"
    for other in (same_bits, body.upper().replace("SFT1", "sft1")):
        with pytest.raises(TokenRefused, match="damaged"):
            parse_token(f"{other}.{zlib.crc32(other.encode()):08x}", source="f")


def test_a_missing_token_file_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TokenRefused, match="sfctl token new"):
        load_token(tmp_path / "none")


def test_the_insecure_token_is_all_zero() -> None:
    assert INSECURE_TOKEN.insecure
    assert INSECURE_TOKEN.psk.reveal() == bytes(32)
    assert not parse_token(new_token(HEAD.public), source="f").insecure


def test_a_key_file_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "static"
    made = load_or_create_static_key(path)
    assert load_or_create_static_key(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(path.parent) == ["static"]
    assert made.public == KeyPair.from_secret(made.secret.reveal()).public


def test_a_damaged_key_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "static"
    load_or_create_static_key(path)
    text = path.read_text()
    path.write_text(text.replace(text[8], "a" if text[8] != "a" else "b", 1))
    before = path.read_bytes()
    with pytest.raises(TokenRefused, match=str(path)):
        load_or_create_static_key(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    create_secret_file(path, new_token(HEAD.public))
    path.chmod(mode)
    with pytest.raises(TokenRefused, match=f"chmod 600 {path}"):
        load_token(path)
    with pytest.raises(TokenRefused, match="chmod 600"):
        load_or_create_static_key(path)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    create_secret_file(folder / "token", new_token(HEAD.public))
    folder.chmod(0o777)
    with pytest.raises(TokenRefused, match=f"chmod 700 {folder}"):
        load_token(folder / "token")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    create_secret_file(path, new_token(HEAD.public))
    os.chown(path, 65534, -1)
    with pytest.raises(TokenRefused, match="chown 0"):
        load_token(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
@pytest.mark.parametrize("hidden", [False, True])
def test_who_may_not_open_a_file_is_told_whose_it_is(hidden: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "token"
        create_secret_file(path, new_token(HEAD.public))
        Path(folder).chmod(0o700 if hidden else 0o755)
        os.seteuid(65534)
        try:
            with pytest.raises(TokenRefused) as refused:
                load_token(path)
        finally:
            os.seteuid(0)
    if hidden:
        assert "user 65534, who runs this, may not look into the folder" in str(refused.value)
    else:
        assert "(owner 0, mode 0600)" in str(refused.value)
        assert f"chown 65534 {path}" in str(refused.value)


def test_links_folders_and_long_files_are_refused(tmp_path: Path) -> None:
    create_secret_file(tmp_path / "token", new_token(HEAD.public))
    (tmp_path / "link").symlink_to(tmp_path / "token")
    (tmp_path / "folder").mkdir()
    create_secret_file(tmp_path / "long", "x" * 5000)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "folder", "long", "pipe"):
        with pytest.raises(TokenRefused, match=name):
            load_token(tmp_path / name)


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    create_secret_file(tmp_path / "token", "first")
    with pytest.raises(FileExistsError):
        create_secret_file(tmp_path / "token", "second")
    assert (tmp_path / "token").read_text() == "first\n"
    assert os.listdir(tmp_path) == ["token"]


def test_boots_rise_and_damage_is_no_guess(tmp_path: Path) -> None:
    path = tmp_path / "boot"
    assert [next_boot(path) for _ in range(3)] == [1, 2, 3]
    assert path.read_text() == "3\n"
    for damaged in ("", "three", "-1", str(2**32 - 1)):
        path.write_text(damaged)
        with pytest.raises(StoreCorrupt, match=str(path)):
            next_boot(path)
        assert path.read_text() == damaged
