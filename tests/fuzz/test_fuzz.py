"""A short run of every fuzz target, what it found before, and what a flood of strangers costs."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import msgpack
import pytest

from bus.errors import DecodeError
from bus.frames import FrameKind, pack_header
from bus.ids import Epoch, NodeIdentity, SessionId
from bus.messages.link import LINK, NodeConfirm, Refused
from bus.messages.parts import ProcessInfo
from bus.unpacking import unpack
from tests.fuzz.generate import change_bytes, random_bytes
from tests.fuzz.links import Hostile
from tests.fuzz.runner import TARGETS, run_case
from tests.harness.acceptor_fleet import hello_of
from tests.harness.head_bench import Bench
from tests.harness.link_identities import head, node

#: Fixed, so that a failure here is this commit's; `make fuzz` draws another each time.
SEED = 20
#: What one case costs differs by a thousand times.
CASES = {"acceptor": 25, "dialer": 60, "wire": 60, "head": 60, "agent": 150, "client": 300}


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run(target: str) -> None:
    for number in range(CASES.get(target, 800)):
        run_case(target, SEED, number)


# --- what it found ----------------------------------------------------------------------------


def test_a_start_time_that_no_date_can_show_is_refused() -> None:
    """The acceptor names a rival's start in a sentence; one of the year 33658 ended the head."""
    confirm = NodeConfirm(
        identity=NodeIdentity("n"),
        incarnation=1,
        software="x",
        process=ProcessInfo(pid=1, started_at_s=253_402_300_799.0),
    )
    assert LINK.decode(LINK.encode(confirm)) == confirm
    late = replace(confirm, process=ProcessInfo(pid=1, started_at_s=253_402_300_800.0))
    with pytest.raises(DecodeError, match="started_at_s"):
        LINK.decode(LINK.encode(late))


def test_a_refusal_that_names_an_epoch_beyond_all_closes_the_link() -> None:
    bench = Bench()
    bench.node(1)
    request = bench.ask()
    refused = Refused(
        command=request.command,
        session=SessionId("s"),
        epoch=request.epoch,
        code="stale_epoch",
        message="",
        known_epoch=Epoch(2**64 - 1),
    )
    bench.hear(1, refused)
    ((link, reason),) = bench.closed
    assert link == 1
    assert "no copy of its store is that old" in reason


# --- memory -----------------------------------------------------------------------------------

MIB = 1 << 20


def grown_by(frames: list[bytes], addresses: int) -> int:
    """Bytes that an acceptor holds more after frames from so many addresses that never end."""
    acceptor = Hostile(random.Random(SEED), head()).acceptor
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number, frame in enumerate(frames):
            address = b"\0" + (number % addresses).to_bytes(4, "big")
            acceptor.receive(address, frame, 1000.0 + number / 1000, peer_key=address)
            acceptor.events()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


def test_a_flood_of_anything_from_a_thousand_addresses_holds_little() -> None:
    rng = random.Random(SEED)
    hello = hello_of(node(), b"seed")
    frames = [
        rng.choice(
            (
                random_bytes(rng),
                change_bytes(rng, hello),
                pack_header(FrameKind.DATA, rng.getrandbits(64)) + rng.randbytes(1000),
                pack_header(FrameKind.HELLO, rng.getrandbits(64)) + rng.randbytes(1000),
            )
        )
        for _ in range(8000)
    ]
    assert grown_by(frames, 1000) < 2 * MIB


def test_hellos_of_keys_that_were_never_seen_hold_at_most_256_handshakes() -> None:
    frames = [hello_of(node(f"n{number}"), b"%d" % number) for number in range(400)]
    assert grown_by(frames, 400) < 5 * MIB


def test_data_that_announces_more_than_it_has_costs_nothing() -> None:
    tracemalloc.start()
    try:
        for start in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
            with pytest.raises(DecodeError):
                unpack(start + bytes(100), max_bytes=1 << 20)
        with pytest.raises(DecodeError):
            unpack(msgpack.packb(bytes(2000)), max_bytes=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize("empty", [b"\x90", b"\x80"], ids=["lists", "maps"])
def test_a_message_of_empty_lists_costs_no_multiple_of_its_length(empty: bytes) -> None:
    count = (8 * MIB) - 100
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="more than 262144 lists and maps"):
            unpack(b"\xdd" + count.to_bytes(4, "big") + empty * count, max_bytes=8 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * MIB
    whole = msgpack.packb([[]] * 65_536 + [bytes(70_000)])
    assert len(unpack(whole, max_bytes=MIB)) == 65_537
