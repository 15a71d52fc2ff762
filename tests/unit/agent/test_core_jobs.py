"""Embeddings in the node's core: what the worker is asked, what the head hears."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.actions import SendToWorker
from bus.ids import GenerationId, ModelName, WorkerIncarnation, pack_ids
from bus.messages import link, worker
from bus.messages.job_bodies import EmbedBody, EmbedEnd, EmbedPart, pack_body, unpack_body
from bus.messages.link_jobs import MAX_PART_BYTES, JobCancel, JobEnd, JobPart, JobStart
from tests.unit.agent.test_core import OTHER, TOY, W1, W2, Node, ready

JOB = GenerationId(5)
IDS = (pack_ids([2, 9, 3]), pack_ids([2, 3]))


@pytest.fixture
def node() -> Node:
    made = Node()
    made.link_up()
    made.start()
    made.say(ready())
    return made


def ask(node: Node, model: ModelName = TOY, body: bytes | None = None) -> list[Any]:
    asked = pack_body(EmbedBody(inputs=IDS, pooling="cls")) if body is None else body
    node.core.link_message(JobStart(job=JOB, model=model, kind="embed", body=asked), 0.0)
    return node.taken()


def test_ids_go_to_the_worker_and_vectors_come_back(node: Node) -> None:
    assert ask(node) == [
        SendToWorker(model=TOY, message=worker.Embed(job=JOB, inputs=IDS, pooling="cls"))
    ]
    assert node.core.is_busy
    vectors = (np.array([1, 2], "<f4").tobytes(), np.array([3, 4], "<f4").tobytes())
    part, end = node.say(worker.Embedded(job=JOB, vectors=vectors, tokens=5))
    assert isinstance(part, JobPart)
    known = EmbedPart(index=0, count=2, dimension=2, vectors=b"".join(vectors))
    assert unpack_body(EmbedPart, part.body) == known
    assert end == JobEnd(job=JOB, parts=1, body=pack_body(EmbedEnd(tokens=5)))
    assert not node.core.is_busy


def test_many_vectors_go_in_parts_that_fit(node: Node) -> None:
    ask(node)
    vectors = tuple(np.full(8192, number, "<f4").tobytes() for number in range(7))
    *parts, end = node.say(worker.Embedded(job=JOB, vectors=vectors, tokens=9))
    got = [unpack_body(EmbedPart, part.body) for part in parts if isinstance(part, JobPart)]
    assert [(part.index, part.count) for part in got] == [(0, 3), (3, 3), (6, 1)]
    assert b"".join(part.vectors for part in got) == b"".join(vectors)
    assert all(len(part.body) <= MAX_PART_BYTES for part in parts if isinstance(part, JobPart))
    assert isinstance(end, JobEnd)
    assert end.parts == 3


def test_the_workers_refusal_is_passed_on(node: Node) -> None:
    ask(node)
    refusal = worker.EmbedFailed(
        job=JOB, code="context_length_exceeded", message="input 1 has 99", param="input",
        length=99, max=24,
    )  # fmt: skip
    (end,) = node.say(refusal)
    assert end == JobEnd(
        job=JOB, code="context_length_exceeded", message="input 1 has 99", param="input",
        length=99, max=24,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "code"), [(OTHER, "model_not_ready"), (ModelName("none"), "model_not_served")]
)
def test_without_a_worker_the_head_hears_why(node: Node, model: ModelName, code: str) -> None:
    (end,) = ask(node, model)
    assert isinstance(end, JobEnd)
    assert (end.job, end.code) == (JOB, code)


@pytest.mark.parametrize("body", [b"", b"\x90", b"\x80", b"\x81\xa6inputs\x91\xc4\x01a"])
def test_a_body_that_is_none_is_refused(node: Node, body: bytes) -> None:
    (end,) = ask(node, body=body)
    assert isinstance(end, JobEnd)
    assert end.code in ("invalid", "decode")


def test_a_worker_that_dies_or_hangs_loses_its_jobs(node: Node) -> None:
    ask(node)
    node.core.worker_exited(TOY, W1, -9, 0.25, 1.0)
    ends = [each for each in node.taken() if isinstance(each, JobEnd)]
    assert ends == [
        JobEnd(job=JOB, code="worker_lost", message="the worker was ended by signal 9 (SIGKILL)")
    ]
    node.start(W2)
    node.say(ready(W2), W2)
    ask(node)
    node.core.worker_hung(TOY, W2, "it stands still", 2.0)
    ends = [each for each in node.taken() if isinstance(each, JobEnd)]
    assert [(end.code, end.message) for end in ends] == [("worker_lost", "it stands still")]


def test_a_worker_that_takes_nothing_is_told(node: Node) -> None:
    ask(node)
    node.core.worker_takes_no_job(TOY, JOB)
    (end,) = node.taken()
    assert isinstance(end, JobEnd)
    assert end.code == "worker_behind"


def test_a_cancel_and_a_lost_link_reach_the_worker(node: Node) -> None:
    cancel = SendToWorker(model=TOY, message=worker.Cancel(generation=JOB))
    ask(node)
    node.core.link_message(JobCancel(job=JOB), 0.0)
    assert node.taken() == [cancel]
    ask(node)
    node.core.link_down(1.0)
    assert node.taken() == [cancel]
    # What it says of a job that is over reaches nobody.
    node.link_up(now=2.0)
    assert node.say(worker.Embedded(job=JOB, vectors=(b"abcd",), tokens=1), now=2.0) == []


def test_an_unloaded_model_ends_its_jobs_and_is_waited_for(node: Node) -> None:
    ask(node)
    unload = link.ModelUnload(command=GenerationId(9), model=TOY, grace_ms=1000)  # type: ignore[arg-type]
    node.core.link_message(unload, 0.0)
    assert not [each for each in node.taken() if isinstance(each, JobEnd)]
    node.core.handle_timeout(1.5)
    ends = [each for each in node.taken() if isinstance(each, JobEnd)]
    assert [(end.code, end.message) for end in ends] == [
        ("worker_lost", "toy was unloaded from this node")
    ]


def test_vectors_of_different_lengths_are_an_error(node: Node) -> None:
    ask(node)
    (end,) = node.say(worker.Embedded(job=JOB, vectors=(b"abcd", b"abcdefgh"), tokens=1))
    assert isinstance(end, JobEnd)
    assert end.code == "internal"


def test_the_status_says_of_what_kind_the_model_is(node: Node) -> None:
    node.core.worker_exited(TOY, W1, -9, 0.25, 1.0)
    node.start(W2)
    node.core.worker_message(TOY, WorkerIncarnation(W2), ready_encoder(), 2.0)
    (status,) = (each for each in node.taken() if isinstance(each, link.NodeStatus))
    assert [model.kind for model in status.models] == ["encoder", ""]
    node.core.worker_exited(TOY, W2, -9, 0.25, 3.0)
    (status,) = (each for each in node.taken() if isinstance(each, link.NodeStatus))
    assert (status.models[0].phase, status.models[0].kind) == ("loading", "encoder")


def ready_encoder() -> worker.Ready:
    plain = ready(W2)
    return worker.Ready(
        worker=W2, window_tokens=24, lanes=1, kv_total_tokens=0, numerics=plain.numerics,
        tokenizer_digest=9, device="cpu", load_s=0.0, kind="encoder",
    )  # fmt: skip
