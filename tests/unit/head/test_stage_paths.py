"""Which stages make a chain, and what is said of those that make none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.ids import ModelName, NodeIdentity
from bus.messages.parts import ModelStatus, StageStatus
from head.stage_paths import Offer, explain_missing, find_path, missing_layers

LAST = StageStatus(
    model=ModelName("toy"), whole="w", index=1, stages=2, first=20, end=30, layers=30, hidden=576
)


def offer(node: str, first: int, end: int, *, stage: StageStatus = LAST, **fields: object) -> Offer:
    part = replace(stage, index=0, first=first, end=end)
    status = ModelStatus(name=ModelName(f"toy.{first}"), phase="ready", stage=part)
    made = Offer(node=NodeIdentity(node), status=status, stage=part)
    return replace(made, **fields)  # type: ignore[arg-type]


def path(*offers: Offer, last: StageStatus = LAST) -> list[str] | None:
    found = find_path(last, offers)
    return None if found is None else [each.node for each in found]


def test_stages_go_in_order_from_the_first_layer_to_the_driver() -> None:
    assert path(offer("b", 10, 20), offer("a", 0, 10)) == ["a", "b"]
    assert path(offer("a", 0, 20)) == ["a"]
    assert path(last=replace(LAST, first=0)) == []


@pytest.mark.parametrize(
    "offers",
    [
        [],
        [offer("a", 0, 10)],
        [offer("a", 0, 10), offer("b", 11, 20)],
        [offer("a", 0, 10), offer("b", 9, 20)],
        [offer("a", 1, 20)],
        [offer("a", 0, 21)],
    ],
)
def test_layers_that_are_left_out_or_there_twice_make_no_chain(offers: list[Offer]) -> None:
    assert path(*offers) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(LAST, whole="v"),
        replace(LAST, model=ModelName("other")),
        replace(LAST, layers=31),
        replace(LAST, hidden=64),
        replace(LAST, hidden_type="float16"),
    ],
)
def test_stages_of_something_else_are_in_no_chain(other: StageStatus) -> None:
    assert path(offer("a", 0, 20, stage=other)) is None


def test_of_several_the_least_loaded_is_taken_then_the_one_with_most_memory() -> None:
    offers = [
        offer("a", 0, 20, chains=1, free_bytes=9),
        offer("b", 0, 20, free_bytes=3),
        offer("c", 0, 20, free_bytes=5),
    ]
    assert path(*offers) == ["c"]
    assert path(*offers[:2]) == ["b"]
    assert path(offer("e", 0, 20), offer("d", 0, 20)) == ["d"]


def test_one_that_leads_nowhere_is_passed_over() -> None:
    """The least loaded one of the first layers ends where no other begins."""
    offers = [offer("a", 0, 12), offer("b", 0, 10, chains=3), offer("c", 10, 20)]
    assert path(*offers) == ["b", "c"]


@pytest.mark.parametrize(
    ("offers", "gap"),
    [
        ([], (0, 20)),
        ([offer("a", 0, 10)], (10, 20)),
        ([offer("a", 10, 20)], (0, 10)),
        ([offer("a", 0, 5), offer("b", 15, 20)], (5, 15)),
        ([offer("a", 0, 5), offer("b", 5, 8), offer("c", 9, 20)], (8, 9)),
    ],
)
def test_gap_is_what_lies_between_what_joins(offers: list[Offer], gap: tuple[int, int]) -> None:
    assert missing_layers(LAST, offers) == gap


def test_many_that_do_not_help_are_counted() -> None:
    offers = [offer(f"n{number}", 0, 20, why_not="is down") for number in range(6)]
    missing = explain_missing(LAST, offers)
    assert missing.words == (
        "has layers 20-29 of 30 of toy, and no node has layers 0-19 for it now ("
        + "; ".join(f"n{number} has layers 0-19 and is down" for number in range(4))
        + " and 2 more)"
    )
    assert not missing.may_come


def test_hidden_states_that_do_not_fit_are_said_with_both() -> None:
    other = replace(LAST, hidden_type="float16")
    missing = explain_missing(LAST, [offer("a", 0, 20, stage=other)])
    assert "a has layers 0-19 and gives hidden states of 576 float16, not 576 float32" in (
        missing.words
    )


def test_what_is_loading_may_come() -> None:
    offers = [offer("a", 0, 20, why_not="has them in phase loading", may_come=True)]
    missing = explain_missing(LAST, offers)
    assert missing.may_come
    assert missing.words.endswith("(a has layers 0-19 and has them in phase loading)")


def test_of_more_than_two_stages_the_remedy_names_none() -> None:
    words = explain_missing(replace(LAST, index=2, stages=3), []).words
    assert words.endswith("; have one serve them: sfctl model load STAGE NODE")
