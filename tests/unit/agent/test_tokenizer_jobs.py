"""A node gives the files that a model's texts go by, and nothing else."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.tokenizer_jobs import TokenizerJobs
from bus.agent_jobs import NodeJobs
from bus.ids import GenerationId, ModelName
from bus.messages.job_bodies import pack_body
from bus.messages.link_jobs import FIRST_PARTS, JobCancel, JobEnd, JobMore, JobPart, JobStart
from bus.text.tokenizer_export import TOKENIZER_JOB, TokenizerBody, TokenizerIntake
from bus.text.tokenizer_files import folder_text_digest, read_tokenizer_files
from tests.harness.tokenizers import sentence_piece, text_folder

JOB = GenerationId(7)


class Node:
    def __init__(self, models: Path) -> None:
        self.sent: list[Any] = []
        self.handler = TokenizerJobs(models)
        self.jobs = NodeJobs({TOKENIZER_JOB: self.handler}, self.sent.append, lambda _: ())

    def ask(self, model: str, text_digest: int, body: bytes = b"") -> None:
        body = body or pack_body(TokenizerBody(digest=1, text_digest=text_digest))
        start = JobStart(job=JOB, model=ModelName(model), kind=TOKENIZER_JOB, body=body)
        assert self.jobs.receive(start, 0.0)

    def settle(self) -> None:
        assert select.select([self.handler.fileno()], [], [], 10.0)[0]
        self.handler.settle()
        self.jobs.validate_state()

    def end(self) -> JobEnd:
        (end,) = [message for message in self.sent if isinstance(message, JobEnd)]
        return end


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "tokenizer.json").write_text("{}")
    text_folder(tmp_path / "models" / "m", sentence_piece(), template="x" * 3_000_000)
    made = Node(tmp_path / "models")
    yield made
    made.handler.close()


def test_parts_go_as_far_as_the_head_takes_them(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    digest = folder_text_digest(folder)
    node.ask("m", digest)
    assert not node.sent
    node.settle()
    assert len(node.sent) == FIRST_PARTS
    node.jobs.receive(JobMore(job=JOB, parts=1000), 1.0)
    intake = TokenizerIntake(digest)
    parts = [message for message in node.sent if isinstance(message, JobPart)]
    for part in parts:
        intake.take(part.body)
    assert intake.finish() == read_tokenizer_files(folder)
    assert (node.end().code, node.end().parts) == ("", len(parts))


@pytest.mark.parametrize("model", ["../secret", "/etc", "", ".", "nothing"])
def test_only_models_of_the_folder_are_given(node: Node, model: str) -> None:
    node.ask(model, 1)
    if not any(isinstance(message, JobEnd) for message in node.sent):
        node.settle()
    assert node.end().code
    assert not any(isinstance(message, JobPart) for message in node.sent)


def test_files_that_changed_since_the_worker_loaded_them_are_not_given(node: Node) -> None:
    node.ask("m", 1)
    node.settle()
    assert node.end().code == "tokenizer_unavailable"
    assert "have changed since its worker loaded it; unload it" in node.end().message


def test_what_asks_for_nothing_is_refused(node: Node) -> None:
    node.ask("m", 1, body=b"\x81\xa1x\x01")
    assert node.end().code == "invalid"


def test_a_job_that_was_cancelled_gives_nothing(node: Node, tmp_path: Path) -> None:
    node.ask("m", folder_text_digest(tmp_path / "models" / "m"))
    node.jobs.receive(JobCancel(job=JOB), 0.0)
    node.settle()
    assert not node.sent
