"""Cases from the field on the real cores under virtual time; each test has its case's number."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from bus.ids import PackedIds, pack_ids
from head.core import CorePolicy
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.memory_fleet import CLIENT, MemoryFleet, Stream
from tests.harness.memory_node import NodeHost
from tests.harness.memory_parts import STEP_S, WINDOW, expected_tokens

#: More requests than the four lanes of a node and the one that it may have ahead.
MORE_THAN_ROOM = 8


def whole_answer(prompt: str, count: int) -> list[int]:
    return expected_tokens(pack_ids(list(prompt.encode())), count)


def check_complete(stream: Stream, prompt: str, count: int) -> None:
    assert stream.error is None
    assert stream.end is not None
    assert stream.end["finish"] == "length"
    assert stream.tokens == whole_answer(prompt, count)


def check_idle(fleet: MemoryFleet) -> None:
    """Every counter is back at nothing."""
    assert fleet.head is not None
    core = fleet.head.core
    answers = core.status(fleet.now)["answers"]
    assert (answers["running"], answers["queued"]) == (0, 0)
    assert all(not node.claims for node in core.fleet.nodes)
    for node in fleet.nodes:
        assert node.worker is not None
        assert not node.worker.running
        assert node.core is not None
        assert not node.core.is_busy


# --- L4: what a bad path does to frames -------------------------------------------------------


class Mischief:
    """Does one kind of harm to some frames. Seeded."""

    def __init__(self, kind: str, seed: int, share: float = 0.1) -> None:
        self._do: Callable[[str, bytes], list[bytes]] = getattr(self, f"_{kind}")
        self._rng = random.Random(seed)
        self._share = share
        self._earlier: dict[str, list[bytes]] = {}
        self._held: dict[str, bytes] = {}
        self.done = 0

    def __call__(self, way: str, frame: bytes) -> list[bytes]:
        self._earlier.setdefault(way, []).append(frame)
        if held := self._held.pop(way, b""):
            return [frame, held]
        if self._rng.random() >= self._share:
            return [frame]
        self.done += 1
        return self._do(way, frame)

    def _duplicated(self, way: str, frame: bytes) -> list[bytes]:
        return [frame, frame]

    def _replayed(self, way: str, frame: bytes) -> list[bytes]:
        return [frame, *self._rng.choices(self._earlier[way], k=20)]

    def _swapped(self, way: str, frame: bytes) -> list[bytes]:
        self._held[way] = frame
        return []

    def _cut(self, way: str, frame: bytes) -> list[bytes]:
        return [frame[: self._rng.randrange(len(frame))]]

    def _flipped(self, way: str, frame: bytes) -> list[bytes]:
        changed = bytearray(frame)
        changed[self._rng.randrange(len(frame))] ^= 1 << self._rng.randrange(8)
        return [bytes(changed)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["duplicated", "replayed", "swapped", "cut", "flipped"])
def test_l4_nothing_is_applied_twice_and_the_link_is_made_again(kind: str, seed: int) -> None:
    fleet = MemoryFleet(seed=seed, nodes=2)
    fleet.run(1.0)
    harm = fleet.mangle = Mischief(kind, seed)
    streams = [fleet.generate(f"{kind} {i}", 40) for i in range(6)]
    fleet.finish(*streams, limit_s=300)
    assert harm.done > 0
    for i, stream in enumerate(streams):
        assert stream.tokens == whole_answer(f"{kind} {i}", len(stream.tokens))
        if kind in ("duplicated", "replayed"):
            # Old frames are dropped and change nothing at all.
            check_complete(stream, f"{kind} {i}", 40)
        else:
            assert stream.end or (stream.error and stream.error["code"] in {"node_lost", "no_node"})
    fleet.mangle = lambda way, frame: [frame]
    fleet.run(60.0)
    assert fleet.head is not None
    assert all(node.up for node in fleet.head.core.fleet.nodes)
    last = fleet.generate("healed", 10)
    fleet.finish(last)
    check_complete(last, "healed", 10)


@pytest.mark.parametrize("from_start", [True, False])
def test_l4_a_recorded_conversation_played_to_the_head_again_changes_nothing(
    from_start: bool,
) -> None:
    fleet = MemoryFleet()
    recorded: list[bytes] = []

    def record(way: str, frame: bytes) -> list[bytes]:
        if way == "node-1 > head":
            recorded.append(frame)
        return [frame]

    fleet.mangle = record
    stream = fleet.generate("recorded", 20)
    fleet.finish(stream)
    fleet.run(5.0)
    assert fleet.head is not None
    assert len(recorded) > 10
    host, core, before = fleet.head, fleet.head.core, fleet.head.gate.durable_lsn
    if not from_start:
        # The node is away meanwhile, so nobody else is there under its identity.
        fleet.nodes[0].cut = True
        fleet.nodes[0].cut_connection()
        fleet.run(1.0)
        before = host.gate.durable_lsn
    up = [node.up for node in core.fleet.nodes]
    for frame in recorded:
        host.receive(b"stranger", frame)
    fleet.run(20.0)
    assert [node.up for node in core.fleet.nodes] == up
    assert host.acceptor.endpoint(b"stranger") is None
    assert host.acceptor.half_open == 0
    assert host.gate.durable_lsn == before
    assert fleet.disk.tokens(stream.session) == 20


# --- L9, L12 ----------------------------------------------------------------------------------


def test_l9_a_wall_clock_that_jumps_moves_no_lease_timer_or_rate() -> None:
    # The cores are handed boot time alone; the head's one wall time at its start names moments in
    # stored rows. Whatever it says, a run is the same to the event.
    def story(wall_offset_s: float) -> list[Any]:
        fleet = MemoryFleet(seed=9)
        assert fleet.head is not None
        fleet.head.core.book._wall_offset_s += wall_offset_s
        streams = [fleet.generate(f"p{i}", 300, credit=500, max_wall_ms=60_000) for i in range(3)]
        fleet.run(40.0)
        return [(stream.events, stream.end) for stream in streams]

    usual = story(0.0)
    assert all(end is not None for _, end in usual)
    assert story(3600.0) == usual
    assert story(-3600.0) == usual


def test_l12_a_head_that_is_stalled_for_more_than_1024_tokens_gets_all_in_order() -> None:
    fleet = MemoryFleet(nodes=2, policy=CorePolicy(runs=RunPolicy(lease_s=300.0)))
    fleet.run(1.0)
    stream = fleet.generate("stalled", 1600, credit=4096)
    fleet.run_until(lambda: len(stream.tokens) > 20)
    node = next(node for node in fleet.nodes if node.worker and node.worker.running)
    (sequence,) = node.worker.running.values()  # type: ignore[union-attr]
    # Nothing is durable within a minute, so nothing is acknowledged for 3,000 steps' time.
    fleet.commit_s = 60.0
    fleet.run(59.0)
    assert sequence.paused
    # The node stops well within its window; of what it keeps nothing is dropped.
    assert sequence.made - len(stream.tokens) <= 1024
    fleet.finish(stream, limit_s=1000)
    check_complete(stream, "stalled", 1600)
    fleet.run(200.0)
    check_idle(fleet)


def test_l12_a_stream_whose_lease_ran_out_behind_a_stalled_disk_ends_and_does_not_hang() -> None:
    # Until streams move, `node_lost` with the offset is what has to be said.
    fleet = MemoryFleet()
    fleet.run(1.0)
    stream = fleet.generate("fenced", 3000, credit=4096)
    fleet.run_until(lambda: len(stream.tokens) > 20)
    fleet.commit_s = 30.0
    fleet.run(60.0)
    fleet.commit_s = 0.002
    fleet.finish(stream, limit_s=60.0)
    assert stream.error is not None
    assert stream.error["code"] == "node_lost"
    assert "its lease ran out" in stream.error["message"]
    offset = stream.error["details"]["offset"]
    assert stream.tokens == whole_answer("fenced", offset)
    fleet.run(10.0)
    check_idle(fleet)
    again = fleet.generate("again", 5)
    fleet.finish(again)
    check_complete(again, "again", 5)


# --- G2: every way to leave -------------------------------------------------------------------


@pytest.mark.parametrize("credit", [1, 256])
@pytest.mark.parametrize("stage", ["queue", "decode"])
def test_g2_cancel_frees_the_lane_within_a_step_and_100_ms(stage: str, credit: int) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    count = MORE_THAN_ROOM if stage == "queue" else 0
    others = [fleet.generate(f"o{i}", 300) for i in range(count)]
    stream = fleet.generate("leave", 200, credit=credit)
    fleet.run(1.0)
    assert fleet.nodes[0].worker is not None
    running = set(fleet.nodes[0].worker.running)
    gone = fleet.request("cancel", about=stream.id)
    fleet.run(STEP_S + 0.1)
    assert gone.end is not None
    if stage == "decode":
        assert not fleet.nodes[0].worker.running
        # A reader without credit keeps its cursor: it gets the rest, then the end.
        fleet.request("more", about=stream.id, credit=100)
        fleet.run(0.1)
    else:
        assert set(fleet.nodes[0].worker.running) == running
        assert not stream.tokens
    assert stream.end is not None
    assert stream.end["finish"] == "cancelled"
    assert stream.tokens == whole_answer("leave", len(stream.tokens))
    for other in others:
        fleet.request("cancel", about=other.id)
    fleet.run(1.0)
    check_idle(fleet)


@pytest.mark.parametrize("stage", ["queue", "decode"])
def test_g2_a_client_that_vanished_is_cancelled_after_its_grace(stage: str) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    count = MORE_THAN_ROOM if stage == "queue" else 1
    for i in range(count):
        fleet.generate(f"v{i}", 3000, credit=4096)
    fleet.run(1.0)
    assert fleet.head is not None
    core = fleet.head.core
    core.client_gone(CLIENT, fleet.now)
    fleet.head.turn()
    fleet.run(4.9)
    answers = core.status(fleet.now)["answers"]
    assert answers["running"] + answers["queued"] == count
    fleet.run(0.1 + STEP_S + 0.1)
    check_idle(fleet)


def test_g2_a_client_that_vanished_and_asked_to_keep_finds_its_answer() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    kept = fleet.generate("kept", 400, on_disconnect="keep")
    fleet.run(1.0)
    assert fleet.head is not None
    fleet.head.core.client_gone(CLIENT, fleet.now)
    fleet.head.turn()
    fleet.run(20.0)
    again = fleet.request("attach", session=kept.session, offset=len(kept.tokens))
    fleet.finish(again)
    assert kept.tokens + again.tokens == whole_answer("kept", 400)
    check_idle(fleet)


def test_g2_a_client_that_comes_back_within_the_grace_keeps_its_stream() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    stream = fleet.generate("back", 400)
    fleet.run(1.0)
    assert fleet.head is not None
    fleet.head.core.client_gone(CLIENT, fleet.now)
    fleet.head.turn()
    fleet.run(4.0)
    again = fleet.request("attach", session=stream.session, offset=len(stream.tokens))
    fleet.finish(again)
    assert stream.tokens + again.tokens == whole_answer("back", 400)


# --- G5, G6, G9, G10 --------------------------------------------------------------------------


def test_g5_a_prompt_longer_than_every_window_is_refused_with_both_numbers() -> None:
    fleet = MemoryFleet(nodes=2, windows=(100, WINDOW))
    fleet.run(1.0)
    stream = fleet.generate("x" * (WINDOW + 1), 5)
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "context_length_exceeded"
    assert stream.error["details"] == {"length": WINDOW + 1, "max": WINDOW}
    assert str(WINDOW) in stream.error["message"]
    assert str(WINDOW + 1) in stream.error["message"]
    check_idle(fleet)


@pytest.mark.parametrize("policy", ["load-aware", "least-loaded", "round-robin"])
def test_g5_a_prompt_longer_than_one_window_goes_to_the_node_that_holds_it(policy: str) -> None:
    fleet = MemoryFleet(nodes=2, windows=(100, WINDOW), policy=placed_by(policy))
    fleet.run(1.0)
    prompts = [f"{i}" * 101 for i in range(6)]
    streams = [fleet.generate(prompt, 5) for prompt in prompts]
    fleet.finish(*streams)
    for stream, prompt in zip(streams, prompts, strict=True):
        check_complete(stream, prompt, 5)
        assert stream.end is not None
        assert stream.end["node"] == "node-2"
        assert stream.end["usage"]["prompt"] == 101


def placed_by(policy: str) -> CorePolicy:
    return CorePolicy(runs=RunPolicy(waiting=WaitingPolicy(placement=policy)))


def test_g9_a_wall_budget_of_a_millisecond_expires_and_leaves_nothing() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    blockers = [fleet.generate(f"b{i}", 100) for i in range(MORE_THAN_ROOM)]
    fleet.run(0.1)
    stream = fleet.generate("late", 50, max_wall_ms=1)
    fleet.finish(stream, limit_s=1.0)
    assert stream.error is not None
    assert stream.error["code"] == "expired"
    assert "max_wall_ms" in stream.error["message"]
    fleet.finish(*blockers)
    check_idle(fleet)


@pytest.mark.parametrize(
    "bias", [{"999999": 1.0}, {"x": 1.0}, {"1": math.inf}, {"1": math.nan}, [1], "1"]
)
def test_g10_logit_bias_is_refused_by_name_and_never_passed_over(bias: Any) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    stream = fleet.generate("bias", 5, logit_bias=bias)
    fleet.finish(stream)
    assert stream.error is not None
    assert (stream.error["code"], stream.error["param"]) == ("invalid", "logit_bias")
    good = fleet.generate("next", 5)
    fleet.finish(good)
    check_complete(good, "next", 5)


def test_g10_an_empty_logit_bias_is_fine() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("no bias", 5, logit_bias={})
    fleet.finish(stream)
    check_complete(stream, "no bias", 5)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *((name, value) for name in ("temperature", "top_p", "min_p") for value in (math.nan, -1)),
        *((name, math.inf) for name in ("temperature", "top_p", "min_p")),
        ("top_k", -1),
        ("top_k", 1 << 40),
        ("max_new", -1),
        ("max_new", 1 << 40),
        ("max_new", "many"),
        ("max_wall_ms", -1),
        # Once one request of this kind ended the head.
        ("max_wall_ms", (1 << 64) - 1),
        ("seed", -1),
        ("seed", "seven"),
        ("tokens", [-1]),
        ("tokens", ["a"]),
        ("tokens", []),
    ],
)
def test_g10_a_number_out_of_its_range_is_refused_by_name(param: str, value: Any) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    body = {"model": "toy", "prompt": "bad", "max_new": 3, param: value}
    if param == "tokens":
        del body["prompt"]
    stream = fleet.request("generate", **body)
    fleet.finish(stream)
    assert stream.error is not None, f"{param} {value!r} was served"
    assert stream.error["code"] == "invalid"
    assert stream.error["param"].split("[")[0] == ("prompt" if value == [] else param)
    good = fleet.generate("next", 5)
    fleet.finish(good)
    check_complete(good, "next", 5)


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) - 1, (1 << 64) - 1])
def test_g10_every_seed_of_64_bits_is_served(seed: int) -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("seed", 3, seed=seed)
    fleet.finish(stream)
    check_complete(stream, "seed", 3)


# --- T1 ---------------------------------------------------------------------------------------

SPOKEN = "안녕하세요 👩‍👩‍👧‍👦 한국어 é 🇰🇷!"


def speak(prompt: PackedIds, count: int) -> list[int]:
    """A model that says the same text byte by byte, over and over."""
    data = SPOKEN.encode()
    return [data[place % len(data)] for place in range(count)]


def speaking_fleet() -> MemoryFleet:
    fleet = MemoryFleet()
    node: NodeHost = fleet.nodes[0]
    node.answer = speak
    node.kill_worker()
    fleet.run(1.0)
    return fleet


def test_t1_streamed_text_has_whole_characters_wherever_the_tokens_are_cut() -> None:
    fleet = speaking_fleet()
    whole = SPOKEN.encode()
    streams = [fleet.generate(f"p{i}", i, credit=500) for i in range(len(whole) + 1)]
    fleet.finish(*streams)
    for count, stream in enumerate(streams):
        assert stream.error is None
        assert stream.tokens == list(whole[:count])
        # max_new may end inside a character: what is cut there is dropped.
        assert stream.text == whole[:count].decode(errors="ignore")
        for event in stream.events:
            assert "\ufffd" not in event.get("text", "")


def test_t1_text_from_any_cursor_is_the_rest_of_the_whole() -> None:
    fleet = speaking_fleet()
    whole = SPOKEN.encode()
    stream = fleet.generate("p", len(whole), key="t1", credit=500)
    fleet.finish(stream)
    assert stream.text == SPOKEN
    for offset in range(len(whole) + 1):
        again = fleet.request("attach", key="t1", offset=offset)
        fleet.finish(again)
        before = whole[:offset].decode(errors="ignore")
        assert before + again.text == SPOKEN
