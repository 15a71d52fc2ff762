"""A store whose file or log is not what its last head left: an error that says what to do."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.errors import StartError, StoreCorrupt
from bus.ids import boot_of
from head.log_mark import lineage, log_file, mark_file
from head.put_back import JUMP, PutBack
from head.store import Store
from head.store_copy import copy_whole
from head.store_file import FILE, connect, look_at_store
from tests.harness.mounts import small_disk
from tests.harness.store_rows import answer, commit, finish, generation, long_answer, tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def killed(folder: Path) -> None:
    """A store as a head leaves it that was killed; its newest commits are in the log."""
    store, state = Store.open(folder)
    for number in range(1, 4):
        kept = (state.boot << 32) + number
        commit(store, number, answer(kept), generation(kept, kept), tokens(kept, 0, 5))
    names = [FILE, log_file(folder / FILE).name, mark_file(folder / FILE).name]
    left = {name: (folder / name).read_bytes() for name in names}
    store.close()
    for name, content in left.items():
        (folder / name).write_bytes(content)


def test_a_killed_head_leaves_its_log_and_the_next_one_goes_on(folder: Path) -> None:
    killed(folder)
    store, state = Store.open(folder)
    store.close()
    assert (state.boot, len(state.answers)) == (2, 3)
    assert not PutBack(state.settings).is_of_copy(state.answers[0].answer)
    assert not mark_file(folder / FILE).exists()


def test_the_lineage_of_a_log_outlives_its_checkpoints_and_a_kill(folder: Path) -> None:
    store, _ = Store.open(folder)
    log = log_file(folder / FILE)
    first, seen = lineage(log), set()
    for lsn in range(1, 60):
        commit(store, lsn, *(long_answer(100 * lsn + n) for n in range(20)))
        seen.add((lineage(log), log.read_bytes()[16:24]))
    # It began anew at least once, so that the salts differ.
    assert len({salts for _, salts in seen}) > 1
    assert {found for found, _ in seen} == {first}
    assert first is not None
    store.close()


# --- the log ----------------------------------------------------------------------------------


def test_a_log_that_is_gone_with_all_commits_of_a_start_is_an_error(folder: Path) -> None:
    Store.open(folder)[0].close()
    killed(folder)
    log_file(folder / FILE).unlink()
    before = (folder / FILE).read_bytes()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"its log head.db-wal is gone, .*sfctl restore "):
            Store.open(folder)
    assert (folder / FILE).read_bytes() == before


def test_a_log_that_may_have_been_lost_makes_the_store_an_older_one(folder: Path) -> None:
    killed(folder)
    log = log_file(folder / FILE)
    connection = connect(folder / FILE)
    connection.execute("SELECT count(*) FROM answer").fetchone()
    connection.close()
    # Somebody looked with another program, which wrote the log back; or lost it. Who can tell?
    assert not log.exists()
    store, state = Store.open(folder)
    store.close()
    assert state.boot >= 2 + JUMP
    assert all(PutBack(state.settings).is_of_copy(kept.answer) for kept in state.answers)
    assert not PutBack(state.settings).is_of_copy((state.boot << 32) + 1)


def test_the_log_of_another_store_is_an_error(folder: Path, tmp_path: Path) -> None:
    killed(folder)
    killed(tmp_path / "other")
    shutil.copy(log_file(tmp_path / "other" / FILE), log_file(folder / FILE))
    with pytest.raises(StoreCorrupt, match=r"is not the log that the store head.db was last used"):
        Store.open(folder)


def test_a_log_of_noise_is_an_error(folder: Path) -> None:
    killed(folder)
    log_file(folder / FILE).write_bytes(os.urandom(9000))
    with pytest.raises(StoreCorrupt, match="is not the log"):
        Store.open(folder)


def test_a_store_that_is_gone_after_a_kill_is_never_made_anew(folder: Path) -> None:
    killed(folder)
    (folder / FILE).unlink()
    with pytest.raises(StoreCorrupt, match=r"its head.db-wal is there; put the file back"):
        Store.open(folder)
    log_file(folder / FILE).unlink()
    with pytest.raises(StoreCorrupt, match=r"its head.db.open is there"):
        Store.open(folder)


def test_a_start_that_was_refused_does_not_look_like_a_lost_log(folder: Path) -> None:
    killed(folder)
    with pytest.raises(StartError, match="newer"):
        # An older program: it opens the file, so that SQLite writes the log back.
        Store.open(folder, migrations=())
    store, state = Store.open(folder)
    store.close()
    assert state.boot == 2


# --- the file ---------------------------------------------------------------------------------


def test_a_zeroed_page_is_an_error_or_found_by_the_check(folder: Path) -> None:
    store, _ = Store.open(folder)
    for number in range(1, 100):
        rows = (answer(number), generation(number, number), tokens(number, 0, 5), finish(number))
        commit(store, number, *rows)
    store.close()
    file = folder / FILE
    sound = file.read_bytes()
    assert look_at_store(file) == ""
    refused = 0
    for page in range(len(sound) // 4096):
        damaged = sound[: page * 4096] + bytes(4096) + sound[(page + 1) * 4096 :]
        if damaged == sound:
            continue
        file.write_bytes(damaged)
        said = look_at_store(file)
        assert "sfctl restore FILE" in said, page
        # What no start reads (an index), only the check finds.
        with contextlib.suppress(StoreCorrupt):
            Store.open(folder)[0].close()
            assert "damaged" in said
            continue
        refused += 1
    assert refused > 5


def test_a_folder_in_place_of_the_file(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / FILE).mkdir()
    with pytest.raises(StartError, match=r"head.db should be the store and is no file; move it"):
        Store.open(folder)


def test_a_link_in_place_of_the_file(folder: Path, tmp_path: Path) -> None:
    Store.open(tmp_path / "elsewhere")[0].close()
    folder.mkdir(mode=0o700)
    (folder / FILE).symlink_to(tmp_path / "elsewhere" / FILE)
    with pytest.raises(StartError, match="is no file"):
        Store.open(folder)


def test_a_store_with_two_names_is_refused(folder: Path, tmp_path: Path) -> None:
    first, _ = Store.open(folder)
    second = tmp_path / "second"
    second.mkdir(mode=0o700)
    (second / FILE).hardlink_to(folder / FILE)
    with pytest.raises(StartError, match=r"has another name too \(a hard link\)"):
        Store.open(second)
    commit(first, 1, answer(1))
    first.close()


def test_a_mode_that_lets_others_read_is_mended(folder: Path) -> None:
    Store.open(folder)[0].close()
    (folder / FILE).chmod(0o644)
    assert look_at_store(folder / FILE) == ""
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o644
    Store.open(folder)[0].close()
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_file_of_another_user_names_both(folder: Path) -> None:
    Store.open(folder)[0].close()
    os.chown(folder / FILE, 12345, -1)
    with pytest.raises(StartError, match=r"belongs to user id 12345 and the head runs as 0; .*"):
        Store.open(folder)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 8 << 20) as made:
        yield made


def test_a_disk_that_can_only_be_read(disk: Path) -> None:
    folder = disk / "store"
    Store.open(folder)[0].close()
    with small_disk.only_readable(disk), pytest.raises(StartError, match="Read-only file system"):
        Store.open(folder)
    Store.open(folder)[0].close()


# --- a copy that was put there by hand --------------------------------------------------------


def copy_of(folder: Path, target: Path) -> None:
    connection = connect(folder / FILE, read_only=True)
    copy_whole(connection, target)
    connection.close()


def test_a_copy_put_there_by_hand_is_known_for_one(folder: Path, tmp_path: Path) -> None:
    killed(folder)
    copy_of(folder, tmp_path / "copy.db")
    for name in list(folder.iterdir()):
        name.unlink()
    shutil.copy(tmp_path / "copy.db", folder / FILE)
    store, state = Store.open(folder)
    store.close()
    assert state.boot >= 2 + JUMP
    assert boot_of((state.boot << 32) + 1) == state.boot
    assert PutBack(state.settings).is_of_copy(state.answers[0].answer)
    store, again = Store.open(folder)
    store.close()
    # Only once; what it found out stays.
    assert again.boot == state.boot + 1
    assert PutBack(again.settings).is_of_copy(state.answers[0].answer)
    assert not PutBack(again.settings).is_of_copy((state.boot << 32) + 1)


def test_a_copy_beside_the_log_of_what_was_there_is_an_error(folder: Path, tmp_path: Path) -> None:
    killed(folder)
    copy_of(folder, tmp_path / "copy.db")
    shutil.copy(tmp_path / "copy.db", folder / FILE)
    before = (folder / FILE).read_bytes()
    with pytest.raises(StoreCorrupt, match=r"is a copy and .*-wal is of what was there before"):
        Store.open(folder)
    assert (folder / FILE).read_bytes() == before


KILLED = """
import os, signal, sys
from pathlib import Path
from head import log_mark, store
if sys.argv[2] == "before the note":
    log_mark.LogMark.write = lambda mark, file: os.kill(os.getpid(), signal.SIGKILL)
opened, _ = store.Store.open(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["before the note", "after it"])
@pytest.mark.parametrize("first", ["new", "a copy", "a copy after a kill"])
def test_a_head_that_is_killed_as_it_starts_leaves_a_store_that_can_be_started(
    folder: Path, tmp_path: Path, first: str, when: str
) -> None:
    boot = 0
    if first != "new":
        killed(folder)
        copy_of(folder, tmp_path / "copy.db")
        log_file(folder / FILE).unlink()
        if first == "a copy":
            mark_file(folder / FILE).unlink()
        shutil.copy(tmp_path / "copy.db", folder / FILE)
        boot = 1 + JUMP
    root = Path(__file__).parents[3]
    for _ in range(3):
        command = [sys.executable, "-c", KILLED, str(folder), when]
        assert subprocess.run(command, cwd=root, check=False).returncode == -9
        boot += 1
    store, state = Store.open(folder)
    store.close()
    assert state.boot == boot + 1 if first == "new" else state.boot > boot
    assert len(state.answers) == (0 if first == "new" else 3)
