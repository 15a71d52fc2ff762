"""Room on the store's disk: what is refused when, and the reserve that lets what runs end."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.errors import Internal
from bus.messages.api import MARK, encode_body
from head.effects import Persist
from head.reserve import MIB, Reserve, Room, RoomPolicy, Step
from head.storage import DAMAGED, StoreReport
from head.store import Store
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, TOY, Bench, run
from tests.harness.mounts import fill, small_disk
from tests.harness.store_rows import commit, long_answer

POLICY = RoomPolicy(reserve_bytes=64 * MIB, min_free_bytes=32 * MIB)


@pytest.mark.parametrize(
    ("free_mib", "has_reserve", "lacking_mib", "step"),
    [
        (500, True, 0, Step.NOTHING),
        (32, True, 0, Step.NOTHING),
        (31, True, 1, Step.NOTHING),
        (16, True, 16, Step.NOTHING),
        (15, True, 17, Step.GIVE_UP),
        # Given up: what it frees is no room for new work.
        (79, False, 17, Step.NOTHING),
        (95, False, 1, Step.NOTHING),
        (96, False, 0, Step.MAKE),
    ],
)
def test_what_is_done_with_so_much_room(
    free_mib: int, has_reserve: bool, lacking_mib: int, step: Step
) -> None:
    room = Room(free_bytes=free_mib * MIB, has_reserve=has_reserve)
    assert POLICY.lacking(room) == lacking_mib * MIB
    assert POLICY.step(room) is step


def test_nothing_is_kept_back_and_nothing_refused_when_both_are_0() -> None:
    policy = RoomPolicy(reserve_bytes=0, min_free_bytes=0)
    room = Room(free_bytes=0, has_reserve=False)
    assert policy.lacking(room) == 0
    assert policy.step(room) is Step.NOTHING


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 8 * MIB) as made:
        yield made


def small_reserve(folder: Path) -> Reserve:
    return Reserve(folder, RoomPolicy(reserve_bytes=2 * MIB, min_free_bytes=MIB))


def test_the_reserve_takes_its_room_and_gives_it_back(disk: Path) -> None:
    reserve = small_reserve(disk)
    before = reserve.look()
    reserve.make()
    reserve.make()
    kept = reserve.look()
    assert kept.has_reserve
    assert before.free_bytes - kept.free_bytes == 2 * MIB
    assert reserve.file.stat().st_mode & 0o777 == 0o600
    assert reserve.give_up()
    assert not reserve.give_up()
    assert reserve.look() == before
    fill(disk, leave_bytes=MIB)
    with pytest.raises(OSError, match="No space left"):
        reserve.make()
    assert not reserve.file.exists()


@pytest.mark.parametrize("size", [0, 2 * MIB - 4096, 3 * MIB])
def test_a_reserve_that_is_not_whole_or_of_another_size_is_made_anew(
    tmp_path: Path, size: int
) -> None:
    reserve = small_reserve(tmp_path)
    reserve.file.write_bytes(bytes(size))
    reserve.settle_before_start()
    assert not reserve.look().has_reserve
    reserve.make()
    reserve.settle_before_start()
    assert reserve.file.stat().st_size == 2 * MIB


def until_full(store: Store, first: int) -> int:
    """Commit until the disk is full; gives how many answers were told to be durable."""
    for lsn in range(first, first + 4000):
        store.submit(Persist(lsn=lsn, rows=(long_answer(lsn),)))
        assert select.select([store.fileno()], [], [], 20)[0]
        try:
            store.completed()
        except Internal:
            return lsn - 1
    raise AssertionError("the disk never filled up")


def test_a_full_disk_uses_the_reserve_up_before_a_commit_fails(disk: Path) -> None:
    folder = disk / "store"
    bare, _ = Store.open(folder)
    bare.close()
    reserve = small_reserve(folder)
    reserve.make()
    store, _ = Store.open(folder, reserve=reserve)
    filler = fill(disk, leave_bytes=256 * 1024)
    kept = until_full(store, 1)
    with pytest.raises(Internal, match=r"could not commit .* see that the disk has room"):
        store.completed()
    assert not reserve.file.exists()
    # A prompt has 8 kB: without the reserve there was room for 32 at most.
    assert kept > 32
    store.close()
    filler.unlink()
    store, state = Store.open(folder, reserve=reserve)
    assert [answer.answer for answer in state.answers] == list(range(1, kept + 1))
    commit(store, 1, long_answer(9999))
    store.close()


def test_a_head_can_start_on_a_full_disk_that_has_a_reserve(disk: Path) -> None:
    folder = disk / "store"
    Store.open(folder)[0].close()
    reserve = small_reserve(folder)
    reserve.make()
    fill(disk, leave_bytes=1)
    store, _ = Store.open(folder, reserve=reserve)
    assert not reserve.file.exists()
    commit(store, 1, long_answer(1))
    store.close()


# --- what the core makes of it ----------------------------------------------------------------


def asked(bench: Bench, op: str, **body: object) -> dict[str, object]:
    bench.replies.clear()
    request = {"op": op, "id": os.urandom(8), "model": TOY, **body}
    bench.core.client_request(CLIENT, [MARK, encode_body(request)], bench.now)
    bench.settle()
    return bench.replies[-1]


def code(reply: dict[str, object]) -> object:
    error = reply.get("error")
    return error["code"] if isinstance(error, dict) else None


FULL = StoreReport(folder="/s", free_bytes=3 * MIB, lacking_bytes=29 * MIB)


@pytest.mark.parametrize(
    ("report", "error", "says"),
    [
        (FULL, "storage_full", "has 3 MiB free; free 29 MiB more there"),
        (
            StoreReport(check=DAMAGED, problem="page 7"),
            "store_corrupt",
            "damaged (page 7) and takes no new work",
        ),
    ],
)
def test_new_work_is_refused_and_what_is_known_goes_on(
    report: StoreReport, error: str, says: str
) -> None:
    bench = Bench(ADMITTED_ANSWER)
    bench.node(1)
    session = asked(bench, "session.create")["session"]
    request = bench.ask(b"before", key="before")
    bench.core.storage.tell(report)
    refused = [
        asked(bench, "generate", prompt="hi"),
        asked(bench, "session.create"),
        asked(bench, "session.append", session=session, text="hi"),
        asked(bench, "session.generate", session=session),
    ]
    # A session without tokens is refused for that, where it would be.
    assert [code(reply) for reply in refused[:3]] == [error] * 3
    body = refused[0]["error"]
    assert isinstance(body, dict)
    assert says in body["message"]
    assert body["retry_after_ms"] == 5000
    bench.hear(1, run(request, 0, 65, 66))
    assert bench.tokens()[-2:] == [65, 66]
    assert code(asked(bench, "session.finish", session=session)) is None
    assert code(asked(bench, "generate", prompt="hi", key="before", max_new=4)) != error
    bench.core.storage.tell(StoreReport())
    assert code(asked(bench, "generate", prompt="hi")) is None
    assert bench.core.status(0.0)["store"]["lacking_bytes"] == 0
