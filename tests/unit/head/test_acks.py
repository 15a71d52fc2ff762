"""Acknowledgements are few, never late for a finish, and never about a link that is gone."""

from __future__ import annotations

import pytest

from bus.ids import GenerationId
from bus.messages.link import WatermarkAck
from bus.timers import Timers
from head.acks import MAX_DELAY_S, AckDesk
from head.effects import SendLink
from head.outbox import Outbox


class Desk:
    def __init__(self) -> None:
        self.outbox = Outbox()
        self.timers = Timers()
        self.desk = AckDesk(self.outbox, self.timers)

    def sent(self) -> list[tuple[int, dict[GenerationId, int]]]:
        found = []
        for tagged in self.outbox.drain().outputs:
            output = tagged.output
            assert isinstance(output, SendLink)
            assert isinstance(output.message, WatermarkAck)
            marks = {mark.generation: mark.committed for mark in output.message.watermarks}
            found.append((output.link, marks))
        return found


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_several_watermarks_become_one_frame_after_the_delay(desk: Desk) -> None:
    for watermark in (1, 2, 3):
        desk.desk.note(1, GenerationId(7), watermark, 10.0, urgent=False)
    desk.desk.note(1, GenerationId(8), 5, 10.1, urgent=False)
    assert desk.sent() == []
    desk.timers.fire(10.0 + MAX_DELAY_S)
    assert desk.sent() == [(1, {7: 3, 8: 5})]
    desk.timers.fire(20.0)
    assert desk.sent() == []


def test_finish_is_acknowledged_at_once(desk: Desk) -> None:
    desk.desk.note(1, GenerationId(7), 4, 10.0, urgent=True)
    assert desk.sent() == [(1, {7: 4})]


def test_nothing_is_said_on_a_link_that_is_gone(desk: Desk) -> None:
    desk.desk.note(1, GenerationId(7), 1, 10.0, urgent=False)
    desk.desk.note(2, GenerationId(9), 1, 10.0, urgent=False)
    desk.desk.drop(1)
    desk.timers.fire(11.0)
    assert desk.sent() == [(2, {9: 1})]
