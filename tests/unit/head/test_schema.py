"""Files that are damaged, older or newer: never a silent fresh start."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from bus.errors import StartError, StoreCorrupt
from bus.ids import pack_ids
from head.schema import MIGRATIONS, Migration, apply, backup_path
from head.store import Store
from head.store_file import FILE
from tests.harness.store_rows import answer, commit, generation, tokens

GOLDEN = Path(__file__).parent / "golden" / "store_v1.sql"
NEXT = Migration(
    "answers have a note",
    ("ALTER TABLE answer ADD COLUMN note TEXT NOT NULL DEFAULT 'none'",),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def golden_file(folder: Path) -> Path:
    """A file as version 1 made it."""
    folder.mkdir(mode=0o700)
    file = folder / FILE
    connection = sqlite3.connect(file)
    connection.executescript(GOLDEN.read_text())
    connection.close()
    file.chmod(0o600)
    return file


def versions(file: Path) -> list[int]:
    connection = sqlite3.connect(file)
    found = connection.execute("SELECT version FROM schema_version ORDER BY version").fetchall()
    connection.close()
    return [version for (version,) in found]


def test_a_file_of_version_1_is_read(folder: Path) -> None:
    golden_file(folder)
    store, state = Store.open(folder)
    store.close()
    assert state.boot == 3
    assert state.head_id == "00112233445566778899aabbccddeeff"
    finished, running = state.answers
    assert (finished.answer, finished.key, finished.finish) == (1, "k", "stop")
    assert finished.tokens == pack_ids([10, 11, 12])
    assert (running.answer, running.state, running.node) == (2, "sent", "n2")
    (peer,) = state.peers
    assert (peer.public, peer.identity) == (bytes([1, 2]), "n2")
    assert (peer.incarnation, peer.hello_counter) == (4, 7)


def test_the_first_migration_still_makes_what_it_made() -> None:
    made = sqlite3.connect(":memory:", isolation_level=None)
    apply(made, 1, MIGRATIONS[0])
    golden = sqlite3.connect(":memory:")
    golden.executescript(GOLDEN.read_text())
    query = "SELECT name, sql FROM sqlite_master ORDER BY name"
    assert made.execute(query).fetchall() == golden.execute(query).fetchall()
    made.close()
    golden.close()


def test_a_migration_backs_up_records_itself_and_keeps_all(folder: Path) -> None:
    file = golden_file(folder)
    store, state = Store.open(folder, migrations=(*MIGRATIONS, NEXT))
    commit(store, 1, answer(3))
    store.close()
    assert versions(file) == [*range(1, len(MIGRATIONS) + 2)]
    assert [stored.answer for stored in state.answers] == [1, 2]
    copy = backup_path(file, 1)
    assert versions(copy) == [1]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    kept = sqlite3.connect(copy)
    assert kept.execute("SELECT count(*) FROM answer").fetchone() == (2,)
    kept.close()


def test_a_backup_has_what_was_only_in_the_log(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1), generation(1, 1), tokens(1, 0, 5))
    # As after a kill: the log is not written back to the file yet.
    names = (FILE, f"{FILE}-wal")
    killed = {name: (folder / name).read_bytes() for name in names}
    store.close()
    for name, content in killed.items():
        (folder / name).write_bytes(content)
    store, state = Store.open(folder, migrations=(*MIGRATIONS, NEXT))
    store.close()
    assert len(state.answers) == 1
    copy = sqlite3.connect(backup_path(folder / FILE, len(MIGRATIONS)))
    assert copy.execute("SELECT answer FROM answer").fetchall() == [(1,)]
    copy.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(folder: Path) -> None:
    file = golden_file(folder)
    broken = Migration("half", ("ALTER TABLE answer ADD COLUMN x", "SELECT * FROM nothing"))
    with pytest.raises(StartError, match=r"schema version 2 .* it is as before"):
        Store.open(folder, migrations=(*MIGRATIONS[:1], broken))
    assert versions(file) == [1]
    store, state = Store.open(folder)
    store.close()
    assert len(state.answers) == 2


def test_a_newer_file_is_refused(folder: Path) -> None:
    store, _ = Store.open(folder, migrations=(*MIGRATIONS, NEXT))
    store.close()
    with pytest.raises(StartError, match="a newer one wrote it") as caught:
        Store.open(folder)
    assert not isinstance(caught.value, StoreCorrupt)


def _garbage(file: Path) -> None:
    file.write_bytes(b"this is no database, it is a sentence" * 200)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _half(file: Path) -> None:
    os.truncate(file, 5000)


def _other_program(file: Path) -> None:
    file.unlink()
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()


def _page_of_noise(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(os.urandom(4096 * 8))


def _no_head_row(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("DELETE FROM head")
    connection.close()


def _gap(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("DELETE FROM tokens WHERE first = 0")
    connection.close()


@pytest.mark.parametrize(
    "damage", [_garbage, _empty, _half, _other_program, _page_of_noise, _no_head_row, _gap]
)
def test_a_damaged_store_is_an_error_that_says_what_to_do(folder: Path, damage: object) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1), generation(1, 1), tokens(1, 0, 5), tokens(1, 1, 6))
    store.close()
    file = folder / FILE
    assert callable(damage)
    damage(file)
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"put a backup in its place with .sfctl restore"):
            Store.open(folder)
    assert file.read_bytes() == before or damage is _gap or damage is _no_head_row


def test_a_log_without_its_file_is_an_error(folder: Path) -> None:
    store, _ = Store.open(folder)
    store.close()
    (folder / FILE).rename(folder / f"{FILE}-wal")
    with pytest.raises(StoreCorrupt, match="put the file back"):
        Store.open(folder)


def test_a_start_that_ended_while_the_file_was_made_begins_again(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / f"{FILE}.new").write_bytes(b"half a file")
    store, state = Store.open(folder)
    store.close()
    assert state.boot == 1
