"""The codec: every message there and back, and nothing but DecodeError for anything else."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.api_maps import from_map, to_map
from bus.codec import DROPPABLE, Codec
from bus.errors import DecodeError, Invalid
from bus.fields import MaxBytes, MaxItems, OneLine, OneOf, Range
from bus.handshake import HANDSHAKE
from bus.ids import U64_MAX, Epoch, GenerationId, PackedIds, SessionId
from bus.messages.link import LINK, Goodbye, Heartbeat, NodeStatus, TokenEvents, WatermarkAck
from bus.messages.parts import Finish, TokenRun, Usage, Watermark
from bus.messages.worker import WORKER
from bus.unpacking import MAX_DEPTH, unpack

EVERY = [(codec, cls) for codec in (LINK, WORKER, HANDSHAKE) for cls in codec.messages.values()]


def values_for(annotation: Any, rules: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Values that a field's annotation allows, made without the codec's own rules."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *extras = typing.get_args(annotation)
        return values_for(inner, (*extras, *rules))
    if annotation is PackedIds:
        return st.lists(st.binary(min_size=4, max_size=4), max_size=5).map(b"".join)
    if isinstance(annotation, typing.NewType):
        return values_for(annotation.__supertype__, rules)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in typing.get_args(annotation) if a is not type(None)]
        return st.none() | values_for(inner, rules)
    if origin is tuple:
        return st.lists(values_for(typing.get_args(annotation)[0]), max_size=3).map(tuple)
    if dataclasses.is_dataclass(annotation):
        return structs(typing.cast(type, annotation))
    return scalars(annotation, rules)


def scalars(annotation: Any, rules: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    bounds = next((r for r in rules if isinstance(r, Range)), None)
    limit = next((r.limit for r in rules if isinstance(r, MaxBytes)), 100)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        low, high = (int(bounds.low), int(bounds.high)) if bounds else (0, U64_MAX)
        return st.integers(low, high)
    if annotation is float:
        low_f, high_f = (bounds.low, bounds.high) if bounds else (None, None)
        return st.floats(low_f, high_f, allow_nan=False, allow_infinity=False)
    if annotation is str:
        for rule in rules:
            if isinstance(rule, OneOf):
                return st.sampled_from(sorted(rule.values))
        characters = st.characters(codec="utf-8")
        if OneLine() in rules:
            characters = st.characters(
                codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "
            )
        return st.text(characters, max_size=min(limit, 100) // 4)
    assert annotation is bytes
    return st.binary(max_size=min(limit, 100))


def structs(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: values_for(hints[f.name]) for f in dataclasses.fields(cls)}
    return st.builds(cls, **fields)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_message_comes_back_equal(data: st.DataObject) -> None:
    for codec, cls in EVERY:
        comes_back_equal(codec, data.draw(structs(cls)))


def comes_back_equal(codec: Codec, message: Any) -> None:
    encoded = codec.encode(message)
    decoded = codec.decode(encoded)
    assert decoded == message
    assert type(decoded) is type(message)
    assert codec.encode(decoded) == encoded


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_extra_fields_of_a_newer_peer_are_passed_over(data: st.DataObject) -> None:
    for codec, cls in EVERY:
        message = data.draw(structs(cls))
        newer = [*msgpack.unpackb(codec.encode(message)), "new", [1, 2], None]
        assert codec.decode(msgpack.packb(newer)) == message


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_missing_fields_of_an_older_peer_take_their_defaults(data: st.DataObject) -> None:
    for codec, cls in EVERY:
        shorter_arrays(codec, cls, data.draw(structs(cls)))


def shorter_arrays(codec: Codec, cls: type, message: Any) -> None:
    values = msgpack.unpackb(codec.encode(message))
    fields = dataclasses.fields(cls)
    required = sum(f.default is dataclasses.MISSING for f in fields)
    for count in range(required, len(fields)):
        older = codec.decode(msgpack.packb(values[: 1 + count]))
        for index, field in enumerate(fields):
            expected = getattr(message, field.name) if index < count else field.default
            assert getattr(older, field.name) == expected
    if required:
        with pytest.raises(DecodeError, match=cls.__name__):
            codec.decode(msgpack.packb(values[:required]))


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_field_of_another_type_is_an_error_that_names_it(data: st.DataObject) -> None:
    for codec, cls in EVERY:
        wrong_types(codec, cls, data.draw(structs(cls)))


def wrong_types(codec: Codec, cls: type, message: Any) -> None:
    values = msgpack.unpackb(codec.encode(message))
    for index, field in enumerate(dataclasses.fields(cls)):
        changed = list(values)
        changed[1 + index] = {"no": "field is a map"}
        with pytest.raises(DecodeError, match=rf"^{cls.__name__}\.{field.name} "):
            codec.decode(msgpack.packb(changed))


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), U64_MAX) | st.floats() | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_raise_decode_errors_only(data: bytes) -> None:
    for codec in (LINK, WORKER):
        try:
            codec.decode(data)
        except DecodeError:
            pass


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 127), st.lists(JSON_LIKE, max_size=8))
def test_random_values_raise_decode_errors_only(tag: int, values: list[Any]) -> None:
    data = msgpack.packb([tag, *values])
    for codec in (LINK, WORKER):
        try:
            codec.decode(data)
        except DecodeError:
            pass


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_changed_bytes_raise_decode_errors_only(data: st.DataObject) -> None:
    codec, cls = data.draw(st.sampled_from(EVERY))
    encoded = bytearray(codec.encode(data.draw(structs(cls))))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    for candidate in (bytes(encoded), bytes(encoded[: len(encoded) // 2])):
        try:
            codec.decode(candidate)
        except DecodeError:
            pass


def test_droppable_tags_are_skipped_and_others_are_errors() -> None:
    assert LINK.decode(msgpack.packb([0x7F, 1, "x"])) is None
    for tag in (0x3F, 0x80, -1, 2**40):
        with pytest.raises(DecodeError, match="is the peer newer"):
            LINK.decode(msgpack.packb([tag]))
    assert isinstance(LINK.decode(LINK.encode(NodeStatus(models=()))), NodeStatus)


@pytest.mark.parametrize("value", [None, 7, "text", [], {}, [None], ["1"], [True], [1.0]])
def test_what_is_no_message_is_refused(value: Any) -> None:
    with pytest.raises(DecodeError):
        LINK.decode(msgpack.packb(value))


def test_tags_are_unique_and_droppable_bits_fit() -> None:
    for codec in (LINK, WORKER):
        assert len(set(codec.messages.values())) == len(codec.messages)
        assert all(0 <= tag <= 127 for tag in codec.messages)
    assert LINK.messages[24 | DROPPABLE] is NodeStatus
    with pytest.raises(TypeError, match="names Heartbeat already"):
        LINK.message(tag=3)(Usage)
    with pytest.raises(TypeError, match="outside"):
        LINK.message(tag=128)(Usage)


def test_the_bytes_of_a_message_are_an_array_of_tag_and_fields() -> None:
    assert LINK.encode(Heartbeat(loop_lag_ms=5)) == b"\x95\x03\x05\x90\x00\x90"
    assert LINK.decode(b"\x92\x03\x05") == Heartbeat(loop_lag_ms=5)


SMALL = Codec("small", max_bytes=200)


@SMALL.message(tag=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    small: Annotated[int, Range(2, 5)]
    share: Annotated[float, Range(0.0, 1.0)]
    text: Annotated[str, MaxBytes(4)] = ""
    blob: Annotated[bytes, MaxBytes(3)] = b""
    kind: Annotated[str, OneOf(frozenset({"a", "b"}))] = "a"
    items: Annotated[tuple[Annotated[int, Range(0, 9)], ...], MaxItems(2)] = ()
    ids: Annotated[PackedIds, MaxBytes(8)] = PackedIds(b"")
    maybe: bool | None = None


GOOD: list[Any] = [1, 2, 0.5, "éé", b"abc", "b", [1, 2], b"\1\0\0\0", True]


def decode_with(index: int, value: Any) -> Any:
    return SMALL.decode(msgpack.packb([*GOOD[:index], value, *GOOD[index + 1 :]]))


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (1, 5),
        (2, 1),
        (2, 0),
        (3, "abcd"),
        (4, b""),
        (6, []),
        (6, [0, 9]),
        (7, b"\0" * 8),
        (8, None),
    ],
)
def test_values_at_their_bounds_are_taken(index: int, value: Any) -> None:
    assert isinstance(decode_with(index, value), Limits)


@pytest.mark.parametrize(
    ("index", "value", "text"),
    [
        (1, 1, "Limits.small is 1; it should be 2 to 5"),
        (1, 6, "is 6"),
        (1, True, "whole number"),
        (1, 3.0, "whole number"),
        (1, -(2**63), "should be 2 to 5"),
        (2, 1.5, "should be 0 to 1"),
        (2, math.nan, "nan"),
        (2, math.inf, "inf"),
        (2, "0.5", "a number, not text"),
        (2, U64_MAX, "a number"),
        (3, "ééé", "longer than 4 bytes"),
        (3, b"ab", "text, not bytes"),
        (4, b"abcd", "longer than 3 bytes"),
        (4, "abc", "bytes, not text"),
        (5, "c", "one of a, b"),
        (5, 1, "one of a, b"),
        (6, [1, 2, 3], "at most 2"),
        (6, [1, 10], r"items.\[1\] is 10"),
        (6, [0, True], r"items.\[1\] should be a whole number"),
        (6, [0.0, 1], r"items.\[0\] should be a whole number"),
        (6, [-1, 0], r"items.\[0\] is -1"),
        (6, {"a": 1}, "a list, not a map"),
        (7, b"\0\0\0", "multiple of 4"),
        (7, bytes(12), "longer than 8"),
        (8, 1, "true or false"),
    ],
)
def test_values_outside_their_bounds_are_named(index: int, value: Any, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        decode_with(index, value)


def test_length_and_depth_are_limited_before_objects_are_made() -> None:
    with pytest.raises(DecodeError, match="at most 200"):
        SMALL.decode(msgpack.packb([1, *[b"x" * 90] * 3]))
    deep: Any = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(DecodeError, match="nested deeper"):
        unpack(msgpack.packb(deep), max_bytes=1000)
    for bomb in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc1"):
        with pytest.raises(DecodeError):
            LINK.decode(bomb)
    with pytest.raises(DecodeError):
        LINK.decode(msgpack.packb(msgpack.ExtType(1, b"code")))


def test_nested_errors_name_their_path() -> None:
    run = TokenRun(
        session=SessionId("s"),
        epoch=Epoch(1),
        generation=GenerationId(1),
        first_seq=0,
        finish=Finish(reason="eos"),
    )
    values = msgpack.unpackb(LINK.encode(TokenEvents(runs=(run,))))
    values[1][0][5][0] = "because"
    with pytest.raises(DecodeError, match=r"^TokenEvents\.runs\.\[0\]\.finish\.reason should be"):
        LINK.decode(msgpack.packb(values))


def test_api_maps_read_the_same_rules_and_name_the_parameter() -> None:
    made = from_map(Limits, {"small": 3, "share": 1, "items": [4], "unknown": "passed over"})
    assert made == Limits(small=3, share=1.0, items=(4,))
    assert to_map(made) == {
        "small": 3,
        "share": 1.0,
        "text": "",
        "blob": b"",
        "kind": "a",
        "items": [4],
        "ids": b"",
    }
    for values, param in (
        ({"share": 1.0}, "small"),
        ({"small": 9, "share": 1.0}, "small"),
        ({"small": 3, "share": 1.0, "items": [1, 77]}, "items[1]"),
    ):
        with pytest.raises(Invalid) as caught:
            from_map(Limits, values)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a\nb\x1b[2J\x7f", "a\\nb\\u001b[2J\\u007f"),
        ("\x9b31mred", "\\u009b31mred"),
        ("gpu\u202e2-upg", "gpu\\u202e2-upg"),
        ("B\u00fcro-GPU \u6f22", "B\u00fcro-GPU \u6f22"),
        ("\x00" * 200, ("\\u0000" * 200)[:512]),
        ("\u6f22" * 100 + "\n" * 100, ("\u6f22" * 100 + "\\n" * 100).encode()[:512].decode()),
    ],
)
def test_what_can_not_be_printed_in_a_peer_s_words_is_escaped_as_they_come_in(
    said: str, shown: str
) -> None:
    taken = LINK.decode(LINK.encode(Goodbye(reason=said)))
    assert isinstance(taken, Goodbye)
    assert taken.reason == shown
    assert taken.reason.isprintable()
    assert LINK.decode(LINK.encode(taken)) == taken


def test_structs_inside_messages_are_lists_only() -> None:
    ack = WatermarkAck(watermarks=(Watermark(generation=GenerationId(1), committed=2),))
    values = msgpack.unpackb(LINK.encode(ack))
    assert LINK.decode(msgpack.packb(values)) == ack
    values[1][0] = {"generation": 1, "committed": 2}
    with pytest.raises(DecodeError, match="not a map"):
        LINK.decode(msgpack.packb(values))
