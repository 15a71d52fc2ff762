"""Stop strings at the head: what the caller sees is what the head found, whatever the node said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from bus.api_maps import to_map
from bus.ids import pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateCancel, GenerateReq, SessionRevoke, TokenEvents
from bus.messages.parts import Finish
from bus.messages.sampling import SamplingParams
from head.rows import PutFinish, PutTokens
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, OPTIONS, Bench, run


def say(bench: Bench, request: GenerateReq, first: int, text: bytes, finish: str = "") -> None:
    bench.hear(1, run(request, first, *text, finish=finish))


def ended(bench: Bench, request: bytes = b"r") -> dict[str, Any]:
    (end,) = (r for r in bench.replies if r["kind"] == "end" and r["id"] == request)
    return end


def shown(bench: Bench, request: bytes = b"r") -> str:
    """All the text that a request got, with what its end completed."""
    mine = [r for r in bench.replies if r["id"] == request]
    return "".join(r["text"] for r in mine if r.get("type") == "token" or r["kind"] == "end")


def attach(bench: Bench, offset: int, request: bytes = b"again", session: str = "") -> None:
    name = session or bench.events("placed")[-1]["session"]
    body = {"op": "attach", "id": request, "session": name, "offset": offset}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()


def test_t2_the_tokens_come_at_once_and_the_text_without_the_stop(bench: Bench) -> None:
    request = bench.ask(stop="DEFGHIJ", max_new=40)
    for place, letter in enumerate(b"ABCDEFGHI"):
        say(bench, request, place, bytes([letter]))
    events = bench.events("token")
    assert [event["tokens"] for event in events] == [[letter] for letter in b"ABCDEFGHI"]
    assert [event["text"] for event in events] == ["A", "B", "C", "", "", "", "", "", ""]
    say(bench, request, 9, b"J", "stop")
    end = ended(bench)
    assert (end["finish"], end["stop"], end["offset"], shown(bench)) == (
        "stop",
        "DEFGHIJ",
        10,
        "ABC",
    )


@pytest.mark.parametrize(("text", "finish"), [(b"ABC", "expired"), (b"ABCD", "stop")])
def test_expired_goes_before_a_stop_of_the_same_token_and_not_before_an_earlier_one(
    bench: Bench, text: bytes, finish: str
) -> None:
    request = bench.ask(stop="BC", max_new=40, max_wall_ms=1000)
    say(bench, request, 0, text, "expired")
    assert (ended(bench)["finish"], ended(bench)["offset"]) == (finish, 3)
    assert ended(bench).get("stop") == ("BC" if finish == "stop" else None)
    assert shown(bench) == "A"


def test_t2_a_beginning_of_a_stop_is_shown_when_it_goes_on_otherwise(bench: Bench) -> None:
    request = bench.ask(stop=["DEFGHIJ"], max_new=40)
    say(bench, request, 0, b"ABCDEF")
    say(bench, request, 6, b"X")
    assert [event["text"] for event in bench.events("token")] == ["ABC", "DEFX"]
    say(bench, request, 7, b"DE", "eos")
    end = ended(bench)
    assert (end["finish"], "stop" in end, end["text"]) == ("stop", False, "DE")


def test_t2_two_words_and_a_stop_that_begins_another(bench: Bench) -> None:
    request = bench.ask(stop=["the ending", "the end"], max_new=40)
    for place in range(0, 24, 3):
        say(bench, request, place, b"at the sea, the ending.."[place : place + 3])
    assert (ended(bench)["stop"], shown(bench)) == ("the end", "at the sea, ")


def test_a_stop_that_the_node_missed_ends_the_answer_at_its_token(bench: Bench) -> None:
    request = bench.ask(stop="cd", max_new=40)
    say(bench, request, 0, b"abcdef")
    end = ended(bench)
    assert (end["finish"], end["stop"], end["offset"]) == ("stop", "cd", 4)
    assert end["usage"]["completion"] == 4
    assert bench.tokens() == [*b"abcd"]
    assert isinstance(bench.on(1, GenerateCancel, SessionRevoke)[0], GenerateCancel)
    (row,) = (row for row in bench.rows if isinstance(row, PutTokens))
    assert row.ids == pack_ids(b"abcd")
    (finish,) = (row for row in bench.rows if isinstance(row, PutFinish))
    assert (finish.finish, finish.stop, finish.completion_tokens) == ("stop", "cd", 4)


@pytest.mark.parametrize("reason", ["length", "error", "cancelled"])
def test_a_stop_in_the_text_goes_before_what_the_node_says(bench: Bench, reason: str) -> None:
    request = bench.ask(stop="cd", max_new=4)
    say(bench, request, 0, b"abcd", reason)
    assert (ended(bench)["finish"], ended(bench)["stop"], shown(bench)) == ("stop", "cd", "ab")


def test_a_stop_that_only_the_node_found_cuts_nothing(bench: Bench) -> None:
    request = bench.ask(stop="zz", max_new=4)
    (said,) = run(request, 0, *b"abz").runs
    end = Finish(reason="stop", stop="zz")
    bench.hear(1, TokenEvents(runs=(replace(said, finish=end),)))
    assert (ended(bench)["finish"], shown(bench)) == ("stop", "abz")
    assert "stop" not in ended(bench)


def test_a_stop_id_names_no_stop(bench: Bench) -> None:
    request = bench.ask(stop_ids=[99], max_new=4)
    say(bench, request, 0, b"abc", "stop")
    assert (ended(bench)["finish"], "stop" in ended(bench), shown(bench)) == ("stop", False, "abc")


def test_the_first_tokens_are_no_part_of_a_stop(bench: Bench) -> None:
    request = bench.ask(stop="ab", min_tokens=3, max_new=40)
    say(bench, request, 0, b"ababx")
    assert not [r for r in bench.replies if r["kind"] == "end"]
    say(bench, request, 5, b"ab")
    assert (ended(bench)["offset"], shown(bench)) == (7, "ababx")


@pytest.mark.parametrize("offset", range(11))
def test_t2_attach_from_any_cursor_gives_the_same_text(bench: Bench, offset: int) -> None:
    """Text that was held back at the cursor comes after it, so nothing is lost or repeated."""
    request = bench.ask(stop="DEFGHIJ", max_new=40)
    text = b"ABDEDEFGHI"
    seen = ""
    for place, letter in enumerate(text):
        say(bench, request, place, bytes([letter]))
        if place < offset:
            seen += bench.events("token")[-1]["text"]
    say(bench, request, 10, b"J", "stop")
    attach(bench, offset)
    assert seen + shown(bench, b"again") == shown(bench) == "ABDE"
    assert ended(bench, b"again")["stop"] == "DEFGHIJ"


def stored(text: bytes, state: str, finish: str = "", stop: str = "") -> Any:
    """An answer with the stop string "cd" as the store has it."""
    params = to_map(SamplingParams(stop=("cd",)))
    options = msgpack.unpackb(OPTIONS) | {"sampling": params, "max_new": 40}
    return replace(
        ADMITTED_ANSWER,
        options=msgpack.packb(options),
        tokens=pack_ids(text),
        state=state,
        finish=finish,
        stop=stop,
    )


@pytest.mark.parametrize("offset", range(6))
def test_t2_the_same_after_a_restart_of_the_head(offset: int) -> None:
    bench = Bench(stored(b"abxcd", "finished", "stop", "cd"))
    attach(bench, offset, session="s")
    assert shown(bench, b"again") == "abx"[offset:]
    assert (ended(bench, b"again")["stop"], ended(bench, b"again")["offset"]) == ("cd", 5)


def test_t2_a_stop_over_a_restart_and_a_move_is_found() -> None:
    bench = Bench(stored(b"abc", "admitted"))
    bench.node(1)
    attach(bench, 0, session="s")
    bench.wait(6.0)
    request: GenerateReq = bench.last(GenerateReq)
    assert request.generated_tokens == 3
    say(bench, request, 0, b"de")
    assert (shown(bench, b"again"), ended(bench, b"again")["offset"]) == ("ab", 4)


def test_t1_a_character_cut_by_max_new_is_dropped_and_none_is_replaced(bench: Bench) -> None:
    data = "é\U0001f600한".encode()
    request = bench.ask(stop="stop", max_new=len(data) - 1)
    for place, byte in enumerate(data[:-1]):
        say(bench, request, place, bytes([byte]), "length" if place == len(data) - 2 else "")
    assert (shown(bench), ended(bench)["finish"]) == ("é\U0001f600", "length")


def test_t1_a_character_cut_by_a_cursor_comes_whole_after_it(bench: Bench) -> None:
    data = "\U0001f600".encode()
    request = bench.ask(max_new=8)
    say(bench, request, 0, data, "eos")
    attach(bench, 2)
    assert shown(bench, b"again") == "\U0001f600"


def test_a_turn_keeps_all_its_tokens_in_the_context(bench: Bench) -> None:
    """The text is cut; the tokens are what the model made, the stop's among them."""
    body: dict[str, Any] = {"op": "session.create", "id": b"c", "model": "toy"}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()
    session = bench.replies[-1]["session"]
    for op, more in (
        ("session.append", {"text": "hi"}),
        ("session.generate", {"stop": "cd", "max_new": 40}),
    ):
        body = {"op": op, "id": op.encode(), "session": session, **more}
        bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
        bench.settle()
    say(bench, bench.last(GenerateReq), 0, b"abcdef")
    assert shown(bench, b"session.generate") == "ab"
    body = {"op": "session.get", "id": b"g", "session": session, "limit": 100}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()
    assert bytes(bench.replies[-1]["ids"]) == b"hiabcd"
