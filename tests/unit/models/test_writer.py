"""Model folders appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.models.writer import check_name, replacing_folder
from bus.errors import Invalid


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "models" / "m") as partial:
        (partial / "file").write_text("new")
        assert not (tmp_path / "models" / "m").exists()
    assert names(tmp_path / "models") == ["m"]
    assert (tmp_path / "models" / "m" / "file").read_text() == "new"


def test_an_old_folder_is_replaced_and_open_files_stay_readable(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "old").write_text("old")
    with (tmp_path / "m" / "old").open() as reader:
        with replacing_folder(tmp_path / "m") as partial:
            (partial / "new").write_text("new")
        assert reader.read() == "old"
    assert names(tmp_path) == ["m"]
    assert names(tmp_path / "m") == ["new"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_what_ends_early_leaves_everything_as_it_was(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "old").write_text("old")

    def fail() -> None:
        with replacing_folder(tmp_path / "m") as partial:
            (partial / "half").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == ["m"]
    assert names(tmp_path / "m") == ["old"]


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    dead = _dead_pid()
    (tmp_path / f".m.{dead}.partial").mkdir()
    (tmp_path / f".m.{dead}.old").mkdir()
    (tmp_path / f".m.x.{dead}.partial").mkdir()
    (tmp_path / f".m.{os.getppid()}.partial").mkdir()
    with replacing_folder(tmp_path / "m"):
        pass
    assert names(tmp_path) == [f".m.{os.getppid()}.partial", f".m.x.{dead}.partial", "m"]


def test_an_old_folder_whose_writer_was_killed_comes_back(tmp_path: Path) -> None:
    old = tmp_path / f".m.{_dead_pid()}.old"
    old.mkdir()
    (old / "file").write_text("old")

    def fail() -> None:
        with replacing_folder(tmp_path / "m"):
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert (tmp_path / "m" / "file").read_text() == "old"


def _dead_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "x" * 65])
def test_names_that_are_no_folder_names_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="no model name"):
        check_name(name)


def test_usual_names_are_accepted() -> None:
    assert check_name("SmolLM2-135M_Q4.1") == "SmolLM2-135M_Q4.1"
