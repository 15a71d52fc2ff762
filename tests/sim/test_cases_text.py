"""Cases from the field under virtual time: whole characters in streamed text."""

from __future__ import annotations

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
