"""Requests for one session that stand behind an append are taken in order."""

from __future__ import annotations

from typing import Any

import pytest

from bus.answer import read_answer
from bus.ids import pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import (
    AppendContent,
    GenerateReq,
)
from head.session_lines import MAX_BEHIND
from tests.harness.head_bench import CLIENT, TOY, run
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


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("session.get", {"state": "idle", "tokens": 2}),
        ("session.fork", {"tokens": 2}),
        ("session.park", {"tokens": 2}),
        ("session.finish", {}),
        ("session.resume", {"param": "session"}),
        ("explain", {"prompt_tokens": 2}),
    ],
)
def test_every_operation_on_the_session_is_taken_after_the_append(
    talk: Talk, op: str, said: dict[str, Any]
) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": op, "id": b"b"},
    )
    talk.bench.settle()
    assert talk.reply(b"a")["tokens"] == 2
    after = talk.reply(b"b")
    assert said.items() <= {**after, **(after.get("error") or {})}.items()


def test_a_parked_session_keeps_what_was_appended_before(talk: Talk) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.park", "id": b"b"},
        {"op": "session.append", "id": b"c", "text": "yo"},
        {"op": "session.resume", "id": b"d"},
        {"op": "session.append", "id": b"e", "text": "yo"},
    )
    talk.bench.settle()
    assert talk.reply(b"c")["error"]["code"] == "parked"
    assert talk.reply(b"e")["tokens"] == 4


def test_a_session_ends_after_all_that_stands_before_its_end(talk: Talk) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.generate", "id": b"b", "max_new": 3},
        {"op": "session.finish", "id": b"c"},
        {"op": "session.append", "id": b"d", "text": "yo"},
    )
    talk.bench.settle()
    assert talk.reply(b"a")["tokens"] == 2
    assert talk.reply(b"b")["finish"] == "cancelled"
    assert talk.reply(b"c")["kind"] == "end"
    assert talk.reply(b"d")["error"]["code"] == "invalid"


@pytest.mark.parametrize("by", ["session", "about", "key"])
def test_what_reads_or_pays_for_a_turn_that_stands_behind_stands_behind_it(
    talk: Talk, by: str
) -> None:
    named = {"session": talk.session, "about": b"b", "key": "k"}[by]
    frames = [MARK, encode_body({"op": "attach", "id": b"c", by: named})]
    more = [MARK, encode_body({"op": "more", "id": b"d", "about": b"b", "credit": 9})]
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.generate", "id": b"b", "max_new": 3, "credit": 1, "key": "k"},
    )
    talk.bench.core.client_request(CLIENT, frames, 0.0)
    talk.bench.core.client_request(CLIENT, more, 0.0)
    talk.bench.settle()
    talk.bench.hear(1, run(talk.bench.last(GenerateReq), 0, 65))
    read = [r["id"] for r in talk.bench.replies if r.get("type") == "token"]
    assert sorted(read) == [b"b", b"c"]
    assert talk.reply(b"d")["kind"] == "end"


def test_a_turn_that_stands_behind_can_be_cancelled(talk: Talk) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.generate", "id": b"b", "max_new": 3, "key": "k"},
        {"op": "session.append", "id": b"c", "text": "yo"},
        {"op": "cancel", "id": b"d", "about": b"b"},
        {"op": "cancel", "id": b"e", "about": b"b"},
    )
    talk.bench.settle()
    end = read_answer(talk.reply(b"b"), "", ())
    assert (end.finish, end.session) == ("cancelled", talk.session)
    assert talk.reply(b"c")["tokens"] == 4
    assert talk.reply(b"d")["kind"] == "end"
    assert talk.reply(b"e")["error"]["code"] == "not_found"
    assert not talk.bench.on(1, GenerateReq)


def test_ids_in_a_line_are_open(talk: Talk) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.append", "id": b"b", "text": "yo"},
        *({"op": "session.get", "id": request} for request in (b"a", b"b")),
    )
    talk.bench.settle()
    replies = [(r["id"], r["kind"]) for r in talk.bench.replies[-4:]]
    assert replies == [(b"a", "error"), (b"b", "error"), (b"a", "end"), (b"b", "end")]
    assert talk.bench.replies[-3]["error"]["param"] == "id"
    # They are free again.
    in_one_breath(talk, {"op": "session.get", "id": b"a"}, {"op": "session.get", "id": b"b"})
    talk.bench.settle()
    assert [r["tokens"] for r in talk.bench.replies[-2:]] == [4, 4]


def test_ids_of_other_clients_are_others(talk: Talk) -> None:
    in_one_breath(talk, {"op": "session.append", "id": b"a", "text": "hi"})
    frames = [MARK, encode_body({"op": "session.get", "session": talk.session, "id": b"a"})]
    talk.bench.core.client_request(b"other", frames, 0.0)
    frames = [MARK, encode_body({"op": "cancel", "about": b"a", "id": b"b"})]
    talk.bench.core.client_request(CLIENT, frames, 0.0)
    talk.bench.settle()
    # An append that has begun is done; it stands behind nothing.
    assert talk.reply(b"b")["error"]["code"] == "not_found"
    assert [r["tokens"] for r in talk.bench.replies if r["id"] == b"a"] == [2, 2]


def test_no_more_than_a_line_of_requests_stands_behind_an_append(talk: Talk) -> None:
    append = {"op": "session.append", "tokens": [65]}
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        *({**append, "id": b"n%d" % number} for number in range(MAX_BEHIND + 1)),
    )
    frames = [MARK, encode_body({"op": "session.finish", "id": b"f", "session": talk.session})]
    talk.bench.core.client_request(CLIENT, frames, 0.0)
    talk.bench.settle()
    # Nor does anything overtake them then.
    for request in (b"n%d" % MAX_BEHIND, b"f"):
        assert talk.reply(request)["error"]["code"] == "session_busy"
    assert talk.reply(b"n%d" % (MAX_BEHIND - 1))["tokens"] == 2 + MAX_BEHIND


#: Just below what one request may have.
LONG = b"x" * (8_000_000)


def in_line(talk: Talk, session: str, *requests: bytes, client: bytes = CLIENT) -> None:
    """Requests of 8 MB for a session that is appended to."""
    for request in requests:
        body = {"op": "session.get", "id": request, "session": session, "pad": LONG}
        talk.bench.core.client_request(client, [MARK, encode_body(body)], 0.0)


def errors(talk: Talk) -> dict[bytes, str]:
    """Of each request that was answered with an error: its code."""
    replies = [reply for reply in talk.bench.replies if "error" in reply]
    talk.bench.replies.clear()
    return {reply["id"]: reply["error"]["code"] for reply in replies}


def test_no_more_than_so_many_bytes_stand_behind_an_append(talk: Talk) -> None:
    for _ in range(2):
        in_one_breath(talk, {"op": "session.append", "id": b"a", "text": "hi"})
        # 16 MiB hold two of them and not three; what is cancelled gives its bytes back.
        in_line(talk, talk.session, b"1", b"2", b"3")
        in_one_breath(talk, {"op": "cancel", "id": b"c", "about": b"2"})
        in_line(talk, talk.session, b"4", b"5")
        in_one_breath(talk, {"op": "session.get", "id": b"6"})
        talk.bench.settle()
        refused = talk.reply(b"3")["error"]
        assert refused["retry_after_ms"] == 1000
        assert "wait for the replies to some, or send less at once" in refused["message"]
        found = errors(talk)
        assert [found[request] for request in (b"3", b"5")] == ["rate_limited"] * 2
        # Those two had their turn.
        assert "rate_limited" not in (found.get(b"1"), found.get(b"4"))
        assert b"6" not in found


def test_no_more_than_so_many_bytes_stand_behind_all_appends(talk: Talk) -> None:
    sessions = [talk.call("session.create", model=TOY)["session"] for _ in range(6)]
    for number, session in enumerate(sessions):
        asked = {"op": "session.append", "id": b"a%d" % number, "session": session, "text": "hi"}
        talk.bench.core.client_request(CLIENT, [MARK, encode_body(asked)], 0.0)
    # 64 MiB hold eight of them.
    for number, session in enumerate(sessions[:4]):
        in_line(talk, session, b"1-%d" % number, b"2-%d" % number, client=b"other")
    in_line(talk, sessions[4], b"3")
    # What nobody reads any more gives its bytes back.
    talk.bench.core.client_gone(b"other", 0.0)
    in_line(talk, sessions[4], b"4")
    in_line(talk, sessions[5], b"5")
    talk.bench.settle()
    assert "behind appends to all sessions" in talk.reply(b"3")["error"]["message"]
    found = errors(talk)
    assert found[b"3"] == "rate_limited"
    assert "rate_limited" not in (found.get(b"4"), found.get(b"5"))


@pytest.mark.parametrize("goodbye", [True, False])
@pytest.mark.parametrize(
    ("mode", "state"), [("keep", "running"), (None, "running"), ("cancel", "idle")]
)
def test_a_turn_behind_an_append_goes_on_without_its_client(
    talk: Talk, mode: str | None, state: str, goodbye: bool
) -> None:
    in_one_breath(
        talk,
        {"op": "session.append", "id": b"a", "text": "hi"},
        {"op": "session.append", "id": b"b", "text": "yo"},
        {"op": "session.generate", "id": b"c", "max_new": 3, "on_disconnect": mode},
        {"op": "session.get", "id": b"d"},
    )
    if goodbye:
        in_one_breath(talk, {"op": "goodbye", "id": b"e"})
    else:
        talk.bench.core.client_gone(CLIENT, 0.0)
    talk.bench.settle()
    assert not [r for r in talk.bench.replies if r["id"] in (b"b", b"c", b"d")]
    assert (talk.get()["tokens"], talk.get()["state"]) == (4, state)
    # Nobody reads it, so nothing is held for a reader.
    assert not any(answer.subscriptions for answer in talk.bench.core.book)
    talk.bench.wait(10.0)
    assert talk.get()["state"] == state


def test_what_clients_that_left_asked_for_has_no_ids(talk: Talk) -> None:
    append = {"op": "session.append", "session": talk.session, "id": b"a", "text": "hi"}
    for client in (b"x", b"y"):
        talk.bench.core.client_request(client, [MARK, encode_body(append)], 0.0)
    for client in (b"x", b"y"):
        talk.bench.core.client_gone(client, 0.0)
    # A connection may say goodbye and go on with the same ids.
    frames = [MARK, encode_body({"op": "session.get", "session": talk.session, "id": b"a"})]
    talk.bench.core.client_request(b"x", frames, 0.0)
    talk.bench.settle()
    assert talk.get()["tokens"] == 4
