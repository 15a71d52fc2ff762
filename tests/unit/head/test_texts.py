"""The text desk: what waits is bounded, dropped with whoever waited, and never forgotten."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from bus.errors import Invalid, ModelIncomplete, QueueFull, SuperfluidError
from bus.ids import ModelName
from bus.messages.sampling import Constraint
from bus.messages.text import CheckConstraint, Describe, Described, Encode, TextFailed
from head.effects import DropText, TextJob
from head.outbox import Outbox
from head.text_pool import death
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


def test_model_whose_description_died_is_described_again_at_the_next_request() -> None:
    outbox, got = Outbox(), list[Any]()
    desk = TextDesk(outbox)

    def jobs() -> list[Any]:
        tagged = outbox.drain().outputs
        return [each.output.message for each in tagged if isinstance(each.output, TextJob)]

    def ask(now: float) -> None:
        desk.when_described(TOY, lambda known, at: got.append(known), now)

    def die(now: float) -> None:
        (job,) = jobs()
        assert isinstance(job, Describe)
        desk.reply(death(job, -signal.SIGKILL, False), now)

    desk.models_found({TOY: "/toy"})
    ask(0.0)
    die(10.0)
    ask(10.5)
    assert [error.retry_after_ms for error in got] == [1000, 500]
    assert jobs() == []
    # It really kills its process: tries become rare.
    for asked, wait in ((11.0, 2.0), (13.0, 4.0), (17.0, 8.0)):
        ask(asked)
        ask(asked)
        die(asked)
        ask(asked + wait - 0.1)
        assert jobs() == []
    ask(25.0)
    (job,) = jobs()
    desk.reply(text_reply(job), 25.1)
    assert isinstance(got[-1], Described)
    assert desk.described(TOY) is got[-1]


def test_model_that_can_not_be_described_is_not_tried_again() -> None:
    outbox, got = Outbox(), list[Any]()
    desk = TextDesk(outbox)
    desk.models_found({TOY: "/toy"})
    outbox.drain()
    desk.reply(TextFailed(job=1, code="model_incomplete", message="no tokenizer.json"), 0.0)
    desk.when_described(TOY, lambda known, at: got.append(known), 1000.0)
    assert isinstance(got[0], ModelIncomplete)
    assert outbox.drain().outputs == ()


@pytest.mark.parametrize(
    ("returncode", "may_be_cpu_limit", "code", "words"),
    [
        (-signal.SIGXCPU, False, "too_large", "CPU time"),
        (-signal.SIGKILL, True, "too_large", "CPU time"),
        (-signal.SIGKILL, False, "tokenizer_unavailable", "ended (signal 9) while"),
        (-signal.SIGTERM, True, "tokenizer_unavailable", "ended (signal 15) while"),
        (-signal.SIGABRT, False, "too_large", "memory"),
        (1, True, "tokenizer_unavailable", "ended (status 1) while"),
    ],
)
def test_death_of_a_process_is_told_as_what_it_was(
    returncode: int, may_be_cpu_limit: bool, code: str, words: str
) -> None:
    failed = death(Encode(job=7, folder="/toy", text="x"), returncode, may_be_cpu_limit)
    assert (failed.job, failed.code) == (7, code)
    assert words in failed.message
    assert (failed.retry_after_ms > 0) == (code == "tokenizer_unavailable")
    described = death(Describe(job=8, folder="/toy"), returncode, may_be_cpu_limit)
    assert (described.code, described.param) == ("tokenizer_unavailable", "")
    assert described.retry_after_ms > 0


def test_death_over_a_constraint_is_the_constraint_s_refusal() -> None:
    constraint = Constraint(kind="regex", source="a")
    job = CheckConstraint(job=7, folder="/toy", constraint=constraint)
    for number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGSEGV, signal.SIGABRT):
        failed = death(job, -number, False)
        assert (failed.code, failed.param) == ("constraint_invalid", "constraint")
        assert failed.retry_after_ms == 0
    for number, words in (
        (signal.SIGALRM, "takes too long (more time than"),
        (signal.SIGXCPU, "takes too long (more CPU time than"),
        (signal.SIGABRT, "takes too much memory"),
    ):
        assert words in death(job, -number, False).message
    assert death(job, -signal.SIGTERM, False).code == "tokenizer_unavailable"


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
