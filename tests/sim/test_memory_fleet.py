"""The real cores under virtual time: streams, cursors, faults, and the output-commit rule."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bus.ids import pack_ids
from bus.messages.api import TokenEvent, TokenLogprob, TopToken
from head.core import CorePolicy
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.memory_fleet import MemoryFleet, Stream
from tests.harness.memory_parts import WINDOW, expected_tokens

ROOT = Path(__file__).parents[2]
#: The sans-IO parts; `time.perf_counter` in the engine is a measurement, and the engine no core.
CORES = [
    *("bus/acceptor.py", "bus/agent_records.py", "bus/agent_session.py"),
    *("bus/client_events.py", "bus/client_request.py", "bus/client_session.py"),
    *("bus/api_maps.py", "bus/codec.py", "bus/struct_codec.py", "bus/unpacking.py"),
    *("bus/context.py", "bus/endpoint.py", "bus/frames.py", "bus/handshake.py"),
    *("bus/head_session.py", "bus/liveness.py", "bus/node_leases.py", "bus/outbox.py"),
    *("bus/timers.py", "agent/core.py", "agent/served_model.py", "agent/worker/scheduler.py"),
    *(
        "head/acks.py",
        "head/answers.py",
        "head/answer_operations.py",
        "head/api.py",
        "head/book.py",
        "head/core.py",
        "head/failover.py",
        "head/generations.py",
        "head/made_sessions.py",
        "head/numbers.py",
        "head/outages.py",
        "head/reconcile.py",
        "head/recovery.py",
        "head/restore.py",
        "head/session_contents.py",
        "head/session_lines.py",
        "head/session_operations.py",
        "head/sessions.py",
        "head/suspects.py",
        "head/unread.py",
    ),
    *("head/fleet.py", "head/fleet_node.py", "head/gate.py", "head/outbox.py"),
    *("head/placement.py", "head/placer.py", "head/queueing.py"),
    *("head/reports.py", "head/runs.py", "head/texts.py", "head/token_intake.py"),
    "head/waiting.py",
    *("agent/worker_jobs.py", "agent/worker_requests.py", "bus/agent_jobs.py"),
    *("bus/messages/job_bodies.py", "bus/messages/link_jobs.py", "head/embed_operations.py"),
    *("head/job_kinds.py", "head/job_records.py", "head/job_refusals.py"),
    *("head/job_requests.py", "head/jobs.py", "head/job_line.py", "head/job_credit.py"),
    *("head/job_holds.py", "head/job_room.py"),
    *("head/job_waits.py", "head/class_turns.py", "head/known_tokenizers.py"),
    *("head/description_waits.py", "head/tokenizer_patience.py", "head/weights.py"),
    *("head/chains.py", "head/pipelines.py", "head/stage_paths.py", "head/stage_workers.py"),
    *("agent/served_names.py", "agent/stages.py", "bus/messages/link_stages.py"),
]
FORBIDDEN = {"time", "datetime", "random", "secrets", "socket", "zmq", "threading", "sqlite3", "os"}


def prompt_ids(prompt: str) -> list[int]:
    return list(prompt.encode())


def whole_answer(prompt: str, count: int) -> list[int]:
    return expected_tokens(pack_ids(prompt_ids(prompt)), count)


def check_complete(stream: Stream, prompt: str, count: int) -> None:
    assert stream.error is None
    assert stream.end is not None
    assert stream.end["finish"] == "length"
    assert stream.tokens == whole_answer(prompt, count)
    assert stream.text == bytes(stream.tokens).decode()


@pytest.mark.parametrize("path", CORES)
def test_core_imports_no_clock_no_randomness_and_no_io(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & FORBIDDEN


def test_answer_arrives_whole_with_usage_and_node() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("hello", 20)
    fleet.finish(stream)
    check_complete(stream, "hello", 20)
    assert stream.end is not None
    assert stream.end["usage"] == {"prompt": 5, "cached": 0, "completion": 20, "replayed": 0}
    assert stream.end["node"] == "node-1"
    assert stream.end["offset"] == 20


def test_round_robin_gives_both_nodes_work() -> None:
    policy = CorePolicy(runs=RunPolicy(waiting=WaitingPolicy(placement="round-robin")))
    fleet = MemoryFleet(nodes=2, policy=policy)
    fleet.run(1.0)
    streams = [fleet.generate(f"p{i}", 5) for i in range(6)]
    fleet.finish(*streams)
    assert [s.end and s.end["node"] for s in streams].count("node-1") == 3


def test_more_requests_than_lanes_wait_at_the_head_and_all_end() -> None:
    fleet = MemoryFleet()
    streams = [fleet.generate(f"prompt {i}", 10) for i in range(20)]
    fleet.finish(*streams)
    for i, stream in enumerate(streams):
        check_complete(stream, f"prompt {i}", 10)
    assert any(event["type"] == "queued" for event in streams[-1].events)


def test_nothing_leaves_while_the_disk_is_slow() -> None:
    fleet = MemoryFleet(commit_s=0.5)
    stream = fleet.generate("slow disk", 12)
    fleet.finish(stream)
    check_complete(stream, "slow disk", 12)


def test_queue_of_requests_before_any_node_is_up_is_refused_with_the_reason() -> None:
    fleet = MemoryFleet(nodes=0)
    stream = fleet.generate("hello", 5)
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "no_node"


def test_prompt_longer_than_every_window_is_refused_with_both_numbers() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    stream = fleet.generate("x" * (WINDOW + 1), 5)
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "context_length_exceeded"
    assert stream.error["details"] == {"length": WINDOW + 1, "max": WINDOW}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("fault", ["worker", "agent", "cable"])
def test_stream_goes_on_after_its_node_or_worker_or_link_was_lost(fault: str, nodes: int) -> None:
    fleet = MemoryFleet(nodes=nodes)
    stream = fleet.generate("survivor", 200)
    fleet.run_until(lambda: len(stream.tokens) >= 10)
    node = next(node for node in fleet.nodes if node.worker and node.worker.running)
    {"worker": node.kill_worker, "agent": node.kill, "cable": node.cut_connection}[fault]()
    if fault == "agent":
        fleet.after(3.0, node.start)
    fleet.finish(stream)
    check_complete(stream, "survivor", 200)
    again = fleet.request("attach", session=stream.session, offset=4)
    fleet.finish(again)
    assert again.tokens == stream.tokens[4:]


def test_stream_ends_with_its_offset_when_no_node_comes_in_time() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("doomed", 200)
    fleet.run_until(lambda: len(stream.tokens) >= 10)
    fleet.nodes[0].kill()
    lost_s = fleet.now
    fleet.finish(stream)
    assert 30.0 <= fleet.now - lost_s <= 32.0
    assert stream.error is not None
    assert stream.error["code"] == "node_lost"
    offset = stream.error["details"]["offset"]
    assert stream.tokens == whole_answer("doomed", offset)
    again = fleet.request("attach", session=stream.session, offset=4)
    fleet.finish(again)
    assert again.tokens == stream.tokens[4:]
    assert again.error is not None
    assert again.error["code"] == "node_lost"


def test_node_serves_again_after_its_worker_died() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    fleet.nodes[0].kill_worker()
    fleet.run(1.0)
    stream = fleet.generate("again", 5)
    fleet.finish(stream)
    check_complete(stream, "again", 5)


def test_node_serves_again_after_its_agent_was_killed_and_started() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    fleet.nodes[0].kill()
    fleet.nodes[0].start()
    fleet.run(3.0)
    stream = fleet.generate("again", 5)
    fleet.finish(stream)
    check_complete(stream, "again", 5)


def test_killed_head_goes_on_with_what_runs() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("head dies", 200, key="k")
    fleet.run_until(lambda: len(stream.tokens) >= 10)
    fleet.kill_head()
    delivered = list(stream.tokens)
    fleet.start_head()
    again = fleet.request("attach", key="k")
    fleet.finish(again)
    assert again.tokens[: len(delivered)] == delivered
    check_complete(again, "head dies", 200)
    assert not any(event["type"] == "moved" for event in again.events)
    fresh = fleet.generate("fresh", 5)
    fleet.finish(fresh)
    check_complete(fresh, "fresh", 5)


def test_numbers_do_not_repeat_over_a_restart_of_the_head() -> None:
    fleet = MemoryFleet()
    first = fleet.generate("one", 3)
    fleet.finish(first)
    fleet.kill_head()
    fleet.start_head()
    fleet.run(3.0)
    second = fleet.generate("two", 3)
    fleet.finish(second)
    assert first.session != second.session
    check_complete(second, "two", 3)


def test_cancel_frees_the_lane_and_ends_with_what_was_made() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("stop me", 200)
    fleet.run_until(lambda: len(stream.tokens) >= 5)
    fleet.request("cancel", about=stream.id)
    fleet.finish(stream, limit_s=1.0)
    assert stream.end is not None
    assert stream.end["finish"] == "cancelled"
    assert stream.tokens == whole_answer("stop me", len(stream.tokens))
    node = fleet.nodes[0]
    fleet.run(0.5)
    assert node.worker is not None
    assert not node.worker.running


def test_cancel_in_the_queue_leaves_the_queue_empty() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    streams = [fleet.generate(f"q{i}", 50) for i in range(8)]
    fleet.run(0.2)
    fleet.request("cancel", about=streams[-1].id)
    fleet.finish(streams[-1], limit_s=0.2)
    assert streams[-1].end is not None
    assert streams[-1].end["finish"] == "cancelled"
    fleet.finish(*streams)
    assert fleet.head is not None
    assert fleet.head.core.runs.waiting.counts() == {}


def test_credit_pauses_a_reader_and_more_continues_it() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("slow reader", 60, credit=3)
    fleet.run(10.0)
    assert not stream.closed
    assert len(stream.events) == 3
    fleet.request("more", about=stream.id, credit=100)
    fleet.finish(stream)
    check_complete(stream, "slow reader", 60)


def test_repeated_key_attaches_to_the_same_answer() -> None:
    fleet = MemoryFleet()
    one = fleet.generate("once", 30, key="same")
    fleet.run(0.3)
    two = fleet.generate("once", 30, key="same")
    fleet.finish(one, two)
    check_complete(one, "once", 30)
    check_complete(two, "once", 30)
    assert fleet.nodes[0].worker is not None
    assert fleet.head is not None
    assert fleet.head.core.fleet.nodes
    assert [node.sessions_placed for node in fleet.head.core.fleet.nodes] == [1]


def test_cursor_above_the_answer_is_an_error() -> None:
    fleet = MemoryFleet()
    one = fleet.generate("short", 5, key="c")
    fleet.finish(one)
    ahead = fleet.request("attach", key="c", offset=6)
    fleet.finish(ahead)
    assert ahead.error is not None
    assert ahead.error["code"] == "cursor_ahead"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "toy", "prompt": "", "max_new": 1}, "prompt"),
        ({"model": "toy", "max_new": 1}, "prompt"),
        ({"model": "toy", "prompt": "a", "tokens": [1]}, "prompt"),
        ({"model": "toy", "tokens": [65_536]}, "tokens"),
        ({"model": "toy", "prompt": "a", "temperature": -1.0}, "temperature"),
        ({"model": "toy", "prompt": "a", "top_p": 2}, "top_p"),
        ({"model": "toy", "prompt": "a", "stop": ""}, "stop"),
        ({"model": "toy", "prompt": "a", "tools": [{"name": "x"}]}, "tools"),
        ({"model": "toy", "prompt": "a", "n": 2}, "n"),
        ({"model": "toy", "prompt": "a", "qos": "urgent"}, "qos"),
        ({"model": "nope", "prompt": "a"}, "model"),
        ({"prompt": "a"}, "model"),
    ],
)
def test_wrong_parameter_is_refused_by_name(body: dict[str, object], param: str) -> None:
    fleet = MemoryFleet()
    stream = fleet.request("generate", **body)
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["param"] == param


def test_unknown_operation_is_invalid() -> None:
    fleet = MemoryFleet()
    stream = fleet.request("dance", model="toy")
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "invalid"
    assert "unknown operation" in stream.error["message"]


@pytest.mark.parametrize("max_new", [0, 1])
def test_tiny_budgets_end_with_length(max_new: int) -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("tiny", max_new)
    fleet.finish(stream)
    check_complete(stream, "tiny", max_new)


def test_lease_is_renewed_while_a_long_stream_runs() -> None:
    policy = CorePolicy(runs=RunPolicy(lease_s=2.0))
    fleet = MemoryFleet(policy=policy)
    stream = fleet.generate("long", 500, credit=1000)
    fleet.finish(stream)
    check_complete(stream, "long", 500)


@pytest.mark.parametrize("seed", range(20))
def test_no_token_is_wrong_lost_or_repeated_while_frames_are_dropped(seed: int) -> None:
    fleet = MemoryFleet(seed=seed, nodes=2)
    fleet.drop_probability = 0.01
    streams = [fleet.generate(f"seed {seed} {i}", 40) for i in range(6)]
    fleet.finish(*streams, limit_s=300)
    fleet.drop_probability = 0.0
    for i, stream in enumerate(streams):
        check_complete(stream, f"seed {seed} {i}", 40)
    fleet.run(30.0)
    last = fleet.generate("healed", 10)
    fleet.finish(last)
    check_complete(last, "healed", 10)


def test_token_event_is_what_the_api_says() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("shape", 3, logprobs=2)
    fleet.finish(stream)
    event = next(event for event in stream.events if event["type"] == "token")
    of_chats = {"reasoning", "tool_calls"}
    assert set(event) - {"id", "kind"} == set(TokenEvent.__dataclass_fields__) - of_chats
    (entry,) = event["logprobs"][:1]
    assert set(entry) == set(TokenLogprob.__dataclass_fields__) - {"raw"}
    assert set(entry["top"][0]) == set(TopToken.__dataclass_fields__) - {"raw"}
