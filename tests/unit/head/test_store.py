"""What the store keeps, across restarts, a SIGKILL in mid-commit and a second head."""

from __future__ import annotations

import os
import select
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bus.errors import Internal, StartError
from bus.ids import Epoch, NodeIdentity, SessionId, pack_ids, unpack_ids
from head.effects import Persist
from head.rows import MarkSent, PurgeAnswers, PutPeer, StoredAnswer
from head.store import Store
from head.store_file import FILE
from head.store_folder import LOCK, filesystem_type
from tests.harness.store_rows import answer, commit, finish, generation, tokens, until_durable


def reopened(folder: Path) -> tuple[StoredAnswer, ...]:
    store, state = Store.open(folder)
    store.close()
    return state.answers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_new_store_is_empty_private_and_has_boot_1(folder: Path) -> None:
    store, state = Store.open(folder)
    assert state.boot == 1
    assert len(state.head_id) == 32
    assert state.answers == ()
    commit(store, 1, answer(1))
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in os.listdir(folder)}
    assert modes == dict.fromkeys([FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}.open", LOCK], 0o600)
    store.close()
    assert sorted(os.listdir(folder)) == [FILE, LOCK]


def test_boot_rises_and_the_head_keeps_its_id(folder: Path) -> None:
    first, state = Store.open(folder)
    first.close()
    second, again = Store.open(folder)
    second.close()
    third, above = Store.open(folder, boot_above=40)
    third.close()
    assert [state.boot, again.boot, above.boot] == [1, 2, 41]
    assert state.head_id == again.head_id == above.head_id


def test_all_rows_come_back(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(7, key="k"), generation(1, 7))
    commit(store, 2, MarkSent(answer=7), tokens(7, 0, 10), tokens(7, 1, 11, 12))
    commit(store, 3, answer(8), answer(9), generation(2, 9))
    commit(store, 4, generation(3, 7, node="n2", first=3), finish(7))
    store.close()
    first, second, third = reopened(folder)
    assert first == StoredAnswer(
        answer=7,
        session=SessionId("s7"),
        owner="ann",
        key="k",
        model=first.model,
        prompt=pack_ids([1, 2, 3]),
        options=b"\x90",
        on_disconnect="cancel",
        created_wall_s=1000.5,
        state="finished",
        tokens=pack_ids([10, 11, 12]),
        finish="stop",
        error=b"",
        prompt_tokens=3,
        cached_tokens=1,
        finished_wall_s=1001.5,
        generation=first.generation,
        node=first.node,
        epoch=Epoch(3),
        worker=1,
        first_offset=3,
        numerics="x",
    )
    assert (first.model, first.generation, first.node) == ("m", 3, "n2")
    assert (second.state, second.tokens, second.node) == ("admitted", b"", None)
    assert (third.state, third.node) == ("placed", "n1")


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ((), "admitted"),
        ((generation(1, 1),), "placed"),
        ((generation(1, 1), MarkSent(answer=1)), "sent"),
        ((generation(1, 1), finish(1), MarkSent(answer=1)), "finished"),
    ],
)
def test_states(folder: Path, rows: tuple[object, ...], state: str) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1), *rows)  # type: ignore[arg-type]
    store.close()
    assert reopened(folder)[0].state == state


def test_close_commits_what_waits_and_submit_is_refused_then(folder: Path) -> None:
    store, _ = Store.open(folder)
    for lsn in range(1, 51):
        store.submit(Persist(lsn=lsn, rows=(answer(lsn),)))
    store.close()
    store.close()
    with pytest.raises(Internal, match="closed"):
        store.submit(Persist(lsn=51, rows=()))
    assert len(reopened(folder)) == 50


def test_the_descriptor_wakes_a_poll_and_is_quiet_after_completed(folder: Path) -> None:
    store, _ = Store.open(folder)
    assert not select.select([store.fileno()], [], [], 0)[0]
    store.submit(Persist(lsn=1, rows=(answer(1),)))
    assert select.select([store.fileno()], [], [], 20)[0]
    assert store.completed() == 1
    assert not select.select([store.fileno()], [], [], 0)[0]
    store.close()


# --- reading while running --------------------------------------------------------------------


def test_reads_by_key_and_by_session(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1, key="k", owner="ann"), answer(2, key="k", owner="bob"))
    commit(store, 2, generation(1, 2), tokens(2, 0, 5, 6))
    found = store.read_by_key("bob", "k")
    assert found is not None
    assert (found.answer, list(unpack_ids(found.tokens)), found.node) == (2, [5, 6], "n1")
    assert store.read_by_key("eve", "k") is None
    by_session = store.read_by_session(SessionId("s1"))
    assert by_session is not None
    assert by_session.answer == 1
    store.close()


def test_a_purge_takes_all_of_an_answer_and_shrinks_the_file(folder: Path) -> None:
    store, _ = Store.open(folder)
    lots = tuple(tokens(1, n, *range(n, n + 1)) for n in range(500))
    commit(store, 1, answer(1), generation(1, 1), *lots, answer(2))
    big = [answer(n) for n in range(10, 1200)]
    commit(store, 2, *big)
    store.close()
    before = (folder / FILE).stat().st_size
    store, _ = Store.open(folder)
    commit(store, 1, PurgeAnswers(answers=(1, *range(10, 1200))))
    store.close()
    assert (folder / FILE).stat().st_size < before / 2
    assert [left.answer for left in reopened(folder)] == [2]
    with sqlite3.connect(folder / FILE) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("answer", "generation", "tokens")
        ]
    connection.close()
    assert counts == [1, 0, 0]


def test_the_newest_hello_of_a_key_is_kept(folder: Path) -> None:
    store, _ = Store.open(folder)
    for boot, counter in ((1, 1), (1, 2), (2, 1)):
        seen = PutPeer(
            public=bytes(32),
            identity=NodeIdentity("n1"),
            incarnation=boot,
            hello_counter=counter,
        )
        commit(store, 2 * boot + counter, seen)
    store.close()
    store, state = Store.open(folder)
    store.close()
    assert [(peer.incarnation, peer.hello_counter) for peer in state.peers] == [(2, 1)]


# --- a failed commit is the end ---------------------------------------------------------------


def failure(store: Store) -> Exception:
    assert select.select([store.fileno()], [], [], 20)[0]
    with pytest.raises(Internal) as caught:
        store.completed()
    return caught.value


def test_an_idempotency_key_is_unique_per_owner(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1, key="k", owner="ann"))
    commit(store, 2, answer(2, key="k", owner="bob"), answer(3), answer(4))
    store.submit(Persist(lsn=3, rows=(answer(5), answer(6, key="k", owner="ann"))))
    assert "UNIQUE constraint failed: answer.owner, answer.key" in str(failure(store))
    store.close()
    assert [kept.answer for kept in reopened(folder)] == [1, 2, 3, 4]


def test_nothing_is_committed_after_a_failure(folder: Path) -> None:
    store, _ = Store.open(folder)
    store.submit(Persist(lsn=1, rows=(tokens(99, 0, 1),)))
    failure(store)
    with pytest.raises(Internal, match="FOREIGN KEY"):
        store.submit(Persist(lsn=2, rows=(answer(1),)))
    with pytest.raises(Internal):
        store.completed()
    store.close()
    assert reopened(folder) == ()


def test_tokens_can_not_be_written_over(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1), tokens(1, 0, 5))
    store.submit(Persist(lsn=2, rows=(tokens(1, 0, 6),)))
    assert "UNIQUE" in str(failure(store))
    store.close()
    assert reopened(folder)[0].tokens == pack_ids([5])


# --- one head only ----------------------------------------------------------------------------


def test_a_second_head_is_told_who_holds_the_folder(folder: Path) -> None:
    store, _ = Store.open(folder)
    with pytest.raises(StartError, match=f"process id {os.getpid()} has the state folder"):
        Store.open(folder)
    commit(store, 1, answer(1))
    store.close()
    assert len(reopened(folder)) == 1


def test_a_head_whose_boot_number_was_taken_over_ends(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1))
    with sqlite3.connect(folder / FILE) as other:
        other.execute("UPDATE head SET boot = boot + 1")
    other.close()
    store.submit(Persist(lsn=2, rows=(answer(2),)))
    assert "another head (boot 2)" in str(failure(store))
    store.close()
    assert [kept.answer for kept in reopened(folder)] == [1]


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
srv:/home /home nfs4 rw 0 0
tmpfs /home/ann/fast tmpfs rw 0 0
//nas/x /mnt/my\\040disk cifs rw 0 0
/dev/sdb1 /over ext4 rw 0 0
host /over fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/homework", "ext4"),
        ("/home/ann", "nfs4"),
        ("/home/ann/fast/x", "tmpfs"),
        ("/mnt/my disk/x", "cifs"),
        ("/over/x", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from head import store_folder

    here = filesystem_type(folder, Path("/proc/self/mounts").read_text())
    monkeypatch.setattr(store_folder, "NETWORK_TYPES", frozenset({here}))
    with pytest.raises(StartError, match=r"network file system .* local disk"):
        Store.open(folder)
    assert not (folder / FILE).exists()


# --- killed in the middle ---------------------------------------------------------------------

CHILD = """
import select, sys
from pathlib import Path
from head.effects import Persist
from head.store import Store
from tests.harness.store_rows import answer, generation, tokens
store, state = Store.open(Path(sys.argv[1]))
store.submit(Persist(lsn=1, rows=(answer(state.boot), generation(state.boot, state.boot))))
lsn = 1
while True:
    for _ in range(20):
        lsn += 1
        store.submit(Persist(lsn=lsn, rows=(tokens(state.boot, lsn - 2, lsn),)))
    select.select([store.fileno()], [], [])
    print(store.completed(), flush=True)
"""


def test_what_was_durable_is_there_after_sigkill(folder: Path) -> None:
    root = Path(__file__).parents[3]
    for boot in (1, 2, 3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, cwd=root
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(30 * boot)]
        child.kill()
        lines += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        durable = max(int(line) for line in lines if line.endswith(b"\n"))
        store, state = Store.open(folder)
        store.close()
        # Each child and each look here was a start.
        assert state.boot == 2 * boot
        kept = {stored.answer: unpack_ids(stored.tokens) for stored in state.answers}
        ids = kept[2 * boot - 1]
        # lsn 1 is the answer, lsn n token n at offset n - 2.
        assert len(ids) >= durable - 1 > 0
        assert list(ids) == list(range(2, len(ids) + 2))


def test_a_commit_that_was_not_finished_is_not_there(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, answer(1))
    until_durable(store, 1)
    other = sqlite3.connect(folder / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM answer")
    other.close()
    store.close()
    assert len(reopened(folder)) == 1
