"""The text desk: what waits is bounded, dropped with whoever waited, and never forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import Invalid, QueueFull, SuperfluidError
from bus.ids import ModelName
from bus.messages.text import Describe, Encode, TextFailed
from head.effects import DropText, TextJob
from head.outbox import Outbox
from head.texts import MAX_CLIENT_BYTES, TextDesk
from tests.harness.memory_parts import text_reply

TOY = ModelName("toy")
MEGABYTE = 1024 * 1024


class Desk:
    def __init__(self) -> None:
        self.outbox = Outbox()
        self.desk = TextDesk(self.outbox)
        self.desk.models_found({TOY: "/toy"})
        (describe,) = self.jobs()
        assert isinstance(describe, Describe)
        self.desk.reply(text_reply(describe), 0.0)
        self.got: list[object] = []

    def outputs(self) -> list[object]:
        return [tagged.output for tagged in self.outbox.drain().outputs]

    def jobs(self) -> list[Any]:
        return [output.message for output in self.outputs() if isinstance(output, TextJob)]

    def submit(self, client: bytes = b"c", size: int = 10, *, until_gone: bool = False) -> int:
        return self.desk.submit(
            TOY,
            lambda job, folder: Encode(job=job, folder=folder, text="x"),
            lambda reply, now: self.got.append(reply),
            client=client,
            size_bytes=size,
            until_gone=until_gone,
        )


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_death_of_a_process_is_its_job_s_error(desk: Desk) -> None:
    number = desk.submit()
    desk.desk.reply(TextFailed(job=number, code="invalid", message="too much"), 1.0)
    (error,) = desk.got
    assert isinstance(error, Invalid)
    desk.desk.reply(TextFailed(job=number, code="invalid", message="again"), 1.0)
    assert len(desk.got) == 1


def test_dropped_job_is_taken_out_of_line_and_answers_nobody(desk: Desk) -> None:
    number = desk.submit()
    (job,) = desk.jobs()
    desk.desk.drop(number)
    assert desk.outputs() == [DropText(job=number)]
    desk.desk.reply(text_reply(job), 1.0)
    assert desk.got == []
    desk.desk.drop(number)
    assert desk.outputs() == []


def test_client_that_is_gone_takes_only_what_was_for_its_connection(desk: Desk) -> None:
    kept, own = desk.submit(), desk.submit(until_gone=True)
    other = desk.submit(b"other", until_gone=True)
    desk.outputs()
    desk.desk.client_gone(b"c")
    assert desk.outputs() == [DropText(job=own)]
    assert len({kept, own, other}) == 3


def test_one_client_may_not_fill_the_line(desk: Desk) -> None:
    sizes = MAX_CLIENT_BYTES // 4
    numbers = [desk.submit(size=sizes) for _ in range(4)]
    with pytest.raises(QueueFull) as full:
        desk.submit(size=sizes)
    assert full.value.retry_after_ms == 1000
    desk.submit(b"other", size=sizes)
    desk.desk.drop(numbers[0])
    desk.submit(size=sizes)


def test_all_clients_together_may_not_fill_memory(desk: Desk) -> None:
    for number in range(8):
        desk.submit(str(number).encode(), size=8 * MEGABYTE)
    with pytest.raises(QueueFull):
        desk.submit(b"one more", size=MEGABYTE)


def test_fewest_tokens_of_a_text_come_from_the_longest_token(desk: Desk) -> None:
    assert desk.desk.least_tokens(TOY, 100) == 100
    assert desk.desk.least_tokens(ModelName("unknown"), 100) == 0


def test_model_whose_folder_is_gone_is_not_found(desk: Desk) -> None:
    desk.desk.models_found({})
    with pytest.raises(SuperfluidError, match="no model folder 'toy'"):
        desk.submit()
