"""A head that is killed, as it starts or later, leaves a store that opens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from head.log_mark import LogMark, has_frames, log_file, mark_file
from head.store import Store
from head.store_file import FILE, checkpoint, connect
from tests.harness.store_rows import commit, long_answer


def test_killed_between_the_first_commit_and_the_note_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = Store.open(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "idle")
    store.close()
    # A head that was idle and then killed: all was written back, its note is still there.
    other = connect(tmp_path / "idle" / FILE)
    checkpoint(other)
    other.close()
    assert not has_frames(log_file(tmp_path / "idle" / FILE))
    assert mark_file(tmp_path / "idle" / FILE).exists()
    write = LogMark.write

    def killed(self: LogMark, file: Path) -> None:
        if self.lineage is not None:
            shutil.copytree(tmp_path / "idle", tmp_path / "starting")
        write(self, file)

    monkeypatch.setattr(LogMark, "write", killed)
    second, was = Store.open(tmp_path / "idle")
    monkeypatch.undo()
    second.close()
    assert has_frames(log_file(tmp_path / "starting" / FILE))
    third, state = Store.open(tmp_path / "starting")
    third.close()
    assert state.boot > was.boot


def test_killed_after_another_program_read_the_store_beside_its_start(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    store, state = Store.open(first)
    log = log_file(first / FILE)
    begun = _header(log)
    _fill(store, state.boot, log)
    shutil.copytree(first, second)
    store.close()
    assert _header(log_file(second / FILE)) != begun
    # As `sfctl doctor` does; SQLite counts in the head's connection from 0 then.
    reader = connect(second / FILE, read_only=True)
    reader.execute("SELECT count(*) FROM answer").fetchone()
    store, state = Store.open(second)
    _fill(store, state.boot, log_file(second / FILE))
    shutil.copytree(second, third)
    reader.close()
    store.close()
    store, again = Store.open(third)
    store.close()
    assert again.boot > state.boot


def _header(log: Path) -> bytes:
    """The log's count of checkpoints and its salts."""
    return log.read_bytes()[12:24]


def _fill(store: Store, boot: int, log: Path) -> None:
    """Commit until the log begins anew."""
    begun, lsn = _header(log), 0
    while _header(log) == begun:
        lsn += 1
        commit(store, lsn, *(long_answer((boot << 32) + 100 * lsn + n) for n in range(20)))
