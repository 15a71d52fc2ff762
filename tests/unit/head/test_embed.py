"""The operation `embed` against the real core: what clients, text processes and nodes get."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from bus.ids import unpack_ids
from bus.messages.job_bodies import EmbedBody, EmbedEnd, EmbedPart, pack_body, unpack_body
from bus.messages.link_jobs import JobStart
from bus.messages.text import EncodeTexts
from head.book import MAX_OPEN_REQUESTS
from head.job_requests import MAX_WAITING_BYTES
from tests.harness.job_bench import ENCODER, WINDOW, JobBench, packed


@pytest.fixture
def bench() -> JobBench:
    made = JobBench()
    made.encoder(1, "n1")
    return made


def inputs(start: JobStart) -> list[bytes]:
    """The texts of a job, by the tokenizer whose tokens are bytes."""
    return [bytes(list(unpack_ids(ids))) for ids in unpack_body(EmbedBody, start.body).inputs]


def vectors(index: int, *rows: tuple[float, ...]) -> bytes:
    flat = [value for row in rows for value in row]
    data = struct.pack(f"<{len(flat)}f", *flat)
    return pack_body(EmbedPart(index=index, count=len(rows), dimension=len(rows[0]), vectors=data))


def error_of(bench: JobBench) -> dict[str, Any]:
    error: dict[str, Any] = bench.replies[-1]["error"]
    return error


def test_vectors_of_the_texts_and_one_end(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input=["ab", "c"], pooling="cls", normalize=False)
    (start,) = bench.starts(1)
    assert inputs(start) == [b"ab", b"c"]
    body = unpack_body(EmbedBody, start.body)
    assert (body.pooling, body.normalize) == ("cls", False)
    bench.part(1, start, 0, vectors(0, (1.0, 2.0)))
    bench.part(1, start, 1, vectors(1, (0.5, -2.0)))
    bench.end(1, start, parts=2, body=pack_body(EmbedEnd(tokens=3)))
    first, second, end = bench.replies
    assert first == {
        "id": b"e",
        "kind": "event",
        "type": "embeddings",
        "index": 0,
        "count": 1,
        "dimension": 2,
        "vectors": struct.pack("<2f", 1.0, 2.0),
    }
    assert (second["index"], second["vectors"]) == (1, struct.pack("<2f", 0.5, -2.0))
    assert end == {
        "id": b"e",
        "kind": "end",
        "finish": "done",
        "count": 2,
        "usage": {"prompt": 3},
        "node": "n1",
    }
    bench.op("embed", model=ENCODER, input="the id is free again")
    assert len(bench.starts(1)) == 2


def test_long_lists_are_encoded_in_stretches_and_keep_their_order(bench: JobBench) -> None:
    texts = [f"{number:050}" for number in range(1024)]
    texts[::10] = ["x" * 60] * len(texts[::10])
    bench.op("embed", model=ENCODER, input=texts)
    assert inputs(bench.starts(1)[0]) == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("given", "param", "says"),
    [
        ("", "input", "input is empty; leave it out"),
        ([], "input", "input should be a text, or a list of at least one"),
        (["a", ""], "input[1]", "input[1] is empty; leave it out"),
        (["a", 5], "input[1]", "input[1] is no text; give texts, not token ids"),
        ({"a": 1}, "input", "input should be a text, or a list of at least one"),
        (["a"] * 1025, "input", "input has 1025 texts; at most 1024 are taken at once"),
    ],
)
def test_bad_input_is_named(bench: JobBench, given: Any, param: str, says: str) -> None:
    bench.op("embed", model=ENCODER, input=given)
    error = error_of(bench)
    assert (error["code"], error["param"]) == ("invalid", param)
    assert error["message"].startswith(says)
    assert bench.starts(1) == []


@pytest.mark.parametrize("length", [WINDOW + 1, 10_000])
def test_a_text_that_is_too_long_is_named_with_its_length(bench: JobBench, length: int) -> None:
    bench.op("embed", model=ENCODER, input=["ok", "x" * length])
    error = error_of(bench)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert error["details"] == {"length": length, "max": WINDOW}
    assert bench.starts(1) == []


def test_other_bad_parameters_are_named(bench: JobBench) -> None:
    bench.wait(11.0)
    for body, param in (
        ({"model": "nope", "input": "a"}, "model"),
        ({"model": "toy", "input": "a"}, "model"),
        ({"model": ENCODER}, "input"),
        ({"model": ENCODER, "input": "a", "pooling": "max"}, "pooling"),
        ({"model": ENCODER, "input": "a", "normalize": 1}, "normalize"),
        ({"model": ENCODER, "input": "a", "qos": "soon"}, "qos"),
    ):
        bench.op("embed", **body)
        assert error_of(bench)["param"] == param
    assert bench.starts(1) == []


def test_a_model_that_makes_text_says_what_it_is(bench: JobBench) -> None:
    bench.op("embed", model="toy", input="a")
    assert error_of(bench)["message"].startswith("toy is a model of kind decoder and makes no emb")
    bench.op("generate", model=ENCODER, prompt="a")
    assert error_of(bench)["message"] == (
        "enc is an encoder: it makes embeddings, not text; ask a model that makes text, or get its "
        "vectors: sfctl embed enc FILE, client.embed('enc', texts)"
    )


def test_no_node_is_an_error_after_a_while() -> None:
    bench = JobBench()
    bench.op("embed", model=ENCODER, input="a")
    bench.wait(5.0)
    assert bench.replies == []
    bench.wait(6.0)
    error = error_of(bench)
    assert (error["code"], error["details"]) == ("no_node", {"nodes": {}})


def test_events_keep_to_the_credit(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input=["a"] * 32, credit=2)
    (start,) = bench.starts(1)
    for index in range(16):
        bench.part(1, start, index, vectors(index, (1.0,)))
    assert len(bench.replies) == 2
    assert bench.granted(1) == []
    bench.op("more", id=b"m", about=b"e", credit=14)
    assert [reply["id"] for reply in bench.replies] == [*[b"e"] * 16, b"m"]
    assert bench.granted(1) == [32]
    for index in range(16, 32):
        bench.part(1, start, index, vectors(index, (1.0,)))
    bench.end(1, start, parts=32, body=pack_body(EmbedEnd(tokens=9)))
    assert len(bench.replies) == 17
    bench.op("more", id=b"n", about=b"e", credit=4000)
    assert [reply["kind"] for reply in bench.replies[17:]] == [*["event"] * 16, "end", "end"]


def test_cancel_ends_it_at_the_node_and_at_once(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input="a")
    bench.op("cancel", id=b"x", about=b"e")
    assert bench.replies == [
        {"id": b"e", "kind": "end", "finish": "cancelled"},
        {"id": b"x", "kind": "end"},
    ]
    assert bench.cancels(1) == [bench.starts(1)[0].job]
    bench.op("cancel", id=b"y", about=b"e")
    assert error_of(bench)["code"] == "not_found"


def test_a_client_that_is_gone_ends_it_at_the_node(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input="a")
    bench.core.client_gone(b"c", bench.now)
    bench.settle()
    assert bench.cancels(1) == [bench.starts(1)[0].job]
    bench.op("embed", model=ENCODER, input="b")
    bench.part(1, bench.starts(1)[1], 0, vectors(0, (1.0,)))
    bench.end(1, bench.starts(1)[1], parts=1, body=pack_body(EmbedEnd()))
    assert [reply["kind"] for reply in bench.replies] == ["event", "end"]


def test_an_id_is_taken_while_it_is_open(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input="a")
    bench.op("embed", model=ENCODER, input="b")
    assert error_of(bench)["param"] == "id"
    assert len(bench.starts(1)) == 1


@pytest.mark.parametrize(
    "end",
    [
        {"parts": 3, "body": pack_body(EmbedEnd(tokens=3))},
        {"code": "internal", "message": "the disk is full"},
        {"parts": 3, "body": b"\x90"},
    ],
)
def test_a_cancel_ends_it_although_its_end_waits_for_credit(
    bench: JobBench, end: dict[str, Any]
) -> None:
    bench.op("embed", model=ENCODER, input=["a", "b", "c"], credit=1)
    (start,) = bench.starts(1)
    for index in range(3):
        bench.part(1, start, index, vectors(index, (1.0,)))
    bench.end(1, start, **end)
    bench.op("cancel", id=b"x", about=b"e")
    assert bench.replies[1:] == [
        {"id": b"e", "kind": "end", "finish": "cancelled"},
        {"id": b"x", "kind": "end"},
    ]
    bench.op("more", id=b"m", about=b"e", credit=5)
    assert error_of(bench)["code"] == "not_found"
    bench.op("embed", model=ENCODER, input="the id is free again")
    assert len(bench.starts(1)) == 2


def test_another_node_gives_what_is_missing_however_it_cuts_it(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input=["a", "b", "c", "d"])
    bench.part(1, bench.starts(1)[0], 0, vectors(0, (1.0, 2.0)))
    bench.encoder(2, "n2")
    bench.down(1)
    (again,) = bench.starts(2)
    assert inputs(again) == [b"b", b"c", b"d"]
    bench.part(2, again, 0, vectors(0, (3.0, 4.0), (5.0, 6.0)))
    bench.part(2, again, 1, vectors(2, (7.0, 8.0)))
    bench.end(2, again, parts=2, body=pack_body(EmbedEnd(tokens=3)))
    given = [(reply["index"], reply["vectors"]) for reply in bench.replies[:-1]]
    assert given == [
        (0, struct.pack("<2f", 1.0, 2.0)),
        (1, struct.pack("<4f", 3.0, 4.0, 5.0, 6.0)),
        (3, struct.pack("<2f", 7.0, 8.0)),
    ]
    assert (bench.replies[-1]["usage"], bench.replies[-1]["node"]) == ({"prompt": 4}, "n2")


def test_one_that_lost_but_its_end_is_ended_by_another_node(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input=["a", "b"])
    bench.part(1, bench.starts(1)[0], 0, vectors(0, (1.0,), (2.0,)))
    bench.encoder(2, "n2")
    bench.down(1)
    (again,) = bench.starts(2)
    assert inputs(again) == [b"b"]
    bench.part(2, again, 0, vectors(0, (2.0,)))
    bench.end(2, again, parts=1, body=pack_body(EmbedEnd(tokens=1)))
    assert [reply["kind"] for reply in bench.replies] == ["event", "end"]


def test_vectors_of_another_model_do_not_follow_those_of_the_first(bench: JobBench) -> None:
    bench.op("embed", model=ENCODER, input=["a", "b"])
    bench.part(1, bench.starts(1)[0], 0, vectors(0, (1.0, 2.0)))
    bench.encoder(2, "n2")
    bench.down(1)
    bench.part(2, bench.starts(2)[0], 0, vectors(0, (1.0,)))
    error = error_of(bench)
    assert (error["code"], error["details"]) == ("internal", {"node": "n2"})
    assert "vectors of 1 numbers after some of 2" in error["message"]


def test_a_client_that_takes_no_events_gets_no_further_ones_made(bench: JobBench) -> None:
    parts = [vectors(index, *[(1.0,) * 480] * 64) for index in range(0, 1024, 64)]
    begun = 0
    for number in range(30):
        bench.op("embed", id=b"%d" % number, model=ENCODER, input=["a"] * 1024, credit=1)
        for start in bench.starts(1)[begun:]:
            begun += 1
            for seq, part in enumerate(parts):
                bench.part(1, start, seq, part)
            bench.end(1, start, parts=16, body=pack_body(EmbedEnd()))
    # All parts but the first wait of each that was begun.
    size = sum(map(len, parts[1:]))
    assert (begun - 1) * size <= MAX_WAITING_BYTES < begun * size
    bench.op("embed", id=b"o", client=b"d", model=ENCODER, input="b")
    assert len(bench.starts(1)) == begun + 1
    bench.op("more", id=b"m", about=b"0", credit=15)
    assert {"id": b"0", "kind": "end"}.items() <= bench.replies[-2].items()
    assert len(bench.starts(1)) > begun + 1
    bench.core.client_gone(b"c", bench.now)
    bench.settle()
    assert bench.desk.room.holds.full == set()


@pytest.mark.parametrize("qos", ["interactive", "completion", "agent", "background"])
def test_a_client_that_takes_no_events_keeps_nobody_waiting(bench: JobBench, qos: str) -> None:
    for number in range(100):
        bench.op("embed", id=b"%d" % number, model=ENCODER, input=["a"] * 225, credit=1)
    done = 0
    while len(bench.starts(1)) > done:
        start = bench.starts(1)[done]
        done += 1
        for seq in range(15):
            bench.part(1, start, seq, vectors(15 * seq, *[(1.0,) * 2048] * 15))
        bench.end(1, start, parts=15, body=pack_body(EmbedEnd()))
        bench.wait(0.0)
    assert (bench.desk.running, bench.desk.counts()) == (0, {ENCODER: 100 - done})
    bench.op("embed", id=b"o", client=b"d", model=ENCODER, input="b", qos=qos)
    assert inputs(bench.starts(1)[done]) == [b"b"]


def test_long_answers_that_nobody_takes_leave_their_places_to_others(bench: JobBench) -> None:
    for number in range(9):
        bench.op("embed", id=b"%d" % number, model=ENCODER, input=["a"] * 20, credit=1)
    for start in bench.starts(1):
        for seq in range(16):
            bench.part(1, start, seq, vectors(seq, (1.0,)))
    assert len(bench.starts(1)) == 4
    bench.op("embed", id=b"o", client=b"d", model=ENCODER, input="b", qos="background")
    assert inputs(bench.starts(1)[4]) == [b"b"]
    # The first goes on. The two places that are left go to its client, of which three stand still.
    bench.op("more", id=b"m", about=b"0", credit=30)
    assert len(bench.starts(1)) == 7
    for seq in range(16, 20):
        bench.part(1, bench.starts(1)[0], seq, vectors(seq, (1.0,)))
    bench.end(1, bench.starts(1)[0], parts=20, body=pack_body(EmbedEnd()))
    assert {"id": b"0", "kind": "end"}.items() <= bench.replies[-1].items()


def test_the_budget_counts_from_the_request_on() -> None:
    bench = JobBench()
    bench.op("embed", model=ENCODER, input="a", max_wall_ms=3000)
    bench.op("embed", id=b"f", model=ENCODER, input="a", max_wall_ms=5000)
    bench.wait(2.0)
    bench.encoder(1)
    assert [start.wall_ms for start in bench.starts(1)] == [1000, 3000]
    bench.wait(1.5)
    assert error_of(bench)["code"] == "expired"
    assert bench.cancels(1) == [bench.starts(1)[0].job]
    bench.part(1, bench.starts(1)[1], 0, vectors(0, (1.0,)))
    bench.end(1, bench.starts(1)[1], parts=1, body=pack_body(EmbedEnd()))
    bench.wait(5.0)
    assert [reply["kind"] for reply in bench.replies] == ["error", "event", "end"]


def test_the_budget_ends_one_whose_texts_are_not_encoded_yet() -> None:
    held: list[object] = []

    class SlowText(JobBench):
        def text_reply(self, job: Any) -> object:
            if isinstance(job, EncodeTexts):
                held.append(job)
                return object()
            return super().text_reply(job)

    bench = SlowText()
    bench.encoder(1)
    bench.op("embed", model=ENCODER, input="a", max_wall_ms=500)
    bench.wait(1.0)
    assert (len(held), error_of(bench)["code"]) == (1, "expired")
    assert bench.starts(1) == []


def test_texts_that_wait_for_a_tokenizer_are_bounded_and_go_with_their_request() -> None:
    bench = JobBench()
    text = "a" * (7 << 20)
    for number in range(5):
        bench.op("embed", id=b"%d" % number, model="not-there-yet", input=text)
    assert [reply["id"] for reply in bench.replies] == [b"4"]
    assert (error_of(bench)["code"], error_of(bench)["retry_after_ms"]) == ("queue_full", 1000)
    bench.op("cancel", id=b"x", about=b"0")
    bench.replies.clear()
    bench.op("embed", id=b"5", model="not-there-yet", input=text)
    assert bench.replies == []
    bench.core.client_gone(b"c", bench.now)
    bench.settle()
    for number in range(4):
        bench.op("embed", id=b"%d" % number, model="not-there-yet", input=text)
    assert bench.replies == []
    bench.wait(11.0)
    assert {reply["error"]["code"] for reply in bench.replies} == {"not_found"}


def test_so_many_may_be_open_and_no_more(bench: JobBench) -> None:
    for number in range(MAX_OPEN_REQUESTS):
        bench.op("embed", id=b"%d" % number, model=ENCODER, input="a")
    assert bench.replies == []
    bench.op("embed", model=ENCODER, input="a")
    assert (error_of(bench)["code"], error_of(bench)["retry_after_ms"]) == ("rate_limited", 1000)
    bench.op("embed", client=b"d", model=ENCODER, input="a")
    bench.op("cancel", id=b"x", about=b"0")
    bench.op("embed", model=ENCODER, input="a")
    assert [reply["kind"] for reply in bench.replies] == ["error", "end", "end"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\x90", "the body of a EmbedPart should be a map"),
        (b"\xc1", "not msgpack: FormatError"),
        (pack_body(EmbedEnd(tokens=1)), "index is missing"),
        (vectors(0, (1.0, 2.0)), "vectors from input 0 on where 1 was due"),
        (vectors(2, (1.0, 2.0)), "vectors from input 2 on where 1 was due"),
        (vectors(1, *[(1.0, 2.0)] * 3), "vectors of 3 of 2 inputs"),
        (vectors(1, (1.0,)), "vectors of 1 numbers after some of 2"),
        (packed(index=1, count=0, dimension=2, vectors=b""), "vectors of 0 of 2 inputs"),
        (packed(index=1, count=1, dimension=0, vectors=b""), "vectors of 0 numbers after some"),
        (packed(index=1, count=1, dimension=2, vectors=bytes(7)), "1 vectors of 2 in 7 bytes"),
        (packed(index=1, count=1, dimension=2, vectors="text"), "vectors should be bytes"),
    ],
)
def test_what_a_node_makes_up_is_its_fault_and_its_job_is_ended(
    bench: JobBench, body: bytes, says: str
) -> None:
    bench.op("embed", model=ENCODER, input=["a", "b", "c"])
    (start,) = bench.starts(1)
    bench.part(1, start, 0, vectors(0, (1.0, 2.0)))
    bench.part(1, start, 1, body)
    error = error_of(bench)
    assert (error["code"], error.get("param")) == ("internal", None)
    assert error["details"] == {"node": "n1"}
    assert error["message"].startswith("node n1 sent what is no result of the job embed (")
    assert says in error["message"]
    assert bench.cancels(1) == [start.job]
    bench.part(1, start, 2, vectors(1, (1.0, 2.0)))
    assert len(bench.replies) == 2


@pytest.mark.parametrize(
    ("given", "body", "says"),
    [
        (0, pack_body(EmbedEnd()), "the end after vectors of 0 of 2 inputs"),
        (1, pack_body(EmbedEnd()), "the end after vectors of 1 of 2 inputs"),
        (2, b"\xc1", "not msgpack: FormatError"),
        (2, b"\x90", "the body of a EmbedEnd should be a map"),
        (2, packed(tokens=-1), "tokens"),
    ],
)
def test_an_end_that_is_none_is_the_nodes_fault(
    bench: JobBench, given: int, body: bytes, says: str
) -> None:
    bench.op("embed", model=ENCODER, input=["a", "b"])
    (start,) = bench.starts(1)
    for index in range(given):
        bench.part(1, start, index, vectors(index, (1.0,)))
    bench.end(1, start, parts=given, body=body)
    error = error_of(bench)
    assert (error["code"], error.get("param")) == ("internal", None)
    assert error["details"] == {"node": "n1"}
    assert says in error["message"]


@pytest.mark.parametrize("code", ["decode", "wire", "auth", "no_head", "token_refused", "new_one"])
def test_codes_that_are_of_no_job_do_not_reach_clients(bench: JobBench, code: str) -> None:
    bench.op("embed", model=ENCODER, input="a")
    bench.end(1, bench.starts(1)[0], code=code, message="odd", param="input")
    error = error_of(bench)
    assert (error["code"], error["param"], error["details"]) == ("internal", None, {"node": "n1"})
    assert error["message"] == f"node n1 ended the job with {code} (odd); its log may say more"
