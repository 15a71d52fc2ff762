"""The head's links while tokens and keys change under them, over real sockets in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.crypto import KeyPair
from bus.keys import FleetToken, load_or_create_static_key, load_token, new_token
from bus.link import LinkDown, LinkUp, PeerInfo, PeerRefused
from bus.log import EventLog
from bus.secret_files import create_secret_file
from bus.state import StateFolder
from bus.token_files import previous_file, retire_token, rotate_token
from head.config import FleetSection
from head.core import CorePolicy, HeadCore
from head.enrolment import Way
from head.link_identity import KEY_FILE, token_file
from head.links import FleetLinks
from head.rows import StoredState
from tests.harness.link_identities import key
from tests.harness.link_sides import NodeSide, Stage


class RealHead:
    """A core and its links in a stage's loop."""

    def __init__(self, stage: Stage, path: Path, way: Way = "open") -> None:
        self.stage = stage
        state = StateFolder.resolve(path)
        state.prepare()
        self.key: KeyPair = load_or_create_static_key(state.keys / KEY_FILE)
        config = FleetSection(bind="tcp://127.0.0.1:0")
        self.file = token_file(config, state)
        create_secret_file(self.file, new_token(self.key.public))
        stored = StoredState(boot=3, head_id="h", answers=())
        policy = CorePolicy(enrolment=way)
        self.core = HeadCore(policy, stored, entropy=os.urandom, now=0.0, wall_s=1e9)
        self.links = FleetLinks(
            stage.loop, config, state, stored, self.core.enrolment, EventLog("head")
        )
        stage.loop.on_turn(self._turn)

    def _turn(self, now: float) -> None:
        self.links.deliver(self.core, now)
        self.core.effects()
        self.links.flush(now)

    @property
    def half_open(self) -> int:
        assert self.links._router is not None
        return self.links._router.acceptor.half_open

    def rotate(self) -> tuple[FleetToken, FleetToken]:
        """The previous token and the current one, both valid."""
        rotate_token(self.file, new_token(self.key.public))
        self.stage.until(lambda: len(self.links._identity.tokens) == 2)
        return load_token(previous_file(self.file)), load_token(self.file)

    def retire(self) -> None:
        retire_token(self.file)
        self.stage.until(lambda: len(self.links._identity.tokens) == 1)

    def up(self) -> list[str]:
        return sorted(node["identity"] for node in self.nodes() if node["state"] == "up")

    def nodes(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.core.status(0.0)["nodes"]
        return found

    def half_open_node(self, name: str, token: FleetToken) -> NodeSide:
        """A node whose HelloAck waits for it: its loop is not turned meanwhile."""
        own = self.stage.own_loop()
        node = self.stage.node(self.links.address, name, loop=own, token=token)
        self.stage.until(lambda: node.link.connected, own)
        own.turn(0.05)
        self.stage.until(lambda: self.half_open == 1)
        self.own = own
        return node


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage("")
    yield made
    made.close()


@pytest.fixture
def head(stage: Stage, tmp_path: Path) -> Iterator[RealHead]:
    made = RealHead(stage, tmp_path / "s")
    yield made
    made.links.close()


def codes(node: NodeSide, kind: type[LinkDown] | type[PeerRefused]) -> list[str]:
    return [event.code for event in node.seen if isinstance(event, kind)]


def test_a_retired_token_ends_its_own_links_and_no_other(stage: Stage, head: RealHead) -> None:
    former, current = head.rotate()
    old = stage.node(head.links.address, "old", token=former)
    new = stage.node(head.links.address, "new", token=current)
    stage.until(lambda: head.up() == ["new", "old"])
    head.retire()
    stage.until(lambda: head.up() == ["new"])
    stage.until(lambda: codes(old, LinkDown) == ["goodbye"])
    stage.until(lambda: "token_refused" in codes(old, PeerRefused))
    assert [type(event) for event in new.seen] == [LinkUp]


def test_a_handshake_under_way_does_not_outlive_its_token(stage: Stage, head: RealHead) -> None:
    former, current = head.rotate()
    node = head.half_open_node("late", former)
    head.retire()
    stage.until(lambda: codes(node, PeerRefused) == ["token_refused"], head.own)
    assert head.up() == []
    stage.until(lambda: head.half_open == 0)
    # Of the current token it would have come up.
    node = head.half_open_node("prompt", current)
    stage.until(lambda: head.up() == ["prompt"], head.own)


def test_a_handshake_under_way_does_not_outlive_its_key(stage: Stage, head: RealHead) -> None:
    enrolled = PeerInfo(name="bad", role="node", public=key("bad").public, incarnation=1)
    head.core.enrolment.linked(enrolled, 1e9)
    again = head.half_open_node("bad", load_token(head.file))
    head.core.enrolment.revoke("bad", 1e9)
    stage.until(lambda: codes(again, PeerRefused) == ["revoked"], head.own)
    assert head.up() == []
    (refused,) = [event for event in again.seen if isinstance(event, PeerRefused)]
    assert "sfctl node forget bad" in refused.reason


def test_a_node_that_waits_is_noted_with_its_host_once_it_proved_its_key(
    stage: Stage, tmp_path: Path
) -> None:
    head = RealHead(stage, tmp_path / "a", "approve")
    token = load_token(head.file)
    node = head.half_open_node("new", token)
    assert head.core.enrolment.report()["keys"] == []
    stage.until(lambda: codes(node, PeerRefused) == ["not_enrolled"], head.own)
    (waits,) = head.core.enrolment.report()["keys"]
    assert (waits["identity"], waits["state"], waits["host"]) == ("new", "pending", "127.0.0.1")
    head.links.close()


def test_files_that_others_can_read_are_refused_and_the_tokens_stay(
    stage: Stage, head: RealHead
) -> None:
    former, _ = head.rotate()
    previous_file(head.file).chmod(0o644)
    node = stage.node(head.links.address, "old", token=former)
    stage.until(lambda: head.up() == ["old"])
    # Whoever read it has it: it is retired like any other.
    head.retire()
    stage.until(lambda: codes(node, LinkDown) == ["goodbye"])
