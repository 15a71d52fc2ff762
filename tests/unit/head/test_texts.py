"""The text desk: what waits is bounded, dropped with whoever waited, and never forgotten."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.errors import (
    Invalid,
    ModelIncomplete,
    NotFound,
    QueueFull,
    SuperfluidError,
    TokenizerUnavailable,
)
from bus.ids import ModelName
from bus.messages.sampling import Constraint, SamplingParams
from bus.messages.text import CheckConstraint, Describe, Described, Encode, TextFailed
from bus.text.vocabulary import tokenizer_digest
from head.effects import DropText, TextJob
from head.model_folders import find_folders, find_stamps
from head.outbox import Outbox
from head.pending_texts import MAX_CLIENT_BYTES
from head.text_pool import death
from head.texts import TextDesk
from tests.harness.memory_text import DIGEST, VOCABULARY, text_reply

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
    with pytest.raises(SuperfluidError, match="there is no model 'toy'"):
        desk.submit()


# --- a tokenizer that changes under its model's name ----------------------------------------------

NEW = (b"new", b"er")
NEW_DIGEST = tokenizer_digest(NEW)


def described(job: Describe) -> Described:
    """What the other tokenizer is."""
    reply = text_reply(job)
    assert isinstance(reply, Described)
    return replace(reply, vocabulary=NEW, digest=NEW_DIGEST)


@pytest.mark.parametrize("told_by", ["stamp", "text"])
def test_a_changed_tokenizer_is_described_again_before_any_new_text(
    desk: Desk, told_by: str
) -> None:
    texts, got = desk.desk, list[Any]()
    texts.models_found({TOY: "/toy"}, {TOY: 1})
    (job,) = desk.jobs()
    texts.reply(text_reply(job), 0.0)
    texts.models_found({TOY: "/toy"}, {TOY: 1})
    texts.used(TOY, DIGEST)
    texts.used(TOY, 0)
    assert desk.jobs() == []
    if told_by == "stamp":
        texts.models_found({TOY: "/toy"}, {TOY: 2})
    else:
        texts.used(TOY, NEW_DIGEST)
    texts.when_described(TOY, lambda known, at: got.append(known), 1.0)
    assert got == []
    # Answers that run are read by what they are of.
    assert texts.vocabulary_size(TOY) == len(VOCABULARY)
    (job,) = desk.jobs()
    texts.reply(described(job), 2.0)
    assert [known.digest for known in got] == [NEW_DIGEST]
    assert texts.digest(TOY) == NEW_DIGEST
    assert texts.vocabulary(TOY) == NEW
    assert texts.vocabulary(TOY, DIGEST) == VOCABULARY
    assert texts.new_answer_text(TOY, SamplingParams(), DIGEST).push([72, 105]) == "Hi"


def test_a_description_that_was_under_way_when_the_files_changed_does_not_count(
    desk: Desk,
) -> None:
    texts, got = desk.desk, list[Any]()
    texts.models_found({TOY: "/toy"}, {TOY: 1})
    texts.models_found({TOY: "/toy"}, {TOY: 2})
    old, new = desk.jobs()
    texts.when_described(TOY, lambda known, at: got.append(known), 1.0)
    texts.reply(text_reply(old), 1.0)
    assert got == []
    texts.reply(described(new), 2.0)
    assert [known.digest for known in got] == [NEW_DIGEST]


def test_a_description_that_was_under_way_when_the_folder_went_is_of_the_past(desk: Desk) -> None:
    texts, got = desk.desk, list[Any]()
    texts.other_digest = lambda model: 77
    texts.models_found({TOY: "/other"})
    (job,) = desk.jobs()
    texts.when_described(TOY, lambda known, at: got.append(known), 1.0)
    texts.models_found({})
    texts.reply(described(job), 2.0)
    assert [known.digest for known in got] == [NEW_DIGEST]
    # Nodes have another of that name, which is the fleet's now.
    assert (texts.digest(TOY), texts.described(TOY), texts.kind(TOY)) == (77, None, "")
    assert texts.vocabulary(TOY, NEW_DIGEST) == NEW


def test_a_changed_tokenizer_that_can_not_be_read_refuses_new_texts_until_it_is_mended(
    desk: Desk,
) -> None:
    texts, got = desk.desk, list[Any]()
    texts.models_found({TOY: "/toy"}, {TOY: 1})
    (job,) = desk.jobs()
    texts.reply(TextFailed(job=job.job, code="model_incomplete", message="no"), 1.0)
    texts.when_described(TOY, lambda known, at: got.append(known), 2.0)
    assert isinstance(got.pop(), ModelIncomplete)
    texts.models_found({TOY: "/toy"}, {TOY: 2})
    (job,) = desk.jobs()
    texts.reply(described(job), 3.0)
    texts.when_described(TOY, lambda known, at: got.append(known), 4.0)
    assert got[0].digest == NEW_DIGEST


def test_an_answer_of_a_tokenizer_that_is_gone_is_not_read_by_another(desk: Desk) -> None:
    with pytest.raises(
        TokenizerUnavailable, match=r"another tokenizer of toy .* than the head has"
    ):
        desk.desk.check_readable(TOY, 77)
    desk.desk.check_readable(TOY, DIGEST)
    desk.desk.check_readable(TOY, 0)


def test_an_answer_is_read_by_a_description_that_is_still_there(desk: Desk) -> None:
    texts, got = desk.desk, list[Any]()
    texts.models_found({})
    texts.when_described(TOY, lambda known, at: got.append(known), 1.0, DIGEST)
    assert [known.digest for known in got] == [DIGEST]
    assert texts.new_answer_text(TOY, SamplingParams(), DIGEST).push([72, 105]) == "Hi"
    with pytest.raises(NotFound):
        texts.when_described(TOY, lambda known, at: got.append(known), 1.0)
    with pytest.raises(NotFound):
        texts.when_described(TOY, lambda known, at: got.append(known), 1.0, NEW_DIGEST)


def test_stamps_follow_the_files_of_texts(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("1")
    folders = find_folders(tmp_path)
    stamps = [find_stamps(folders)]
    (tmp_path / "other").write_text("2")
    (tmp_path / "other").replace(folder / "tokenizer.json")
    stamps.append(find_stamps(folders))
    (folder / "chat_template.jinja").write_text("x")
    stamps.append(find_stamps(folders))
    (folder / "model.onnx").write_text("x")
    assert find_stamps(folders) == stamps[2]
    assert stamps[0] != stamps[1] != stamps[2]
