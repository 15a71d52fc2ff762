"""Pages of a mapped file: its bytes stay, and what can not be had is tried once a boot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from agent.worker.page_cache import LEAST_SHARE, MARK, gather_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")

SIZE = 6 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file written in small portions."""
    path = tmp_path / "data"
    portions = np.random.default_rng(0).integers(0, 256, (SIZE >> 12, 1 << 12), np.uint8)
    with path.open("wb", buffering=0) as opened:
        for portion in portions:
            opened.write(portion.tobytes())
    return path


def mark(file: Path) -> Path:
    return file.with_name(MARK)


def test_bytes_stay_and_what_was_reached_holds(file: Path) -> None:
    before = file.read_bytes()
    share = gather_pages(file)
    assert share is not None
    assert 0.0 <= share <= 1.0
    assert file.read_bytes() == before
    assert mark(file).exists() == (share < LEAST_SHARE)
    if share >= LEAST_SHARE:
        # Its end may be less than a piece; nothing of what was gathered is scattered again.
        assert share == pytest.approx(1.0, abs=(2 << 20) / SIZE)
        assert gather_pages(file) == share


def test_what_failed_in_this_boot_is_not_tried_again(file: Path) -> None:
    mark(file).write_text(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
    assert gather_pages(file) is None


def test_after_a_boot_it_is_tried_again(file: Path) -> None:
    mark(file).write_text("another")
    assert gather_pages(file) is not None


def test_a_file_that_memory_has_no_room_for_is_left(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with path.open("wb") as opened:
        os.truncate(opened.fileno(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert gather_pages(path) is None
    assert not mark(path).exists()


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
def test_what_can_not_be_mapped_is_no_failure(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "data"
    if content is not None:
        path.write_bytes(content)
    assert gather_pages(path) is None
