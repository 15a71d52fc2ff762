"""Cases from the field: two processes with one node's key, at once or in turn; by their numbers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import time
from functools import partial
from pathlib import Path

import pytest

import superfluid
from bus.client_events import OtherEvent
from tests.harness.fault_proxy import FaultProxy
from tests.harness.link_processes import agent_process, head_process, make_state, other_machine
from tests.harness.logged_process import LoggedProcess


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


def copied_machine(tmp_path: Path, state: Path, address: str) -> LoggedProcess:
    """An agent on another machine that got a copy of the first one's folder."""
    second = other_machine(tmp_path / "second", state)
    shutil.copytree(state / "nodes", second / "nodes", ignore=shutil.ignore_patterns("*.lock"))
    # Another machine has a runtime folder of its own, and so other locks.
    runtime = Path(os.environ["XDG_RUNTIME_DIR"]) / tmp_path.name
    runtime.mkdir()
    return agent_process(
        second, "--identity", "twin", "--join", address, XDG_RUNTIME_DIR=str(runtime)
    )


def check_serves(state: Path) -> None:
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        assert client.generate("toy", "still here?", max_new=5).result().finish == "length"


def test_l10_a_copied_state_folder_is_refused_while_the_first_lives(
    state: Path, tmp_path: Path
) -> None:
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state, "--identity", "twin") as first:
            head.wait_for("link_up", node="twin")
            first.wait_for("link_up")
            with copied_machine(tmp_path, state, address) as copy:
                why = copy.wait_for("link_identity_in_use")["why"]
                assert f"(process {first.pid} on {socket.gethostname()}, running since" in why
                assert f"process {copy.pid} on" in why
                assert "was its state folder copied? Stop one of them" in why
                assert head.wait_for("link_refused_identity_in_use")["why"] in why
                copy.signal(signal.SIGTERM)
                assert copy.wait() == 0
            check_serves(state)
            assert not any('"link_down"' in line for line in [*head.lines, *first.lines])


def test_l11_a_process_that_stands_still_loses_its_place_and_ends_when_it_goes_on(
    state: Path, tmp_path: Path
) -> None:
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state, "--identity", "twin") as first:
            head.wait_for("link_up", node="twin")
            first.wait_for("worker_ready")
            first.signal(signal.SIGSTOP)
            try:
                with copied_machine(tmp_path, state, address) as copy:
                    copy.wait_for("link_up")
                    assert head.wait_for("link_down")["code"] == "replaced"
                    head.wait_for("link_up", node="twin")
                    first.signal(signal.SIGCONT)
                    assert first.wait() == 1
                    said = first.rest().splitlines()[-1]
                    assert f"twin linked again (process {copy.pid} on" in said
                    assert "this one ends; keep one of them" in said
                    check_serves(state)
            finally:
                first.signal(signal.SIGCONT)


def test_l11_an_agent_that_was_killed_and_started_again_has_its_place_at_once(
    state: Path,
) -> None:
    with head_process(state) as head:
        head.wait_for("started")
        with agent_process(state, "--identity", "twin") as first:
            head.wait_for("link_up", node="twin")
            first.signal(signal.SIGKILL)
            first.wait()
        with agent_process(state, "--identity", "twin") as again:
            again.wait_for("started")
            started_at = time.monotonic()
            again.wait_for("link_up")
            # Far below the 2 s of a probe and the 30 s of silence, one of which would else pass.
            assert time.monotonic() - started_at < 1.5
            head.wait_for("link_up", node="twin")
            check_serves(state)


def epochs(state: Path, session: str) -> list[int]:
    """All that a session was ever placed under, as the head's store has them, oldest first."""
    (file,) = state.rglob("head.db")
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as store:
        rows = store.execute(
            "SELECT epoch FROM generation WHERE session = ? ORDER BY generation", (session,)
        )
        return [epoch for (epoch,) in rows]


def test_l11_a_node_that_restarts_before_the_head_noticed_gets_its_sessions_again(
    state: Path,
) -> None:
    with head_process(state) as head, FaultProxy(head.wait_for("started")["fleet"]) as proxy:
        joins = ("--identity", "twin", "--join", proxy.address)
        with (
            superfluid.connect(f"ipc://{state}/run/api.sock") as client,
            agent_process(state, *joins) as first,
        ):
            head.wait_for("link_up", node="twin")
            first.wait_for("worker_ready")
            ask = partial(client.generate, "toy", "twin", temperature=0.0, ignore_eos=True)
            alone = ask(max_new=1500).result().tokens
            call = ask(max_new=1500)
            while len(call.tokens) < 20:
                call.next_event(None)
            # The path is lost without a word, so the head takes the link to be there still.
            proxy.now(lambda link: link.half_open())
            first.signal(signal.SIGKILL)
            first.wait()
            with agent_process(state, *joins) as again:
                again.wait_for("link_up")
                moved = []
                while (event := call.next_event(None)) is not None:
                    if isinstance(event, OtherEvent):
                        moved.append((event.body["from"], event.body["to"], event.body["reason"]))
                assert moved == [("twin", "twin", "node twin was started again")]
                answer = call.result()
                assert answer.tokens == alone
                before, after = epochs(state, answer.session)
                assert after > before
                # Not by silence: the old link was probed for the newcomer, which took its place.
                assert head.wait_for("link_down")["code"] == "replaced"
                head.wait_for("link_up", node="twin")
