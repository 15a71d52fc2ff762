"""Who may be in a fleet, with real heads and agents: approval, revocation, pinned keys."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import superfluid
from bus.keys import fingerprint, load_or_create_static_key
from bus.secret_files import replace_private_file
from tests.harness.link_processes import (
    TOKEN,
    agent_process,
    head_process,
    make_state,
    other_machine,
)
from tests.harness.logged_process import LoggedProcess

SFCTL = Path(sys.executable).parent / "sfctl"
KEY = "nodes/node-1/node.key"
APPROVE = {"SUPERFLUID_FLEET_ENROLMENT": "approve"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


@pytest.fixture
def other(tmp_path: Path, state: Path) -> Path:
    return other_machine(tmp_path / "o", state)


def sfctl(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [SFCTL, "--state", state, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    return done


def ask(state: Path, op: str, **body: Any) -> dict[str, Any]:
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        return client.operation(op, **body)


def key_of(state: Path) -> str:
    return fingerprint(load_or_create_static_key(state / KEY).public)


def copy_token(state: Path, other: Path) -> None:
    replace_private_file(other / TOKEN, (state / TOKEN).read_text().strip())


def stop(process: LoggedProcess) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_node_waits_until_it_is_approved_and_then_links_by_itself(
    state: Path, other: Path
) -> None:
    with head_process(state, **APPROVE) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state) as own:
            # Who may write the head's state folder needs nobody's approval.
            own.wait_for("link_up")
            with agent_process(other, "--join", address, "--identity", "gpu-7") as agent:
                why = agent.wait_for("link_not_enrolled")["why"]
                assert "approve it on the head with: sfctl node approve gpu-7" in why
                why = head.wait_for("link_refused_not_enrolled")["why"]
                assert key_of(other) in why
                shown = json.loads(sfctl(state, "node", "ls", "-o", "json").stdout)
                waits = next(node for node in shown if node["identity"] == "gpu-7")
                assert (waits["state"], waits["host"]) == ("pending", "127.0.0.1")
                assert waits["key"] == key_of(other)
                status = sfctl(state, "status")
                assert status.returncode == 3
                assert "node approve gpu-7" in status.stderr
                assert key_of(other) in sfctl(state, "node", "approve", "gpu-7").stdout
                head.wait_for("link_up", node="gpu-7")
                agent.wait_for("link_up")
                stop(head)
    closed = {"SUPERFLUID_FLEET_ENROLMENT": "closed"}
    with head_process(state, **closed) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(other, "--join", address, "--identity", "gpu-7") as agent:
            agent.wait_for("link_up")
        stranger = other_machine(other.with_name("x"), state)
        with agent_process(stranger, "--join", address, "--identity", "gpu-8") as agent:
            agent.wait_for("link_not_enrolled")
            why = head.wait_for("link_refused_not_enrolled")["why"]
            assert "takes no new nodes" in why


def test_a_node_that_the_head_calls_waits_too(state: Path, other: Path) -> None:
    socket = f"ipc://{other}/run/node.sock"
    with agent_process(other, "--listen", socket, "--identity", "gpu-7") as agent:
        agent.wait_for("started")
        (state / "head.toml").write_text(f'[fleet]\nnodes = ["{socket}"]\n')
        with head_process(state, **APPROVE) as head:
            head.wait_for("link_refused_not_enrolled")
            why = agent.wait_for("link_not_enrolled")["why"]
            assert "sfctl node approve gpu-7" in why
            ask(state, "node.approve", name="gpu-7")
            agent.wait_for("link_up")
            head.wait_for("link_up", node="gpu-7")


def test_a_revoked_node_is_cut_off_its_stream_moves_and_it_stays_out(
    state: Path, other: Path
) -> None:
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(other, "--join", address, "--identity", "bad") as bad:
            bad.wait_for("worker_ready")
            head.wait_for("link_up", node="bad")
            with (
                superfluid.connect(f"ipc://{state}/run/api.sock") as client,
                agent_process(state, "--identity", "good") as good,
            ):
                stream = client.generate("toy", "once", max_new=200, ignore_eos=True).stream()
                events = iter(stream)
                while next(events).type != "token":
                    pass
                good.wait_for("worker_ready")
                done = json.loads(sfctl(state, "node", "revoke", "bad", "-o", "json").stdout)
                assert (done["cut"], done["now_approves"]) == (["bad"], True)
                for _ in events:
                    pass
                answer = stream.result()
                assert len(answer.tokens) == 200
                assert "was revoked" in bad.wait_for("link_down")["reason"]
                why = bad.wait_for("link_revoked")["why"]
                assert "sfctl node forget bad" in why
                assert key_of(other) in head.wait_for("link_refused_revoked")["why"]
                shown = json.loads(sfctl(state, "node", "ls", "-o", "json").stdout)
                states = {node["identity"]: node["state"] for node in shown}
                assert states == {"bad": "revoked", "good": "up"}


def test_another_key_under_a_known_name_is_refused_until_it_is_forgotten(
    state: Path, other: Path
) -> None:
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        joins = ("--join", address, "--identity", "gpu-7")
        with agent_process(other, *joins) as agent:
            agent.wait_for("link_up")
            refused = subprocess.run(
                [SFCTL, "--state", state, "node", "forget", "gpu-7"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert refused.returncode == 2
            assert "node revoke gpu-7" in refused.stderr
            stop(agent)
        former = key_of(other)
        (other / KEY).unlink()
        with agent_process(other, *joins) as agent:
            why = agent.wait_for("link_peer_key_differs")["why"]
            assert "sfctl node forget gpu-7" in why
            why = head.wait_for("link_refused_peer_key_differs")["why"]
            assert former in why
            assert key_of(other) in why
            assert "sfctl node forget gpu-7" in why
            sfctl(state, "node", "forget", "gpu-7")
            agent.wait_for("link_up")


def test_a_node_without_a_token_knows_its_head_by_its_key(state: Path, tmp_path: Path) -> None:
    insecure = "--insecure-no-auth"
    second = make_state(tmp_path / "h")
    pin = state / "nodes/node-1/head.pin"
    with head_process(state, insecure) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state, insecure, "--join", address) as agent:
            agent.wait_for("link_up")
            stop(agent)
    keys = [load_or_create_static_key(each / "keys/head.key").public for each in (state, second)]
    assert pin.read_text().strip() == fingerprint(keys[0])
    with head_process(second, insecure) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state, insecure, "--join", address) as agent:
            why = agent.wait_for("link_peer_key_differs")["why"]
            assert all(fingerprint(public) in why for public in keys)
            assert f"remove {pin}" in why
            pin.unlink()
            agent.wait_for("link_up")
    assert pin.read_text().strip() == fingerprint(keys[1])


def test_tokens_rotate_without_a_restart_and_a_retired_one_is_cut_off(
    state: Path, other: Path, tmp_path: Path
) -> None:
    late = other_machine(tmp_path / "l", state)
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with (
            agent_process(other, "--join", address, "--identity", "prompt") as prompt,
            agent_process(late, "--join", address, "--identity", "late") as behind,
        ):
            for agent in (prompt, behind):
                agent.wait_for("link_up")
            former = json.loads(sfctl(state, "token", "rotate", "-o", "json").stdout)[1]["id"]
            head.wait_for("tokens_changed", previous=former)
            # Both tokens are taken now.
            copy_token(state, other)
            new = prompt.wait_for("tokens_changed")["current"]
            stop(behind)
            with agent_process(late, "--join", address, "--identity", "late") as behind:
                behind.wait_for("link_up")
                assert head.wait_for("link_up", node="late")
                listed = json.loads(sfctl(state, "token", "ls", "-o", "json").stdout)
                by_id = {row["id"]: sorted(row["linked nodes"]) for row in listed}
                assert by_id == {new: [], former: ["late", "prompt"]}
                told = sfctl(state, "token", "retire").stderr
                assert "late, prompt" in told
                for agent in (prompt, behind):
                    assert "was retired" in agent.wait_for("link_down")["reason"]
                prompt.wait_for("link_up")
                why = behind.wait_for("link_token_refused")["why"]
                assert f"the fleet token in {late / TOKEN} (id {former})" in why
                why = head.wait_for("link_refused_token_refused")["why"]
                assert f"a fleet token of unknown id {former}" in why
                assert f"{state / TOKEN} (id {new})" in why
                copy_token(state, late)
                behind.wait_for("tokens_changed", current=new)
                behind.wait_for("link_up")
