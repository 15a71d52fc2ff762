"""What processes that were killed left of their backups, and what living ones are at."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bus.log import EventLog
from head.backups import FOLDER, Backup, back_up, clear_unfinished
from head.reserve import Reserve, RoomPolicy
from head.storage import StoreReport
from head.store import Store
from head.store_care import StoreCare
from head.store_file import FILE

WALL_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def make_store(folder: Path) -> None:
    store, _ = Store.open(folder)
    store.close()


def copy(folder: Path) -> Backup:
    return back_up(folder / FILE, None, wall_s=WALL_S)


#: Begins a backup, says so, and stays within it until it is killed.
HALF_A_BACKUP = """
import sys, time
from pathlib import Path
from head.backups import back_up
def go_on():
    print("begun", flush=True)
    sys.stdin.read()
    return True
back_up(Path(sys.argv[1]), None, wall_s=float(sys.argv[2]), go_on=go_on)
"""


@contextmanager
def half_a_backup(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is making a backup."""
    process = subprocess.Popen(
        [sys.executable, "-c", HALF_A_BACKUP, str(folder / FILE), str(WALL_S)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield process
        process.kill()


def test_what_a_killed_process_left_of_a_backup_goes_with_the_next(folder: Path) -> None:
    make_store(folder)
    half = "head-20270115T080000Z.db.part"
    with half_a_backup(folder):
        assert half in os.listdir(folder / FOLDER)
    assert half in os.listdir(folder / FOLDER)
    (folder / FOLDER / "mine.db.part").write_text("not one of them")
    made = copy(folder)
    assert sorted(os.listdir(folder / FOLDER)) == [made.file.name, "mine.db.part"]


def test_an_unfinished_backup_of_a_living_process_stays(folder: Path) -> None:
    make_store(folder)
    with half_a_backup(folder) as process:
        assert clear_unfinished(folder / FILE) == ()
        made = copy(folder)
        assert made.file.name == "head-20270115T080000Z-2.db"
        # Its stdin ends, and it goes on to the end.
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert sorted(os.listdir(folder / FOLDER)) == [made.file.name, "head-20270115T080000Z.db"]


def test_an_unfinished_backup_goes_at_the_start_of_the_head(folder: Path) -> None:
    assert clear_unfinished(folder / FILE) == ()
    make_store(folder)
    made = copy(folder)
    names = [f"{made.file.name}.part", f"{made.file.name}.part-journal"]
    for name in names:
        (folder / FOLDER / name).write_bytes(b"half")
    told: list[StoreReport] = []
    policy = RoomPolicy(min_free_bytes=0, reserve_bytes=0)
    with StoreCare(
        folder / FILE,
        Reserve(folder, policy),
        EventLog("head"),
        tell=told.append,
        write_back=lambda: None,
    ) as care:
        while len(os.listdir(folder / FOLDER)) > 1:
            assert select.select([care.fileno()], [], [], 10.0)[0]
            care.settle()
    assert os.listdir(folder / FOLDER) == [made.file.name]
