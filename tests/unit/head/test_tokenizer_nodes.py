"""Tokenizers of nodes that are not what they should be: nothing is taken on trust."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgpack
import pytest

from bus.capabilities import CAPABILITIES, JOBS
from bus.messages.link import GenerateReq
from bus.messages.link_jobs import JobCancel, JobEnd, JobPart
from bus.messages.parts import StageStatus
from bus.messages.text import TextFailed
from bus.text.tokenizer_export import export_parts
from tests.harness.fetch_bench import FILES, KEY, FetchBench, status
from tests.harness.head_bench import TOY


@pytest.fixture
def bench() -> FetchBench:
    return FetchBench()


# --- nodes that are not what they should be ---------------------------------------------------

BAD_PARTS = [
    b"\xc1",
    msgpack.packb(
        {"files": [{"name": "../evil", "size": 1}, {"name": "tokenizer.json", "size": 1}]}
    ),
    msgpack.packb({"files": [{"name": "tokenizer.json", "size": 1 << 40}]}),
    msgpack.packb({"files": []}),
]


@pytest.mark.parametrize("part", BAD_PARTS)
def test_a_node_that_lists_what_it_should_not_is_left_for_another(
    bench: FetchBench, part: bytes
) -> None:
    bench.serve(1, "bad")
    bench.serve(2, "good")
    bench.ask_for(b"r")
    (start,) = bench.starts(1)
    bench.hear(1, JobPart(job=start.job, seq=0, body=part))
    assert [cancel.job for cancel in bench.on(1, JobCancel)] == [start.job]
    # What it still sends is nothing to anybody.
    bench.hear(1, JobPart(job=start.job, seq=1, body=b"x"))
    (other,) = bench.starts(2)
    assert not bench.store.written
    bench.give(2, other)
    assert bench.state() == "fetched"
    assert len(bench.on(1, GenerateReq)) + len(bench.on(2, GenerateReq)) == 1


def test_parts_without_end_are_stopped(bench: FetchBench) -> None:
    bench.serve(1, "bad")
    bench.ask_for(b"r")
    (start,) = bench.starts(1)
    for seq, part in enumerate([*export_parts(FILES), b"more"]):
        bench.hear(1, JobPart(job=start.job, seq=seq, body=part))
    assert [cancel.job for cancel in bench.on(1, JobCancel)] == [start.job]
    assert not bench.store.written
    error = bench.error(b"r")
    assert error["code"] == "tokenizer_unavailable"
    assert "bad: the tokenizer that a node gave is refused: it goes on behind" in error["message"]
    assert error["retry_after_ms"] == 1000


def test_other_files_than_the_status_names_are_not_written(bench: FetchBench) -> None:
    bench.serve(1, "bad")
    bench.ask_for(b"r")
    bench.give(1, bench.starts(1)[0], FILES | {"chat_template.jinja": b"evil"})
    assert not bench.store.written
    assert "its digest is not the one" in bench.error(b"r")["message"]


def test_another_vocabulary_than_the_status_names_is_removed(bench: FetchBench) -> None:
    bench.says[KEY.folder] = 99
    bench.serve(1, "bad")
    bench.ask_for(b"r")
    bench.give(1, bench.starts(1)[0])
    assert bench.store.removed == [KEY]
    assert bench.store.kept() == ()
    assert "is not the one that its status names" in bench.error(b"r")["message"]
    assert bench.state() == ""
    assert "bad: " in bench.core.tokenizers.problem(TOY)


def test_a_tokenizer_that_kills_text_processes_is_removed(bench: FetchBench) -> None:
    bench.says[KEY.folder] = TextFailed(
        job=0, code="tokenizer_unavailable", message="took more memory", retry_after_ms=1000
    )
    bench.serve(1, "bad")
    bench.give(1, bench.starts(1)[0])
    assert bench.store.removed == [KEY]
    assert "took more memory" in bench.core.tokenizers.problem(TOY)


def test_a_node_that_failed_is_asked_again_less_and_less(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    asked_at = list[float]()
    while len(asked_at) < 9:
        start = bench.starts(1)[-1]
        asked_at.append(bench.now)
        end = JobEnd(job=start.job, code="tokenizer_unavailable", message="a disk is broken")
        bench.hear(1, end)
        bench.ask_for(b"%d" % len(asked_at))
        assert "n1: a disk is broken" in bench.error(b"%d" % len(asked_at))["message"]
        count = len(bench.starts(1))
        for _ in range(600):
            if len(bench.starts(1)) > count:
                break
            bench.wait(0.2)
    waits = [round(later - at) for at, later in pairwise(asked_at)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    bench.give(1, bench.starts(1)[-1])
    bench.ask_for(b"r")
    assert len(bench.on(1, GenerateReq)) == 1


def test_nodes_of_an_older_version_are_named(bench: FetchBench) -> None:
    bench.serve(1, "old", capabilities=tuple(c for c in CAPABILITIES if c != JOBS))
    bench.serve(2, "older", status(text=0))
    bench.ask_for(b"r")
    bench.wait(10.0)  # A newer one may come.
    error = bench.error(b"r")
    assert error["code"] == "tokenizer_unavailable"
    assert "from old, older: update nodes that are older" in error["message"]
    assert "sfctl model import FILE --name toy" in error["message"]
    assert not bench.starts(1)
    # One that can give it serves for all.
    bench.serve(3, "new")
    bench.give(3, bench.starts(3)[0])
    bench.ask_for(b"s")
    assert sum(len(bench.on(link, GenerateReq)) for link in (1, 2, 3)) == 1


def test_of_a_model_whose_last_stage_nobody_has_it_is_said_who_has_which_layers(
    bench: FetchBench,
) -> None:
    stage = StageStatus(
        model=TOY, whole="w", index=0, stages=2, first=0, end=1, layers=2, hidden=64
    )
    bench.serve(1, "n1", replace(status("toy.1of2"), kind="stage", stage=stage))
    bench.wait(10.0)
    bench.ask_for(b"r")
    error = bench.error(b"r")
    assert error["code"] == "no_node"
    assert "n1: has only layers 0-0 of 2 of toy" in error["message"]
