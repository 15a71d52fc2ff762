"""Plans of stages, against a search through all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest

from bus.errors import Invalid, NoMemory, NoNode
from head.stage_plan import StageModel, StageNode, StagePlan, plan


def model(*layers: int, **figures: int) -> StageModel:
    """A model of these layers, without anything beside them unless it is said."""
    zeros = dict.fromkeys(
        ("embedding_bytes", "head_bytes", "shared_bytes", "every_bytes", "kv_bytes"), 0
    )
    rest = {"overhead_bytes": 0, "lanes": 1, "window": 1, "most_tokens": 4096}
    return StageModel(name="m", layers=layers, **{**zeros, **rest, **figures})


def nodes(*offers: tuple[int, float]) -> list[StageNode]:
    """Nodes `a`, `b`, ... of memory and rate."""
    return [
        StageNode(name=chr(ord("a") + place), memory_bytes=memory, rate=rate)
        for place, (memory, rate) in enumerate(offers)
    ]


def ranges(found: StagePlan) -> list[tuple[str, int, int]]:
    return [(stage.node, stage.first, stage.end) for stage in found.stages]


def test_equal_nodes_get_equal_shares() -> None:
    found = plan(model(*[10] * 30), nodes((150, 1.0), (150, 1.0)))
    assert ranges(found) == [("a", 0, 15), ("b", 15, 30)]
    assert found.ranges == "0-14,15-29"


def test_what_fits_on_one_node_is_one_stage() -> None:
    found = plan(model(*[10] * 30), nodes((100, 9.0), (300, 1.0), (300, 2.0)))
    assert ranges(found) == [("c", 0, 30)]


def test_the_faster_node_gets_more_layers() -> None:
    # 30 layers of 10 over rates 20 and 10: 20 and 10 layers take 10 s each
    found = plan(model(*[10] * 30), nodes((250, 10.0), (250, 20.0)))
    assert sorted(ranges(found), key=lambda each: each[0]) == [("a", 20, 30), ("b", 0, 20)]
    assert [stage.step_s for stage in found.stages] == [10.0, 10.0]
    assert found.tokens_per_s_alone == pytest.approx(1 / 20)
    assert found.tokens_per_s == pytest.approx(1 / 10)


def test_eight_lanes_in_two_groups_make_four_tokens_a_step() -> None:
    found = plan(model(*[10] * 30, lanes=8), nodes((200, 10.0), (200, 10.0)))
    assert found.tokens_per_s == pytest.approx(4 / 15)


def test_memory_is_a_limit_for_the_fastest_too() -> None:
    found = plan(model(*[10] * 30), nodes((100, 1000.0), (250, 1.0)))
    assert sorted(ranges(found), key=lambda each: each[0]) == [("a", 0, 10), ("b", 10, 30)]


def test_the_head_is_work_of_the_last_stage() -> None:
    # ten layers of 10 and a head of 40: 70 and 70
    found = plan(model(*[10] * 10, head_bytes=40), nodes((110, 1.0), (110, 1.0)))
    assert ranges(found) == [("a", 0, 7), ("b", 7, 10)]
    # an embedding takes memory and no time
    found = plan(model(*[10] * 10, embedding_bytes=40), nodes((110, 1.0), (110, 1.0)))
    assert ranges(found) == [("a", 0, 5), ("b", 5, 10)]


def test_tied_tables_are_there_once_on_one_node_and_twice_on_two() -> None:
    tied = model(10, 10, embedding_bytes=40, head_bytes=42, shared_bytes=40)
    assert len(plan(tied, nodes((62, 1.0))).stages) == 1
    with pytest.raises(NoMemory):
        plan(tied, nodes((51, 1.0), (51, 1.0)))
    assert len(plan(tied, nodes((52, 1.0), (52, 1.0))).stages) == 2


def test_lanes_and_workers_take_memory() -> None:
    # 3 lanes of 5 tokens at 2 bytes are 30 a layer; each worker takes 7 and each stage 3
    sizes = {"kv_bytes": 2, "lanes": 3, "window": 5, "overhead_bytes": 7, "every_bytes": 3}
    found = plan(model(10, 10, **sizes), nodes((50, 1.0), (50, 1.0)))
    assert [stage.memory_bytes for stage in found.stages] == [50, 50]
    assert [stage.kv_bytes for stage in found.stages] == [30, 30]
    assert [stage.weights_bytes for stage in found.stages] == [13, 13]


def test_unknown_rates_count_as_the_mean() -> None:
    # rates 10, 20 and 15: 2, 4 and 3 layers take 2 s each
    found = plan(model(*[10] * 9), nodes((40, 10.0), (40, 20.0), (40, 0.0)))
    shares = {stage.node: stage.end - stage.first for stage in found.stages}
    assert shares == {"a": 2, "b": 4, "c": 3}
    assert [stage.step_s for stage in found.stages] == [2.0, 2.0, 2.0]


def test_without_any_rate_nothing_is_promised() -> None:
    found = plan(model(*[10] * 10), nodes((60, 0.0), (60, 0.0)))
    assert ranges(found) == [("a", 0, 5), ("b", 5, 10)]
    assert (found.tokens_per_s, found.tokens_per_s_alone) == (0.0, 0.0)
    assert [stage.step_s for stage in found.stages] == [0.0, 0.0]


# --- against all plans there are --------------------------------------------------------------


def all_plans(sizes: StageModel, offers: list[StageNode]) -> Iterator[tuple[int, float]]:
    """Number of stages and time of the slowest, of every plan that fits."""
    layers = len(sizes.layers)
    for count in range(1, min(layers, len(offers)) + 1):
        for cut in combinations(range(1, layers), count - 1):
            pieces = list(pairwise((0, *cut, layers)))
            for chosen in permutations(offers, count):
                together = list(zip(chosen, pieces, strict=True))
                if all(sizes.memory(*piece) <= node.memory_bytes for node, piece in together):
                    yield count, max(sizes.work(*piece) / node.rate for node, piece in together)


def random_case(draw: random.Random) -> tuple[StageModel, list[StageNode]]:
    """A model of up to 7 layers and up to 4 nodes, about as large together."""
    count = draw.randint(1, 7)
    even = draw.random() < 0.5
    layers = [draw.randint(5, 15)] * count if even else draw.choices(range(1, 20), k=count)
    embedding, head = draw.randint(0, 20), draw.randint(0, 20)
    sizes = model(
        *layers,
        embedding_bytes=embedding,
        head_bytes=head,
        shared_bytes=draw.choice((0, min(embedding, head))),
        every_bytes=draw.randint(0, 3),
        kv_bytes=draw.randint(0, 2),
        overhead_bytes=draw.randint(0, 5),
        lanes=draw.randint(1, 3),
        window=draw.randint(1, 3),
    )
    whole = sizes.memory(0, count)
    there = draw.randint(1, 4)
    memories = draw.choices(range(whole // 4, whole + 2), k=there)
    rates = draw.choices((1.0, 2.0, 2.5, 4.0, 7.0), k=there)
    return sizes, nodes(*zip(memories, rates, strict=True))


@pytest.mark.parametrize("hundred", range(10))
def test_a_plan_is_as_good_as_the_best_of_all(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        draw = random.Random(seed)
        sizes, offers = random_case(draw)
        best = min(all_plans(sizes, offers), default=None)
        if best is None:
            with pytest.raises(NoMemory):
                plan(sizes, offers)
            continue
        found = plan(sizes, offers)
        check_whole(found, offers)
        longest = max(stage.step_s for stage in found.stages)
        assert (len(found.stages), longest) == best, f"seed {seed}"
        assert plan(sizes, draw.sample(offers, len(offers))) == found, f"seed {seed}"


def check_whole(found: StagePlan, offers: list[StageNode]) -> None:
    """Ranges cover all layers once, each on a node of its own that has the memory."""
    memory = {node.name: node.memory_bytes for node in offers}
    ends = [0, *(stage.end for stage in found.stages)]
    assert [stage.first for stage in found.stages] == ends[:-1]
    assert ends[-1] == len(found.model.layers)
    assert all(stage.first < stage.end for stage in found.stages)
    assert len({stage.node for stage in found.stages}) == len(found.stages)
    for stage in found.stages:
        assert found.model.memory(stage.first, stage.end) == stage.memory_bytes
        assert stage.memory_bytes <= memory[stage.node] == stage.free_bytes


@pytest.mark.parametrize("seed", range(2))
def test_large_fleets_are_planned_in_time(seed: int) -> None:
    draw = random.Random(seed)
    sizes = model(*[900] * 64, embedding_bytes=4000, head_bytes=4000, overhead_bytes=300)
    offers = [
        StageNode(
            name=f"n{place:02}",
            memory_bytes=draw.randint(4000, 16_000),
            rate=draw.uniform(50.0, 200.0),
        )
        for place in range(24)
    ]
    found = plan(sizes, offers)
    check_whole(found, offers)
    assert plan(sizes, draw.sample(offers, len(offers))) == found
    # fewer can not be: so many of the largest have no room for it
    by_memory = sorted((node.memory_bytes - 300 for node in offers), reverse=True)
    assert sum(by_memory[: len(found.stages) - 1]) < 64 * 900 + 8000 + 900


# --- what can not be planned ------------------------------------------------------------------


def test_what_does_not_fit_is_told_with_both_figures_and_what_helps() -> None:
    mib = 1 << 20
    sizes = model(*[mib] * 8, kv_bytes=mib // 64, lanes=8, window=16, every_bytes=mib)
    with pytest.raises(NoMemory) as refused:
        plan(sizes, nodes((6 * mib, 1.0), (6 * mib, 1.0)))
    # weights 8 layers and 1 beside; 8 lanes of 16 tokens are 2 MiB in each of 8 layers
    assert str(refused.value) == (
        "m needs 25.0 MiB (weights 9.0 MiB, 8 lanes of 16 tokens 16.0 MiB, each worker 0 bytes "
        "beside), and 2 nodes have 12.0 MiB for it; add nodes, or free memory on these, or take "
        "fewer lanes or a smaller window: --lanes 1 or --window 2 fits"
    )
    assert refused.value.details == {"needed_bytes": 25 * mib, "free_bytes": 12 * mib}
    for smaller in (replace(sizes, lanes=1), replace(sizes, window=2)):
        assert len(plan(smaller, nodes((6 * mib, 1.0), (6 * mib, 1.0))).stages) == 2


def test_weights_that_do_not_fit_need_more_nodes() -> None:
    with pytest.raises(NoMemory, match="node a has 90 bytes for it; add nodes, or free memory on"):
        plan(model(*[10] * 10), nodes((90, 1.0)))


def test_a_layer_that_no_node_can_hold_is_named_by_its_size() -> None:
    with pytest.raises(NoMemory, match="takes up to 50 bytes and the largest node has 40 bytes"):
        plan(model(50, 10), nodes((40, 1.0), (40, 1.0)))


def test_room_that_pieces_do_not_fill_is_no_room() -> None:
    with pytest.raises(NoMemory, match=r"no way to divide it fits.* a layer is not divided"):
        plan(model(*[10] * 4), nodes((19, 1.0), (29, 1.0)))


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"lanes": 0}, "lanes is 0; it is a number from 1"),
        ({"window": 0}, "window is 0 tokens; m takes 1 to 4096"),
        ({"window": 4097}, "window is 4097 tokens; m takes 1 to 4096"),
        ({"layers": ()}, "m has no layers"),
    ],
)
def test_models_that_are_none(changes: dict[str, int], wrong: str) -> None:
    with pytest.raises(Invalid, match=wrong):
        plan(replace(model(10), **changes), nodes((10, 1.0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_rates_that_are_none(rate: float) -> None:
    with pytest.raises(Invalid, match="node a has 10 bytes and a rate of"):
        plan(model(10), nodes((10, rate)))


def test_no_nodes_and_a_node_twice() -> None:
    with pytest.raises(NoNode, match="no node to plan m for"):
        plan(model(10), [])
    with pytest.raises(Invalid, match="node a is named twice"):
        plan(model(10), nodes((10, 1.0)) * 2)
