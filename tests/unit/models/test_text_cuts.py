"""Cuts of text, apart from any vocabulary."""

from __future__ import annotations

import pytest

from agent.models.text_cuts import CUTS, Cut

DISTINCT = {cut.patterns: name for name, cut in CUTS.items()}


def pieces(cut: Cut, text: str) -> list[str]:
    """What is merged within, with the characters that stand for bytes turned to spaces again."""
    return [piece.replace("\u0120", " ") for piece, _ in cut.pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize("name", DISTINCT.values())
@pytest.mark.parametrize("run", [" ", "\t", "\u3000", " \n", "A", "\u4e2d", "9", "/"])
def test_long_runs_are_cut_in_linear_time(name: str, run: str) -> None:
    """A square of time would be minutes: no time is measured, the test run would not end."""
    for end in ("1", "!"):
        found = pieces(CUTS[name], run * 60_000 + end)
        assert "".join(found).endswith(end)


def test_spaces_at_the_end_are_a_piece_and_before_a_number_are_not() -> None:
    assert pieces(CUTS["deepseek-llm"], "a  1  ") == ["a", "  ", "1", "  "]
    assert pieces(CUTS["deepseek-llm"], "a  b  ") == ["a", " ", " b", "  "]


def test_words_are_cut_by_case() -> None:
    assert pieces(CUTS["tekken"], "camelCase JSONData it's") == [
        *("camel", "Case", " JSONData", " it", "'s")
    ]
    assert pieces(CUTS["gpt-4o"], "camelCase it's 1234") == [
        "camel",
        "Case",
        " it's",
        " ",
        "123",
        "4",
    ]
