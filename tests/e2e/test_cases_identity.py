"""Cases from the field on links: tokens, secret files, identities; by their numbers."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import superfluid
from bus.keys import load_or_create_static_key, load_token, new_token
from bus.secret_files import create_secret_file
from tests.harness.link_processes import (
    TOKEN,
    agent_process,
    head_process,
    make_state,
    other_machine,
)
from tests.harness.link_sides import Stage
from tests.harness.logged_process import LoggedProcess

NODE_KEY = "nodes/node-1/node.key"


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage("tcp://127.0.0.1:0")
    yield made
    made.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


def write_token(path: Path, text: str, mode: int = 0o600) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def test_l3_a_token_that_differs_by_one_byte_is_refused_and_both_files_are_named(
    state: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    create_secret_file(other / TOKEN, changed_by_one_byte(state))
    (other / "models").symlink_to(state / "models")
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(other, "--join", address) as agent:
            why = agent.wait_for("link_token_refused")["why"]
            assert f"the fleet token in {other}/{TOKEN}" in why
            assert "copy the head's token file to the node" in why
            why = head.wait_for("link_refused_token_refused")["why"]
            assert f"{state}/{TOKEN}" in why
            agent.signal(signal.SIGTERM)
            assert agent.wait() == 0


def changed_by_one_byte(state: Path) -> str:
    """The state folder's token with one byte of its secret changed and a checksum that fits."""
    secret = (state / TOKEN).read_text().split(".")[2]
    data = bytearray(base64.b32decode(secret.upper() + "===="))
    data[7] ^= 1
    head_key = load_or_create_static_key(state / "keys" / "head.key")
    return new_token(head_key.public, lambda size: bytes(data))


@pytest.mark.parametrize("process", ["head", "agent"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda token: "", "holds no fleet token"),
        (lambda token: "\n", "holds no fleet token"),
        (lambda token: token[:50] + ("a" if token[50] != "a" else "b") + token[51:], "was changed"),
        (lambda token: token[:-3], "was changed"),
    ],
)
def test_l3_an_empty_or_damaged_token_is_refused_at_start(
    process: str, change: Callable[[str], str], said: str, state: Path
) -> None:
    write_token(state / TOKEN, change((state / TOKEN).read_text()))
    with (head_process if process == "head" else agent_process)(state) as started:
        assert started.wait() == 6
        (line,) = started.rest().splitlines()
        assert line.startswith(f"sf-{process}: ")
        assert f"{state}/{TOKEN}" in line
        assert said in line


@pytest.mark.parametrize(
    ("process", "file"),
    [("head", TOKEN), ("agent", TOKEN), ("head", "keys/head.key"), ("agent", NODE_KEY)],
)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_l3_a_secret_that_others_can_use_is_refused_at_start(
    process: str, file: str, mode: int, state: Path
) -> None:
    load_or_create_static_key(state / NODE_KEY)
    (state / "nodes").chmod(0o700)
    (state / file).chmod(mode)
    with (head_process if process == "head" else agent_process)(state) as started:
        assert started.wait() == 6
        (line,) = started.rest().splitlines()
        assert line.endswith(f"run: chmod 600 {state / file}")
    assert list((state / "run").glob("*.sock")) == []


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n", " \n"])
def test_l3_a_trailing_newline_is_no_part_of_the_token(
    end: str, state: Path, stage: Stage, tmp_path: Path
) -> None:
    copied = tmp_path / "copied.token"
    write_token(copied, (state / TOKEN).read_text().strip() + end)
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        node = stage.node(address, token=load_token(copied))
        stage.until(lambda: node.link.is_up)


def test_l10_a_second_machine_with_one_identity_is_refused_and_told_what_to_do(
    state: Path, tmp_path: Path
) -> None:
    second = other_machine(tmp_path / "second", state)
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state, "--identity", "twin") as first:
            first.wait_for("link_up")
            head.wait_for("link_up", node="twin")
            # Another machine has a runtime folder of its own, and so other locks.
            runtime = Path(os.environ["XDG_RUNTIME_DIR"]) / "second"
            runtime.mkdir()
            with agent_process(
                second, "--identity", "twin", "--join", address, XDG_RUNTIME_DIR=str(runtime)
            ) as newcomer:
                why = newcomer.wait_for("link_identity_in_use")["why"]
                assert "another process has this identity; stop that one, or set another" in why
                why = head.wait_for("link_refused_identity_in_use")["why"]
                assert "identity in use: node twin" in why
                assert "give it another identity" in why
                newcomer.wait_for("worker_ready")
                newcomer.signal(signal.SIGTERM)
                assert newcomer.wait() == 0
            check_undisturbed(state, head, first)


def check_undisturbed(state: Path, head: LoggedProcess, node: LoggedProcess) -> None:
    """The node serves, and neither side has ever seen its link end."""
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        assert client.generate("toy", "still here?", max_new=5).result().finish == "length"
    head.signal(signal.SIGTERM)
    assert head.wait() == 0
    assert "link_down" not in "\n".join([*head.lines, head.rest()])
    # The one end that it sees is that of the head just now.
    node.wait_for("link_down")
    assert sum('"link_down"' in line for line in node.lines) == 1


def test_l10_two_agents_of_one_fleet_on_a_machine_can_not_share_an_identity(
    state: Path, tmp_path: Path
) -> None:
    second = other_machine(tmp_path / "second", state)
    with agent_process(state, "--identity", "twin") as first:
        first.wait_for("started")
        with agent_process(second, "--identity", "twin") as newcomer:
            assert newcomer.wait() == 1
            (line,) = newcomer.rest().splitlines()
            assert f"process id {first.pid} has the identity twin on this machine" in line
            assert "--name and identity" in line


def test_off_loopback_nothing_starts_without_a_token(state: Path) -> None:
    (state / TOKEN).unlink()
    away = ("--join", "tcp://192.0.2.1:8454")
    with (
        head_process(state, "--bind", "tcp://0.0.0.0:0") as head,
        agent_process(state, *away) as agent,
    ):
        for process in (head, agent):
            assert process.wait() == 6
            (line,) = process.rest().splitlines()
            assert f"there is no fleet token at {state / TOKEN}" in line
    insecure = "--insecure-no-auth"
    with (
        head_process(state, "--bind", "tcp://0.0.0.0:0", insecure) as head,
        agent_process(state, *away, insecure) as agent,
    ):
        for process in (head, agent):
            assert "whoever reaches this network" in process.wait_for("no_auth")["risk"]
