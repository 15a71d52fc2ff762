"""Models whose layers are on several nodes, in fleets in memory with real cores."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bus.ids import pack_ids
from bus.messages.link_stages import StageRun
from tests.harness.memory_fleet import Stream
from tests.harness.memory_parts import expected_tokens
from tests.harness.memory_stages import (
    MadeUpDriver,
    MadeUpExecutor,
    StageFleet,
    driver,
    executor,
)
from tests.harness.memory_worker import LATE_POISON, POISON

HALVES = ([executor(0, 15)], [driver(15)])


def served(*stages: Any, **options: Any) -> StageFleet:
    """A fleet whose model is served."""
    fleet = StageFleet(*stages, **options)
    fleet.run_until(lambda: fleet.is_open, 5.0)
    return fleet


def check_whole(stream: Stream, prompt: str, count: int) -> None:
    assert stream.error is None
    assert stream.end is not None
    assert stream.end["finish"] == "length"
    assert stream.tokens == expected_tokens(pack_ids(list(prompt.encode())), count)


@pytest.mark.parametrize(
    "stages",
    [
        HALVES,
        ([executor(0, 10)], [executor(10, 20)], [driver(20)]),
        ([executor(0, 15), driver(15)],),
        ([driver(20)], [executor(10, 20), executor(0, 10)]),
        ([driver(0)],),
    ],
    ids=["two", "three", "one node", "two on one node", "all in one"],
)
def test_sessions_draw_through_all_stages(stages: Any) -> None:
    fleet = served(*stages)
    streams = [fleet.generate(f"prompt {number}", 40) for number in range(6)]
    fleet.finish(*streams)
    for number, stream in enumerate(streams):
        check_whole(stream, f"prompt {number}", 40)
        assert not [event for event in stream.events if event["type"] == "moved"]


def test_chain_has_the_least_window_and_the_numerics_of_all() -> None:
    fleet = served([executor(0, 15, window=100)], [driver(15)])
    (chain,) = fleet.chains()
    assert chain == {
        "chain": f"{1:08x}{1:08x}",
        "model": "toy",
        "state": "open",
        "window_tokens": 100,
        "numerics": "layers 0-14 + last",
        "stages": [
            {"node": "node-1", "model": "toy.0", "first_layer": 0, "end_layer": 15},
            {"node": "node-2", "model": "toy", "first_layer": 15, "end_layer": 30},
        ],
    }
    assert fleet.head is not None
    (node,) = (n for n in fleet.head.core.fleet.nodes if n.identity == "node-2")
    (status,) = node.models.values()
    assert (status.name, status.kind, status.window_tokens) == ("toy", "", 100)
    assert status.numerics == "layers 0-14 + last"
    first = fleet.worker(0, "toy.0")
    assert isinstance(first, MadeUpExecutor)
    (order,) = first.orders
    assert (order.groups, order.lanes, order.window) == (2, 4, 512)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_stage_whose_worker_dies_is_replaced_and_streams_go_on(victim: int) -> None:
    fleet = served([executor(0, 10)], [executor(10, 20)], [driver(20)])
    (before,) = fleet.chains()
    streams = [fleet.generate(f"prompt {number}", 60) for number in range(4)]
    fleet.run_until(lambda: all(len(stream.tokens) > 10 for stream in streams))
    node = fleet.nodes[victim]
    node.side.kill(next(iter(node.side.makers)))
    fleet.finish(*streams)
    for number, stream in enumerate(streams):
        check_whole(stream, f"prompt {number}", 60)
        assert [event["type"] for event in stream.events].count("moved") == 1
    (after,) = fleet.chains()
    assert after["state"] == "open"
    assert after["chain"] > before["chain"]


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("how", ["agent", "cable"])
def test_node_of_a_stage_that_dies_ends_the_chain_and_no_stream(victim: int, how: str) -> None:
    fleet = served([executor(0, 10)], [executor(10, 20)], [driver(20)], seed=victim)
    streams = [fleet.generate(f"prompt {number}", 60) for number in range(4)]
    fleet.run_until(lambda: all(len(stream.tokens) > 10 for stream in streams))
    node = fleet.nodes[victim]
    if how == "agent":
        node.kill()
        fleet.after(1.0, node.start)
    else:
        node.cut_connection()
    fleet.finish(*streams)
    for number, stream in enumerate(streams):
        check_whole(stream, f"prompt {number}", 60)


def test_head_that_dies_finds_no_chain_and_makes_another() -> None:
    fleet = served(*HALVES)
    stream = fleet.generate("prompt", 60, key="k")
    fleet.run_until(lambda: len(stream.tokens) > 10)
    fleet.kill_head()
    fleet.run(1.0)
    fleet.start_head()
    stream = fleet.generate("prompt", 60, key="k")
    fleet.finish(stream)
    check_whole(stream, "prompt", 60)
    (chain,) = fleet.chains()
    assert chain["chain"] == f"{2:08x}{1:08x}"


def test_unit_that_fails_ends_the_chain_and_no_stream() -> None:
    fleet = served(*HALVES)
    streams = [fleet.generate(f"prompt {number}", 40) for number in range(3)]
    fleet.run_until(lambda: all(len(stream.tokens) > 10 for stream in streams))
    last = fleet.worker(1, "toy.15")
    assert isinstance(last, MadeUpDriver)
    last.fails = True
    fleet.finish(*streams)
    for number, stream in enumerate(streams):
        check_whole(stream, f"prompt {number}", 40)


def test_executor_is_taken_by_load_and_another_one_when_it_is_gone() -> None:
    """Two drivers and three of the first stage: each driver has one of its own."""
    fleet = StageFleet(
        [executor(0, 15)], [executor(0, 15)], [executor(0, 15)], [driver(15)], [driver(15)]
    )
    for node in fleet.nodes[3:]:
        node.kill()
    fleet.run(1.0)
    for node in fleet.nodes[3:]:
        node.start()
    fleet.run_until(lambda: len(fleet.chains()) == 2, 5.0)
    fleet.run(1.0)
    firsts = [chain["stages"][0]["node"] for chain in fleet.chains()]
    assert len(set(firsts)) == 2
    streams = [fleet.generate(f"prompt {number}", 60) for number in range(8)]
    fleet.run_until(lambda: all(len(stream.tokens) > 10 for stream in streams))
    fleet.nodes[int(firsts[0][-1]) - 1].kill()
    fleet.finish(*streams)
    for number, stream in enumerate(streams):
        check_whole(stream, f"prompt {number}", 60)
    assert firsts[0] not in [chain["stages"][0]["node"] for chain in fleet.chains()]
    assert len({chain["stages"][0]["node"] for chain in fleet.chains()}) == 2


def test_executor_that_drains_is_left_when_another_can_take_its_place() -> None:
    fleet = served([executor(0, 15)], [executor(0, 15)], [driver(15)])
    (chain,) = fleet.chains()
    first = chain["stages"][0]["node"]
    stream = fleet.generate("prompt", 100)
    fleet.run_until(lambda: len(stream.tokens) > 10)
    drain = fleet.request("node.drain", name=first)
    fleet.finish(drain, stream)
    check_whole(stream, "prompt", 100)
    (chain,) = fleet.chains()
    assert chain["stages"][0]["node"] != first
    assert fleet.head is not None
    (node,) = (n for n in fleet.head.core.fleet.nodes if n.identity == first)
    assert node.state == "drained"


def test_only_executor_that_drains_is_left_when_nothing_runs_any_more() -> None:
    fleet = served(*HALVES)
    stream = fleet.generate("prompt", 100)
    fleet.run_until(lambda: len(stream.tokens) > 10)
    drain = fleet.request("node.drain", name="node-1")
    fleet.finish(drain)
    assert fleet.head is not None
    (node,) = (n for n in fleet.head.core.fleet.nodes if n.identity == "node-1")
    assert node.state == "draining"
    fleet.finish(stream)
    check_whole(stream, "prompt", 100)
    fleet.run_until(lambda: node.state == "drained", 5.0)
    assert fleet.problem(1) == (
        "it has layers 15-29 of 30 of toy, and no node has layers 0-14 for it now (node-1 has "
        "layers 0-14 and is draining)"
    )


# --- who is to blame ------------------------------------------------------------------------------


@pytest.mark.parametrize("kills_at", [0, 8])
def test_request_that_kills_an_executor_ends_with_the_second_and_others_go_on(
    kills_at: int,
) -> None:
    fleet = served(*HALVES)
    poison = "poison" + (chr(LATE_POISON) + chr(kills_at) if kills_at else chr(POISON))
    others = [fleet.generate(f"prompt {number}", 60) for number in range(2)]
    fleet.run(0.3)
    bad = fleet.generate(poison, 100)
    fleet.finish(bad, *others, limit_s=300)
    assert (bad.error or {}).get("code") == "request_kills_workers"
    assert len(bad.tokens) == kills_at
    for number, stream in enumerate(others):
        check_whole(stream, f"prompt {number}", 60)


def test_link_that_breaks_is_nobodys_fault() -> None:
    fleet = served(*HALVES)
    stream = fleet.generate("prompt", 150)
    for _ in range(4):
        fleet.run(0.4)
        fleet.nodes[0].cut_connection()
    fleet.finish(stream)
    check_whole(stream, "prompt", 150)


# --- what is missing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (
            [[driver(15)]],
            "node-1 has layers 15-29 of 30 of toy, and no node has layers 0-14 for it now; have "
            "one serve them: sfctl model load toy.1of2 NODE",
        ),
        (
            [[executor(0, 15)]],
            "node-1 has only layers 0-14 of 30 of toy, and the last ones are what requests go to",
        ),
        (
            [[executor(0, 10)], [driver(15)]],
            "node-2 has layers 15-29 of 30 of toy, and no node has layers 10-14 for it now",
        ),
        (
            [[executor(0, 15, whole="two")], [driver(15)]],
            "node-2 has layers 15-29 of 30 of toy, and no node has layers 0-14 for it now (node-1 "
            "has layers 0-14 of another toy: stages are to be made of one file, in one way)",
        ),
        (
            [[executor(0, 15, refuses="no room")], [driver(15)]],
            "(node-1 has layers 0-14 and could not open its stage: no room)",
        ),
        (
            [[executor(0, 20)], [driver(15)]],
            "(node-1 has layers 0-19, which do not join at 0 and 15)",
        ),
    ],
)
def test_request_for_what_is_not_whole_is_refused_with_what_is_missing(
    stages: Any, words: str
) -> None:
    fleet = StageFleet(*stages)
    fleet.run(12.0)
    stream = fleet.generate("prompt", 10)
    asked = fleet.now
    fleet.finish(stream)
    assert fleet.now - asked < 1.0
    assert stream.error is not None
    assert stream.error["code"] == "no_node"
    assert words in stream.error["message"]
    explained = fleet.request("explain", model="toy")
    fleet.finish(explained)
    assert explained.end is not None
    assert words in explained.end["error"]["message"]


def test_request_waits_for_a_stage_that_is_loading() -> None:
    fleet = StageFleet(*HALVES)
    fleet.run(12.0)
    fleet.nodes[0].load_s = 4.0
    fleet.nodes[0].side.kill(next(iter(fleet.nodes[0].side.makers)))
    fleet.run(1.0)
    assert not fleet.is_open
    stream = fleet.generate("prompt", 10)
    fleet.finish(stream)
    check_whole(stream, "prompt", 10)


def test_stream_whose_stage_does_not_come_back_ends_with_what_is_missing() -> None:
    fleet = served(*HALVES)
    stream = fleet.generate("prompt", 100)
    fleet.run_until(lambda: len(stream.tokens) > 10)
    fleet.nodes[0].kill()
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "node_lost"
    assert (
        "no node has layers 0-14 for it now (node-1 has layers 0-14 and is down"
        in (stream.error["message"])
    )


def test_stage_is_no_model_to_ask() -> None:
    fleet = served(*HALVES)
    stream = fleet.request("generate", model="toy.0", prompt="prompt", max_new=10)
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "invalid"
    assert "only some layers of a model" in stream.error["message"]


def test_stage_that_could_not_open_is_asked_again() -> None:
    fleet = StageFleet([executor(0, 15, refuses="no room")], [driver(15)])
    fleet.run(2.0)
    first = fleet.worker(0, "toy.0")
    assert isinstance(first, MadeUpExecutor)
    assert len(first.orders) == 1
    first.refuses = ""
    fleet.run_until(lambda: fleet.is_open, 12.0)
    assert len(first.orders) == 2


# --- units of work --------------------------------------------------------------------------------


def test_unit_of_another_node_ends_its_link_and_late_ones_nothing() -> None:
    fleet = served([executor(0, 15)], [driver(15)], [executor(0, 15)])
    head = fleet.head
    assert head is not None
    (chain,) = fleet.chains()
    number = int(chain["chain"], 16)
    links = {head.names[link]: link for link in head.names}
    stranger = "node-3" if chain["stages"][0]["node"] == "node-1" else "node-1"
    run = StageRun(chain=number, hop=1, group=0, unit=b"")
    late = StageRun(chain=number - 1, hop=1, group=0, unit=b"")
    head.core.link_message(links[stranger], late, head.now())
    assert not head.core.effects().outputs
    head.core.link_message(links[stranger], run, head.now())
    (closing,) = head.core.effects().outputs
    assert "in another's place" in getattr(closing.output, "reason", "")
    assert fleet.chains() == [chain]


def test_unit_out_of_turn_ends_the_chain() -> None:
    fleet = served(*HALVES)
    head = fleet.head
    assert head is not None
    (chain,) = fleet.chains()
    links = {head.names[link]: link for link in head.names}
    run = StageRun(chain=int(chain["chain"], 16), hop=1, group=0, unit=b"")
    head.core.link_message(links["node-1"], run, head.now())
    head.post(lambda: None)
    fleet.run_until(lambda: fleet.is_open and fleet.chains()[0] != chain, 5.0)


def test_models_and_nodes_are_reported_with_their_stages() -> None:
    fleet = served(*HALVES)
    status = fleet.request("status")
    fleet.finish(status)
    assert status.end is not None
    models = {each["name"]: each for each in status.end["models"]}
    assert (models["toy"]["ready"], models["toy"]["nodes"]) == (True, ["node-2"])
    # Nobody asks a stage for texts, and the head fetches no tokenizer of it.
    assert (models["toy.0"]["ready"], models["toy.0"]["kind"]) == (True, "stage")
    assert models["toy.0"]["tokenizer"] == ""
    rows = [row for node in status.end["nodes"] for row in node["models"]]
    assert [(row["name"], row["stage"]["folder"], row["stage"]["chains"]) for row in rows] == [
        ("toy.0", "toy.0", 1),
        ("toy", "toy.15", 0),
    ]
    assert [row["problem"] for row in rows] == ["", ""]
    assert len(status.end["chains"]) == 1


# --- whatever happens -----------------------------------------------------------------------------

SHAPES: tuple[Any, ...] = (
    ([executor(0, 15)], [executor(0, 15)], [driver(15)]),
    ([executor(0, 10)], [executor(10, 20)], [driver(20)], [driver(20)]),
    ([executor(0, 10), driver(20)], [executor(10, 20), executor(0, 10)]),
    ([executor(0, 15)], [driver(15)], [executor(0, 15), driver(15)]),
)


def harm(fleet: StageFleet, rng: random.Random) -> None:
    """Something that is no worker's death, of which requests could be guilty."""
    node = rng.choice(fleet.nodes)
    match rng.randrange(5):
        case 0 if node.alive:
            node.kill()
            fleet.after(2 * rng.random(), node.start)
        case 1:
            node.cut_connection()
        case 2 if node.alive:
            node.pause()
            fleet.after(rng.random(), node.resume)
        case 3:
            for made in node.side.workers.values():
                if isinstance(made, MadeUpDriver):
                    made.fails = True


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_whole_whatever_happens_to_chains(seed: int) -> None:
    rng = random.Random(seed)
    fleet = StageFleet(*SHAPES[seed % len(SHAPES)], seed=seed)
    fleet.run(3.0)
    wanted: list[tuple[Stream, str, int]] = []
    for number in range(12):
        prompt, count = f"prompt {number}", rng.choice((5, 60, 120))
        wanted.append((fleet.generate(prompt, count), prompt, count))
        fleet.run(0.6 * rng.random())
        harm(fleet, rng)
        assert fleet.head is not None
        fleet.head.core.pipelines.validate_state()
    fleet.finish(*(stream for stream, _, _ in wanted))
    for stream, prompt, count in wanted:
        check_whole(stream, prompt, count)
