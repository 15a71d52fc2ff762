"""Return addresses that strangers choose: they neither end the process nor take anybody's place."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.transport.routing_ids import RoutingIds
from tests.harness.acceptor_fleet import hello_of
from tests.harness.link_identities import node
from tests.harness.link_sides import Stage
from tests.harness.strangers import GREETING, READY, Stranger, zmtp_frame

#: Where the counter of an unseeded process begins: 2^31 * lowest bit of rand()'s second number
#: and its first.
UNSEEDED = 0x6B8B4567
HEAD = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.harness.link_sides import Stage
stage = Stage("tcp://127.0.0.1:0")
head = stage.head()
print(head.links.address, head.links._given._first, flush=True)
stage.loop.run()
"""


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage("tcp://127.0.0.1:0")
    yield made
    made.close()


def choosing(address: bytes) -> bytes:
    """The greeting of a peer that chooses its return address."""
    ready = READY[2:] + b"\x08Identity" + struct.pack(">I", len(address)) + address
    return GREETING + b"\x04" + bytes([len(ready)]) + ready


def automatic(number: int) -> bytes:
    return b"\0" + (number % 2**32).to_bytes(4, "big")


@pytest.fixture
def head_process() -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", HEAD, root], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        address, first = child.stdout.readline().split()
        yield child, address, int(first)
        child.kill()


def test_strangers_who_choose_the_next_addresses_do_not_end_the_process(
    head_process: tuple[subprocess.Popen[str], str, int], stage: Stage
) -> None:
    """libzmq aborts when it gives out an address that is taken; unseeded, all begin alike."""
    child, address, first = head_process
    assert first != UNSEEDED
    choosers = [Stranger(address).greet(choosing(automatic(UNSEEDED + n))) for n in range(12)]
    for _ in range(24):
        Stranger(address).greet().close()
    linked = stage.node(address)
    stage.until(lambda: linked.link.is_up)
    assert child.poll() is None
    for each in choosers:
        each.close()


def test_counters_of_two_processes_begin_apart(
    head_process: tuple[subprocess.Popen[str], str, int], stage: Stage
) -> None:
    assert stage.head().links._given._first != head_process[2]


@pytest.mark.parametrize("far", [-1, 0, 1000, 2**31])
def test_who_chose_an_address_is_cut_when_it_speaks(stage: Stage, far: int) -> None:
    head = stage.head()
    first = head.links._given._first
    for chosen in (b"gpu-2", automatic(first + far)):
        with Stranger(head.links.address) as stranger:
            stranger.greet(choosing(chosen))
            stranger.say(zmtp_frame(hello_of(node(), chosen)))
            stage.until(lambda stranger=stranger: stranger.is_cut)  # type: ignore[misc]
    assert [event.reason for _, event in head.seen] == [
        "a peer connected and chose its own return address; it was cut off"
    ] * 2
    assert head.acceptor.half_open == 0
    linked = stage.node(head.links.address)
    stage.until(lambda: linked.link.is_up)


def test_addresses_that_were_given_out_are_told_from_others() -> None:
    given = RoutingIds.__new__(RoutingIds)
    given._first = 2**32 - 2
    assert given.gave(automatic(2**32 - 1), 3)
    assert given.gave(automatic(0), 3)
    assert given.gave(automatic(1), 3)
    assert not given.gave(automatic(2), 3)
    assert not given.gave(automatic(2**32 - 2), 3)
    for other in (b"", b"\0", b"\0abc", b"\1abcd", b"\0abcde"):
        assert not given.gave(other, 2**31)
