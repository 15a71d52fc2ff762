"""Which parked files are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.worker.lane_folder import (
    Purged,
    forget,
    forget_others,
    lane_path,
    purge_lanes,
    replace_lane,
)
from bus.ids import SessionId

NOW = 1_000_000.0


def put(folder: Path, session: str, size: int, age_s: float) -> Path:
    path = lane_path(folder, SessionId(session))
    replace_lane(path, [bytes(size)])
    os.utime(path, (NOW - age_s, NOW - age_s))
    return path


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def purge(folder: Path, *, max_age_s: float = 1000.0, max_bytes: int = 1000) -> Purged:
    return purge_lanes(folder, now_s=NOW, max_age_s=max_age_s, max_bytes=max_bytes)


def test_files_beyond_the_age_are_removed(tmp_path: Path) -> None:
    put(tmp_path, "old", 10, 1001)
    put(tmp_path, "young", 20, 999)
    assert purge(tmp_path) == Purged(1, 20)
    assert names(tmp_path) == ["young.lane"]


def test_the_least_recently_used_go_until_the_rest_fits(tmp_path: Path) -> None:
    for age, name in ((30, "c"), (20, "b"), (10, "a")):
        put(tmp_path, name, 400, age)
    assert purge(tmp_path, max_bytes=1200) == Purged(0, 1200)
    assert purge(tmp_path, max_bytes=1199) == Purged(1, 800)
    assert names(tmp_path) == ["a.lane", "b.lane"]
    assert purge(tmp_path, max_bytes=0) == Purged(2, 0)


def test_other_files_are_left_alone_and_a_missing_folder_is_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert purge(tmp_path, max_bytes=0) == Purged(0, 0)
    assert purge(tmp_path / "none") == Purged(0, 0)
    assert names(tmp_path) == ["notes.txt"]


def test_a_folder_under_the_name_of_a_file_keeps_no_file_from_being_removed(tmp_path: Path) -> None:
    (tmp_path / "a.lane").mkdir()
    (tmp_path / "a.lane.1.part").mkdir()
    put(tmp_path, "b", 10, 0)
    assert purge(tmp_path, max_bytes=0) == Purged(1, 0)
    put(tmp_path, "c", 10, 0)
    assert forget_others(tmp_path, []) == 1
    assert names(tmp_path) == ["a.lane", "a.lane.1.part"]


def test_what_a_crash_left_half_written_is_removed_when_nobody_writes_it(tmp_path: Path) -> None:
    # Process numbers end below 2**22.
    old, young = (f"{name}.lane.{os.getpid()}.part" for name in ("old", "young"))
    left = f"left.lane.{2**22}.part"
    for name, age in ((old, 3601), (young, 10), (left, 10)):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (NOW - age, NOW - age))
    purge(tmp_path, max_age_s=1e9, max_bytes=9)
    assert names(tmp_path) == [young]


def test_a_file_is_forgotten_once(tmp_path: Path) -> None:
    put(tmp_path, "s", 10, 0)
    assert forget(tmp_path, SessionId("s"))
    assert not forget(tmp_path, SessionId("s"))


@pytest.mark.parametrize("parts", [[], [b""], [b"ab", memoryview(b"cd")]])
def test_a_file_has_what_was_written(parts: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.lane"
    assert replace_lane(path, parts) == len(path.read_bytes())
    assert path.read_bytes() == b"".join(parts)
