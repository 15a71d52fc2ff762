"""The agent and a head as processes: joining, being called, and what a wrong token is told."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.agent_status import AgentStatus, read_agent_status
from bus.crypto import KeyPair
from bus.keys import load_or_create_static_key, new_token
from bus.secret_files import create_secret_file
from tests.harness.link_processes import TOKEN, agent_process, head_process, make_state
from tests.harness.logged_process import LIMIT_S


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with a head's key, its token, and the toy model."""
    return make_state(tmp_path / "s")


def await_status(state: Path, condition: Callable[[AgentStatus], bool]) -> AgentStatus:
    """The agent's status file, once it tells so; it is written just after the log."""
    until = time.monotonic() + LIMIT_S
    while True:
        told = read_agent_status(state / "nodes" / "node-1")
        if told is not None and condition(told):
            return told
        assert time.monotonic() < until, told
        time.sleep(0.01)


def test_it_joins_the_head_of_its_state_folder_and_finds_it_again(state: Path) -> None:
    with agent_process(state) as agent:
        agent.wait_for("started")
        with head_process(state) as head:
            first = head.wait_for("started")["fleet"]
            agent.wait_for("link_up")
            told = await_status(
                state, lambda told: told.link.up and told.models[0].phase == "ready"
            )
            assert (told.pid, told.link.up, told.link.address) == (agent.pid, True, first)
            head.signal(signal.SIGKILL)
            head.wait()
        agent.wait_for("link_down")
        # It comes back elsewhere: port 0 takes another one.
        with head_process(state) as head:
            assert head.wait_for("started")["fleet"] != first
            agent.wait_for("link_up")
            agent.signal(signal.SIGTERM)
            assert agent.wait() == 0
            down = head.wait_for("link_down")
            assert down["code"] == "goodbye"


def test_it_waits_to_be_called_by_a_head(state: Path) -> None:
    with agent_process(state, "--listen", "tcp://127.0.0.1:0") as agent:
        address = agent.wait_for("started")["link"].removeprefix("a head at ")
        for _ in range(2):
            with head_process(state, SUPERFLUID_FLEET_NODES=address) as head:
                head.wait_for("link_up")
                agent.wait_for("link_up")
                head.signal(signal.SIGTERM)
                assert head.wait() == 0
            agent.wait_for("link_down")


def test_a_node_that_is_named_twice_is_linked_once_and_the_head_says_so(state: Path) -> None:
    sockets = [f"ipc://{state}/run/node.sock", f"ipc://{state}/run/../run/node.sock"]
    with agent_process(state, "--listen", sockets[0]) as agent:
        agent.wait_for("started")
        (state / "head.toml").write_text(f"[fleet]\nnodes = {json.dumps(sockets)}\n")
        with head_process(state) as head:
            head.wait_for("link_up")
            why = head.wait_for("link_refused_identity_in_use")["why"]
            assert "has a link already, the node at ipc://" in why
            assert "name a node once in [fleet] nodes" in why


def test_a_wrong_token_is_named_once_and_tried_again(state: Path, tmp_path: Path) -> None:
    other = make_state(tmp_path / "other")
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(other, "--join", address) as agent:
            refused = agent.wait_for("link_token_refused")
            assert f"{other}/{TOKEN}" in refused["why"]
            assert "copy the head's token file" in refused["why"]
            agent.wait_for("worker_ready")
            told = await_status(other, lambda status: status.link.code != "")
            assert (told.pid, told.link.code, told.link.up) == (agent.pid, "token_refused", False)
            assert (told.link.address, told.link.reason) == (address, refused["why"])
            agent.signal(signal.SIGTERM)
            assert agent.wait() == 0
            assert sum('"link_token_refused"' in line for line in agent.lines) == 1


def test_another_head_that_has_the_token_is_not_taken_for_ours(state: Path) -> None:
    # The same secret, so the handshake's first half verifies, but another head's key.
    secret = os.urandom(32)
    ours = load_or_create_static_key(state / "keys" / "head.key").public
    (state / TOKEN).unlink()
    create_secret_file(state / TOKEN, new_token(ours, lambda size: secret[:size]))
    pinned = state / "keys" / "pinned.token"
    stranger = KeyPair.from_secret(bytes(range(32))).public
    create_secret_file(pinned, new_token(stranger, lambda size: secret[:size]))
    with head_process(state) as head:
        head.wait_for("started")
        with agent_process(state, "--token-file", str(pinned)) as agent:
            refused = agent.wait_for("link_peer_key_differs")
            assert str(pinned) in refused["why"]
