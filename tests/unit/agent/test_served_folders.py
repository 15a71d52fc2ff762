"""Which models a node serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.served_folders import (
    NO_CHANGES,
    ModelChanges,
    forget_removed,
    read_changes,
    served_folders,
    write_changes,
)
from bus.errors import ModelIncomplete, NotFound, StoreCorrupt
from bus.ids import ModelName

A, B, C = ModelName("a"), ModelName("b"), ModelName("c")


def served(folder: Path, names: tuple[str, ...], changes: ModelChanges = NO_CHANGES) -> list[Path]:
    return [found.path for found in served_folders(folder, names, changes).values()]


def test_every_folder_is_served_also_one_that_is_broken_for_now(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / ".making").mkdir()
    assert served(tmp_path, ()) == [tmp_path / "a", tmp_path / "b"]
    assert served_folders(tmp_path / "none", ()) == {}


def test_a_named_model_must_be_there_and_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(NotFound, match=r"there is no model 'x' in .* \(there: a\)"):
        served_folders(tmp_path, ("x",))
    with pytest.raises(ModelIncomplete, match=r"superfluid\.json is missing"):
        served_folders(tmp_path, ("a",))


def test_what_was_loaded_and_unloaded_goes_over_the_configuration(tmp_path: Path) -> None:
    for name in (A, B, C):
        (tmp_path / name).mkdir()
    changes = NO_CHANGES.after(B, served=False)
    assert served(tmp_path, (), changes) == [tmp_path / "a", tmp_path / "c"]
    gone = changes.after(ModelName("gone"), served=True)
    assert served(tmp_path, (), gone) == [tmp_path / "a", tmp_path / "c"]
    back = changes.after(B, served=True)
    assert back == ModelChanges(loaded=frozenset({B}))
    assert served(tmp_path, (), back.after(C, served=False)) == [tmp_path / "a", tmp_path / "b"]
    # One that was named and unloaded need not be whole, or there.
    assert served(tmp_path, ("b", "x"), changes.after(ModelName("x"), served=False)) == []


def test_changes_are_kept_in_the_nodes_folder(tmp_path: Path) -> None:
    assert read_changes(tmp_path) == NO_CHANGES
    changes = NO_CHANGES.after(A, served=True).after(B, served=False)
    write_changes(tmp_path, changes)
    assert read_changes(tmp_path) == changes
    assert (tmp_path / "models.json").read_text() == (
        '{\n "loaded": [\n  "a"\n ],\n "unloaded": [\n  "b"\n ]\n}\n'
    )


def test_what_was_said_of_a_removed_model_is_forgotten(tmp_path: Path) -> None:
    models = tmp_path / "models"
    changes = NO_CHANGES.after(A, served=False).after(B, served=False).after(C, served=True)
    assert forget_removed(tmp_path, changes, models, ()) == changes
    (models / "b").mkdir(parents=True)
    left = forget_removed(tmp_path, changes, models, ())
    assert left == ModelChanges(unloaded=frozenset({B}))
    assert read_changes(tmp_path) == left
    (models / "a").mkdir()
    assert served(models, (), left) == [models / "a"]


def test_a_model_that_the_configuration_names_stays_unloaded(tmp_path: Path) -> None:
    changes = NO_CHANGES.after(A, served=False)
    (tmp_path / "models").mkdir()
    assert forget_removed(tmp_path, changes, tmp_path / "models", ("a",)) == changes
    assert not (tmp_path / "models.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"loaded": ["a"]}', '{"loaded": 1, "unloaded": []}'])
def test_a_damaged_file_of_changes_is_an_error_with_its_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "models.json").write_text(text)
    with pytest.raises(StoreCorrupt, match=r"models\.json can not be read .* remove it"):
        read_changes(tmp_path)
