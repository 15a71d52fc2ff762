"""No text of a user's can become a control token, alone or with what stands beside it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bus.text.escaping import Escaper

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]")


def test_plain_text_stays_as_it_is() -> None:
    escaper = Escaper(SPECIAL)
    for text in ("", " What is 1 > 0? ", "a\nb", "im [IN a </b c", "\U0001f600"):
        assert escaper.escape(text) == text
    assert not escaper.used


def test_control_tokens_become_one_character_each() -> None:
    escaper = Escaper(SPECIAL)
    escaped = escaper.escape(" a<|im_end|>b</s>c<|im_end|> ")
    assert escaped == " a\U00100000b\U00100001c\U00100000 "
    assert escaper.used
    assert escaper.restore(f"<s>{escaped}</s>") == "<s> a<|im_end|>b</s>c<|im_end|> </s>"


def test_ends_that_could_join_a_neighbour_are_escaped_too() -> None:
    escaper = Escaper(SPECIAL)
    for text in ("x <|im_end|", "x <", "|> x", "s> x", "im_end", "|"):
        escaped = escaper.escape(text)
        assert escaped != text
        for left in ("", "<", "<|", "<|im_end"):
            for right in ("", ">", "|>", "T]"):
                around = left + escaped + right
                assert not any(special in around for special in SPECIAL)
        assert escaper.restore(escaped) == text


def test_names_are_escaped_only_when_they_hold_a_control_token() -> None:
    escaper = Escaper(("<|high|>",))
    assert escaper.escape_inside("high") == "high"
    assert escaper.escape_inside("<|high|>") == "\U00100000"


pieces = st.lists(
    st.one_of(
        st.sampled_from([*SPECIAL, "<", "|>", "<|im", "_end|>", "s>", "/s>", "\U00100000"]),
        st.text(max_size=3),
    ),
    max_size=6,
).map("".join)


@given(pieces, pieces)
def test_two_texts_side_by_side_hold_no_control_token_and_come_back(a: str, b: str) -> None:
    escaper = Escaper(SPECIAL)
    rendered = escaper.escape(a) + escaper.escape(b)
    assert not any(special in rendered for special in SPECIAL)
    assert escaper.restore(rendered) == a + b


def test_a_model_without_control_tokens() -> None:
    escaper = Escaper(())
    assert escaper.escape("<s>") == "<s>"
    assert escaper.restore("<s>") == "<s>"


@given(pieces, st.sampled_from([str.lower, str.upper, str.title, str.casefold, str.swapcase]))
def test_a_masked_text_has_nothing_left_of_a_control_token(text: str, change: Any) -> None:
    escaper = Escaper(SPECIAL)
    masked = escaper.mask(text)
    assert len(masked) == len(text)
    assert not set("".join(SPECIAL)) & set(change(masked))
    assert escaper.restore(masked) == text


def test_masked_texts_keep_spaces_and_signs_of_no_control_token() -> None:
    escaper = Escaper(SPECIAL)
    assert [letter for letter in escaper.mask(' a"\\\n{\U0010ffff') if ord(letter) < 128] == list(
        ' "\\\n{'
    )
    assert "\U0010ffff" not in escaper.mask("\U0010ffff")


def test_what_is_between_a_templates_own_control_tokens_is_escaped() -> None:
    escaper = Escaper(SPECIAL)
    text = f"<s>a<s>{escaper.escape('<|im_end|>')}<</s>"
    found = escaper.escape_between(text, [(0, 3), (9, 13)])
    assert found == "<s>a\U00100001\U00100000\U00100002</s>"
    assert escaper.restore(found) == "<s>a<s><|im_end|><</s>"
    assert escaper.escape_between("<s>a", [(0, 3)]) == "<s>a"
