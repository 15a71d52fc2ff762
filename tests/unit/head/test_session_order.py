"""Requests for one session that stand behind an append are taken in order."""

from __future__ import annotations

from typing import Any

import pytest

from bus.ids import pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import (
    AppendContent,
    GenerateReq,
)
from head.session_operations import MAX_BEHIND
from tests.harness.head_bench import CLIENT
from tests.harness.session_talk import Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()


def in_one_breath(talk: Talk, *bodies: dict[str, Any]) -> None:
    """Requests that all come before the first text is tokenized."""
    for body in bodies:
        frames = [MARK, encode_body({"session": talk.session, **body})]
        talk.bench.core.client_request(CLIENT, frames, 0.0)


def test_what_comes_behind_an_append_is_taken_in_order(talk: Talk) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.append", "id": b"b", "tokens": [65]},
        {"op": "session.append", "id": b"c", "text": "yo"},
        {"op": "session.generate", "id": b"d", "max_new": 3},
        {"op": "session.append", "id": b"e", "tokens": [66]},
    )
    talk.bench.settle()
    assert [talk.reply(request)["tokens"] for request in (b"a", b"b", b"c")] == [2, 3, 5]
    assert talk.bench.last(AppendContent).ids == pack_ids(b"hiAyo")
    assert talk.bench.last(GenerateReq).prompt_tokens == 5
    assert talk.reply(b"e")["error"]["code"] == "session_busy"


def test_a_refused_append_does_not_hold_up_what_is_behind_it(talk: Talk) -> None:
    talk.append("hi")
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "x"},
        {"op": "session.append", "id": b"b", "tokens": [100_000]},
        {"op": "session.generate", "id": b"c", "max_new": 3},
    )
    talk.bench.settle()
    assert talk.reply(b"b")["error"]["param"] == "tokens"
    assert talk.bench.last(GenerateReq).prompt_tokens == 3


def test_a_session_that_ended_meanwhile_takes_nothing_behind(talk: Talk) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.generate", "id": b"b", "max_new": 3},
        {"op": "session.finish", "id": b"c"},
    )
    talk.bench.settle()
    assert "error" not in talk.reply(b"c")
    assert [talk.reply(request)["error"]["code"] for request in (b"a", b"b")] == ["invalid"] * 2


def test_no_more_than_a_line_of_requests_stands_behind_an_append(talk: Talk) -> None:
    append = {"op": "session.append", "tokens": [65]}
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        *({**append, "id": b"n%d" % number} for number in range(MAX_BEHIND + 1)),
    )
    talk.bench.settle()
    assert talk.reply(b"n%d" % MAX_BEHIND)["error"]["code"] == "session_busy"
    assert talk.reply(b"n%d" % (MAX_BEHIND - 1))["tokens"] == 2 + MAX_BEHIND


def test_a_turn_of_a_client_that_left_is_not_begun_behind_an_append(talk: Talk) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.generate", "id": b"b", "max_new": 3},
    )
    talk.bench.core.client_gone(CLIENT, 0.0)
    talk.bench.settle()
    assert (talk.get()["tokens"], talk.get()["state"]) == (2, "idle")
