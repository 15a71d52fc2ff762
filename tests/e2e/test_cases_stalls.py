"""Cases from the field: stalled peers, ends and starts at bad moments; by their numbers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import superfluid
from bench.cluster import Cluster
from bus.ids import Epoch, SessionId
from bus.messages.api import MARK, decode_body, encode_body
from bus.messages.link import LeaseGrant
from bus.messages.parts import LeaseRef
from tests.harness.cluster_checks import alive, wait_for
from tests.harness.link_processes import agent_process, head_process, make_state, memory_bytes
from tests.harness.link_sides import Stage
from tests.harness.logged_process import LoggedProcess

PROMPT = list(b"The quick brown fox")
#: All ends are expected far below it.
END_LIMIT_S = 15.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


class SlowClient:
    """A DEALER that asks and does not read until told."""

    def __init__(self, address: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._dealer = context.socket(zmq.DEALER)
        self._dealer.linger = 0
        self._dealer.setsockopt(zmq.RCVHWM, 1)
        self._dealer.connect(address)

    def ask(self, request: bytes, **body: Any) -> None:
        self._dealer.send_multipart([MARK, encode_body({"id": request, **body})])

    def read(self, limit_ms: int = 30_000) -> dict[str, Any]:
        assert self._dealer.poll(limit_ms), "nothing came"
        return decode_body(self._dealer.recv_multipart())

    def close(self) -> None:
        self._dealer.close()


@pytest.fixture
def slow(cluster: Cluster) -> Iterator[SlowClient]:
    made = SlowClient(f"ipc://{cluster.state}/run/api.sock")
    yield made
    made.close()


# --- L7 ---------------------------------------------------------------------------------------

SILENCE_S = 6.0


@pytest.mark.parametrize("agents_s", [SILENCE_S, 30.0], ids=["agents gave up", "agents waited"])
def test_l7_a_head_that_was_suspended_for_longer_than_its_silence_limit(
    agents_s: float, state: Path
) -> None:
    with head_process(state, SUPERFLUID_FLEET_SILENCE_S=str(SILENCE_S)) as head:
        address = head.wait_for("started")["fleet"]
        with contextlib.ExitStack() as stack:
            for number in range(4):
                agent = stack.enter_context(
                    agent_process(
                        state,
                        *("--name", f"node-{number}", "--join", address),
                        SUPERFLUID_NODE_SILENCE_S=str(agents_s),
                    )
                )
                agent.wait_for("worker_ready")
                head.wait_for("link_up")
            client = stack.enter_context(superfluid.connect(f"ipc://{state}/run/api.sock"))
            options: dict[str, Any] = {"max_new": 2000, "temperature": 0.0, "ignore_eos": True}
            alone = client.generate("toy", PROMPT, **options).result().tokens
            call = client.generate("toy", PROMPT, **options)
            call.next_event(None)
            head.signal(signal.SIGSTOP)
            try:
                # There is nothing to await: a suspended process is one that lets time pass.
                time.sleep(SILENCE_S + 2.0)
            finally:
                head.signal(signal.SIGCONT)
            assert call.result().tokens == alone
            again = client.generate("toy", PROMPT, max_new=5).result()
            assert again.finish == "length"
            wait_for(lambda: {n["state"] for n in client.nodes()} == {"up"}, "all are back")
        head.signal(signal.SIGTERM)
        assert head.wait() == 0
        seen = "\n".join([*head.lines, head.rest()])
        # The head declared nobody dead; that agents gave up is theirs to say.
        assert "nothing from node" not in seen
        assert ('"code": "silent"' in seen) == (agents_s == SILENCE_S)


# --- L12 --------------------------------------------------------------------------------------

READERS = 1100


def stall(cluster: Cluster, slow: SlowClient) -> tuple[int, ...]:
    """Let 1,100 whole answers wait for a client that reads none; gives the answer's tokens."""
    whole = cluster.client.generate(
        cluster.model, PROMPT, max_new=1000, temperature=0.0, ignore_eos=True, key="long"
    ).result()
    for number in range(READERS):
        slow.ask(b"r%d" % number, op="attach", key="long")
    return whole.tokens


def test_l12_a_stalled_client_gets_all_in_order_and_holds_up_nobody(
    cluster: Cluster, slow: SlowClient
) -> None:
    before = memory_bytes(cluster.pid("head"))
    tokens = stall(cluster, slow)
    # Others are served, which also shows that the head has handled all that came before.
    for _ in range(5):
        assert cluster.client.ping() < 5.0
    answer = cluster.client.generate(cluster.model, PROMPT, max_new=20).result()
    assert answer.usage.completion == 20
    assert memory_bytes(cluster.pid("head")) - before < 100 << 20
    seen: dict[bytes, list[int]] = {b"r%d" % number: [] for number in range(READERS)}
    ended: list[bytes] = []
    while len(ended) < READERS:
        body = slow.read()
        if body["kind"] == "end":
            ended.append(body["id"])
        elif body["type"] == "token":
            assert body["offset"] == len(seen[body["id"]])
            assert body["id"] not in ended
            seen[body["id"]] += body["tokens"]
    assert ended == list(seen)
    assert all(found == list(tokens) for found in seen.values())


def test_l12_a_head_that_stood_still_gets_every_token_in_order(cluster: Cluster) -> None:
    options: dict[str, Any] = {"max_new": 1500, "temperature": 0.0, "ignore_eos": True}
    alone = cluster.client.generate(cluster.model, PROMPT, **options).result().tokens
    calls = [cluster.client.generate(cluster.model, PROMPT, **options) for _ in range(4)]
    while any(len(call.tokens) < 5 for call in calls):
        for call in calls:
            call.next_event(None)
    (worker,) = cluster.workers("node-1")
    before = memory_bytes(cluster.pid("node-1"))
    os.kill(cluster.pid("head"), signal.SIGSTOP)
    try:
        # Until the windows are full, and the worker has nothing more to do.
        wait_for(lambda: is_idle(worker), "the worker pauses")
        assert memory_bytes(cluster.pid("node-1")) - before < 50 << 20
    finally:
        os.kill(cluster.pid("head"), signal.SIGCONT)
    assert [call.result().tokens for call in calls] == [alone] * 4


EVENTS = 1024


@pytest.mark.parametrize("size", [100, 20_000])
def test_l12_1024_messages_for_a_stalled_peer_come_in_order_and_hold_up_nobody(size: int) -> None:
    stage = Stage("tcp://127.0.0.1:0")
    with contextlib.closing(stage):
        head, own = stage.head(), stage.own_loop()
        stalled = stage.node(head.links.address, "stalled", loop=own)
        other = stage.node(head.links.address, "other")
        stage.until(lambda: len(list(head.acceptor.links())) == 2, own)
        stage.until(lambda: stalled.link.is_up and other.link.is_up, own)
        to_stalled, to_other = (head.address_of(name) or b"" for name in ("stalled", "other"))
        # `own` is not turned from here on: the stalled node reads nothing.
        for number in range(EVENTS):
            assert head.links.send(to_stalled, grant(number, size))
            assert head.links.send(to_other, grant(number, 100))
        stage.until(lambda: len(other.messages()) == EVENTS)
        link = head.acceptor.endpoint(to_stalled)
        assert link is not None
        # What libzmq and the kernel do not take waits here, once, and what they take is little.
        assert link.queued_bytes <= EVENTS * (size + 100)
        if size == 20_000:
            assert link.queued_bytes > EVENTS * size / 2
        stage.until(lambda: len(stalled.messages()) == EVENTS, own)
        for node in (stalled, other):
            assert [message.sent_at_s for message in node.messages()] == list(range(EVENTS))
        assert head.downs() == []


def grant(number: int, size: int) -> LeaseGrant:
    """A message of some bytes that has a number."""
    ref = LeaseRef(session=SessionId("s" * 80), epoch=Epoch(1))
    return LeaseGrant(sent_at_s=float(number), lease_ms=1, leases=(ref,) * (size // 90))


def is_idle(pid: int) -> bool:
    """Whether a process uses no CPU for a moment."""

    def used() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    start = used()
    time.sleep(0.3)
    return used() - start <= 2


# --- L13 --------------------------------------------------------------------------------------


def test_l13_a_head_with_unsent_replies_exits_in_bounded_time(
    cluster: Cluster, slow: SlowClient
) -> None:
    stall(cluster, slow)
    cluster.client.ping()
    texts = cluster.workers("head")
    started = time.monotonic()
    assert cluster.stop("head") == 0
    assert time.monotonic() - started < END_LIMIT_S
    assert not any(alive(pid) for pid in texts)
    assert list((cluster.state / "run").glob("api.sock")) == []


def test_l13_an_agent_with_unsent_tokens_exits_in_bounded_time(cluster: Cluster) -> None:
    calls = [
        cluster.client.generate(cluster.model, PROMPT, max_new=1500, ignore_eos=True)
        for _ in range(4)
    ]
    while any(len(call.tokens) < 5 for call in calls):
        for call in calls:
            call.next_event(None)
    (worker,) = cluster.workers("node-1")
    os.kill(cluster.pid("head"), signal.SIGSTOP)
    try:
        wait_for(lambda: is_idle(worker), "the worker pauses")
        started = time.monotonic()
        assert cluster.stop("node-1") == 0
        assert time.monotonic() - started < END_LIMIT_S
        assert not alive(worker)
    finally:
        os.kill(cluster.pid("head"), signal.SIGCONT)
    cluster.start_node("node-1")
    cluster.wait_ready()


def test_l13_a_caller_that_forks_can_end_in_the_child_and_go_on_in_the_parent(
    cluster: Cluster,
) -> None:
    # In a process of its own: pytest's threads are none of the case.
    script = f"""
import os, sys, superfluid
client = superfluid.connect("ipc://{cluster.state}/run/api.sock")
call = client.generate({cluster.model!r}, "forked", max_new=300, temperature=0.0, ignore_eos=True)
call.next_event(None)
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
child = os.fork()
if child == 0:
    with superfluid.connect("ipc://{cluster.state}/run/api.sock") as own:
        assert own.generate({cluster.model!r}, "child", max_new=5).result().finish == "length"
    sys.exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
assert len(call.result().tokens) == 300
client.close()
print("whole")
"""
    done = run_python(script)
    assert done == (0, "whole\n"), done


USES = {
    "close": "client.close(); print('closed')",
    "leave": "client.__exit__(None, None, None); print('closed')",
    "ask": "client.generate({model!r}, 'child', max_new=4, timeout_s=5)",
    "ping": "client.ping()",
    "read": "call.result(5)",
    "cancel": "call.cancel(); client.flush()",
}


@pytest.mark.parametrize("use", USES)
def test_l13_a_fork_can_not_use_what_it_inherits_and_is_told_so(cluster: Cluster, use: str) -> None:
    script = f"""
import os, sys, superfluid
client = superfluid.connect("ipc://{cluster.state}/run/api.sock")
call = client.generate({cluster.model!r}, "forked", max_new=300, temperature=0.0, ignore_eos=True)
call.next_event(None)
child = os.fork()
if child == 0:
    try:
        {USES[use].format(model=cluster.model)}
    except superfluid.SuperfluidError as error:
        print(error.message)
    sys.stdout.flush()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(call.result().tokens) == 300
client.close()
"""
    code, told = run_python(script)
    assert code == 0, told
    assert ("closed" if use in ("close", "leave") else "connect again here") in told


def run_python(script: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("process", ["head", "agent"])
def test_l13_a_start_that_is_interrupted_leaves_nothing_in_the_way(
    process: str, number: signal.Signals, state: Path
) -> None:
    make = head_process if process == "head" else agent_process
    # From the first import to a running service, at moments that spread over its start.
    for share in range(6):
        with make(state) as started:
            until = time.monotonic() + 0.12 * share
            children: set[int] = set()
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    children.update(started.children())
            with contextlib.suppress(OSError):
                children.update(started.children())
            begun = time.monotonic()
            started.signal(number)
            code = started.wait()
            assert time.monotonic() - begun < END_LIMIT_S
            # Before a line of ours has run, Python itself ends with 1 and says KeyboardInterrupt.
            by_python = code == 1 and "KeyboardInterrupt" in started.rest()
            assert code in (0, -number, 130) or by_python
            wait_for(lambda: not any(alive(pid) for pid in children), "no orphan")  # noqa: B023
    check_serves(state)


def check_serves(state: Path) -> None:
    """A head and an agent start from what is there, and answer."""
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state, "--join", address) as agent:
            head.wait_for("link_up")
            with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
                # The head waits for a node that loads its model.
                assert client.generate("toy", "hello", max_new=3).result().finish == "length"
            end(agent)
        end(head)


def end(process: LoggedProcess) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_l13_files_of_killed_processes_do_not_stop_the_next_start(state: Path) -> None:
    with head_process(state) as head, agent_process(state) as agent:
        head.wait_for("started")
        agent.wait_for("worker_ready")
        children = {*head.children(), *agent.children()}
        assert len(children) >= 2, "text processes and a worker"
        for process in (head, agent):
            process.signal(signal.SIGKILL)
            process.wait()
        wait_for(lambda: not any(alive(pid) for pid in children), "no orphan")
        left = list((state / "run").glob("*.sock"))
        assert left
    check_serves(state)
    assert list((state / "run").glob("*.sock")) == []
