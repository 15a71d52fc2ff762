"""Cases from the field under virtual time: whole characters in streamed text."""

from __future__ import annotations

import pytest

from bus.ids import PackedIds
from tests.harness.memory_fleet import MemoryFleet
from tests.harness.memory_node import NodeHost

SPOKEN = "안녕하세요 👩‍👩‍👧‍👦 한국어 é 🇰🇷!"


def speak(prompt: PackedIds, count: int) -> list[int]:
    """A model that says the same text byte by byte, over and over."""
    data = SPOKEN.encode()
    return [data[place % len(data)] for place in range(count)]


def speaking_fleet() -> MemoryFleet:
    fleet = MemoryFleet()
    node: NodeHost = fleet.nodes[0]
    node.answer = speak
    node.kill_worker()
    fleet.run(1.0)
    return fleet


def test_t1_streamed_text_has_whole_characters_wherever_the_tokens_are_cut() -> None:
    fleet = speaking_fleet()
    whole = SPOKEN.encode()
    streams = [fleet.generate(f"p{i}", i, credit=500) for i in range(len(whole) + 1)]
    fleet.finish(*streams)
    for count, stream in enumerate(streams):
        assert stream.error is None
        assert stream.tokens == list(whole[:count])
        # max_new may end inside a character: what is cut there is dropped.
        assert stream.text == whole[:count].decode(errors="ignore")
        for event in stream.events:
            assert "\ufffd" not in event.get("text", "")


def test_t1_text_from_any_cursor_is_the_rest_of_the_whole() -> None:
    fleet = speaking_fleet()
    whole = SPOKEN.encode()
    stream = fleet.generate("p", len(whole), key="t1", credit=500)
    fleet.finish(stream)
    assert stream.text == SPOKEN
    for offset in range(len(whole) + 1):
        again = fleet.request("attach", key="t1", offset=offset)
        fleet.finish(again)
        before = whole[:offset].decode(errors="ignore")
        assert before + again.text == SPOKEN


@pytest.mark.parametrize("is_deaf", [False, True])
@pytest.mark.parametrize("burst", [1, 3, 64])
@pytest.mark.parametrize(
    ("stops", "shown", "stop"),
    [
        (["DEFGHIJ"], "ABC", "DEFGHIJ"),
        (["KLM", "DEFGHIJ"], "ABC", "DEFGHIJ"),
        (["DEX", "HIJK"], "ABCDEFG", "HIJK"),
        (["JKLM", "JK"], "ABCDEFGHI", "JK"),
        (["two words"], "ABCDEFGHIJKLM, then ", "two words"),
    ],
)
def test_t2_no_character_of_a_stop_reaches_the_caller(
    stops: list[str], shown: str, stop: str, burst: int, is_deaf: bool
) -> None:
    """Whatever a worker makes at once, and whether it looks for stops itself or not."""
    text = b"ABCDEFGHIJKLM, then two words and more"
    fleet = MemoryFleet()
    fleet.burst = burst
    node: NodeHost = fleet.nodes[0]
    node.answer = lambda prompt, count: list((text * 9)[:count])
    node.is_deaf = is_deaf
    node.kill_worker()
    fleet.run(1.0)
    stream = fleet.generate("p", 200, stop=stops, key="t2", credit=500)
    fleet.finish(stream)
    assert stream.end is not None
    assert (stream.end["finish"], stream.end["stop"], stream.text) == ("stop", stop, shown)
    assert bytes(stream.tokens) == (shown + stop).encode()
    for offset in range(len(stream.tokens) + 1):
        again = fleet.request("attach", key="t2", offset=offset)
        fleet.finish(again)
        assert shown.endswith(again.text)
        assert again.end is not None
        assert again.end["stop"] == stop


def test_t2_nothing_is_held_back_longer_than_needed() -> None:
    text = b"DEFG DEFGH DEFGHIJ"
    fleet = MemoryFleet()
    node: NodeHost = fleet.nodes[0]
    node.answer = lambda prompt, count: list(text[:count])
    node.kill_worker()
    fleet.run(1.0)
    stream = fleet.generate("p", 200, stop="DEFGHIJ", credit=500)
    fleet.finish(stream)
    came = ""
    for event in stream.events:
        if event["type"] == "token":
            came += event["text"]
            made = text[: event["offset"] + len(event["tokens"])].decode()
            held = made[len(came) :]
            assert "DEFGHIJ".startswith(held)
    assert came == "DEFG DEFGH "
