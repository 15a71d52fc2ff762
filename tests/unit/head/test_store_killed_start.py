"""A head that is killed while it opens its store leaves one that opens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from head.log_mark import LogMark, has_frames, log_file, mark_file
from head.store import Store
from head.store_file import FILE, checkpoint, connect


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
