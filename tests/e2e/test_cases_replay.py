"""Cases from the field on links: paths that replay and harm; by their numbers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import superfluid
from bus.errors import NodeLost, NoNode
from bus.transport import clock
from tests.harness.link_processes import agent_process, head_process, make_state
from tests.harness.logged_process import LoggedProcess
from tests.harness.relay import Relay
from tests.harness.strangers import Stranger


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


@pytest.fixture
def relayed(state: Path) -> Iterator[tuple[LoggedProcess, LoggedProcess, Relay]]:
    """A head, a node that joined it over a relay, and the relay."""
    with (
        head_process(state) as head,
        Relay(head.wait_for("started")["fleet"]) as relay,
        agent_process(state, "--join", relay.address) as agent,
    ):
        head.wait_for("link_up")
        agent.wait_for("worker_ready")
        yield head, agent, relay


Relayed = tuple[LoggedProcess, LoggedProcess, Relay]


def ask(state: Path, prompt: str, count: int) -> tuple[int, ...]:
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        return client.generate("toy", prompt, max_new=count, temperature=0.0).result().tokens


def test_l4_a_recorded_conversation_played_to_the_head_makes_no_link(
    state: Path, relayed: Relayed
) -> None:
    head, agent, relay = relayed
    first = ask(state, "recorded", 20)
    agent.signal(signal.SIGKILL)
    agent.wait()
    head.wait_for("link_down")
    conversation = relay.recorded[0]
    with Stranger(relay.address) as stranger:
        stranger.greet(conversation)
        why = head.wait_for("link_refused_hello_not_newer")["why"]
        assert "an old frame was sent again" in why
    with superfluid.connect(f"ipc://{state}/run/api.sock") as client:
        (node,) = client.nodes()
        assert node["state"] == "down"
    head.signal(signal.SIGKILL)
    head.wait()
    # What was seen is kept: a head that was killed knows it too.
    with head_process(state) as again, Relay(again.wait_for("started")["fleet"]) as path:
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
    "harm",
    [flip, lambda data: data + data, lambda data: data[: len(data) // 2], lambda data: None],
    ids=["flipped", "doubled", "cut inside", "cut off"],
)
def test_l4_a_link_that_was_harmed_is_made_again_and_nothing_comes_twice(
    harm: Callable[[bytes], bytes | None], state: Path, relayed: Relayed
) -> None:
    head, _, relay = relayed
    undisturbed = ask(state, "harmed", 400)
    address = f"ipc://{state}/run/api.sock"
    with superfluid.connect(address) as client:
        call = client.generate("toy", "harmed", max_new=400, temperature=0.0)
        while len(call.tokens) < 5:
            call.next_event(None)
        harmed = threading.Event()

        def once(data: bytes) -> bytes | None:
            if harmed.is_set():
                return data
            harmed.set()
            return harm(data)

        relay.harm = once
        with contextlib.suppress(NodeLost):
            call.result()
        assert call.tokens == undisturbed[: len(call.tokens)]
        if harm(b"ab") != b"abab":
            head.wait_for("link_up")
    deadline = clock.now() + 30.0
    while clock.now() < deadline:
        with contextlib.suppress(NoNode, NodeLost):
            assert ask(state, "harmed", 400) == undisturbed
            return
    pytest.fail("the node never served again")
