"""Constraints of all kinds: what they accept, and the cases from the field S1 and S2."""

from __future__ import annotations

import json
import random
import time
from decimal import Decimal
from typing import Any

import pytest
from llguidance import LLTokenizer

from bus.errors import ConstraintInvalid, Invalid
from bus.messages.sampling import Constraint
from bus.messages.text import TEXT, CheckConstraint, Encode, TextFailed
from bus.text.constraints import check_constraint, make_matcher, make_tokenizer
from bus.text.lark_text import translate_lark
from bus.text.process import answer
from bus.text.tokenizer import TextModel
from tests.harness.models import smollm2_folder, toy_model_folder
from tests.unit.text.test_tokenizer import PIECES

TOY = TextModel.open(toy_model_folder().path)
TOKENIZER: LLTokenizer = make_tokenizer(TOY)


def constraint(kind: str, source: Any) -> Constraint:
    return Constraint(kind=kind, source=source if isinstance(source, str) else json.dumps(source))


def check(kind: str, source: Any) -> None:
    check_constraint(TOY, constraint(kind, source), TOKENIZER)


def refusal(kind: str, source: Any) -> str:
    with pytest.raises(ConstraintInvalid) as caught:
        check(kind, source)
    assert caught.value.param == "constraint"
    return caught.value.message


def accepts(kind: str, source: Any, text: str) -> bool:
    matcher = make_matcher(TOKENIZER, constraint(kind, source))
    # The toy model's tokens are bytes.
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ('"a schema"', "json_schema: it should be a JSON object, not text"),
        ("[]", "json_schema: it should be a JSON object, not a list"),
        ("", "json_schema: it is empty"),
        ('{"not": {}}', "json_schema#/not"),
        ('{"type": "strin"}', 'json_schema#/type: "strin" is no type'),
        ('{"format": "emial"}', "json_schema#/format: format 'emial' is not supported"),
        ('{"type": "string", "minlength": 3}', "json_schema#/minlength"),
    ],
)
def test_s1_a_schema_that_is_none_is_refused_by_name(schema: str, named: str) -> None:
    assert named in refusal("json_schema", schema)


def test_s1_the_email_format_is_honoured() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string", "format": "email"}}}
    check("json_schema", schema)
    assert accepts("json_schema", schema, '{"to": "joe.bloggs@example.com"}')
    assert not accepts("json_schema", schema, '{"to": "joe"}')
    assert not accepts("json_schema", schema, '{"to": "joe@"}')


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for level in range(depth):
        name = f"k{level}"
        schema = {
            "oneOf": [
                {"type": "object", "properties": {name: schema}, "required": [name]},
                {"type": "string", "const": name},
            ]
        }
    return schema


PRIMES = (7, 11, 13, 17, 19, 23)


@pytest.mark.parametrize(
    ("kind", "source", "refused"),
    [
        ("json_schema", nested(12), ""),
        ("json_schema", {"$ref": "#"}, "needs itself"),
        ("json_schema", {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}, ""),
        ("json_schema", {"type": "object", "properties": {"a": {"$ref": "#"}}}, ""),
        ("json_schema", {"type": "array", "maxItems": 2**64 - 1}, ""),
        ("json_schema", {"type": "array", "minItems": 2**64 - 1}, "no answer is that long"),
        ("json_schema", {"type": "string", "pattern": "(" * 10_000}, "50 deep"),
        ("json_schema", {"type": "string", "pattern": "[ab]*a[ab]{13}"}, ""),
        ("json_schema", {"allOf": [{"multipleOf": n} for n in PRIMES]}, "multiples of 7436429"),
        ("json_schema", {"multipleOf": 999_983}, "multiples of 999983"),
        ("json_schema", {"multipleOf": 99_991, "minimum": 7}, ""),
        ("json_schema", {"properties": {str(n): {} for n in range(5000)}}, "5000 properties"),
        ("json_schema", {"patternProperties": {f"^{n}_": {} for n in range(300)}}, "300 patterns"),
        ("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000, "64 deep"),
        ("regex", "(" * 10_000, "100 deep"),
        ("regex", "[ab]*a[ab]{13}", ""),
        ("regex", "a{100000}", "less than 100000"),
        ("regex", "a{100000,}", "less than 100000"),
        ("regex", "a{2,100000}", "less than 100000"),
        ("regex", "((a{1000}){1000}){1000}", "too long"),
        ("lark", "start: " + "(" * 10_000, "100 deep"),
        ("lark", 'start: start start | "a"', ""),
        ("lark", 'start: "a" start', "too many ways at once"),
    ],
)
def test_s2_what_could_explode_has_its_answer_in_time(kind: str, source: Any, refused: str) -> None:
    start = time.process_time()
    if refused:
        assert refused in refusal(kind, source)
    else:
        check(kind, source)
    assert time.process_time() - start < 5


def test_between_the_parts_of_json_there_is_little_white_space() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for text in ('{"a":1}', '{"a": 1}', '{ "a" : 1 }', '{\n  "a": 1\n}'):
        assert accepts("json_schema", schema, text), text
    for text in ('{"a":  1}', '{\n\n"a":1}', ' {"a":1}', '{"a":1} ', '{"a":\t1}'):
        assert not accepts("json_schema", schema, text), text


def test_a_property_can_not_slip_by_its_schema_in_another_spelling() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepts("json_schema", schema, '{"a":1,"b":"x"}')
    assert not accepts("json_schema", schema, '{"\\u0061":"x"}')


def test_a_regex_matches_the_whole_text() -> None:
    check("regex", "[a-z]+[0-9]")
    assert accepts("regex", "[a-z]+[0-9]", "ab1")
    assert not accepts("regex", "[a-z]+[0-9]", "ab1 ")
    assert not accepts("regex", "[a-z]+[0-9]", "ab")
    assert "look-ahead" in refusal("regex", "(?=a)b")
    assert "empty" in refusal("regex", "  ")


def test_a_grammar_and_the_schemas_inside_it() -> None:
    source = 'start: "a" inner // %json "\ninner: %json {"properties": {"k": {"format": "ipv4"}}}'
    check("lark", source)
    assert accepts("lark", source, 'a{"k": "10.0.0.1"}')
    assert not accepts("lark", source, 'a{"k": "10.0.0"}')
    assert "#/not" in refusal("lark", 'start: %json {"not": {}}')
    assert "not followed by JSON" in refusal("lark", "start: %json x")
    assert "temperature" in refusal("lark", 'start[temperature=0.5]: "a"')
    assert "max_tokens" in refusal("lark", 'start[max_tokens=3]: "a"')
    assert "%llguidance" in refusal("lark", '%llguidance {"no_forcing": true}\nstart: "a"')
    assert "start" in refusal("lark", 'begin: "a"')
    assert accepts("lark", 'start: "max_tokens=3"', "max_tokens=3")


@pytest.mark.parametrize(
    ("token", "rest"),
    [
        ("<|im_end|>", '"a"'),
        ("<|im_start|>", '"a"'),
        ("<[257]>", '"a"'),
        ("<[0-65]>", ""),
        ("<[*]>", ""),
        ("<[^1,2]>", "/[<]x/"),
        ("<eos>", '| "<"'),
    ],
)
def test_tokens_by_name_or_id_are_refused_in_every_grammar(token: str, rest: str) -> None:
    source = f"start: {token} {rest}"
    assert f"the token {token} can not be asked for" in refusal("lark", source)
    inside = {"tags": [{"begin": "<t>", "end": "</t>", "lark": source}]}
    assert f"the token {token} can not be asked for" in refusal("structural", inside)
    # As text they are text.
    translate_lark(f'start: "{token}" /<.>/ // {token}', lambda text: {})


def test_tokens_behind_an_expression_of_two_lines_are_refused_too() -> None:
    # The engine's expressions go on over a line's end, as its texts do not.
    source = "start: /a\nb/ <[257]> /c/"
    assert "the token <[257]> can not be asked for" in refusal("lark", source)
    assert "max_tokens" in refusal("lark", 'start: /a\nb/ x /c/\nx[max_tokens=3]: "x"')
    assert accepts("lark", "start: /a\nb/", "a\nb")


@pytest.mark.parametrize(("mark", "line"), [('"', 2), ("/", 2)])
def test_what_a_grammar_does_not_close_is_refused_at_once(mark: str, line: int) -> None:
    source = "start: x\nx: " + mark + f"\\{mark}" * 100_000
    start = time.thread_time()
    assert f"the {mark} in line {line} is not closed" in refusal("lark", source)
    # It took minutes where each mark was looked at as a beginning.
    assert time.thread_time() - start < 5


def test_a_regular_expression_that_ends_in_an_escape_is_refused() -> None:
    assert "in the middle of an escape" in refusal("regex", "a\\")
    assert accepts("regex", "a\\\\", "a\\")
    tags = {"tags": [{"begin": "a", "end": "", "regex": "a\\"}]}
    assert "in the middle of an escape" in refusal("structural", tags)


def test_numbers_with_exponents_beyond_reason_are_refused_inside_grammars_too() -> None:
    assert "#/minimum" in refusal("lark", 'start: %json {"minimum": 1e99999999999999999999}')
    tags = '{"tags": [{"begin": "a", "end": "b", "schema": {"const": 1e9999999}}]}'
    assert "#/const" in refusal("structural", tags)


BOUNDS = [0, 1, -1, 10, 100, 0.5, -0.5, 0.75, 0.1, 1.5, 10.5, 99.9, 1e-3, 1e-7, 123.456, 1e10]


def near(bound: float) -> set[str]:
    """Spellings of numbers about a bound."""
    found = set()
    for step in ("0", "1", "-1", "0.1", "-0.1", "1e-7", "-1e-7", "1e-12", "-1e-12"):
        plain = format(Decimal(repr(bound)) + Decimal(step), "f")
        tail = ".0" if "." not in plain else "0"
        short = plain.rstrip("0").rstrip(".") if "." in plain else plain
        for text in (plain, plain + tail, plain + tail + "0", short or "0"):
            found |= {text, f"-{text}", f"{text}e0", f"{text}e1", f"{text}E-2", f"-{text}e0"}
    return found | {"0", "-0", "0.0", "-0.0", "0e5", "-0.0e1", "00", "1.", ".5"}


@pytest.mark.parametrize("seed", range(12))
def test_bounds_of_numbers_let_no_number_through_that_is_outside(seed: int) -> None:
    """Every spelling about each bound; the engine took (0, 0.5] for [0, 0.5], and others."""
    choice = random.Random(seed)
    taken = 0
    for _ in range(8):
        schema: dict[str, Any] = {"type": choice.choice(("number", "number", "integer"))}
        for key, likely in zip(BOUND_KEYS, (0.2, 0.5, 0.2, 0.5), strict=True):
            if choice.random() < likely:
                schema[key] = choice.choice((*BOUNDS, round(choice.uniform(-20, 20), 2)))
        bounds = [schema[key] for key in BOUND_KEYS if key in schema]
        try:
            start = make_matcher(TOKENIZER, constraint("json_schema", schema))
        except ConstraintInvalid:
            continue
        for text in set().union(*map(near, bounds or [0])):
            matcher = start.deep_copy()
            ids = list(text.encode())
            if matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting():
                taken += 1
                assert is_within(text, schema), (text, schema)
    assert taken > 20


BOUND_KEYS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def is_within(text: str, schema: dict[str, Any]) -> bool:
    """By exact arithmetic."""
    value = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    bounds = {key: Decimal(repr(schema[key])) for key in BOUND_KEYS if key in schema}
    return (
        (schema["type"] == "number" or value % 1 == 0)
        and value >= bounds.get("minimum", value)
        and value <= bounds.get("maximum", value)
        and ("exclusiveMinimum" not in bounds or value > bounds["exclusiveMinimum"])
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
    )


@pytest.mark.parametrize(
    ("schema", "outside", "inside"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0", "0.0", "-0"], ["0.5", "0.25", "0.001"]),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.75}, ["0", "0.75", "0e5"], ["0.740", "0.5"]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, ["1", "1.0", "1.5"], ["1.25"]),
        ({"exclusiveMinimum": 10, "exclusiveMaximum": 10.5}, ["10", "10.0"], ["10.1"]),
        (
            {"exclusiveMinimum": -0.5, "exclusiveMaximum": 0},
            ["0", "-0", "-0.0", "-0.5"],
            ["-0.40", "-0.3"],
        ),
        ({"minimum": -5, "anyOf": [{"exclusiveMinimum": 0}]}, ["0", "-3"], ["1", "0.5"]),
        ({"exclusiveMinimum": 4, "type": "integer"}, ["4"], ["5", "60"]),
    ],
)
def test_exclusive_bounds_hold(schema: Any, outside: list[str], inside: list[str]) -> None:
    schema = {"type": "number", **schema}
    assert [text for text in outside if accepts("json_schema", schema, text)] == []
    assert [text for text in inside if not accepts("json_schema", schema, text)] == []


TAGS: dict[str, Any] = {
    "tags": [
        {
            "begin": "<t>",
            "end": "</t>",
            "schema": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "additionalProperties": False,
            },
        },
        {"begin": "<n>", "end": "<>", "regex": "[0-9<]+"},
        {"begin": "<l>", "end": "", "lark": 'start: "q" start | "r"'},
    ]
}
FREE = ["", "hi", "a < b", "<t", "\u00e9 <"]
TAGGED = ["<t>{}</t>", 'hi <<t>{"a": 1}</t> x<n>1<<> y', "<l>qqr", "<t>{}</t><t>{}</t>"]
BROKEN = ["<t>", "<t>x", '<t>{"b":1}</t>', "<n>x<>", "<l>q", "hi <t> hi", "<t>{}</t><n>"]


def test_structural_tags_open_in_free_text() -> None:
    check("structural", TAGS)
    assert [text for text in FREE + TAGGED if not accepts("structural", TAGS, text)] == []
    assert [text for text in BROKEN if accepts("structural", TAGS, text)] == []


def test_structural_tags_at_least_one_and_at_most_one() -> None:
    least = {**TAGS, "at_least_one": True}
    assert [text for text in TAGGED if not accepts("structural", least, text)] == []
    assert [text for text in FREE + BROKEN if accepts("structural", least, text)] == []
    first = {**TAGS, "stop_after_first": True}
    assert accepts("structural", first, "hi <t>{}</t>")
    assert accepts("structural", first, "hi")
    assert not accepts("structural", first, "<t>{}</t> ")
    assert not accepts("structural", {**first, "at_least_one": True}, "hi")


def test_structural_tags_at_the_start() -> None:
    at_start = {**TAGS, "at_start": True}
    check("structural", at_start)
    assert accepts("structural", at_start, "<t>{}</t> and <t>{}</t> more")
    assert accepts("structural", at_start, "<t>{}</t>")
    assert not accepts("structural", at_start, "hi <t>{}</t>")
    assert not accepts("structural", at_start, "")
    only = {**at_start, "stop_after_first": True}
    assert accepts("structural", only, "<t>{}</t>")
    assert not accepts("structural", only, "<t>{}</t> ")


def test_a_tag_of_odd_characters_is_taken_as_text() -> None:
    odd = 'a"/\\\n|<|im_end|>\u00e9'
    source = {"tags": [{"begin": odd, "end": odd, "regex": "/"}]}
    check("structural", source)
    assert accepts("structural", source, f"x{odd}/{odd}y")
    assert not accepts("structural", source, f"x{odd}-{odd}y")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("[]", "a JSON object with tags"),
        ({}, "structural.tags"),
        ({"tags": []}, "structural.tags"),
        ({"tags": [1]}, "structural.tags[0]"),
        ({"tags": [{"begin": "", "end": "", "regex": "a"}]}, "structural.tags[0].begin"),
        ({"tags": [{"begin": "a", "regex": "a"}]}, "structural.tags[0].end"),
        ({"tags": [{"begin": "a", "end": ""}]}, "it has 0 of them"),
        ({"tags": [{"begin": "a", "end": "", "regex": "a", "lark": "b"}]}, "it has 2 of them"),
        ({"tags": [{"begin": "a", "end": "", "regex": "a", "x": 1}]}, "'x' is not known"),
        ({"tags": [{"begin": "a", "end": "", "regex": ""}]}, "structural.tags[0].regex"),
        ({"tags": [{"begin": "a", "end": "", "schema": {"not": {}}}]}, "#/not"),
        ({"tags": TAGS["tags"], "flag": True}, "'flag' is not known"),
        ({"tags": TAGS["tags"], "at_least_one": 1}, "structural.at_least_one"),
        (
            {"tags": [{"begin": b, "end": "", "regex": "a"} for b in ("<a", "<a>")]},
            "'<a' is inside begin '<a>'",
        ),
    ],
)
def test_structural_tags_that_are_none_are_refused(source: Any, named: str) -> None:
    assert named in refusal("structural", source)


def test_odd_sources_are_refused_and_nothing_else() -> None:
    assert "lone surrogate" in refusal("regex", "\ud800")
    assert "bytes" in refusal("regex", "a" * 300_000)
    assert "kind" in refusal("yaml", "a: b")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", r'{"\ud800": 1}'),
        ("json_schema", r'{"properties": {"a": {"\udfff": 1}}}'),
        ("json_schema", r'{"properties": {"\ud800": 5}}'),
        ("json_schema", r'{"enum": ["\ud83d"]}'),
        ("lark", r'start: %json {"\ud800": 1}'),
        ("structural", r'{"tags": [], "\ud800": 1}'),
        ("structural", r'{"tags": [{"begin": "a", "end": "", "schema": {"\ud800": 1}}]}'),
        ("structural", r'{"tags": [{"begin": "\ud800", "end": "", "regex": "a"}]}'),
        ("regex", r"\ud800"),
        ("regex", "[\ud800]"),
        ("lark", r'start: "\ud800"'),
        ("lark", "start: \ud800"),
        ("lark", "start: <\ud800>"),
    ],
)
def test_half_characters_are_refused_in_a_sentence_that_can_be_sent(kind: str, source: str) -> None:
    def check_it(job: object) -> object:
        check_constraint(TOY, constraint(kind, source))
        return None

    job = CheckConstraint(job=1, folder="", constraint=Constraint(kind="regex", source="a"))
    reply = answer({CheckConstraint: check_it}, job)
    assert isinstance(reply, TextFailed)
    assert (reply.code, reply.param) == ("constraint_invalid", "constraint")
    TEXT.encode(reply)


def test_whole_characters_may_be_escaped() -> None:
    assert accepts("json_schema", r'{"const": "\ud83d\ude00"}', '"\U0001f600"')


def test_what_quotes_half_a_character_is_sent_nevertheless() -> None:
    def fail(job: object) -> object:
        raise Invalid("the key \ud800 is odd", param="\ud800")

    reply = answer({Encode: fail}, Encode(job=1, folder="", text=""))
    assert isinstance(reply, TextFailed)
    assert reply.message == r"the key \ud800 is odd"
    TEXT.encode(reply)


def test_a_refused_tag_is_named() -> None:
    good = {"begin": "<a>", "end": "", "schema": {"type": "integer"}}
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"not": {}}, "structural.tags[1]#/not"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "tags[1]#/properties/a/type"),
        # What the engine finds, which knows no tags.
        ({"oneOf": [{"type": "string"}, {"pattern": "a"}]}, "structural.tags[1]"),
    )
    for schema, place in cases:
        bad = {"begin": "<b>", "end": "", "schema": schema}
        assert place in refusal("structural", {"tags": [good, bad, {**good, "begin": "<c>"}]})


def test_special_tokens_are_never_allowed_by_text() -> None:
    for model in (TOY, PIECES):
        tokenizer = make_tokenizer(model)
        mask = make_matcher(tokenizer, constraint("regex", "(?s:.)+")).compute_bitmask()
        allowed = {token for token in model.special if mask[token // 8] >> token % 8 & 1}
        assert allowed == set()
        letter = model.encode("a", add_special=False)[-1]
        assert mask[letter // 8] >> letter % 8 & 1


@pytest.mark.parametrize("model", [TOY, PIECES], ids=["bytes", "pieces"])
def test_ends_are_allowed_where_the_constraint_may_end(model: TextModel) -> None:
    tokenizer = make_tokenizer(model)
    matcher = make_matcher(tokenizer, constraint("regex", "ab?"))
    ends = []
    for text in ("", "a"):
        if text:
            assert matcher.consume_tokens([model.vocabulary.index(text.encode())])
        mask = matcher.compute_bitmask()
        ends.append([bool(mask[token // 8] >> token % 8 & 1) for token in model.eos])
    assert ends == [[False] * len(model.eos), [True] * len(model.eos)]


def test_the_engine_reads_a_real_tokenizer_as_we_do() -> None:
    model = TextModel.open(smollm2_folder().path)
    tokenizer = make_tokenizer(model)
    assert tokenizer.vocab_size == len(model.vocabulary) == 49_152
    special = set(model.special)
    differ = [
        token
        for token, text in enumerate(model.vocabulary)
        if token not in special and tokenizer.decode_bytes([token]) != text
    ]
    assert differ == []
