"""An encoder's worker: vectors of jobs, what is refused, and what it tells the agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.models.encoder_importer import import_encoder
from agent.models.folder import ModelFolder
from agent.worker.encoder import Encoder
from agent.worker.encoder_loop import EncoderWorker
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from agent.worker.runner import Worker
from bus.errors import ModelIncomplete
from bus.ids import GenerationId, SessionId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import (
    UNASKED,
    WORKER,
    Accepted,
    Cancel,
    Embed,
    Embedded,
    EmbedFailed,
    Output,
    Park,
    Parked,
    Pause,
    Ping,
    Pong,
    Stop,
    Submit,
)
from tests.harness.encoder_reference import ReferenceEncoder
from tests.harness.models import minilm_folder, minilm_source, toy_model_folder
from tests.harness.small_encoder import write_small_encoder


class MemoryPipe:
    """The agent's end in memory: gives `inbox`, then a Stop once the worker waits for ever."""

    def __init__(self, *inbox: object, stuck: int = 0) -> None:
        self.inbox = deque(WORKER.encode(message) for message in inbox)
        #: How many sends it does not take.
        self.stuck = stuck
        self.sent: list[Any] = []

    def recv(self, timeout_s: float | None) -> bytes | None:
        if self.inbox:
            return self.inbox.popleft()
        return WORKER.encode(Stop()) if timeout_s is None else None

    def wait_sendable(self, timeout_s: float) -> None:
        """Time does not pass here."""

    def send(self, data: bytes) -> bool:
        if self.stuck:
            self.stuck -= 1
            return False
        self.sent.append(WORKER.decode(data))
        return True

    def replies(self) -> list[Any]:
        """What was said, but the counters that nobody asked for."""
        return [m for m in self.sent if not (isinstance(m, Pong) and m.nonce == UNASKED)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_encoder(tmp_path_factory.mktemp("encoder") / "source")


@pytest.fixture(scope="module")
def folder(source: Path) -> ModelFolder:
    return import_encoder(source, source.parent / "small")


@pytest.fixture(scope="module")
def small(folder: ModelFolder) -> Encoder:
    return Encoder(folder, threads=1)


def serve(encoder: Encoder, *inbox: object, stuck: int = 0) -> MemoryPipe:
    pipe = MemoryPipe(*inbox, stuck=stuck)
    EncoderWorker(pipe, encoder, lambda: 0.0).run()
    return pipe


def embed(job: int, inputs: Sequence[Sequence[int]], **settings: Any) -> Embed:
    packed = tuple(pack_ids(ids) for ids in inputs)
    return Embed(job=GenerationId(job), inputs=packed, **settings)


def arrays(answer: Embedded) -> Any:
    return np.array([np.frombuffer(vector, "<f4") for vector in answer.vectors])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_job_is_answered_with_the_vectors_of_the_reference(
    small: Encoder, source: Path, pooling: str, normalize: bool
) -> None:
    inputs = [[2, 5, 3], [2, *range(4, 25), 3], [2, 9, 9, 3], [7]]
    pipe = serve(small, embed(1, inputs, pooling=pooling, normalize=normalize))
    (answer,) = pipe.replies()
    assert answer.job == 1
    assert answer.tokens == 3 + 23 + 4 + 1
    reference = ReferenceEncoder(source)
    expected = [reference.vector(ids, pooling, normalize=normalize) for ids in inputs]
    assert np.abs(arrays(answer) - np.array(expected)).max() < 1e-5


def test_what_is_not_said_is_as_the_model_was_trained(small: Encoder) -> None:
    pipe = serve(
        small, embed(1, [[2, 5, 3]]), embed(2, [[2, 5, 3]], pooling="mean", normalize=True)
    )
    first, second = pipe.replies()
    assert first.vectors == second.vectors


def test_what_can_not_be_done_is_a_typed_error_and_the_next_is_served(small: Encoder) -> None:
    pipe = serve(
        small,
        embed(1, [[2, 3], [5] * 25]),
        embed(2, []),
        embed(3, [[40]]),
        embed(4, [[2, 3]]),
    )
    long, empty, unknown, served = pipe.replies()
    assert (long.code, long.length, long.max) == ("context_length_exceeded", 25, 24)
    assert (long.param, long.job) == ("input", 1)
    assert "25 tokens and the model takes 24" in long.message
    assert (empty.code, unknown.code) == ("invalid", "invalid")
    assert isinstance(served, Embedded)


def test_a_generation_is_refused_in_one_sentence(small: Encoder) -> None:
    submit = Submit(
        generation=GenerationId(5),
        context=pack_ids([2, 3]),
        sampling=SamplingParams(),
        max_new_tokens=5,
        prompt_tokens=2,
    )
    accepted, output = serve(small, submit, Pause(generation=GenerationId(5))).replies()
    assert accepted == Accepted(generation=GenerationId(5))
    assert isinstance(output, Output)
    (run,) = output.runs
    assert run.finish is not None
    assert (run.finish.reason, run.finish.error_code) == ("refused", "invalid")
    assert "model small makes vectors and no text" in run.finish.message


def test_a_decoder_refuses_to_embed_in_one_sentence() -> None:
    runner = ModelRunner(toy_model_folder(), device="cpu", lanes=1, kv_bytes=4 << 20, threads=1)
    pipe = MemoryPipe(embed(3, [[1, 2]]))
    Worker(pipe, Engine(runner), lambda: 0.0).run()
    (failed,) = pipe.replies()
    assert isinstance(failed, EmbedFailed)
    assert (failed.job, failed.code, failed.param) == (3, "invalid", "model")
    assert "model toy makes text and no vectors; choose an encoder" in failed.message


def test_sessions_are_not_parked_here(small: Encoder) -> None:
    (reply,) = serve(small, Park(session=SessionId("s"), context=pack_ids([1]))).replies()
    assert isinstance(reply, Parked)
    assert reply.code


def test_counters_count_runs_and_tokens(small: Encoder) -> None:
    inputs = [[2, 3]] * 10
    pipe = serve(small, embed(1, inputs), Ping(nonce=8))
    told = next(m for m in pipe.sent if isinstance(m, Pong) and m.nonce == 8)
    assert (told.stats.queued, told.stats.phase, told.stats.steps) == (10, "prefill", 0)
    pipe = serve(small, Ping(nonce=8))
    assert pipe.sent[0].stats.phase == "idle"


def test_progress_is_told_as_work_begins(small: Encoder) -> None:
    first = serve(small, embed(1, [[2, 3]])).sent[0]
    assert isinstance(first, Pong)
    assert first.nonce == UNASKED


def test_a_cancelled_job_is_not_answered(small: Encoder) -> None:
    pipe = serve(small, embed(1, [[2, 3]]), Cancel(generation=GenerationId(1)), embed(2, [[2, 3]]))
    assert [answer.job for answer in pipe.replies()] == [2]


def test_what_a_full_pipe_does_not_take_is_kept_in_order(small: Encoder) -> None:
    pipe = serve(small, embed(1, [[2, 3]]), embed(2, []), embed(3, [[2, 3]]), stuck=20)
    assert [answer.job for answer in pipe.replies()] == [2, 1, 3]


def test_a_decoder_folder_is_no_encoder() -> None:
    with pytest.raises(ModelIncomplete, match="makes text and no vectors"):
        Encoder(toy_model_folder())


@pytest.mark.model
def test_16_texts_of_mixed_lengths_are_as_one_by_one() -> None:
    encoder = Encoder(minilm_folder(), threads=1)
    rng = np.random.default_rng(16)
    lengths = [3, 512, 17, 9, 31, 64, 5, 120, 33, 16, 250, 8, 40, 12, 90, 6]
    inputs = [[101, *rng.integers(1000, 30_000, n - 2).tolist(), 102] for n in lengths]
    (together,) = serve(encoder, embed(1, inputs)).replies()
    alone = [serve(encoder, embed(1, [ids])).replies()[0] for ids in inputs]
    single = np.concatenate([arrays(answer) for answer in alone])
    assert np.abs(arrays(together) - single).max() < 1e-5
    reference = ReferenceEncoder(minilm_source())
    for index in (0, 3, 7):
        known = reference.vector(inputs[index], "mean", normalize=True)
        assert np.abs(arrays(together)[index] - known).max() < 1e-4


def test_a_graph_that_can_not_be_loaded_is_told_with_what_makes_it_again(
    source: Path, tmp_path: Path
) -> None:
    folder = import_encoder(source, tmp_path / "broken")
    folder.graph.write_bytes(b"no graph")
    again = "make it again with `sfctl model import source --name broken`"
    with pytest.raises(ModelIncomplete, match=f"model broken can not be loaded: .*{again}"):
        Encoder(folder, threads=1)
