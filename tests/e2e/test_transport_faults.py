"""A dialed connection that broke without an end is given up for a new one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from bus.link import LinkLimits
from bus.transport import clock
from tests.harness.fault_connection import Connection, Fault, Sender
from tests.harness.fault_proxy import FaultProxy
from tests.harness.link_sides import HeadSide, NodeSide, Stage

#: Far below libzmq's own limit of 30 s, after which it would give a dead connection up.
SOON_S = 10.0
LIMITS = LinkLimits(silence_s=0.6, heartbeat_s=0.2, handshake_s=0.6, confirm_s=0.6)
#: A ZMTP frame may not have a length of 2^63 bytes.
NO_ZMTP = b"\x02" + b"\xff" * 8
#: Half of a frame that never ends: whatever follows is taken for its rest.
SWALLOWS = b"\x02" + (200_000).to_bytes(8, "big") + random.Random(1).randbytes(100)

Linked = tuple[Stage, HeadSide, NodeSide, FaultProxy]


@pytest.fixture
def linked() -> Iterator[Linked]:
    """A node and a head whose link is up, over a proxy."""
    stage = Stage("tcp://127.0.0.1:0")
    head = stage.head()
    head.acceptor.limits = LIMITS
    with FaultProxy(head.links.address) as proxy:
        node = stage.node(proxy.address, limits=LIMITS)
        stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)
        yield stage, head, node, proxy
        stage.close()


@pytest.mark.parametrize(
    "fault",
    [
        Connection.half_open,
        lambda each: each.stall(Sender.DIALER),
        lambda each: each.stall(Sender.TARGET),
        lambda each: each.insert(Sender.DIALER, SWALLOWS),
        lambda each: each.insert(Sender.TARGET, SWALLOWS),
        lambda each: each.insert(Sender.DIALER, NO_ZMTP),
        lambda each: each.insert(Sender.TARGET, NO_ZMTP),
    ],
    ids=[
        *("half-open", "to-head-stalls", "to-node-stalls", "to-head-swallowed"),
        *("to-node-swallowed", "no-zmtp-to-head", "no-zmtp-to-node"),
    ],
)
def test_the_link_is_made_again_over_a_new_connection(fault: Fault, linked: Linked) -> None:
    stage, _, node, proxy = linked
    started = clock.now()
    proxy.now(fault)
    stage.until(lambda: not node.link.is_up)
    stage.until(lambda: node.link.is_up)
    assert clock.now() - started < SOON_S
