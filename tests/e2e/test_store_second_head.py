"""A second head: on the same folder, past the lock, and on a copy of the folder."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

import superfluid
from bus.errors import SuperfluidError
from head.store import Store
from tests.harness.link_processes import address, agent_process, head_process, make_state


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


def test_a_second_head_on_the_same_folder_ends_and_names_the_first(state: Path) -> None:
    with head_process(state) as first:
        first.wait_for("started")
        for _ in range(2):
            with head_process(state) as second:
                assert second.wait() == 1
                said = second.rest()
                assert f"as process {first.pid}; stop it with `sfctl down`" in said
        with superfluid.connect(address(state)) as client:
            client.operation("session.create", model="toy")


def test_a_head_whose_lock_was_removed_ends_before_it_writes_over_the_other(state: Path) -> None:
    with head_process(state) as first:
        first.wait_for("started")
        with superfluid.connect(address(state)) as client:
            kept = client.operation("session.create", model="toy")["session"]
            (state / "store" / "head.lock").unlink()
            second, found = Store.open(state / "store")
            assert [session.session for session in found.sessions] == [kept]
            with pytest.raises(SuperfluidError):
                client.operation("session.create", model="toy", timeout_s=5.0)
        assert first.wait() == 1
        said = first.rest()
        assert "another head (boot 2) writes the store" in said
        assert "see that only one head runs on this state folder" in said
        second.close()
    third, left = Store.open(state / "store")
    third.close()
    # The second one's start is the last; what was refused is not there.
    assert [session.session for session in left.sessions] == [kept]
    assert left.boot == 3


def test_a_head_on_a_copied_folder_has_a_store_of_its_own(state: Path, tmp_path: Path) -> None:
    with head_process(state) as first:
        bind = first.wait_for("started")["fleet"]
        with (
            agent_process(state, "--join", bind) as node,
            superfluid.connect(address(state)) as client,
        ):
            first.wait_for("link_up")
            node.wait_for("worker_ready")
            both = client.operation("session.create", model="toy")["session"]
            other = tmp_path / "copy"
            skip = shutil.ignore_patterns("run", "nodes", "*.sock")
            shutil.copytree(state, other, symlinks=True, ignore=skip)
            with head_process(other) as second:
                assert second.wait_for("started")["boot"] == 2
                with superfluid.connect(address(other)) as copied:
                    copied.operation("session.get", session=both)
                    theirs = copied.operation("session.create", model="toy")["session"]
                    assert copied.nodes() == []
                ours = client.operation("session.create", model="toy")["session"]
                with pytest.raises(superfluid.NotFound):
                    client.operation("session.get", session=theirs)
                assert client.generate("toy", "hi", max_new=3).result().finish == "length"
                second.signal(signal.SIGTERM)
                assert second.wait() == 0
            assert client.operation("session.get", session=ours)["tokens"] == 0
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
