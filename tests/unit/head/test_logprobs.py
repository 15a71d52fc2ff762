"""Log-probabilities from nodes to clients: each token's own, from any cursor, after any restart."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.api_maps import from_map, to_map
from bus.errors import StoreCorrupt
from bus.ids import PackedIds, pack_ids
from bus.messages.api import MARK, TokenEvent, encode_body
from bus.messages.link import GenerateReq, TokenEvents
from bus.messages.parts import TokenRun
from bus.messages.sampling import SamplingParams
from head.answers import EVENT_ENTRIES
from head.logprobs import token_logprobs
from head.rows import PutTokens
from head.store import Store
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, OPTIONS, Bench, run
from tests.harness.memory_worker import made_up_logprob, made_up_record
from tests.harness.store_rows import answer, commit, generation

VOCABULARY = tuple(bytes([n]) for n in range(256))


def heard(request: GenerateReq, first: int, *ids: int, place: int = 0, finish: str = "") -> Any:
    """A run with its records; `place` is where the generation begins in its answer."""
    others = request.sampling.logprobs - 1
    records = b"".join(
        made_up_record(token, place + first + n, others) for n, token in enumerate(ids)
    )
    return run(request, first, *ids, finish=finish, logprobs=records)


def entries(bench: Bench, request: bytes = b"r") -> list[dict[str, Any]]:
    events = [r for r in bench.replies if r.get("type") == "token" and r["id"] == request]
    return [entry for event in events for entry in event["logprobs"]]


def attach(bench: Bench, offset: int, request: bytes = b"again") -> None:
    session = bench.events("placed")[-1]["session"] if bench.events("placed") else "s"
    body = {"op": "attach", "id": request, "session": session, "offset": offset}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()


# --- records --------------------------------------------------------------------------------------


def test_a_record_becomes_a_map_with_its_own_list_of_the_likeliest() -> None:
    record = struct.pack("<fIfIf", -1.5, 66, -0.5, 67, -2.5)
    assert token_logprobs([65], record, 2, VOCABULARY) == [
        {
            "token": 65,
            "text": "A",
            "logprob": -1.5,
            "top": [
                {"token": 66, "text": "B", "logprob": -0.5},
                {"token": 65, "text": "A", "logprob": -1.5},
            ],
        }
    ]


def test_s3_the_chosen_token_is_in_its_own_list_when_it_is_the_least_likely() -> None:
    record = struct.pack("<fIfIf", -7.0, 66, -0.5, 67, -2.5)
    (entry,) = token_logprobs([65], record, 2, VOCABULARY)
    assert [one["token"] for one in entry["top"]] == [66, 67, 65]


def test_of_equals_the_lower_id_comes_first() -> None:
    record = struct.pack("<fIfIf", -1.0, 64, -1.0, 66, -1.0)
    (entry,) = token_logprobs([65], record, 2, VOCABULARY)
    assert [one["token"] for one in entry["top"]] == [64, 65]


def test_without_others_there_is_no_list() -> None:
    (entry,) = token_logprobs([65], struct.pack("<f", -0.25), 0, VOCABULARY)
    assert entry == {"token": 65, "text": "A", "logprob": -0.25, "top": []}


@pytest.mark.parametrize("number", [math.nan, -math.inf, math.inf])
def test_s3_what_is_no_number_is_a_finite_one(number: float) -> None:
    record = struct.pack("<fIf", number, 66, number)
    (entry,) = token_logprobs([65], record, 1, VOCABULARY)
    assert entry["logprob"] == entry["top"][0]["logprob"] == -9999.0


def test_ids_that_stand_for_nothing_are_left_out() -> None:
    record = struct.pack("<fIfIf", -1.0, 66, -2.0, 2**32 - 1, -9999.0)
    (entry,) = token_logprobs([65], record, 2, VOCABULARY)
    assert [one["token"] for one in entry["top"]] == [65, 66]


def test_a_part_of_a_character_has_its_bytes_too() -> None:
    (entry,) = token_logprobs([0xED], struct.pack("<f", -1.0), 0, VOCABULARY)
    assert (entry["text"], entry["raw"]) == ("\ufffd", b"\xed")


# --- through the head -----------------------------------------------------------------------------


def test_each_token_has_its_own(bench: Bench) -> None:
    request = bench.ask(logprobs=3)
    assert request.sampling.logprobs == 4
    bench.hear(1, heard(request, 0, 65, 66))
    bench.hear(1, heard(request, 2, 67, finish="eos"))
    found = entries(bench)
    assert [(one["token"], one["logprob"]) for one in found] == [
        (65, made_up_logprob(65, 0)),
        (66, made_up_logprob(66, 1)),
        (67, made_up_logprob(67, 2)),
    ]
    assert all(one["token"] in [top["token"] for top in one["top"]] for one in found)
    event = bench.events("token")[0]
    read = from_map(TokenEvent, event)
    assert to_map(read)["logprobs"] == event["logprobs"]


def test_nobody_gets_what_was_not_asked_for(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65, finish="eos"))
    assert "logprobs" not in bench.events("token")[0]


@pytest.mark.parametrize("logprobs", [b"", bytes(4), bytes(11), bytes(24)])
def test_other_log_probabilities_than_were_asked_for_break_the_protocol(
    bench: Bench, logprobs: bytes
) -> None:
    request = bench.ask(logprobs=1)
    bench.hear(1, run(request, 0, 65, logprobs=logprobs))
    assert bench.tokens() == []
    assert "log-probabilities" in bench.closed[0][1]


def test_a_run_that_comes_again_with_more_adds_only_the_rest(bench: Bench) -> None:
    request = bench.ask(logprobs=1)
    bench.hear(1, heard(request, 0, 65, 66))
    bench.hear(1, heard(request, 1, 66, 67))
    assert [one["logprob"] for one in entries(bench)] == [
        made_up_logprob(token, place) for place, token in enumerate((65, 66, 67))
    ]
    rows = [row for row in bench.rows if isinstance(row, PutTokens)]
    assert [len(row.logprobs) for row in rows] == [24, 12]


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_attach_gives_them_from_any_cursor(bench: Bench, offset: int) -> None:
    request = bench.ask(logprobs=2)
    bench.hear(1, heard(request, 0, 65, 66, 67, finish="eos"))
    attach(bench, offset)
    assert entries(bench, b"again") == entries(bench)[offset:]


def test_they_go_on_after_a_move(bench: Bench) -> None:
    request = bench.ask(logprobs=0)
    bench.hear(1, heard(request, 0, 65, 66))
    bench.node(2, "n2")
    bench.down(1, left=True)
    again: GenerateReq = bench.last(GenerateReq)
    assert (again.generated_tokens, again.sampling) == (2, request.sampling)
    bench.hear(2, heard(again, 0, 67, place=2, finish="eos"))
    assert [one["logprob"] for one in entries(bench)] == [
        made_up_logprob(token, place) for place, token in enumerate((65, 66, 67))
    ]


def stored(records: bytes, *ids: int) -> Any:
    options = msgpack.unpackb(OPTIONS) | {"sampling": to_map(SamplingParams(logprobs=2))}
    return replace(
        ADMITTED_ANSWER,
        options=msgpack.packb(options),
        tokens=pack_ids(ids),
        logprobs=records,
        state="finished",
        finish="stop",
    )


def test_they_are_there_after_a_restart_of_the_head() -> None:
    records = b"".join(made_up_record(token, place, 1) for place, token in enumerate(b"abc"))
    bench = Bench(stored(records, *b"abc"))
    attach(bench, 1)
    assert [one["logprob"] for one in entries(bench, b"again")] == [
        made_up_logprob(ord("b"), 1),
        made_up_logprob(ord("c"), 2),
    ]


def test_a_row_with_too_few_is_a_corrupt_store() -> None:
    with pytest.raises(StoreCorrupt, match="log-probabilities"):
        Bench(stored(made_up_record(97, 0, 1), *b"abc"))


def test_one_event_has_no_more_than_it_may(bench: Bench) -> None:
    """A record with 20 others is 21 entries; 4,096 of these are those of 195 tokens."""
    records = b"".join(made_up_record(97, place, 20) for place in range(500))
    options = msgpack.unpackb(OPTIONS) | {"sampling": to_map(SamplingParams(logprobs=21))}
    bench = Bench(
        replace(stored(records, *b"a" * 500), options=msgpack.packb(options), logprobs=records)
    )
    attach(bench, 0)
    assert EVENT_ENTRIES == 4096
    assert [len(event["tokens"]) for event in bench.events("token")] == [195, 195, 110]
    for event in bench.events("token"):
        assert from_map(TokenEvent, event).offset == event["offset"]


def test_the_store_keeps_them_beside_their_tokens(tmp_path: Path) -> None:
    store, _ = Store.open(tmp_path / "store")
    rows = [
        PutTokens(
            answer=1,
            generation=generation(1, 1).generation,
            offset=first,
            ids=PackedIds(pack_ids([first])),
            logprobs=bytes([first]) * 4,
        )
        for first in range(3)
    ]
    commit(store, 1, answer(1), generation(1, 1), *rows)
    store.close()
    store, state = Store.open(tmp_path / "store")
    store.close()
    assert state.answers[0].logprobs == bytes(4) + b"\1" * 4 + b"\2" * 4


def test_runs_of_one_message_are_told_apart(bench: Bench) -> None:
    first, second = bench.ask(b"a", logprobs=0), bench.ask(b"b", logprobs=2)
    runs: tuple[TokenRun, ...] = (
        *heard(first, 0, 65).runs,
        *heard(second, 0, 66).runs,
    )
    bench.hear(1, TokenEvents(runs=runs))
    assert [one["token"] for one in entries(bench, b"a")] == [65]
    assert [len(one["top"]) for one in entries(bench, b"b")] == [2]
