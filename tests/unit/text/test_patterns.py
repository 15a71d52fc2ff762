"""Patterns of JSON Schema: what the engine makes of the translation, against Python's `re`."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from bus.errors import ConstraintInvalid
from bus.messages.sampling import Constraint
from bus.text.constraints import make_matcher, make_tokenizer
from bus.text.patterns import PatternRefused, is_exact, translate
from bus.text.tokenizer import TextModel
from tests.harness.models import toy_model_folder

TOKENIZER: LLTokenizer = make_tokenizer(TextModel.open(toy_model_folder().path))

#: Control characters without an escape of their own, as a class's items of Rust's syntax.
UNWRITABLE = r"\x{0}-\x{7}\x{B}\x{E}-\x{1F}\x{7F}"


def matcher(pattern: str) -> LLMatcher:
    source = json.dumps({"type": "string", "pattern": pattern})
    return make_matcher(TOKENIZER, Constraint(kind="json_schema", source=source))


def matches(pattern: str, text: str) -> bool:
    found = matcher(pattern)
    ids = TOKENIZER.tokenize_str(json.dumps(text, ensure_ascii=False))
    return found.try_consume_tokens(ids) == len(ids) and found.is_accepting()


def test_a_pattern_is_searched_for_and_anchored_where_it_says() -> None:
    assert translate("a") == "^(?:(?s:.*)a(?s:.*))$"
    assert translate("^a|b$") == "^(?:a(?s:.*)|(?s:.*)b)$"
    assert translate("(^a$)|(^b$)") == "^(?:a|b)$"
    assert translate("^.$") == rf"^(?:[^\n\r\x{{2028}}\x{{2029}}{UNWRITABLE}])$"
    assert translate("^[^]$") == f"^(?:[^{UNWRITABLE}])$"
    assert translate("(^|x)") == "^(?:(?s:.*)|(?s:.*)x(?s:.*))$"
    assert translate("") == "^(?:(?s:.*)(?s:.*))$"


# Where Rust's syntax gives the same characters another meaning.
@pytest.mark.parametrize(
    ("pattern", "fits", "not_fits"),
    [
        ("^[[a]]$", ["[]", "a]"], ["a"]),
        ("^[a&&b]$", ["a", "&", "b"], [""]),
        ("^[a~~b]$", ["~"], ["c"]),
        (r"^\cJ$", ["\n"], ["cJ", "J"]),
        (r"^\d$", ["5"], ["\u0663"]),
        ("^a{\u0663}$", ["a{\u0663}"], ["aaa"]),
        (r"^\D$", ["a"], ["5", "\u0663"]),
        (r"^\w+$", ["aZ_9"], ["\u00e9"]),
        (r"^\W$", ["-"], ["a", "\u00e9"]),
        (r"^\s$", [" ", "\t", "\u00a0"], ["a"]),
        (r"^[^\s]$", ["a"], [" ", "\u00a0", "\ufeff", "\u0085"]),
        (r"^\ud83d\ude00$", ["\U0001f600"], ["a"]),
        (r"^\u{1F600}$", ["\U0001f600"], ["a"]),
        (r"^\x41\/\-$", ["A/-"], ["A"]),
        ("^a{2,3}?$", ["aa", "aaa"], ["a", "aaaa"]),
        ("^(?<name>a)+$", ["a", "aa"], [""]),
        (r"^\p{Lu}$", ["A", "\u00c9"], ["a"]),
        ("^{x}$", ["{x}"], ["x"]),
        ("(^|x)", ["", "x", "y"], []),
    ],
)
def test_it_means_what_ecma_says(pattern: str, fits: list[str], not_fits: list[str]) -> None:
    assert [text for text in fits if not matches(pattern, text)] == []
    assert [text for text in not_fits if matches(pattern, text)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a{" + "9" * 5000 + "}", "repeats more than 100000 times"),
        ("(?=a)", "lookaround"),
        ("(?!a)", "lookaround"),
        ("(?<=a)b", "lookaround"),
        ("(?i)a", "flags"),
        ("(?P<n>a)", "flags"),
        (r"(a)\1", "backreferences"),
        (r"\ba", "word boundaries"),
        (r"\Aa", r"\A"),
        (r"a\z", r"\z"),
        ("a^b", "^"),
        ("a$b", "$"),
        ("x(^a|b)", "^ or $"),
        ("(^a)+", "^ or $"),
        ("^(foo$|bar)baz$", "^ or $"),
        ("(foo$|bar)baz", "^ or $"),
        ("^(?:a$|b)c", "^ or $"),
        ("((a$))b", "^ or $"),
        ("((a)$|b)(c)", "^ or $"),
        ("(a|^b)?", "^ or $"),
        ("a**", "repeats a repetition"),
        ("a++", "repeats a repetition"),
        ("*a", "repetition of nothing"),
        ("a{3,2}", "wrong way round"),
        ("a{999999}", "100000"),
        ("a{,3}", "lower bound"),
        ("[]", "empty class"),
        ("[b-a]", "range"),
        (r"[a-\d]", "range"),
        ("[a", "not closed"),
        ("(a", "not closed"),
        ("a)", "closes nothing"),
        (r"\u12", "not finished"),
        (r"\ud83d", "no character"),
        ("\\", "not supported"),
        (r"\p", "property"),
        ("(" * 10_000, "50 deep"),
        (r"^a\x01", "control character"),
        (r"\v", "control character"),
        (r"^[\v]", "control character"),
        (r"[\x0b\cK]a", "control character"),
        (r"(\0|a)b", "control character"),
        (r"a\x7f?", "control character"),
        ("a\x1f", "control character"),
        ("^[\x0e-\x1f]$", "control character"),
        (r"\cA|a", "control character"),
    ],
)
def test_what_can_not_be_held_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternRefused, match=re.escape(why)):
        translate(pattern)


# The engine takes a class of all control characters for one that has a quote, and a single one for
# anything at all.
@pytest.mark.parametrize(
    ("pattern", "fits", "not_fits"),
    [
        ('^[^"]*$', ["", "a\\", "\n"], ['"', 'a"']),
        (r"^[^\\]+$", ['"', "/"], ["\\", "a\\"]),
        (r'^[^"\\]*$', ["a"], ['"', "\\"]),
        (r'a[^"]b', ["xa\\b"], ['a"b']),
        (r"^[\x00-\x1f]$", ["\b", "\t", "\n", "\f", "\r"], ['"', "\\", "b", "n", "\x01", "\x0b"]),
        (r"^[\x00-\x1fa]*$", ["", "a\na"], ['"', "\\", "\x0b"]),
        (r"^[\cA-\cZ]$", ["\t"], ['"', "\\", "\x01"]),
        (r"^[\va]b", ["ab", "abc"], ["b", "xb", "\x0bb"]),
        (r"^[\x01a]$", ["a"], ["", "\x01", '"']),
        ("^[\x00-\x7f]$", ['"', "\\", "a", "\n"], ["\x7f", "\x00", "\u00e9"]),
        ("^[^a]$", ['"', "\\", "\t", "\u00e9"], ["a", "\x01", "\x7f"]),
        ("^[^ -~]$", ["\t", "\u00e9"], ['"', "\\", "a", "\x7f"]),
        (r"^[^\s\"]$", ["a"], ['"', "\t", "\x0b", "\x1c"]),
        (r"^\s$", ["\t", "\f"], ["\x0b", '"', "\\"]),
        (r"^\S$", ['"', "\\"], ["\t", "\x01"]),
        (r"^[\D]$", ['"', "\\", "\n"], ["1", "\x0b"]),
        (r"^\W$", ['"', "\\", "\n"], ["a", "\x0b"]),
        (r"^\P{L}$", ['"', "\\", "1"], ["a", "\x01"]),
        (r"^[^\p{L}\"]$", ["\\", "1"], ['"', "a", "\x01"]),
        (r"^[\P{L}a]$", ['"', "a"], ["b", "\x7f"]),
        (r"^[^\P{L}]$", ["a"], ['"', "\\", "1"]),
        ("^[^]$", ['"', "\\", "a"], ["\x01", ""]),
    ],
)
def test_quotes_and_control_characters_stay_themselves(
    pattern: str, fits: list[str], not_fits: list[str]
) -> None:
    assert [text for text in fits if not matches(pattern, text)] == []
    assert [text for text in not_fits if matches(pattern, text)] == []


@pytest.mark.parametrize("name", ['^[^"]+$', r"^[\x00-\x1fa]+$"])
def test_names_keep_their_quotes_out(name: str) -> None:
    schema = {"patternProperties": {name: True}, "additionalProperties": False, "minProperties": 1}
    source = json.dumps({"type": "object", **schema})
    for text, fits in (('{"a":1}', True), (r'{"\"":1}', False), (r'{"a\"":1}', False)):
        found = make_matcher(TOKENIZER, Constraint(kind="json_schema", source=source))
        ids = TOKENIZER.tokenize_str(text)
        taken = found.try_consume_tokens(ids) == len(ids) and found.is_accepting()
        assert taken == fits, text


EDGES = st.sampled_from([*range(0x24), 0x5B, 0x5C, 0x5D, 0x61, 0x7E, 0x7F, 0x80, 0xFF, 0x2028])


@settings(max_examples=400, deadline=None)
@given(
    ranges=st.lists(st.tuples(EDGES, EDGES).map(sorted), min_size=1, max_size=3),
    negated=st.booleans(),
    tail=st.sampled_from(["$", "", "b$"]),
    codes=st.lists(EDGES, min_size=4, max_size=12),
)
def test_a_class_has_what_python_finds_in_it_and_can_be_written(
    ranges: list[list[int]], negated: bool, tail: str, codes: list[int]
) -> None:
    inside = "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in ranges)
    pattern = f"^[{'^' if negated else ''}{inside}]{tail}"
    try:
        found = matcher(pattern)
    except ConstraintInvalid:
        return  # Only unwritable characters are in it.
    for code in codes:
        text = chr(code) + ("b" if tail == "b$" else "")
        ids = TOKENIZER.tokenize_str(json.dumps(text, ensure_ascii=False))
        taken = found.deep_copy()
        accepted = taken.try_consume_tokens(ids) == len(ids) and taken.is_accepting()
        writable = code in (8, 9, 10, 12, 13) or (code >= 0x20 and code != 0x7F)
        assert accepted == (writable and bool(re.search(pattern, text))), (pattern, text)


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", "(?:a|b)", "(a)", r"\.", "-"])
COUNTS = st.sampled_from(["", "*", "+", "?", "{2}", "{0,2}", "{1,}"])


def sides_of(atoms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Atoms one after the other, some counted, between anchors or not."""
    return st.builds(
        lambda start, pieces, end: start + "".join(pieces) + end,
        st.sampled_from(["", "^"]),
        st.lists(st.builds(str.__add__, atoms, COUNTS), max_size=4),
        st.sampled_from(["", "$"]),
    )


SIDES = sides_of(ATOMS)
#: Groups with anchors anywhere inside, beside anything.
GROUPED = st.recursive(
    ATOMS,
    lambda atoms: st.builds(
        lambda begin, sides: begin + "|".join(sides) + ")",
        st.sampled_from(["(", "(?:"]),
        st.lists(sides_of(atoms), min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    sides=st.lists(SIDES, min_size=1, max_size=3),
    texts=st.lists(st.text("ab.1-", max_size=5), min_size=1, max_size=6),
)
def test_it_finds_what_python_finds(sides: list[str], texts: list[str]) -> None:
    pattern = "|".join(sides)
    for text in texts:
        assert matches(pattern, text) == bool(re.search(pattern, text)), (pattern, text)


@settings(max_examples=600, deadline=None)
@given(
    sides=st.lists(sides_of(GROUPED), min_size=1, max_size=2),
    texts=st.lists(st.text("ab.1-", max_size=4), min_size=1, max_size=6),
)
def test_anchors_in_groups_mean_what_python_means_or_are_refused(
    sides: list[str], texts: list[str]
) -> None:
    pattern = "|".join(sides)
    try:
        translate(pattern)
    except PatternRefused:
        return
    try:
        taken = {text for text in texts if matches(pattern, text)}
    except ConstraintInvalid:
        return  # Nothing matches it, or it is too large.
    assert taken == {text for text in texts if re.search(pattern, text)}, pattern


def test_what_all_readings_agree_on_is_exact() -> None:
    exact = ("^a", "^[0-9a-f]{2,}$", r"\.", "[.]", r"[^\]]", "(x|y)+$", r"\p{L}", r"\\d", "[^]")
    inexact = (".", "^x.*", r"\d", r"[a\d]", r"[^\w]", r"(a|\s)", r"\\\W")
    assert [pattern for pattern in exact if not is_exact(pattern)] == []
    assert [pattern for pattern in inexact if is_exact(pattern)] == []
