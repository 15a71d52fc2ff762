"""Stop strings: cut exactly, held back no longer than needed, however the text was cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.text.stops import AnswerText, StopMatcher

#: Id n is byte n; 256 is a control token.
BYTES = (*(bytes([n]) for n in range(256)), b"<end>")


def shown(stops: list[str], *pieces: str) -> tuple[list[str], str]:
    """What may be shown after each piece and at the end, and the stop that was found."""
    matcher = StopMatcher(stops)
    parts = [matcher.push(piece)[0] for piece in pieces]
    return [*parts, matcher.finish()], matcher.stop


def test_t2_no_character_of_a_stop_is_shown() -> None:
    assert shown(["DEFGHIJ"], "ABC", "DEFG", "HIJ", "KLM") == (["ABC", "", "", "", ""], "DEFGHIJ")
    assert shown(["DEFGHIJ"], "ABCDEFGHIJKLM") == (["ABC", ""], "DEFGHIJ")


def test_t2_what_is_no_stop_after_all_is_shown_at_once() -> None:
    assert shown(["DEFGHIJ"], "ABCDEF", "GHX", "DE") == (["ABC", "DEFGHX", "", "DE"], "")


def test_t2_a_stop_of_two_words_split_over_pieces() -> None:
    found = shown(["the end"], "It is ", "the", " ", "sea, the", " e", "nd of it")
    assert found == (["It is ", "", "", "the sea, ", "", "", ""], "the end")


def test_t2_a_stop_that_is_the_beginning_of_another_ends_it_first() -> None:
    assert shown(["end", "ending"], "the ", "ending") == (["the ", "", ""], "end")
    assert shown(["ending", "end"], "the en", "ding") == (["the ", "", ""], "end")


def test_of_stops_that_end_together_the_longest_is_cut() -> None:
    assert shown(["b", "ab"], "xab") == (["x", ""], "ab")


def test_the_stop_that_ends_first_wins() -> None:
    assert shown(["abcdef", "cd"], "xabcdef") == (["xab", ""], "cd")


def test_a_beginning_may_begin_again() -> None:
    assert shown(["aab"], "a", "a", "a", "b") == (["", "", "a", "", ""], "aab")
    assert shown(["\n\n"], "x\n", "y\n", "\n") == (["x", "\ny", "", ""], "\n\n")


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("one. two")[0] == "one"
    assert matcher.push("three.") == ("", ".")
    assert matcher.finish() == ""


def first_stop(text: str, stops: list[str]) -> tuple[str, str]:
    """By its definition: look at every end, then at every start."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return text[:start], text[start:end]
    return text, ""


@given(
    st.text("ab", max_size=24),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 24), max_size=6),
)
def test_t2_any_cuts_give_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    parts, stop = shown(stops, *pieces)
    assert ("".join(parts), stop) == first_stop(text, stops)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
def test_t2_only_what_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    now, stop = matcher.push(text)
    held = text[len(now) :]
    if not stop:
        beginnings = {s[:n] for s in stops for n in range(len(s))}
        assert held in beginnings
        assert not any(text.endswith(b) for b in beginnings if len(b) > len(held))


# --- an answer's tokens ---------------------------------------------------------------------------


def test_an_answer_is_cut_at_the_token_that_completes_a_stop() -> None:
    text = AnswerText(BYTES, (256,), stops=("cd",))
    assert text.push(b"ab") == "ab"
    assert text.until_stop(b"cxcdef") == 4
    assert (text.stop, text.tokens) == ("cd", 6)


def test_control_tokens_are_no_part_of_a_text_with_stops() -> None:
    text = AnswerText(BYTES, (256,), stops=("ab",))
    assert [text.push([token]) for token in (ord("x"), ord("a"), 256, ord("b"))] == [
        "x",
        "",
        "",
        "",
    ]
    assert text.stop == "ab"


@pytest.mark.parametrize("cut", range(7))
def test_the_first_tokens_are_no_part_of_a_stop(cut: int) -> None:
    text = AnswerText(BYTES, stops=("ab",), min_tokens=3)
    # The first "ab" is before; the second begins with the last token that is no part of a stop.
    parts = [text.push(b"abab"[:cut]), text.push(b"abab"[cut:]), text.push(b"ab!")]
    assert ("".join(parts), text.stop) == ("abab", "ab")


def test_t1_a_cut_character_before_a_stop() -> None:
    data = "é한stop".encode()
    text = AnswerText(BYTES, stops=("stop",))
    assert "".join(text.push([byte]) for byte in data) + text.finish() == "é한"


def test_t1_a_cut_tail_is_dropped_and_a_beginning_of_a_stop_is_not() -> None:
    text = AnswerText(BYTES, stops=("stop",))
    assert text.push(b"ok sto" + "한".encode()[:2]) == "ok "
    assert text.finish() == "sto"
