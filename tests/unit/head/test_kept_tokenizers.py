"""Fetched tokenizers on disk: whole or not there, across restarts, bounded."""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.errors import SuperfluidError, TokenizerUnavailable
from bus.ids import ModelName
from bus.text.tokenizer_export import TokenizerIntake, export_parts
from bus.text.tokenizer_files import text_digest
from head.kept_tokenizers import KeptTokenizers, TokenizerKey

FILES = {"tokenizer.json": b'{"a": 1}', "superfluid.json": b'{"bos_id":1}'}
DIGEST = text_digest(FILES)
Found = list[Path | SuperfluidError | None]


def key(model: str = "toy", digest: int = 7, text: int = DIGEST) -> TokenizerKey:
    return TokenizerKey(ModelName(model), digest, text)


def intake(files: dict[str, bytes] = FILES, expected: int = DIGEST) -> TokenizerIntake:
    made = TokenizerIntake(expected)
    for part in export_parts(files):
        made.take(part)
    return made


class Kept:
    """A store whose thread is waited for."""

    def __init__(self, path: Path, limit: int = 32) -> None:
        self.store = KeptTokenizers(path, limit)

    def wait(self, found: Found) -> Path | SuperfluidError | None:
        while not found:
            assert select.select([self.store.fileno()], [], [], 10.0)[0]
            self.store.settle()
        return found[0]

    def keep(self, which: TokenizerKey, *in_use: TokenizerKey) -> Path:
        found = Found()
        self.store.write(which, intake(), in_use, found.append)
        folder = self.wait(found)
        assert isinstance(folder, Path)
        self.store.confirm(which)
        return folder

    def find(self, which: TokenizerKey) -> Path | SuperfluidError | None:
        found = Found()
        self.store.find(which, found.append)
        return self.wait(found)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "tokenizers")
    yield made
    made.store.close()


def again(kept: Kept) -> Kept:
    """As the next head finds it."""
    kept.store.close()
    return Kept(kept.store.path)


def test_what_was_kept_is_there_after_a_restart(kept: Kept) -> None:
    folder = kept.keep(key())
    assert folder.name == key().folder
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert kept.store.kept() == (key(),)
    after = again(kept)
    assert after.store.kept() == (key(),)
    assert after.find(key()) == folder
    assert after.find(key(digest=8)) is None
    after.store.close()


def test_names_of_folders_have_nothing_of_the_wire() -> None:
    odd = key("../../etc/passwd\n\0")
    assert set(odd.folder) <= set("0123456789abcdef-")
    assert len({odd.folder, key().folder, key(text=9).folder, key(digest=8).folder}) == 4


def test_what_was_not_confirmed_is_gone_after_a_restart(kept: Kept) -> None:
    found = Found()
    kept.store.write(key(), intake(), (), found.append)
    folder = kept.wait(found)
    assert isinstance(folder, Path)
    assert folder.is_dir()
    (folder.parent / ".new-left").mkdir()
    after = again(kept)
    assert after.store.kept() == ()
    assert list(folder.parent.iterdir()) == []
    after.store.close()


def _cut(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"{}")


def _add(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("x")


def _drop(folder: Path) -> None:
    (folder / "superfluid.json").unlink()


@pytest.mark.parametrize("damage", [_cut, _add, _drop])
def test_a_damaged_one_is_removed(kept: Kept, damage: object) -> None:
    folder = kept.keep(key())
    damage(folder)  # type: ignore[operator]
    after = again(kept)
    assert after.find(key()) is None
    assert not folder.exists()
    assert after.store.kept() == ()
    # And it can be kept again.
    assert after.keep(key()) == folder
    assert after.find(key()) == folder
    after.store.close()


def test_a_record_that_says_another_model_is_none(kept: Kept) -> None:
    folder = kept.keep(key())
    other = folder.with_name(key("other").folder)
    kept.store.close()
    folder.rename(other)
    after = Kept(kept.store.path)
    assert after.store.kept() == ()
    assert not other.exists()
    after.store.close()


def test_those_used_longest_ago_go_and_those_in_use_stay(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "tokenizers", limit=3)
    first, *others = [key(f"m{number}") for number in range(5)]
    folder = kept.keep(first)
    for other in others[:2]:
        kept.keep(other, first)
    assert kept.find(others[0]) is not None
    kept.keep(others[2], first)
    assert kept.store.kept() == (others[2], others[0], first)
    kept.keep(others[3])
    assert kept.store.kept() == (others[3], others[2], others[0])
    kept.store.close()
    assert not folder.exists()
    after = Kept(kept.store.path, limit=3)
    assert set(after.store.kept()) == {others[3], others[2], others[0]}
    after.store.close()


def test_what_is_not_it_is_not_written(kept: Kept) -> None:
    found = Found()
    kept.store.write(key(), intake(expected=DIGEST + 1), (), found.append)
    assert isinstance(kept.wait(found), TokenizerUnavailable)
    assert list(kept.store.path.iterdir()) == []
    assert kept.store.kept() == ()


def test_what_was_wrong_after_all_is_removed(kept: Kept) -> None:
    found = Found()
    kept.store.write(key(), intake(), (), found.append)
    folder = kept.wait(found)
    assert isinstance(folder, Path)
    kept.store.remove(key())
    kept.store.confirm(key())
    kept.store.close()
    assert not folder.exists()
    assert os.listdir(kept.store.path) == []


@pytest.mark.parametrize(
    "record",
    [
        b"[" * 200_000,
        b"[" * 60_000,
        b'{"model": "\\ud800", "digest": "7", "text_digest": "7", "files": {}}',
        b'{"model": "toy", "digest": 7, "text_digest": "7", "files": {}}',
        b'{"model": "toy", "digest": "7", "text_digest": "7", "files": []}',
        b"null",
        b"\xff\xfe",
        b'"' + b" " * 70_000 + b'"',
    ],
)
def test_a_record_of_anything_is_none(kept: Kept, record: bytes) -> None:
    whole, folder = kept.keep(key("other")), kept.keep(key())
    kept.store.close()
    (folder / "kept.json").write_bytes(record)
    after = Kept(kept.store.path)
    assert after.store.kept() == (key("other"),)
    assert not folder.exists()
    assert after.find(key()) is None
    # And where it becomes so while the head runs
    (whole / "kept.json").write_bytes(record)
    assert after.find(key("other")) is None
    assert not whole.exists()
    after.store.close()


FIND = """
import sys
from pathlib import Path
from tests.unit.head.test_kept_tokenizers import Kept, key
kept = Kept(Path(sys.argv[1]))
print([kept.find(key()), kept.find(key("damaged")), kept.store.kept()])
"""


def test_what_is_whole_is_used_where_nothing_can_be_written(kept: Kept) -> None:
    folder, damaged = kept.keep(key()), kept.keep(key("damaged"))
    kept.store.close()
    _cut(damaged)
    (folder.parent / ".new-left").mkdir()
    path = folder.parent
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(path)]
    if subprocess.run([*command, "true", ""], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets no one mount folders of their own")
    done = subprocess.run(
        [*command, sys.executable, FIND],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout == f"{[folder, None, (key(),)]}\n", done.stderr
    assert damaged.is_dir()
