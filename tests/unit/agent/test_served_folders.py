"""Which models a node serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.served_folders import served_folders
from bus.errors import ModelIncomplete, NotFound


def test_every_folder_is_served_also_one_that_is_broken_for_now(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / ".making").mkdir()
    assert served_folders(tmp_path, ()) == {"a": tmp_path / "a", "b": tmp_path / "b"}
    assert served_folders(tmp_path / "none", ()) == {}


def test_a_named_model_must_be_there_and_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(NotFound, match=r"there is no model 'x' in .* \(there: a\)"):
        served_folders(tmp_path, ("x",))
    with pytest.raises(ModelIncomplete, match=r"superfluid\.json is missing"):
        served_folders(tmp_path, ("a",))
