"""Backups of a store that is written to, and what becomes of one that is put back."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bus.errors import Internal, Invalid, NotFound, StartError, StorageFull, StoreCorrupt
from bus.ids import NodeIdentity, unpack_ids
from head.backups import FOLDER, Backup, back_up
from head.put_back import JUMP
from head.rows import PutNodeKey
from head.schema import MIGRATIONS
from head.store import Store
from head.store_copy import COPY_MARK
from head.store_file import FILE, LOG_LIMIT_BYTES, RESTORING
from head.store_restore import Restored, restore
from tests.harness.mounts import fill, small_disk
from tests.harness.store_rows import answer, commit, finish, generation, long_answer, tokens

WALL_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def copy(folder: Path, target: Path | None = None, keep: int = 0, wall_s: float = WALL_S) -> Backup:
    return back_up(folder / FILE, target, keep=keep, wall_s=wall_s)


def put(folder: Path, source: Path, *, force: bool = False) -> Restored:
    return restore(folder, source, wall_s=WALL_S, force=force)


def kept(folder: Path) -> list[int]:
    store, state = Store.open(folder)
    store.close()
    return [each.answer for each in state.answers]


def one_store(folder: Path, *numbers: int) -> str:
    """A store with these answers, closed; gives its head's id."""
    store, state = Store.open(folder)
    commit(store, 1, *(row for n in numbers for row in (answer(n), finish(n))))
    store.close()
    return state.head_id


def test_a_backup_of_a_running_store_is_private_whole_and_says_what_it_is(folder: Path) -> None:
    store, state = Store.open(folder)
    commit(store, 1, answer(1), generation(1, 1), tokens(1, 0, 5, 6))
    made = copy(folder)
    commit(store, 2, answer(2))
    assert made.file == folder / FOLDER / "head-20270115T080000Z.db"
    assert os.listdir(folder / FOLDER) == [made.file.name]
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.file.parent.stat().st_mode) == 0o700
    assert made.to_map() == {
        "file": str(made.file),
        "bytes": made.file.stat().st_size,
        "made_wall_s": WALL_S,
        "schema": len(MIGRATIONS),
        "head": state.head_id,
        "boot": 1,
        "removed": 0,
    }
    found = sqlite3.connect(made.file)
    assert found.execute("SELECT answer FROM answer").fetchall() == [(1,)]
    assert found.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert found.execute("PRAGMA user_version").fetchone() == (COPY_MARK,)
    found.close()
    store.close()


def test_a_backup_is_of_one_moment_while_answers_come(folder: Path) -> None:
    store, _ = Store.open(folder)
    stop = threading.Event()

    def write() -> None:
        lsn = 0
        while not stop.is_set():
            lsn += 1
            # Each answer with its token, in one commit: no copy may have one without the other.
            commit(store, lsn, answer(lsn), generation(lsn, lsn), tokens(lsn, 0, lsn))

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    try:
        for number in range(6):
            made = copy(folder, wall_s=WALL_S + number)
            found = sqlite3.connect(made.file)
            answers = found.execute("SELECT answer FROM answer ORDER BY answer").fetchall()
            rows = found.execute("SELECT answer, ids FROM tokens ORDER BY answer").fetchall()
            found.close()
            assert [a for (a,) in answers] == [a for a, _ in rows] == list(range(1, len(rows) + 1))
            assert all(list(unpack_ids(ids)) == [a] for a, ids in rows)
            seen.append(len(rows))
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    store.close()


def test_the_log_is_made_short_after_a_reader_that_stayed(folder: Path) -> None:
    store, _ = Store.open(folder)
    log = folder / f"{FILE}-wal"
    reader = sqlite3.connect(folder / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM answer").fetchone()
    for lsn in range(1, 60):
        commit(store, lsn, *(long_answer(100 * lsn + n) for n in range(20)))
    grown = log.stat().st_size
    reader.execute("ROLLBACK")
    reader.close()
    store.write_back_log()
    commit(store, 60, answer(1))
    commit(store, 61, answer(2))
    shrunk = log.stat().st_size
    store.close()
    # 1,180 prompts of 8 kB; without a reader, SQLite writes back after 4 MiB.
    assert grown > 8 << 20
    assert shrunk <= LOG_LIMIT_BYTES


def test_only_so_many_stay_and_only_ours_go(folder: Path) -> None:
    one_store(folder, 1)
    for number in range(4):
        copy(folder, wall_s=WALL_S + number)
    again = copy(folder, wall_s=WALL_S)
    assert again.file.name == "head-20270115T080000Z-2.db"
    (folder / FOLDER / "head-mine.db").write_text("not one of them")
    last = copy(folder, keep=2, wall_s=WALL_S + 9)
    assert last.removed == 4
    assert sorted(os.listdir(folder / FOLDER)) == [
        "head-20270115T080000Z-2.db",
        "head-20270115T080009Z.db",
        "head-mine.db",
    ]


def test_a_name_that_is_taken_or_leads_nowhere_is_refused(folder: Path, tmp_path: Path) -> None:
    one_store(folder, 1)
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(Invalid, match="is there already"):
        copy(folder, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "precious"
    with pytest.raises(Invalid, match=r"there is no folder .*nowhere; make it first"):
        copy(folder, tmp_path / "nowhere" / "x.db")
    with pytest.raises(StorageFull, match=r"File name too long.* choose a place"):
        copy(folder, tmp_path / ("x" * 300))


def test_a_backup_that_is_given_up_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    one_store(folder, *range(1, 3000))
    with pytest.raises(Internal, match="given up"):
        back_up(folder / FILE, tmp_path / "x.db", wall_s=WALL_S, go_on=lambda: False)
    assert not list(tmp_path.glob("x.db*"))


def test_a_damaged_store_gives_no_backup_and_no_earlier_one_goes(folder: Path) -> None:
    one_store(folder, *range(1, 300))
    copy(folder)
    with (folder / FILE).open("r+b") as opened:
        opened.seek(4096 * 10)
        opened.write(bytes(4096))
    with pytest.raises(StoreCorrupt, match="damaged"):
        copy(folder, keep=1, wall_s=WALL_S + 1)
    assert os.listdir(folder / FOLDER) == ["head-20270115T080000Z.db"]


def test_a_backup_that_does_not_fit_leaves_nothing_and_the_disk_its_room(
    folder: Path, tmp_path: Path
) -> None:
    one_store(folder, *range(1, 3000))
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        fill(disk, leave_bytes=64 << 10)
        with pytest.raises(StorageFull, match=r"no backup was made: it needs \d+ bytes"):
            copy(folder, disk / "x.db")
        assert os.listdir(disk) == ["filler"]


# --- putting one back -------------------------------------------------------------------------


def test_a_backup_is_put_back_and_what_was_there_is_moved(folder: Path) -> None:
    one_store(folder, 1, 2)
    made = copy(folder)
    one_store(folder, 3)
    before = (folder / FILE).read_bytes()
    done = put(folder, made.file)
    assert (done.facts.boot, done.revoked, done.knows_revoked) == (1, (), True)
    assert done.moved_to == folder / "replaced" / "20270115T080000Z"
    assert (done.moved_to / FILE).read_bytes() == before
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert made.file.exists()
    store, state = Store.open(folder)
    store.close()
    assert [each.answer for each in state.answers] == [1, 2]
    # Above all of the store that it replaces, too.
    assert state.boot >= 3 + JUMP
    assert put(folder, made.file).moved_to == folder / "replaced" / "20270115T080000Z-2"
    store, again = Store.open(folder)
    store.close()
    assert again.boot >= state.boot + JUMP


def test_the_log_of_a_killed_head_goes_with_its_store(folder: Path) -> None:
    one_store(folder, 1)
    made = copy(folder)
    root = Path(__file__).parents[3]
    script = (
        "import os, signal, sys; from pathlib import Path; from head.store import Store\n"
        "from tests.harness.store_rows import answer, commit\n"
        "store, _ = Store.open(Path(sys.argv[1])); commit(store, 1, answer(9))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], cwd=root, check=False)
    assert (folder / f"{FILE}-wal").stat().st_size > 0
    done = put(folder, made.file)
    assert done.moved_to is not None
    assert sorted(os.listdir(done.moved_to)) == [FILE, f"{FILE}-wal", f"{FILE}.open"]
    assert kept(folder) == [1]
    # And back again: what was moved is a store like any other.
    put(folder, done.moved_to / FILE)
    assert kept(folder) == [1, 9]


def test_a_store_whose_log_is_lost_goes_on_from_itself(folder: Path) -> None:
    one_store(folder, 1)
    shutil.copy(folder / FILE, folder.parent / "older.db")
    one_store(folder, 2)
    store, _ = Store.open(folder)
    mark = (folder / f"{FILE}.open").read_bytes()
    store.close()
    shutil.copy(folder.parent / "older.db", folder / FILE)
    (folder / f"{FILE}.open").write_bytes(mark)
    with pytest.raises(StoreCorrupt, match="or an older copy was put there"):
        Store.open(folder)
    put(folder, folder / FILE)
    assert kept(folder) == [1]


def test_a_head_that_runs_keeps_its_store(folder: Path) -> None:
    store, _ = Store.open(folder)
    made = copy(folder)
    with pytest.raises(StartError, match=f"process id {os.getpid()} has the state folder"):
        put(folder, made.file)
    commit(store, 1, answer(1))
    store.close()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", StoreCorrupt),
        (b"a letter to the operator" * 400, StoreCorrupt),
        (None, NotFound),
    ],
)
def test_what_is_no_backup_is_refused(
    folder: Path, tmp_path: Path, content: bytes | None, error: type[Exception]
) -> None:
    one_store(folder, 1)
    source = tmp_path / "x.db"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(error, match=r"x\.db"):
        put(folder, source)
    assert kept(folder) == [1]
    assert not list(folder.glob(f"{RESTORING}*"))


def test_a_foreign_database_is_refused(folder: Path, tmp_path: Path) -> None:
    one_store(folder, 1)
    other = sqlite3.connect(tmp_path / "photos.db")
    other.execute("CREATE TABLE photos (name TEXT)")
    other.close()
    with pytest.raises(StoreCorrupt, match="is no store of a head"):
        put(folder, tmp_path / "photos.db")
    assert kept(folder) == [1]


@pytest.mark.parametrize("page", [0, 7, 20])
def test_a_damaged_backup_is_refused(folder: Path, page: int) -> None:
    one_store(folder, *range(1, 300))
    made = copy(folder)
    with made.file.open("r+b") as opened:
        opened.seek(4096 * page)
        opened.write(bytes(4096))
    with pytest.raises(StoreCorrupt, match="damaged"):
        put(folder, made.file)
    assert len(kept(folder)) == 299


def test_a_backup_of_a_newer_program_is_refused(folder: Path) -> None:
    one_store(folder, 1)
    made = copy(folder)
    with sqlite3.connect(made.file) as newer:
        newer.execute("INSERT INTO schema_version VALUES (99, 'later', 'x', 0)")
    newer.close()
    with pytest.raises(StartError, match="schema version 99 and this program knows up to"):
        put(folder, made.file)
    assert kept(folder) == [1]


def test_a_backup_of_another_head_needs_force(folder: Path, tmp_path: Path) -> None:
    mine = one_store(folder, 1)
    other = one_store(tmp_path / "other", 2)
    made = copy(tmp_path / "other")
    with pytest.raises(Invalid, match=f"is of head {other} and the store .* of head {mine}"):
        put(folder, made.file)
    assert kept(folder) == [1]
    assert put(folder, made.file, force=True).knows_revoked is False
    assert kept(folder) == [2]


def test_a_lost_store_is_put_back_into_an_empty_folder(folder: Path, tmp_path: Path) -> None:
    one_store(folder, 1)
    made = copy(folder, tmp_path / "safe.db")
    shutil.rmtree(folder)
    assert put(folder, made.file).moved_to is None
    assert kept(folder) == [1]


def key(number: int, state: str) -> PutNodeKey:
    return PutNodeKey(
        public=bytes([number] * 32),
        identity=NodeIdentity(f"n{number}"),
        state=state,
        host="",
        changed_wall_s=1.0,
    )


def test_who_was_revoked_after_the_backup_stays_out(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, key(1, "enrolled"), key(2, "enrolled"), key(3, "revoked"))
    made = copy(folder)
    commit(store, 2, key(2, "revoked"), key(4, "revoked"), key(5, "enrolled"))
    store.close()
    assert put(folder, made.file).revoked == ("n2", "n4")
    store, state = Store.open(folder)
    store.close()
    states = {each.identity: each.state for each in state.node_keys}
    assert states == {"n1": "enrolled", "n2": "revoked", "n3": "revoked", "n4": "revoked"}


def test_a_backup_of_an_older_version_is_brought_up_to_date(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "v1.db"
    with sqlite3.connect(source) as old:
        old.executescript((Path(__file__).parent / "golden" / "store_v1.sql").read_text())
    old.close()
    before = source.read_bytes()
    assert put(folder, source).facts.schema == 1
    assert kept(folder) == [1, 2]
    assert source.read_bytes() == before


def test_a_restore_that_was_interrupted_is_never_a_fresh_start(folder: Path) -> None:
    one_store(folder, 1)
    made = copy(folder)
    one_store(folder, 2)
    # As far as a restore may come before it dies: the copy is whole and the old store moved.
    shutil.copy(made.file, folder / RESTORING)
    (folder / FILE).rename(folder / "moved.db")
    for _ in range(2):
        with pytest.raises(StartError, match=r"interrupted; do it again .*head\.db\.restoring"):
            Store.open(folder)
    assert put(folder, folder / RESTORING).moved_to is None
    assert kept(folder) == [1]
    assert not list(folder.glob(f"{RESTORING}*"))


def test_who_was_revoked_stays_out_when_a_restore_is_interrupted_and_done_again(
    folder: Path,
) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, key(1, "enrolled"))
    made = copy(folder)
    commit(store, 2, key(1, "revoked"))
    store.close()
    assert put(folder, made.file).revoked == ("n1",)
    # As it was just before the last step.
    (folder / FILE).rename(folder / RESTORING)
    again = put(folder, made.file)
    assert (again.revoked, again.knows_revoked) == (("n1",), True)
    store, state = Store.open(folder)
    store.close()
    assert [each.state for each in state.node_keys] == ["revoked"]


def test_what_an_interrupted_restore_was_changing_is_not_mixed_into_the_next(
    folder: Path, tmp_path: Path
) -> None:
    one_store(folder, *range(1, 400))
    first = copy(folder, tmp_path / "first.db")
    one_store(folder, *range(400, 500))
    second = copy(folder, tmp_path / "second.db")
    part = folder / f"{RESTORING}.part"
    shutil.copy(first.file, part)
    changing = sqlite3.connect(part, isolation_level=None)
    changing.execute("PRAGMA cache_size = 1")
    changing.execute("BEGIN IMMEDIATE")
    changing.execute("UPDATE answer SET prompt = zeroblob(2000)")
    # What is there of a transaction when its process is killed.
    shutil.copy(f"{part}-journal", tmp_path / "journal")
    changing.execute("ROLLBACK")
    changing.close()
    shutil.copy(tmp_path / "journal", f"{part}-journal")
    put(folder, second.file)
    assert kept(folder) == list(range(1, 500))


def test_the_marks_of_a_map_are_plain_json(folder: Path) -> None:
    one_store(folder, 1)
    assert json.loads(json.dumps(copy(folder).to_map()))["boot"] == 1
