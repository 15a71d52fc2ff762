"""EventWindow: numbers, watermarks and when to pause."""

from __future__ import annotations

import pytest

from bus.event_window import EventWindow
from bus.ids import pack_ids
from bus.messages.parts import Finish

DONE = Finish(reason="eos")


def test_events_are_kept_until_the_watermark_covers_them() -> None:
    window = EventWindow()
    window.add(pack_ids([7, 8, 9]), None)
    window.add(pack_ids([10]), DONE)
    assert window.next_seq == 5
    assert window.retained() == (0, pack_ids([7, 8, 9, 10]), DONE, b"")
    window.acknowledge(3)
    window.validate_state()
    assert window.retained() == (3, pack_ids([10]), DONE, b"")
    window.acknowledge(4)
    window.validate_state()
    assert window.retained() == (4, b"", DONE, b"")
    window.acknowledge(5)
    window.validate_state()
    assert window.is_acknowledged
    assert window.retained() == (5, b"", None, b"")


def test_old_and_impossible_watermarks_change_nothing() -> None:
    window = EventWindow()
    window.add(pack_ids([1, 2, 3]), None)
    window.acknowledge(2)
    for number in (0, 1, 2, 4, 2**63):
        window.acknowledge(number)
        window.validate_state()
        assert window.retained() == (2, pack_ids([3]), None, b"")


def test_nothing_comes_after_the_finish() -> None:
    window = EventWindow()
    window.add(b"", DONE)
    with pytest.raises(ValueError, match="after its finish"):
        window.add(pack_ids([1]), None)


def test_it_pauses_at_768_of_1024_events_and_resumes_below_512() -> None:
    window = EventWindow()
    window.add(pack_ids(range(767)), None)
    assert not window.wants_pause()
    window.add(pack_ids([0]), None)
    assert window.wants_pause()
    window.paused = True
    assert not window.wants_pause()
    window.acknowledge(768 - 512)
    assert not window.wants_resume()
    window.acknowledge(768 - 511)
    assert window.wants_resume()
    window.paused = False
    assert not window.wants_resume()


@pytest.mark.parametrize(("unread", "pauses_at"), [(0, 768), (700, 68), (736, 32), (5000, 32)])
def test_what_readers_are_yet_to_take_fills_it_until_something_is_acknowledged(
    unread: int, pauses_at: int
) -> None:
    window = EventWindow(unread=unread)
    window.add(pack_ids(range(pauses_at - 1)), None)
    assert not window.wants_pause()
    window.add(pack_ids([0]), None)
    assert window.wants_pause()
    window.paused = True
    window.acknowledge(pauses_at)
    assert window.wants_resume()
    window.add(pack_ids(range(511)), None)
    assert window.wants_resume()
    window.add(pack_ids([0]), None)
    assert not window.wants_resume()


def test_a_finished_generation_is_neither_paused_nor_resumed() -> None:
    window = EventWindow()
    window.add(pack_ids(range(1000)), DONE)
    assert not window.wants_pause()
    window.paused = True
    window.acknowledge(1000)
    assert not window.wants_resume()


def test_what_it_keeps_is_counted_in_bytes() -> None:
    """4 bytes an id; a finish 128 and its message until it is acknowledged."""
    window = EventWindow()
    assert window.retained_bytes == 0
    window.add(pack_ids([1, 2, 3]), Finish(reason="error", message="\u00e4"))
    assert window.retained_bytes == 12 + 128 + 2
    window.acknowledge(3)
    assert window.retained_bytes == 128 + 2
    window.acknowledge(4)
    assert window.retained_bytes == 0


def test_log_probabilities_stay_with_their_tokens() -> None:
    window = EventWindow(record_bytes=4)
    window.add(pack_ids([7, 8]), None, b"seveeigh")
    window.add(pack_ids([9]), DONE, b"nine")
    assert window.retained() == (0, pack_ids([7, 8, 9]), DONE, b"seveeighnine")
    window.acknowledge(2)
    window.validate_state()
    assert window.retained() == (2, pack_ids([9]), DONE, b"nine")
    window.acknowledge(4)
    window.validate_state()
    assert window.retained_bytes == 0


def test_log_probabilities_are_counted_in_bytes() -> None:
    window = EventWindow(record_bytes=164)
    window.add(pack_ids(range(10)), None, bytes(1640))
    assert window.retained_bytes == 1680
    window.acknowledge(9)
    assert window.retained_bytes == 168


@pytest.mark.parametrize("logprobs", [b"", bytes(3), bytes(5), bytes(8)])
def test_log_probabilities_that_fit_no_token_are_not_taken(logprobs: bytes) -> None:
    window = EventWindow(record_bytes=4)
    assert not window.fits(pack_ids([1]), logprobs)
    with pytest.raises(ValueError, match="as many"):
        window.add(pack_ids([1]), None, logprobs)
