"""`session.ls`: which sessions there are, in what order, and a page at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.ids import Epoch, GenerationId, NodeIdentity, SessionId, pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, TOY, Bench, run


def call(bench: Bench, op: str, **body: Any) -> dict[str, Any]:
    request = f"c{len(bench.replies)}".encode()
    bench.core.client_request(CLIENT, [MARK, encode_body({"op": op, "id": request, **body})], 0.0)
    bench.settle()
    return next(reply for reply in reversed(bench.replies) if reply["id"] == request)


def names(page: dict[str, Any]) -> list[str]:
    return [row["session"] for row in page["sessions"]]


def test_an_answers_session_and_one_of_several_turns() -> None:
    bench = Bench()
    bench.node(1)
    made = call(bench, "session.create", model=TOY, qos="agent")["session"]
    call(bench, "session.append", session=made, text="abc")
    bench.now = 5.0
    asked = bench.ask(b"r")
    bench.hear(1, run(asked, 0, 65, 66, finish="eos"))
    bench.now = 0.0
    page = call(bench, "session.ls")
    assert page["next"] is None
    answered, idle = page["sessions"]
    assert answered == {
        "session": asked.session,
        "model": "toy",
        "qos": "interactive",
        "turns": False,
        "state": "ended",
        "finish": "stop",
        "tokens": 2,
        "answer_tokens": 2,
        "node": "n1",
        "age_s": 0.0,
    }
    assert (idle["session"], idle["turns"], idle["state"]) == (made, True, "idle")
    assert (idle["qos"], idle["tokens"], idle["answer_tokens"]) == ("agent", 3, 0)


def test_a_turn_is_shown_once_by_its_session() -> None:
    bench = Bench()
    bench.node(1)
    made = call(bench, "session.create", model=TOY)["session"]
    call(bench, "session.append", session=made, text="abc")
    call(bench, "session.generate", session=made, max_new=4)
    (row,) = call(bench, "session.ls")["sessions"]
    assert (row["session"], row["state"], row["tokens"]) == (made, "running", 3)
    call(bench, "session.finish", session=made)
    (row,) = call(bench, "session.ls")["sessions"]
    assert row["state"] == "ended"


def test_pages_give_each_session_once_and_the_newest_first() -> None:
    bench = Bench()
    made = [call(bench, "session.create", model=TOY)["session"] for _ in range(7)]
    first = call(bench, "session.ls", limit=3)
    assert (names(first), first["next"]) == (made[:3:-1], made[4])
    # What is new meanwhile does not shift the pages.
    call(bench, "session.create", model=TOY)
    second = call(bench, "session.ls", limit=3, after=first["next"])
    assert names(second) == [made[3], made[2], made[1]]
    last = call(bench, "session.ls", limit=3, after=second["next"])
    assert (names(last), last["next"]) == ([made[0]], None)


@pytest.mark.parametrize(
    ("body", "param"),
    [({"limit": 0}, "limit"), ({"limit": 1001}, "limit"), ({"after": "x"}, "after")],
)
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    error = call(Bench(), "session.ls", **body)["error"]
    assert (error["code"], error["param"]) == ("invalid", param)


def test_age_counts_from_before_a_restart() -> None:
    bench = Bench(replace(ADMITTED_ANSWER, session=SessionId("s-5-0a"), created_wall_s=1e9 - 90))
    (row,) = call(bench, "session.ls")["sessions"]
    assert (row["session"], row["age_s"]) == ("s-5-0a", 90.0)


def test_figures_of_the_time_before_a_restart_are_left_out() -> None:
    stored = replace(
        ADMITTED_ANSWER,
        state="sent",
        generation=GenerationId(7),
        epoch=Epoch((2 << 32) | 4),
        worker=1,
        node=NodeIdentity("gone"),
        tokens=pack_ids((65, 66)),
        created_wall_s=1e9 - 90,
    )
    bench = Bench(stored)
    bench.node(1)
    call(bench, "attach", key="k")
    bench.wait(30.0)
    asked = bench.last(GenerateReq)
    bench.hear(1, run(asked, 0, 67, 68, finish="length"))
    end = bench.replies[-1]
    assert (end["kind"], end["offset"]) == ("end", 4)
    timing = end["timing"]
    assert (timing["first_token_ms"], timing["tokens_per_s"], timing["queued_ms"]) == (0, 0, 0)
    assert timing["total_ms"] == pytest.approx(1000 * (90 + bench.now))
