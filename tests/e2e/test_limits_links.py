"""What strangers and small limits cost a head: crowds that are silent, bad Hellos, few files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.attack import CONNECTIONS, source_of
from bus.keys import load_token
from bus.transport import clock, link_options
from tests.harness.link_identities import node
from tests.harness.link_processes import TOKEN, head_process, make_state, memory_bytes
from tests.harness.link_sides import Stage
from tests.harness.strangers import Stranger, hello_of, zmtp_frame

CROWD = 200
STALL_S = 3.0
GROWTH_BYTES = 100 << 20
JOIN_S = 2.0


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage("tcp://127.0.0.1:0")
    yield made
    made.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


def join(stage: Stage, state: Path, address: str) -> float:
    """Seconds that a real node takes to join."""
    started = clock.now()
    side = stage.node(address, token=load_token(state / TOKEN))
    stage.until(lambda: side.link.is_up)
    return clock.now() - started


@pytest.mark.parametrize("stall_s", [0.0, STALL_S], ids=["running", "stalled"])
def test_200_silent_peers_of_as_many_addresses(stall_s: float, state: Path, stage: Stage) -> None:
    with head_process(state) as head, contextlib.ExitStack() as stack:
        address = head.wait_for("started")["fleet"]
        before = memory_bytes(head.pid)
        if stall_s:
            head.signal(signal.SIGSTOP)
        for number in range(CROWD):
            stack.enter_context(Stranger(address, source_of(number)))
        if stall_s:
            time.sleep(stall_s)
            head.signal(signal.SIGCONT)
        assert join(stage, state, address) < JOIN_S
        assert memory_bytes(head.pid) - before < GROWTH_BYTES


def test_a_crowd_that_meets_a_loop_that_stands_still(stage: Stage) -> None:
    # The I/O thread goes on to accept and to read, as it does while a head is busy.
    head = stage.head()
    half = zmtp_frame(bytes(150_000), announce=link_options.MAX_FRAME_BYTES)
    before = memory_bytes(os.getpid())
    with contextlib.ExitStack() as stack:
        for number in range(CROWD):
            stranger = stack.enter_context(Stranger(head.links.address, source_of(number)).greet())
            stranger.say(half)
        time.sleep(STALL_S)
        side = stage.node(head.links.address)
        started = clock.now()
        stage.until(lambda: side.link.is_up)
        assert clock.now() - started < JOIN_S
        assert memory_bytes(os.getpid()) - before < GROWTH_BYTES


@pytest.mark.parametrize("new", [False, True], ids=["standing", "new connections"])
def test_bad_hellos_shut_no_node_out_and_end_no_link(
    new: bool, state: Path, stage: Stage, tmp_path: Path
) -> None:
    token = load_token(state / TOKEN)
    hello = hello_of(node("stranger", tokens=(token,)))
    file = tmp_path / "hello"
    file.write_bytes(hello[:-1] + bytes([hello[-1] ^ 1]))
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        before = memory_bytes(head.pid)
        first = stage.node(address, "first", token=token)
        stage.until(lambda: first.link.is_up)
        command = [sys.executable, "-m", "bench.attack", "--address", address]
        command += ["--hello", str(file), "--seconds", "2", *(["--new"] if new else [])]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as attacker:
            head.wait_for("link_refused_handshake_failed")
            assert join(stage, state, address) < JOIN_S
            stage.until(lambda: attacker.poll() is not None)
        assert first.codes() == []
        assert memory_bytes(head.pid) - before < GROWTH_BYTES
        head.signal(signal.SIGTERM)
        assert head.wait() == 0
        # Said once for each address, not for each Hello.
        lines = head.rest().count("link_refused_handshake_failed")
        assert lines <= CONNECTIONS


@pytest.mark.parametrize("module", ["head", "agent"])
def test_64_open_files_are_too_few_and_it_is_said_how_to_have_more(
    module: str, state: Path
) -> None:
    done = started_with("-n 64", module, state)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"sf-{module}: ")
    assert "this process may open 64 files and needs 8192" in line
    assert "ulimit -Hn 8192" in line


def started_with(limit: str, module: str, state: Path) -> subprocess.CompletedProcess[str]:
    """A service under a limit of the shell, once it has ended."""
    command = f'ulimit {limit} && exec "$@"'
    service = [sys.executable, "-P", "-m", module, "--state", str(state)]
    return subprocess.run(
        ["sh", "-c", command, "sh", *service],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def test_freed_memory_is_kept_for_the_next_frame() -> None:
    script = """
import resource, sys
from bus.transport.limits import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
frame = bytes(128 * 1024 + 40)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def turns(count):
    for _ in range(count):
        copies = [bytearray(frame) for _ in range(4)]
        del copies
turns(5)
before = faults()
turns(50)
print(faults() - before)
"""
    # A frame has 33 pages, of which the system may map 16 at a fault or one.
    assert faults_of(script, "kept") < 200
    assert faults_of(script, "taken anew") > 200 * 10


def faults_of(script: str, argument: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", script, argument], capture_output=True, text=True, check=True
    )
    return int(done.stdout)
