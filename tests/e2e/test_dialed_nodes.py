"""Nodes that the head dials: each answers or it is said why not, and who is down delays nobody."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import superfluid
from bus.client import Client
from tests.harness.cluster_checks import wait_for
from tests.harness.link_processes import agent_process, head_process, make_state
from tests.harness.logged_process import LoggedProcess


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


@pytest.fixture
def agent(state: Path) -> Iterator[LoggedProcess]:
    with agent_process(state, "--listen", f"ipc://{state}/run/node.sock") as made:
        made.wait_for("worker_ready")
        yield made


def dialed(client: Client) -> dict[str, tuple[str, str, str]]:
    """By address: the node that answered there, its state, and why it is not up."""
    told = client.operation("nodes")["dialed"]
    return {each["address"]: (each["node"], each["state"], each["reason"]) for each in told}


def test_a_node_that_does_not_answer_is_told_of_and_keeps_nobody_waiting(
    state: Path, agent: LoggedProcess
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    here, nowhere = f"ipc://{state}/run/node.sock", f"tcp://127.0.0.1:{port}"
    (state / "head.toml").write_text(f"[fleet]\nnodes = {json.dumps([nowhere, here])}\n")
    with head_process(state) as head:
        head.wait_for("link_up")
        with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
            wait_for(lambda: dialed(client)[here][1] == "up", "the node that listens is linked")
            assert dialed(client)[nowhere][:2] == ("", "down")
            (model,) = (m["name"] for m in client.models() if m["nodes"])
            answer = client.generate(model, [65], max_new=3, ignore_eos=True).result()
            assert len(answer.tokens) == 3
            wait_for(
                lambda: "can not reach the node at tcp" in dialed(client)[nowhere][2],
                "it is said why the other one is not",
            )
            identity = dialed(client)[here][0]
            assert identity == client.nodes()[0]["identity"]
