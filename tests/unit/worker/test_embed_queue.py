"""Which texts of which jobs run together."""

from __future__ import annotations

import random

import pytest

from agent.worker.embed_queue import MAX_RUN_TOKENS, MAX_WAITING_TOKENS, EmbedQueue, bucket_of
from bus.errors import ContextLengthExceeded, Invalid, QueueFull, SuperfluidError
from bus.ids import GenerationId, PackedIds, pack_ids
from bus.messages.worker import Embed, Embedded

WINDOW, VOCAB = 512, 100


@pytest.fixture
def queue() -> EmbedQueue:
    return EmbedQueue(window=WINDOW, vocab=VOCAB, pooling="cls", normalize=True)


def embed(job: int, *lengths: int, pooling: str = "", normalize: bool | None = None) -> Embed:
    inputs = tuple(pack_ids([job % VOCAB] * length) for length in lengths)
    return Embed(job=GenerationId(job), inputs=inputs, pooling=pooling, normalize=normalize)


def places(queue: EmbedQueue) -> list[tuple[int, int]]:
    """Job and index of what the next run takes; its vectors name them."""
    batch = queue.next_batch()
    queue.done(batch, [f"{piece.job}.{piece.index}".encode() for piece in batch])
    return [(piece.job, piece.index) for piece in batch]


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (512, 512)]
)
def test_buckets_are_powers_of_two(length: int, bucket: int) -> None:
    assert bucket_of(length) == bucket


def test_like_lengths_run_together(queue: EmbedQueue) -> None:
    queue.submit(embed(1, 5, 400, 9))
    queue.submit(embed(2, 300, 16))
    assert places(queue) == [(1, 0), (1, 2), (2, 1)]
    assert places(queue) == [(2, 0), (1, 1)]
    assert queue.idle
    assert places(queue) == []


def test_a_run_is_bounded_in_tokens_with_its_padding(queue: EmbedQueue) -> None:
    queue.submit(embed(1, *[512] * 9))
    most = MAX_RUN_TOKENS // 512
    assert [len(places(queue)) for _ in range(3)] == [most, most, 1]
    # The second makes the first one longer, by padding: 7 of 300 are 2100.
    queue.submit(embed(2, 257, *[300] * 6))
    assert len(places(queue)) == 6


def test_a_long_job_is_no_wait_for_a_short_one(queue: EmbedQueue) -> None:
    queue.submit(embed(1, *[500] * 100))
    queue.submit(embed(2, 10))
    queue.submit(embed(3, 500))
    assert {job for job, _ in places(queue)} == {1}
    assert places(queue) == [(2, 0)]
    assert places(queue)[0] == (3, 0)


def test_vectors_come_back_in_the_order_of_the_inputs(queue: EmbedQueue) -> None:
    queue.submit(embed(7, 40, 3, 500, 41))
    whole: list[Embedded] = []
    while not queue.idle:
        batch = queue.next_batch()
        done, lost = queue.done(batch, [f"{piece.index}".encode() for piece in batch])
        whole += done
        assert lost == []
    (answer,) = whole
    assert answer.vectors == (b"0", b"1", b"2", b"3")
    assert answer.tokens == 584


def test_what_a_job_does_not_say_is_as_the_model_was_trained(queue: EmbedQueue) -> None:
    queue.submit(embed(1, 3))
    queue.submit(embed(2, 3, pooling="mean", normalize=False))
    found = [(piece.pooling, piece.normalize) for piece in queue.next_batch()]
    assert found == [("cls", True), ("mean", False)]


def test_a_text_over_the_window_is_refused_with_both_numbers(queue: EmbedQueue) -> None:
    queue.submit(embed(1, 512))
    with pytest.raises(
        ContextLengthExceeded, match=r"input 1 has 513 tokens .* takes 512"
    ) as caught:
        queue.submit(embed(2, 3, 513))
    assert caught.value.details == {"length": 513, "max": 512}
    assert queue.waiting == 1


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ((), "there is no input"),
        ((pack_ids([1]), pack_ids([])), "input 1 has no tokens"),
        ((pack_ids([VOCAB]),), "input 0 has the token 100 and the model has 100"),
    ],
)
def test_what_can_not_be_embedded_is_refused(
    queue: EmbedQueue, inputs: tuple[PackedIds, ...], says: str
) -> None:
    with pytest.raises(Invalid, match=says):
        queue.submit(Embed(job=GenerationId(1), inputs=inputs))
    assert queue.idle


def test_what_waits_is_bounded(queue: EmbedQueue) -> None:
    jobs = MAX_WAITING_TOKENS // (512 * 1024)
    for job in range(jobs):
        queue.submit(embed(job + 1, *[512] * 1024))
    with pytest.raises(QueueFull):
        queue.submit(embed(99, 1))
    queue.cancel(GenerationId(1))
    queue.submit(embed(99, 1))


def test_a_job_that_could_never_wait_is_not_told_to_try_again() -> None:
    queue = EmbedQueue(window=2048, vocab=VOCAB, pooling="cls", normalize=True)
    with pytest.raises(Invalid, match="1050624 tokens and 1048576 are taken at once; send it in"):
        queue.submit(embed(1, *[2048] * 513))
    assert queue.idle
    queue.submit(embed(1, *[2048] * 512))


def test_a_job_that_is_known_is_not_taken_twice(queue: EmbedQueue) -> None:
    queue.submit(embed(1, 3))
    queue.submit(embed(1, 3, 3))
    assert queue.waiting == 1


def test_a_cancelled_job_runs_no_more_and_is_not_answered(queue: EmbedQueue) -> None:
    queue.submit(embed(1, *[512] * 5))
    queue.submit(embed(2, 3))
    batch = queue.next_batch()
    queue.cancel(GenerationId(1))
    queue.cancel(GenerationId(77))
    assert queue.done(batch, [b"x"] * len(batch)) == ([], [])
    assert places(queue) == [(2, 0)]
    assert queue.idle


def test_a_text_without_a_vector_ends_its_job_and_no_other(queue: EmbedQueue) -> None:
    queue.submit(embed(1, 3, 3, 3))
    queue.submit(embed(2, 3))
    batch = queue.next_batch()
    whole, lost = queue.done(batch, [b"x", None, None, b"y"])
    assert [answer.job for answer in whole] == [2]
    assert lost == [1]
    assert queue.idle


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_every_job_ends_once(seed: int) -> None:
    rng = random.Random(seed)
    queue = EmbedQueue(window=WINDOW, vocab=VOCAB, pooling="mean", normalize=True)
    expected: dict[int, int] = {}
    cancelled: set[int] = set()
    ended: list[int] = []
    for job in range(1, 120):
        lengths = [
            rng.choice((rng.randint(1, 20), rng.randint(1, 600))) for _ in range(rng.randint(1, 9))
        ]
        try:
            queue.submit(embed(job, *lengths))
        except SuperfluidError:
            assert max(lengths) > WINDOW
        else:
            expected[job] = len(lengths)
        if rng.random() < 0.1 and expected:
            gone = rng.choice(sorted(expected))
            queue.cancel(GenerationId(gone))
            cancelled.add(gone)
        while rng.random() < 0.6:
            ended += _run(queue)
    while not queue.idle:
        ended += _run(queue)
    assert len(ended) == len(set(ended))
    assert set(expected) - cancelled <= set(ended) <= set(expected)


def _run(queue: EmbedQueue) -> list[int]:
    batch = queue.next_batch()
    lengths = [len(piece.ids) for piece in batch]
    if batch:
        assert max(lengths) * len(lengths) <= MAX_RUN_TOKENS
        assert max(lengths) <= max(16, 2 * min(lengths))
    whole, _ = queue.done(batch, [b"v"] * len(batch))
    return [answer.job for answer in whole]
