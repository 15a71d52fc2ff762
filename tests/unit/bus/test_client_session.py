"""The client's protocol core: credit, cursors, ends, deadlines and continuation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bus.client_events import Ended, Failed, OtherEvent
from bus.client_session import PING_AFTER_S, SILENCE_LIMIT_S, ClientSession
from bus.errors import Invalid, NoHead, NoNode, TimedOut, TooLarge, WireError
from bus.ids import RequestId
from bus.messages.api import (
    MARK,
    MAX_BODY_BYTES,
    PlacedEvent,
    QueuedEvent,
    TokenEvent,
    decode_body,
    encode_body,
)


def _entropy() -> Callable[[int], bytes]:
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return count.to_bytes(size, "big")

    return draw


@pytest.fixture
def session() -> ClientSession:
    return ClientSession(_entropy())


def _sent(session: ClientSession) -> list[dict[str, Any]]:
    return [decode_body(frames) for frames in session.frames_to_send()]


def _give(session: ClientSession, request: RequestId, kind: str, /, **body: Any) -> None:
    session.receive([MARK, encode_body({"id": request, "kind": kind, **body})], 0.0)


def _token(session: ClientSession, request: RequestId, offset: int, *ids: int) -> None:
    _give(session, request, "event", type="token", offset=offset, tokens=list(ids), text="x")


def _start(session: ClientSession, **options: Any) -> RequestId:
    request = session.start("generate", {"model": "m", "prompt": "p"}, now=0.0, **options)
    session.frames_to_send()
    return request


def _only_error(session: ClientSession, request: RequestId) -> Exception:
    (last,) = session.take(request)
    assert isinstance(last, Failed)
    assert session.take(request) == []
    assert not session.is_open(request)
    return last.error


def test_a_request_is_the_documented_frames(session: ClientSession) -> None:
    request = session.start("status", {"verbose": True}, now=0.0, credit=7)
    (frames,) = session.frames_to_send()
    assert frames[0] == b"SF1"
    assert decode_body(frames) == {"op": "status", "id": request, "credit": 7, "verbose": True}
    assert session.frames_to_send() == []


def test_events_come_typed_and_in_order_then_one_end(session: ClientSession) -> None:
    request = _start(session)
    _give(session, request, "event", type="queued", position=2)
    _give(session, request, "event", type="placed", node="n1", session="s1")
    _token(session, request, 0, 5, 6)
    _give(session, request, "event", type="prefill", done=1)
    _token(session, request, 2, 7)
    _give(session, request, "end", finish="stop")
    queued, placed, first, other, second, end = session.take(request)
    assert queued == QueuedEvent(position=2)
    assert placed == PlacedEvent(node="n1", session="s1")
    assert first == TokenEvent(offset=0, tokens=(5, 6), text="x")
    assert isinstance(other, OtherEvent)
    assert other.type == "prefill"
    assert second == TokenEvent(offset=2, tokens=(7,), text="x")
    assert isinstance(end, Ended)
    assert end.body["finish"] == "stop"
    assert session.take(request) == []


def test_an_error_reply_is_the_error_of_its_code(session: ClientSession) -> None:
    request = _start(session)
    error = NoNode("no node serves m", details={"n1": "down"}, retry_after_ms=500).to_dict()
    _give(session, request, "error", error=error)
    got = _only_error(session, request)
    assert isinstance(got, NoNode)
    assert (got.message, got.details, got.retry_after_ms) == (
        "no node serves m",
        {"n1": "down"},
        500,
    )


@pytest.mark.parametrize(("offset", "word"), [(3, "skipped"), (1, "repeated")])
def test_a_gap_or_repeat_is_the_heads_fault_and_cancels(
    session: ClientSession, offset: int, word: str
) -> None:
    request = _start(session)
    _token(session, request, 0, 5, 6)
    session.take(request)
    _token(session, request, offset, 9)
    assert [(b["op"], b["about"]) for b in _sent(session)] == [("cancel", request)]
    error = _only_error(session, request)
    assert isinstance(error, WireError)
    assert word in str(error)


def test_what_comes_after_the_end_or_unasked_is_an_error(session: ClientSession) -> None:
    request = _start(session)
    _give(session, request, "end")
    with pytest.raises(WireError, match="after the request had ended"):
        _give(session, request, "end")
    with pytest.raises(WireError, match="never made"):
        _give(session, RequestId(b"r-unknown"), "event")


def test_what_is_late_for_an_abandoned_request_is_passed_over(session: ClientSession) -> None:
    request = _start(session)
    session.abandon(request)
    assert [b["op"] for b in _sent(session)] == ["cancel"]
    _token(session, request, 0, 1)
    _give(session, request, "end", finish="cancelled")
    assert session.take(request) == []


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "event", "type": "token", "offset": "0", "tokens": [], "text": ""},
        {"kind": "event", "type": "token", "offset": 0, "tokens": [1], "text": "", "index": 1},
        {"kind": "event"},
        {"kind": "nonsense"},
        {"kind": "error"},
    ],
)
def test_a_wrong_reply_closes_its_request(session: ClientSession, body: dict[str, Any]) -> None:
    request = _start(session)
    session.receive([MARK, encode_body({"id": request, **body})], 0.0)
    assert isinstance(_only_error(session, request), WireError)


def test_a_reply_without_a_request_raises(session: ClientSession) -> None:
    with pytest.raises(WireError, match="request id"):
        session.receive([MARK, encode_body({"kind": "end"})], 0.0)
    error = {"id": None, "kind": "error", "error": TooLarge("too long").to_dict()}
    with pytest.raises(TooLarge, match="too long"):
        session.receive([MARK, encode_body(error)], 0.0)
    with pytest.raises(WireError):
        session.receive([b"HTTP/1.1 400"], 0.0)


def test_credit_is_granted_by_taking_when_half_is_used(session: ClientSession) -> None:
    request = _start(session, credit=4)
    for offset in range(3):
        _token(session, request, offset, 1)
    assert _sent(session) == []  # nothing taken: the head is to wait
    assert len(session.take(request)) == 3
    (more,) = _sent(session)
    assert (more["op"], more["about"], more["credit"]) == ("more", request, 3)
    _token(session, request, 3, 1)
    session.take(request)
    assert _sent(session) == []  # 1 of 4 used: not yet half


def test_more_events_than_credit_is_the_heads_fault(session: ClientSession) -> None:
    request = _start(session, credit=2)
    for offset in range(3):
        _token(session, request, offset, 1)
    *events, last = session.take(request)
    assert len(events) == 2
    assert isinstance(last, Failed)
    assert "credit" in str(last.error)


@pytest.mark.parametrize("credit", [0, 4097])
def test_credit_out_of_range_is_refused(session: ClientSession, credit: int) -> None:
    with pytest.raises(Invalid, match="1 to 4096"):
        session.start("generate", {}, now=0.0, credit=credit)


def test_a_body_over_the_limit_is_refused_here(session: ClientSession) -> None:
    with pytest.raises(TooLarge):
        session.start("generate", {"prompt": "x" * MAX_BODY_BYTES}, now=0.0)
    assert session.frames_to_send() == []
    assert session.next_timeout() is None


def test_cancel_waits_for_the_heads_end(session: ClientSession) -> None:
    request = _start(session)
    session.cancel(request)
    (cancel,) = _sent(session)
    assert (cancel["op"], cancel["about"]) == ("cancel", request)
    _give(session, cancel["id"], "end")
    assert session.is_open(request)
    _give(session, request, "end", finish="cancelled")
    (last,) = session.take(request)
    assert isinstance(last, Ended)
    session.cancel(request)
    assert _sent(session) == []


def test_a_refused_cancel_is_no_event(session: ClientSession) -> None:
    request = _start(session)
    session.cancel(request)
    (cancel,) = _sent(session)
    _give(session, cancel["id"], "error", error={"code": "not_found", "message": "gone"})
    assert session.take(request) == []


def test_a_deadline_fails_and_cancels(session: ClientSession) -> None:
    request = _start(session, deadline=3.0)
    assert session.next_timeout() == 3.0
    session.handle_timeout(2.9)
    assert session.is_open(request)
    session.handle_timeout(3.0)
    assert [b["op"] for b in _sent(session)] == ["cancel"]
    assert isinstance(_only_error(session, request), TimedOut)


def test_silence_is_asked_about_and_then_counts_as_lost(session: ClientSession) -> None:
    assert session.next_timeout() is None
    _start(session)
    assert session.next_timeout() == PING_AFTER_S
    assert session.handle_timeout(PING_AFTER_S)
    (ping,) = _sent(session)
    assert ping["op"] == "ping"
    assert session.next_timeout() == PING_AFTER_S + SILENCE_LIMIT_S
    assert not session.handle_timeout(PING_AFTER_S + SILENCE_LIMIT_S)


def test_an_answered_ping_is_life(session: ClientSession) -> None:
    _start(session)
    session.handle_timeout(PING_AFTER_S)
    (ping,) = _sent(session)
    session.receive([MARK, encode_body({"id": ping["id"], "kind": "end"})], 6.0)
    assert session.next_timeout() == 6.0 + PING_AFTER_S
    assert session.handle_timeout(PING_AFTER_S + SILENCE_LIMIT_S)


def test_a_placed_answer_goes_on_from_its_cursor(session: ClientSession) -> None:
    request = _start(session, credit=10)
    _give(session, request, "event", type="placed", node="n1", session="s9")
    _token(session, request, 0, 5, 6, 7)
    session.connection_lost()
    assert session.is_open(request)
    session.connected(1.0)
    (attach,) = _sent(session)
    assert attach == {
        "op": "attach",
        "id": request,
        "session": "s9",
        "offset": 3,
        "credit": 8,  # two events wait here untaken
    }
    _token(session, request, 3, 8)
    _give(session, request, "end", finish="stop")
    tokens = [e.tokens for e in session.take(request) if isinstance(e, TokenEvent)]
    assert tokens == [(5, 6, 7), (8,)]


def test_a_keyed_request_is_repeated_before_its_first_token_and_attached_after(
    session: ClientSession,
) -> None:
    body = {"model": "m", "prompt": "p", "key": "k1"}
    request = session.start("generate", body, now=0.0)
    (first,) = _sent(session)
    session.connection_lost()
    session.connected(1.0)
    assert _sent(session) == [first]
    _token(session, request, 0, 5)
    session.connection_lost()
    session.connected(2.0)
    (attach,) = _sent(session)
    assert (attach["op"], attach["key"], attach["offset"]) == ("attach", "k1", 1)


def test_an_attach_itself_goes_on_from_where_it_was(session: ClientSession) -> None:
    request = session.start("attach", {"key": "k1", "offset": 4}, now=0.0)
    _token(session, request, 4, 1, 2)
    session.frames_to_send()
    session.connection_lost()
    session.connected(1.0)
    (attach,) = _sent(session)
    assert (attach["key"], attach["offset"]) == ("k1", 6)


def test_reads_are_repeated_and_the_rest_fails_with_its_remedy(session: ClientSession) -> None:
    read = session.start("nodes", {}, now=0.0)
    plain = _start(session)
    session.connection_lost()
    error = _only_error(session, plain)
    assert isinstance(error, NoHead)
    assert "key" in str(error)
    session.connected(1.0)
    assert [(b["op"], b["id"]) for b in _sent(session)] == [("nodes", read)]


def test_what_may_have_been_done_is_not_to_be_sent_again_unseen(session: ClientSession) -> None:
    append = session.start("session.append", {"session": "s-1", "text": "x"}, now=0.0)
    session.connection_lost()
    assert str(_only_error(session, append)).endswith(
        "the head went away during session.append, which it may have done; see what is there "
        "before you send it again"
    )


def test_no_connection_to_be_had_ends_everything(session: ClientSession) -> None:
    read = session.start("nodes", {}, now=0.0)
    session.connection_lost()
    session.fail_all(NoHead("no head answers; start it with sfctl up"))
    assert isinstance(_only_error(session, read), NoHead)
