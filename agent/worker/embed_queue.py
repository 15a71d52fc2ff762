"""Which texts a run of an encoder takes. Pure.

A run takes texts of like lengths, so that a batch is padded to less than twice its tokens, and no
more than a number of tokens. Jobs lead runs in turn, and others' texts fill what is left: so a job
waits for at most a run of each job before it, however long those are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bus.errors import ContextLengthExceeded, Invalid, QueueFull, SuperfluidError
from bus.ids import GenerationId, unpack_ids
from bus.messages.worker import Embed, Embedded

#: Of a run, padding counted: about a second on an idle processor for 20 million weights.
MAX_RUN_TOKENS = 2048
#: Texts up to this length are in one bucket; each next bucket is twice as long.
SHORTEST_BUCKET = 16
#: Tokens that may wait: some minutes of work.
MAX_WAITING_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A text of a job: the `index`-th of its inputs."""

    job: GenerationId
    index: int
    ids: Sequence[int]
    pooling: str
    normalize: bool


@dataclass(slots=True)
class _Job:
    """What of a job waits, by bucket, and its vectors so far, by input."""

    waiting: dict[int, deque[Piece]]
    vectors: list[bytes]
    missing: int
    tokens: int


class EmbedQueue:
    """Jobs whose vectors are not all there. One thread drives it: a batch is done before the next.

    Invariant: `_jobs` has exactly the jobs with missing vectors, the one to lead the next run
    first, and no bucket of them is empty.

    Args:
        window: most tokens of a text.
        vocab: ids are below it.
        pooling: of jobs that name none.
        normalize: of jobs that do not say.
    """

    def __init__(self, *, window: int, vocab: int, pooling: str, normalize: bool) -> None:
        self._window = window
        self._vocab = vocab
        self._pooling = pooling
        self._normalize = normalize
        self._jobs: dict[GenerationId, _Job] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run."""
        return not self._jobs

    @property
    def waiting(self) -> int:
        """Texts without a vector."""
        return sum(job.missing for job in self._jobs.values())

    def submit(self, embed: Embed) -> None:
        """Take a job in. One that is known already changes nothing.

        Raises:
            ContextLengthExceeded: a text is longer than the window.
            Invalid: no texts, one without tokens, more than could ever wait, or an id that the
                model does not have.
            QueueFull: too much waits already.
        """
        if embed.job in self._jobs:
            return
        texts = [unpack_ids(packed) for packed in embed.inputs]
        self._check(texts)
        tokens = sum(map(len, texts))
        if tokens > MAX_WAITING_TOKENS:
            raise Invalid(
                f"the input has {tokens} tokens and {MAX_WAITING_TOKENS} are taken at once; send "
                "it in parts",
                param="input",
            )
        if sum(job.tokens for job in self._jobs.values()) + tokens > MAX_WAITING_TOKENS:
            raise QueueFull(
                f"texts of {MAX_WAITING_TOKENS} tokens wait to become vectors already; try again "
                "later",
                retry_after_ms=1000,
            )
        pooling = embed.pooling or self._pooling
        normalize = self._normalize if embed.normalize is None else embed.normalize
        job = _Job({}, [b""] * len(texts), len(texts), tokens)
        for index, ids in enumerate(texts):
            piece = Piece(embed.job, index, ids, pooling, normalize)
            job.waiting.setdefault(bucket_of(len(ids)), deque()).append(piece)
        self._jobs[embed.job] = job

    def cancel(self, job: GenerationId) -> None:
        """Forget a job; unknown ones are passed over."""
        self._jobs.pop(job, None)

    def next_batch(self) -> list[Piece]:
        """What the next run takes; empty when nothing waits."""
        if not self._jobs:
            return []
        lead, job = next(iter(self._jobs.items()))
        batch = _fill(self._jobs.values(), next(iter(job.waiting)))
        self._jobs[lead] = self._jobs.pop(lead)
        return batch

    def done(
        self, batch: Sequence[Piece], vectors: Sequence[bytes | None]
    ) -> tuple[list[Embedded], list[GenerationId]]:
        """Take a run's vectors in; None is one that could not be made.

        Returns:
            The jobs that are whole now, and those that never will be, which are forgotten.
        """
        whole, lost = [], []
        for piece, vector in zip(batch, vectors, strict=True):
            job = self._jobs.get(piece.job)
            if job is None:
                continue
            if vector is None:
                del self._jobs[piece.job]
                lost.append(piece.job)
                continue
            job.vectors[piece.index] = vector
            job.missing -= 1
            if not job.missing:
                del self._jobs[piece.job]
                made = tuple(job.vectors)
                whole.append(Embedded(job=piece.job, vectors=made, tokens=job.tokens))
        return whole, lost

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        if not texts:
            raise Invalid("there is no input; give at least one text", param="input")
        for index, ids in enumerate(texts):
            if not ids:
                raise Invalid(f"input {index} has no tokens; leave it out", param="input")
            if len(ids) > self._window:
                raise self._too_long(index, len(ids))
            if max(ids) >= self._vocab:
                raise Invalid(
                    f"input {index} has the token {max(ids)} and the model has {self._vocab}; "
                    "use the ids of its own tokenizer",
                    param="input",
                )

    def _too_long(self, index: int, length: int) -> SuperfluidError:
        return ContextLengthExceeded(
            f"input {index} has {length} tokens and the model takes {self._window} at most; cut "
            "the text into parts",
            param="input",
            details={"length": length, "max": self._window},
        )


def _fill(jobs: Iterable[_Job], bucket: int) -> list[Piece]:
    """Take the texts of a bucket, job after job, until a batch is full."""
    batch: list[Piece] = []
    longest = 0
    for job in jobs:
        pieces = job.waiting.get(bucket)
        while pieces:
            longest = max(longest, len(pieces[0].ids))
            if batch and longest * (len(batch) + 1) > MAX_RUN_TOKENS:
                return batch
            batch.append(pieces.popleft())
        job.waiting.pop(bucket, None)
    return batch


def bucket_of(length: int) -> int:
    """The longest text of the bucket that a length belongs to: 16, 32, 64, ..."""
    return max(SHORTEST_BUCKET, 1 << (length - 1).bit_length())
