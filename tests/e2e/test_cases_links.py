"""Cases from the field on links: real sockets and processes; each test has its case's number."""

from __future__ import annotations

import base64
import contextlib
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import zmq

import superfluid
from bus.endpoint import Endpoint
from bus.errors import NodeLost, NoNode
from bus.keys import load_or_create_static_key, load_token, new_token
from bus.link import LinkIdentity, LinkLimits, PeerRefused
from bus.secret_files import create_secret_file
from bus.transport import clock, link_options
from tests.harness.link_identities import node
from tests.harness.link_sides import Stage
from tests.harness.logged_process import LoggedProcess
from tests.harness.models import toy_model_folder
from tests.harness.strangers import GREETING, Stranger, zmtp_frame

TOKEN = "keys/fleet.token"
NODE_KEY = "nodes/node-1/node.key"


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage("tcp://127.0.0.1:0")
    yield made
    made.close()


def make_state(folder: Path) -> Path:
    """A state folder with a head's key, its token, and the toy model."""
    folder.mkdir(mode=0o700)
    key = load_or_create_static_key(folder / "keys" / "head.key")
    create_secret_file(folder / TOKEN, new_token(key.public))
    (folder / "models").mkdir()
    (folder / "models" / "toy").symlink_to(toy_model_folder().path)
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "s")


def head_process(state: Path, **settings: str) -> LoggedProcess:
    return LoggedProcess("head", state, "--bind", "tcp://127.0.0.1:0", **settings)


def agent_process(state: Path, *arguments: str) -> LoggedProcess:
    small = ("--lanes", "2", "--kv-bytes", str(4 << 20), "--threads", "1")
    return LoggedProcess("agent", state, *small, *arguments)


def memory_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- L1 ---------------------------------------------------------------------------------------


def test_l1_a_peer_that_says_nothing_is_dropped_after_the_handshake_limit(stage: Stage) -> None:
    assert LinkLimits().handshake_s == 10.0
    head = stage.head()
    head.acceptor.limits = LinkLimits(handshake_s=0.5)
    node = stage.node(head.links.address)
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)
    address = head.links.address
    with contextlib.ExitStack() as stack:
        mute = stack.enter_context(Stranger(address))
        greeted = stack.enter_context(Stranger(address).greet())
        half = stack.enter_context(Stranger(address).greet())
        half.say(zmtp_frame(b"SFLF", announce=500))
        quiet: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        stack.enter_context(quiet)
        quiet.linger = 0
        quiet.setsockopt(zmq.RECONNECT_IVL, -1)
        quiet.connect(address)
        started = clock.now()
        stage.until(lambda: mute.is_cut and greeted.is_cut and half.is_cut)
        assert 0.4 < clock.now() - started < 4.0
        refused = [event for where, event in head.seen if isinstance(event, PeerRefused)]
        stage.until(lambda: sum(isinstance(event, PeerRefused) for _, event in head.seen) == 4)
        refused = [event for _, event in head.seen if isinstance(event, PeerRefused)]
        assert {event.code for event in refused} == {"handshake_timeout"}
        # The link that stands was served meanwhile, and still is.
        assert node.link.is_up
        assert head.downs() == []


def test_l1_a_node_that_shook_hands_stays_however_quiet_it_is(stage: Stage) -> None:
    head = stage.head()
    head.acceptor.limits = LinkLimits(handshake_s=0.3)
    node = stage.node(head.links.address)
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)
    until = clock.now() + 0.8
    stage.until(lambda: clock.now() > until)
    assert node.link.is_up
    assert head.downs() == []


# --- L2 ---------------------------------------------------------------------------------------

CROWD = 200


def hello_of(identity: LinkIdentity) -> bytes:
    made = Endpoint(identity, initiator=True, entropy=os.urandom)
    made.connect(0.0)
    hello = made.next_frame()
    assert hello is not None
    return hello


def first_words(kind: str) -> bytes:
    hello = hello_of(node("stranger"))
    largest = hello + bytes(link_options.MAX_FRAME_BYTES - len(hello))
    return {
        "half a hello": zmtp_frame(hello[: len(hello) // 2]),
        "half a frame": zmtp_frame(hello[: len(hello) // 2], announce=len(hello)),
        "largest hello": zmtp_frame(largest),
        "half the largest": zmtp_frame(largest[:150_000], announce=len(largest)),
        "more than a frame": zmtp_frame(hello, announce=1 << 40),
        "half a greeting": GREETING[:20],
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("half a hello", "half a frame", "largest hello", "half the largest"),
        *("more than a frame", "half a greeting"),
    ],
)
def test_l2_a_crowd_of_strangers_costs_little_and_nodes_still_join(
    kind: str, state: Path, stage: Stage
) -> None:
    words = first_words(kind)
    with head_process(state) as head, contextlib.ExitStack() as stack:
        address = head.wait_for("started")["fleet"]
        before = memory_bytes(head.pid)
        for _ in range(CROWD):
            stranger = stack.enter_context(Stranger(address))
            if kind != "half a greeting":
                stranger.greet()
            stranger.say(words)
        joined = node_of(stage, state, address)
        assert joined < 2.0
        assert memory_bytes(head.pid) - before < 100 << 20
        head.wait_for("link_up", node="gpu-1")


def node_of(stage: Stage, state: Path, address: str) -> float:
    """Seconds that a real node takes to join."""
    started = clock.now()
    node = stage.node(address, token=load_token(state / TOKEN))
    stage.until(lambda: node.link.is_up)
    return clock.now() - started


# --- L3 ---------------------------------------------------------------------------------------


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


# --- L10 --------------------------------------------------------------------------------------


def test_l10_a_second_machine_with_one_identity_is_refused_and_told_what_to_do(
    state: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir(mode=0o700)
    create_secret_file(second / TOKEN, (state / TOKEN).read_text().strip())
    (second / "models").symlink_to(state / "models")
    with head_process(state) as head:
        address = head.wait_for("started")["fleet"]
        with agent_process(state, "--identity", "twin") as first:
            first.wait_for("link_up")
            head.wait_for("link_up", node="twin")
            with agent_process(second, "--identity", "twin", "--join", address) as newcomer:
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


# --- L4 ---------------------------------------------------------------------------------------


class Relay:
    """A TCP path between nodes and a head, in a thread: records, and harms what it is told to.

    `harm` gets what a node sent and gives what arrives; None ends the connection there.
    """

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        #: By connection, the oldest first: all bytes from the node.
        self.recorded: list[bytes] = []
        self.harm: Callable[[bytes], bytes | None] = lambda data: data
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="relay")

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._server:
            selector.register(self._server, selectors.EVENT_READ)
            self._pairs: dict[socket.socket, tuple[socket.socket, int]] = {}
            while not self._stop.is_set():
                for key, _ in selector.select(0.02):
                    if key.fileobj is self._server:
                        self._accept(selector)
                    elif key.fileobj in self._pairs:
                        self._carry(selector, key.fileobj)
            for each in self._pairs:
                each.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._server.accept()
        far = socket.create_connection(self._target)
        self.recorded.append(b"")
        self._pairs[near], self._pairs[far] = (far, len(self.recorded) - 1), (near, -1)
        selector.register(near, selectors.EVENT_READ)
        selector.register(far, selectors.EVENT_READ)

    def _carry(self, selector: selectors.BaseSelector, source: socket.socket) -> None:
        to, place = self._pairs[source]
        data: bytes | None = b""
        with contextlib.suppress(ConnectionError):
            data = source.recv(65536)
        if data and place >= 0:
            self.recorded[place] += data
            data = self.harm(data)
        if data:
            with contextlib.suppress(ConnectionError):
                to.sendall(data)
                return
        for each in (source, to):
            selector.unregister(each)
            del self._pairs[each]
            each.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()


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
