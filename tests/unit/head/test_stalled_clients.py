"""Clients whose connection takes nothing: their answers wait, whole and in order."""

from __future__ import annotations

from typing import Any

import pytest

from bus.messages.link import GenerateReq, WatermarkAck
from tests.harness.head_bench import CLIENT, Bench, run


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.node(1)
    return bench


def events(bench: Bench, request: bytes) -> list[dict[str, Any]]:
    """Token events and the end."""
    return [
        reply
        for reply in bench.replies
        if reply["id"] == request and (reply["kind"] == "end" or reply.get("type") == "token")
    ]


def test_what_comes_meanwhile_waits_and_comes_at_once_later(bench: Bench) -> None:
    bench.ask(b"q", max_new=4)
    request = bench.last(GenerateReq)
    bench.hear(1, run(request, 0, 65))
    bench.core.client_stalled(CLIENT)
    bench.hear(1, run(request, 1, 66))
    bench.hear(1, run(request, 2, 67, 68, finish="length"))
    assert [event["tokens"] for event in events(bench, b"q")] == [[65]]
    bench.core.client_reads(CLIENT, 1.0)
    bench.settle()
    rest, end = events(bench, b"q")[1:]
    assert (rest["offset"], rest["tokens"]) == (1, [66, 67, 68])
    assert end["usage"]["completion"] == 4


def test_what_is_asked_meanwhile_waits_too(bench: Bench) -> None:
    bench.core.client_stalled(CLIENT)
    bench.ask(b"q", max_new=1)
    bench.hear(1, run(bench.last(GenerateReq), 0, 65, finish="length"))
    assert bench.replies == []
    bench.core.client_reads(CLIENT, 1.0)
    bench.settle()
    assert [event["kind"] for event in events(bench, b"q")] == ["event", "end"]


def test_a_node_waits_for_it_when_the_request_says_so(bench: Bench) -> None:
    bench.ask(b"q", max_new=300, pause_when_slow=True)
    request = bench.last(GenerateReq)
    bench.hear(1, run(request, 0, 65))
    bench.core.client_stalled(CLIENT)
    bench.hear(1, run(request, 1, 66))
    acknowledged = len(bench.on(1, WatermarkAck))
    bench.hear(1, run(request, 2, *[66] * 298))
    assert len(bench.on(1, WatermarkAck)) == acknowledged
    bench.core.client_reads(CLIENT, 1.0)
    bench.settle()
    assert bench.on(1, WatermarkAck)[-1].watermarks[0].committed == 300


def test_one_that_goes_is_forgotten(bench: Bench) -> None:
    bench.ask(b"q", max_new=4, key="k")
    bench.core.client_stalled(CLIENT)
    bench.core.client_gone(CLIENT, 1.0)
    bench.core.client_reads(CLIENT, 2.0)
    bench.hear(1, run(bench.last(GenerateReq), 0, 65, finish="eos"))
    bench.ask(b"again", key="k", max_new=4)
    assert events(bench, b"again")[-1]["finish"] == "stop"
