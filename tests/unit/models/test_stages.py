"""Which ranges a model may be cut into, and what is said of those that are none."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from agent.models.stages import (
    LayerRange,
    Stage,
    even_stages,
    listed_stages,
    one_stage,
    stage_from_record,
    whole_digest,
)
from bus.errors import Invalid


def text_of(ranges: list[LayerRange]) -> str:
    return ",".join(map(str, ranges))


@pytest.mark.parametrize(
    ("layers", "stages", "ranges"),
    [
        (30, 2, "0-14,15-29"),
        (30, 3, "0-9,10-19,20-29"),
        (18, 4, "0-3,4-8,9-12,13-17"),
        (7, 3, "0-1,2-3,4-6"),
        (2, 2, "0-0,1-1"),
    ],
)
def test_layers_are_shared_out_evenly(layers: int, stages: int, ranges: str) -> None:
    chosen = even_stages(layers, stages)
    assert text_of([each.layers for each in chosen]) == ranges
    assert chosen == listed_stages(layers, ranges)
    assert [each.folder_name("m") for each in chosen] == [
        f"m.{place}of{stages}" for place in range(1, stages + 1)
    ]


@pytest.mark.parametrize(
    ("layers", "stages", "says"),
    [
        (30, 1, "one stage is the whole model"),
        (30, 0, "one stage is the whole model"),
        (4, 5, "4 layers can not be in 5 stages: each needs one; give fewer"),
        (400, 300, "256 is the most"),
    ],
)
def test_a_number_of_stages_that_can_not_be(layers: int, stages: int, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        even_stages(layers, stages)


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ("0-14,16-29", "no stage has layer 15; give ranges in order from 0 to 29"),
        ("0-9,20-29", "no stage has layers 10-19"),
        ("0-15,15-29", "two stages have layer 15"),
        ("15-29,0-14", "no stage has layers 0-14"),
        ("1-14,15-29", "no stage has layer 0"),
        ("0-14,15-28", "no stage has layer 29"),
        ("0-14,15-30", "the model's last layer is 29"),
        ("0-29", "one stage is the whole model"),
        ("0-14,15", "'15' is no range of layers"),
        ("0-14,,15-29", "'' is no range of layers"),
        ("0-14,29-15", "'29-15' is no range of layers"),
        ("0-14,a-b", "'a-b' is no range of layers"),
        ("", "'' is no range of layers"),
    ],
)
def test_ranges_that_are_no_split(ranges: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        listed_stages(30, ranges)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("place", "ranges", "name", "layers"),
    [
        ("1/2", None, "m.1of2", "0-14"),
        ("3/3", None, "m.3of3", "20-29"),
        ("2of3", "0-4,5-24,25-29", "m.2of3", "5-24"),
        ("2/3", "5-24", "m.2of3", "5-24"),
        ("1/3", "0-9", "m.1of3", "0-9"),
        (None, "0-9", "m.1of2", "0-9"),
        (None, "10-19", "m.2of3", "10-19"),
        (None, "20-29", "m.2of2", "20-29"),
    ],
)
def test_one_stage_alone(place: str | None, ranges: str | None, name: str, layers: str) -> None:
    choice = one_stage(30, place, ranges)
    assert (choice.folder_name("m"), str(choice.layers)) == (name, layers)


@pytest.mark.parametrize(
    ("place", "ranges", "says"),
    [
        ("0/2", None, "'0/2' is no stage; write which of how many, counted from 1"),
        ("3/2", None, "is no stage"),
        ("two", None, "is no stage"),
        ("1/1", None, "one stage is the whole model"),
        ("1/31", None, "each needs one"),
        ("1/3", "0-14,15-29", "--layers 0-14,15-29 are 2 ranges; give a range for each stage"),
        ("1/2", "0-14,16-29", "no stage has layer 15"),
        ("1/3", "1-9", "1 layers before it and 0 stages"),
        ("3/3", "20-28", "1 layers behind it and 0 stages"),
        ("3/3", "1-29", "1 layers before it and 2 stages"),
        ("2/4", "10-28", "1 layers behind it and 2 stages"),
        ("2/2", "20-30", "the last layer is 29"),
        (None, "0-29", "all of the model's; import it without --layers"),
        (None, "20-30", "the last layer is 29"),
        (None, "0-14,15-29", "is no range of layers"),
    ],
)
def test_a_stage_that_can_not_be(place: str | None, ranges: str | None, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        one_stage(30, place, ranges)
    assert says in caught.value.message


SECOND = Stage(model="m", whole="ab", index=1, stages=2, first=15, end=30, layers=30)


def test_a_record_is_read_as_it_was_written() -> None:
    written = json.loads(json.dumps(asdict(SECOND)))
    assert written == {
        "model": "m",
        "whole": "ab",
        "index": 1,
        "stages": 2,
        "first": 15,
        "end": 30,
        "layers": 30,
    }
    assert stage_from_record(written) == SECOND
    assert stage_from_record(None) is None
    assert (SECOND.is_first, SECOND.is_last) == (False, True)
    assert SECOND.describe() == "2/2 of m, layers 15-29 of 30"


@pytest.mark.parametrize(
    "change", [{"end": 31}, {"first": 30}, {"first": -1}, {"index": 2}, {"model": ""}, {"end": "x"}]
)
def test_a_record_of_no_stage_is_damage(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        stage_from_record(asdict(SECOND) | change)


def test_content_names_a_model_and_not_how_its_file_is_called() -> None:
    facts = {"layers": 30, "architecture": "llama"}
    source = {"kind": "gguf", "file": "a.gguf", "sha256": "12"}
    whole = whole_digest(source, facts)
    assert whole == whole_digest(source | {"file": "b.gguf", "parts": "2"}, facts)
    others = [
        whole_digest(source | {"sha256": "13"}, facts),
        whole_digest(source, facts | {"layers": 31}),
        whole_digest(source, facts, "content"),
    ]
    assert len({whole, *others}) == 4
