"""Cases from the field on links: paths that replay and harm; by their numbers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import superfluid
from tests.harness.fault_connection import Fault, Sender
from tests.harness.fault_proxy import FaultProxy
from tests.harness.link_processes import agent_process, head_process, make_state
from tests.harness.logged_process import LoggedProcess
from tests.harness.strangers import GREETING, READY, Stranger


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


@pytest.fixture
def relayed(state: Path) -> Iterator[tuple[LoggedProcess, LoggedProcess, FaultProxy]]:
    """A head, a node that joined it over a proxy, and the proxy."""
    with (
        head_process(state) as head,
        FaultProxy(head.wait_for("started")["fleet"]) as proxy,
        agent_process(state, "--join", proxy.address) as agent,
    ):
        head.wait_for("link_up")
        agent.wait_for("worker_ready")
        yield head, agent, proxy


Relayed = tuple[LoggedProcess, LoggedProcess, FaultProxy]


def ask(state: Path, prompt: str, count: int) -> tuple[int, ...]:
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        return client.generate("toy", prompt, max_new=count, temperature=0.0).result().tokens


def test_l4_a_recorded_conversation_played_to_the_head_makes_no_link(
    state: Path, relayed: Relayed
) -> None:
    head, agent, proxy = relayed
    first = ask(state, "recorded", 20)
    agent.signal(signal.SIGKILL)
    agent.wait()
    head.wait_for("link_down")
    conversation = GREETING + READY + proxy.recorded(Sender.DIALER)
    with Stranger(proxy.address) as stranger:
        stranger.greet(conversation)
        why = head.wait_for("link_refused_hello_not_newer")["why"]
        assert "an old frame was sent again" in why
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        (node,) = client.nodes()
        assert node["state"] == "down"
    head.signal(signal.SIGKILL)
    head.wait()
    # What was seen is kept: a head that was killed knows it too.
    with head_process(state) as again, FaultProxy(again.wait_for("started")["fleet"]) as path:
        with Stranger(path.address) as stranger:
            stranger.greet(conversation)
            again.wait_for("link_refused_hello_not_newer")
        with agent_process(state, "--join", path.address) as back:
            again.wait_for("link_up")
            back.wait_for("worker_ready")
            assert ask(state, "recorded", 20) == first


def flip(data: bytes) -> bytes:
    """One bit of the last byte: inside a sealed frame, past its ZMTP header."""
    return data[:-1] + bytes([data[-1] ^ 4])


@pytest.mark.parametrize(
    ("fault", "breaks"),
    [
        (lambda link: link.harm(Sender.DIALER, flip), True),
        (lambda link: link.harm(Sender.DIALER, lambda data: data + data), False),
        (lambda link: link.harm(Sender.DIALER, lambda data: data[: len(data) // 2]), True),
        (lambda link: link.cut(reset=False), True),
    ],
    ids=["flipped", "doubled", "cut inside", "cut off"],
)
def test_l4_a_link_that_was_harmed_is_made_again_and_nothing_comes_twice(
    fault: Fault, breaks: bool, state: Path, relayed: Relayed
) -> None:
    head, _, proxy = relayed
    undisturbed = ask(state, "harmed", 400)
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        call = client.generate("toy", "harmed", max_new=400, temperature=0.0, exact=True)
        while len(call.tokens) < 5:
            call.next_event(None)
        proxy.now(fault)
        assert call.result().tokens == undisturbed
    if breaks:
        head.wait_for("link_up")
    assert ask(state, "harmed", 400) == undisturbed
