"""A backup of a running head is put back: new work is served, and nothing old is delivered."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import superfluid
from bus.call import Call
from bus.errors import CursorAhead, NotFound, StorageFull, StoreRestored
from tests.harness.link_processes import address, agent_process, head_process, make_state
from tests.harness.mounts import fill, small_disk

SFCTL = Path(sys.executable).with_name("sfctl")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


def sfctl(state: Path, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [SFCTL, "--state", str(state), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def ask(client: superfluid.Client, text: str, **options: Any) -> Call:
    return client.generate("toy", text, temperature=0.0, ignore_eos=True, **options)


def some_of(call: Call, count: int) -> None:
    while len(call.tokens) < count:
        call.next_event(None)


def turn(client: superfluid.Client, session: str, count: int) -> list[int]:
    return list(client.session_generate(session, max_new=count, temperature=0.0).result().tokens)


@pytest.mark.parametrize("way", ["restore", "by hand"])
def test_an_old_backup_is_put_back_under_nodes_and_clients_that_saw_more(
    state: Path, tmp_path: Path, way: str
) -> None:
    backup = tmp_path / "old.db"
    head = head_process(state)
    bind = head.wait_for("started")["fleet"]
    with head, agent_process(state, "--join", bind) as node:
        head.wait_for("link_up")
        node.wait_for("worker_ready")
        with superfluid.connect(address(state)) as client:
            alone = list(ask(client, "alone", max_new=300).result().tokens)
            session = client.operation("session.create", model="toy")["session"]
            client.operation("session.append", session=session, text="one")
            turn(client, session, 10)
            context = client.operation("session.get", session=session)["tokens"]
            ran = ask(client, "alone", max_new=3000, key="ran")
            some_of(ran, 20)
            told = client.operation("backup", file=str(backup))
            assert told["file"] == str(backup)
            assert told["boot"] == 1
            at_backup = len(ran.tokens)
            # More of all kinds: tokens, answers, turns, starts of the head, and so epochs.
            some_of(ran, at_backup + 200)
            assert ask(client, "later", max_new=5, key="later").result().finish == "length"
            turn(client, session, 40)
        head.signal(signal.SIGKILL)
        head.wait()
        for _ in range(2):
            with head_process(state, "--bind", bind) as between:
                between.wait_for("link_up")
                with superfluid.connect(address(state)) as client:
                    turn(client, session, 5)
                between.signal(signal.SIGTERM)
                assert between.wait() == 0
        if way == "restore":
            said = sfctl(state, "restore", backup).stderr
            assert "what was there is in" in said
        else:
            (state / "store" / "head.db").write_bytes(backup.read_bytes())
        with head_process(state, "--bind", bind) as restored:
            # The node holds the session's later turns; it is one agent all the time.
            former = 3 if way == "restore" else 1
            assert restored.wait_for("started")["boot"] >= former + 2**16 + 1
            restored.wait_for("link_up")
            with superfluid.connect(address(state)) as client:
                attach = client.attach
                for lost in (partial(attach, key="ran"), partial(attach, session=session)):
                    with pytest.raises(CursorAhead):
                        lost(offset=at_backup + 200).result()
                    # It has as many tokens, but who knows of which answer?
                    with pytest.raises(CursorAhead):
                        lost(offset=5).result()
                with pytest.raises(NotFound):
                    attach(key="later", offset=2).result()
                with pytest.raises(StoreRestored):
                    attach(key="ran").result()
                assert client.operation("session.get", session=session)["tokens"] == context
                assert list(ask(client, "alone", max_new=300).result().tokens) == alone
                turn(client, session, 10)
                assert client.operation("session.get", session=session)["tokens"] == context + 10
                (one,) = client.nodes()
                assert one["generations"] == 0
            assert node.running
            restored.signal(signal.SIGTERM)
            assert restored.wait() == 0


def test_a_node_that_is_called_takes_a_head_whose_store_was_put_back(
    state: Path, tmp_path: Path
) -> None:
    with agent_process(state, "--listen", "tcp://127.0.0.1:0") as node:
        address_of_node = node.wait_for("started")["link"].removeprefix("a head at ")
        dial = {"SUPERFLUID_FLEET_NODES": address_of_node}
        for start in range(3):
            with head_process(state, **dial) as head:
                head.wait_for("link_up")
                if not start:
                    sfctl(state, "backup", tmp_path / "first.db")
                head.signal(signal.SIGKILL)
                head.wait()
        # It refuses a head whose starts go back, as if somebody played an old one's words.
        sfctl(state, "restore", tmp_path / "first.db")
        with head_process(state, **dial) as head:
            head.wait_for("link_up")
            node.wait_for("worker_ready")
            with superfluid.connect(address(state)) as client:
                assert ask(client, "hi", max_new=3).result().finish == "length"


def test_backups_by_command_with_and_without_a_head(state: Path) -> None:
    with head_process(state) as head:
        head.wait_for("started")
        head.wait_for("store_checked")
        first = json.loads(sfctl(state, "backup", "-o", "json").stdout)
        assert Path(first["file"]).parent == state / "store" / "backups"
        assert head.wait_for("store_backed_up")["file"] == first["file"]
        with superfluid.connect(address(state)) as client:
            store = client.status()["store"]
        assert (store["check"], store["backup"]) == ("sound", first["file"])
        refused = sfctl(state, "restore", first["file"], code=1)
        assert f"a head with process id {head.pid} has the state folder" in refused.stderr
        head.signal(signal.SIGKILL)
        head.wait()
    log = state / "store" / "head.db-wal"
    before = log.read_bytes()
    second = json.loads(sfctl(state, "backup", "--keep", 1, "-o", "json").stdout)
    assert second["removed"] == 1
    assert os.listdir(state / "store" / "backups") == [Path(second["file"]).name]
    # Without its log the store would be an older one.
    assert log.read_bytes() == before
    assert "is there already" in sfctl(state, "backup", second["file"], code=2).stderr
    with head_process(state) as head:
        assert head.wait_for("started")["boot"] == 2


def test_a_damaged_store_of_a_running_head_takes_no_new_work_and_says_so(state: Path) -> None:
    with head_process(state) as head:
        head.wait_for("started")
        with superfluid.connect(address(state)) as client:
            for _ in range(40):
                client.operation("session.create", model="toy")
        head.signal(signal.SIGTERM)
        head.wait()
    file = state / "store" / "head.db"
    # An index that no start reads: only the check finds it.
    page = _root_page(file, "answer_by_session")
    with file.open("r+b") as opened:
        opened.seek((page - 1) * 4096)
        opened.write(bytes(4096))
    with head_process(state) as head:
        head.wait_for("started")
        assert "sfctl restore" in head.wait_for("store_damaged")["remedy"]
        with (
            superfluid.connect(address(state)) as client,
            pytest.raises(superfluid.StoreCorrupt, match="takes no new work"),
        ):
            client.operation("session.create", model="toy")
        said = sfctl(state, "status", code=3).stderr
        assert "is damaged" in said
        assert f"sfctl --state {state} restore FILE" in said
        assert "is damaged" in sfctl(state, "doctor", code=3).stdout
        sfctl(state, "backup", code=1)
        assert os.listdir(state / "store" / "backups") == []


def test_a_disk_that_fills_up_lets_what_runs_end_and_takes_work_again(tmp_path: Path) -> None:
    small = {"SUPERFLUID_STORE_RESERVE_MIB": "4", "SUPERFLUID_STORE_MIN_FREE_MIB": "4"}
    with small_disk(tmp_path / "disk", 32 << 20) as disk:
        state = make_state(disk / "s")
        with head_process(state, **small) as head:
            bind = head.wait_for("started")["fleet"]
            with (
                agent_process(state, "--join", bind) as node,
                superfluid.connect(address(state)) as client,
            ):
                head.wait_for("store_reserve_made", bytes=4 << 20)
                head.wait_for("link_up")
                node.wait_for("worker_ready")
                alone = list(ask(client, "disk", max_new=1500).result().tokens)
                call = ask(client, "disk", max_new=1500, key="k")
                some_of(call, 20)
                (worker,) = node.children()
                os.kill(worker, signal.SIGSTOP)
                try:
                    filler = fill(disk, leave_bytes=200 * 1024)
                    head.wait_for("store_reserve_given_up")
                finally:
                    os.kill(worker, signal.SIGCONT)
                with pytest.raises(StorageFull, match="MiB more there, or lower min_free_mib"):
                    ask(client, "new", max_new=3).result()
                assert list(call.result().tokens) == alone
                # A repeat of what is known is no new work.
                again = ask(client, "disk", max_new=1500, key="k").result()
                assert list(again.tokens) == alone
                assert "new work is refused" in sfctl(state, "status", code=3).stderr
                filler.unlink()
                head.wait_for("store_reserve_made")
                assert ask(client, "new", max_new=3).result().finish == "length"
                assert (state / "store" / "reserve").stat().st_size == 4 << 20


def _root_page(file: Path, name: str) -> int:
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    (page,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)
    ).fetchone()
    connection.close()
    return int(page)
