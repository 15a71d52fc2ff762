"""Workers whose model is made up: its next token is a hash of the whole context.

Any wrong context, seed, position or length shows in the tokens. The high bits of a token may name
the generation that made it (a *mark*): the model does not look at them, an oracle does.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bus.ids import (
    GenerationId,
    NumericsId,
    PackedIds,
    SessionId,
    WorkerIncarnation,
    pack_ids,
    unpack_ids,
)
from bus.messages import worker
from bus.messages.parts import Finish, Usage
from bus.text.stops import AnswerText
from tests.harness.memory_text import DIGEST, VOCABULARY

WINDOW = 512
LANES = 4
#: A prompt with this token kills its worker at the first step.
POISON = 7
#: One with this token does when its answer has as many tokens as the token after it says.
LATE_POISON = 6
#: Of an encoder: texts that a step makes vectors of.
STEP_TEXTS = 16
VECTOR_BYTES = 8192
#: A token's own bits; what lies above is its mark.
TOKEN_BITS = 8


class Drawing:
    """The made-up model on one context: gives one token after the other."""

    __slots__ = ("_hash", "_index", "_salt")

    def __init__(self, context: bytes, salt: bytes, index: int) -> None:
        """`context` is packed ids, `index` the place in the answer of the next token."""
        self._hash = hashlib.blake2b(context[::4], digest_size=2)
        self._salt = salt
        self._index = index

    def draw(self) -> tuple[int, bool]:
        """The next token, and whether the model would rather end here."""
        state = self._hash
        if self._salt:
            state = state.copy()
            state.update(self._salt + self._index.to_bytes(4, "little"))
        drawn, other = state.digest()
        return 32 + drawn % 94, other < 2

    def push(self, token: int) -> None:
        """A token was made."""
        self._hash.update(bytes([token & 0xFF]))
        self._index += 1


@dataclass(frozen=True, slots=True)
class MadeUpModel:
    """Args: whether draws depend on seed and position; whether it may end by itself (eos)."""

    seeded: bool = False
    ends: bool = False

    def drawing(self, context: bytes, *, seed: int, prompt_tokens: int, made: int) -> Drawing:
        salt = f"{seed} {prompt_tokens}".encode() if self.seeded else b""
        return Drawing(context, salt, made)

    def answer(
        self, prompt: bytes, count: int, seed: int = 0, min_tokens: int = 0
    ) -> tuple[list[int], str]:
        """All tokens of an answer, without marks, and why it ends."""
        drawing = self.drawing(prompt, seed=seed, prompt_tokens=len(prompt) // 4, made=0)
        tokens: list[int] = []
        while len(tokens) < count:
            token, would_end = drawing.draw()
            if would_end and self.ends and len(tokens) >= min_tokens:
                return tokens, "eos"
            tokens.append(token)
            drawing.push(token)
        return tokens, "length"


def expected_tokens(prompt: PackedIds, count: int) -> list[int]:
    """What the plain made-up model answers to a prompt: printable, telling of every token."""
    return MadeUpModel().answer(prompt, count)[0]


def made_up_logprob(token: int, place: int) -> float:
    """The log-probability of a token at a place of its answer: telling of both, and a float32."""
    return -((token & 0xFF) + place % 64 / 64)


def made_up_record(token: int, place: int, others: int) -> bytes:
    """A token's record as in `TokenRun`; the second of the others is as likely as the token."""
    chosen = made_up_logprob(token, place)
    beside = [((token + 1 + rank) & 0xFF, chosen + 1 - rank) for rank in range(others)]
    return struct.pack("<f" + "If" * others, chosen, *(part for one in beside for part in one))


def killing_token(prompt: bytes) -> int | None:
    """The token of an answer, from 0, in whose place its worker dies; None for none."""
    ids = unpack_ids(PackedIds(prompt))
    if POISON in ids:
        return 0
    return ids[ids.index(LATE_POISON) + 1] if LATE_POISON in ids[:-1] else None


def made_up_vector(ids: bytes) -> bytes:
    """What an encoder of this kind makes of a text's packed ids: 8 KiB, telling of all of them."""
    return hashlib.blake2b(ids).digest() * (VECTOR_BYTES // 64)


@dataclass(slots=True)
class _Embedding:
    embed: worker.Embed
    steps_left: int


@dataclass(slots=True)
class _Sequence:
    submit: worker.Submit
    drawing: Drawing
    started_s: float
    text: AnswerText
    kills_at: int | None = None
    made: int = 0
    paused: bool = False


@dataclass(slots=True)
class MadeUpWorker:
    """One worker process. A step makes `burst` tokens for each generation.

    `answer`, when given, stands for the model: so many tokens of the answer to a prompt.
    """

    incarnation: WorkerIncarnation
    window: int = WINDOW
    answer: Callable[[PackedIds, int], list[int]] = expected_tokens
    model: MadeUpModel = MadeUpModel()
    burst: int = 1
    mark: Callable[[GenerationId], int] = lambda _: 0
    computed: Callable[[GenerationId, int, int], None] = lambda *_: None
    numerics: str = "made-up"
    #: How many tokens of a context it says that it need not compute.
    cached: Callable[[worker.Submit], int] = lambda _: 0
    #: It takes no notice of stop strings.
    is_deaf: bool = False
    #: Files of parked sessions, which its node has on disk: the tokens in each.
    parked: dict[SessionId, PackedIds] = field(default_factory=dict)
    running: dict[GenerationId, _Sequence] = field(default_factory=dict)
    #: Of what kind its model is, as in `worker.Ready`.
    kind: str = ""
    text_digest: int = 0
    embedding: dict[GenerationId, _Embedding] = field(default_factory=dict)
    steps: int = 0
    made: int = 0

    def ready(self) -> worker.Ready:
        return worker.Ready(
            worker=self.incarnation,
            window_tokens=self.window,
            lanes=LANES,
            kv_total_tokens=LANES * self.window,
            numerics=NumericsId(self.numerics),
            tokenizer_digest=DIGEST,
            device="none",
            load_s=0.0,
            kind=self.kind,
            text_digest=self.text_digest,
        )

    @property
    def jobs(self) -> list[GenerationId]:
        """What it makes vectors for."""
        return list(self.embedding)

    @property
    def poisoned(self) -> bool:
        """Whether the next step kills this worker."""
        return any(
            sequence.kills_at is not None
            and sequence.submit.generated_tokens + sequence.made >= sequence.kills_at
            for sequence in self.running.values()
        )

    def receive(self, message: object, now: float = 0.0) -> list[object]:
        match message:
            case worker.Submit():
                self.running[message.generation] = self._sequence(message, now)
                return [worker.Accepted(generation=message.generation)]
            case worker.Embed():
                steps = -(-len(message.inputs) // STEP_TEXTS)
                self.embedding[message.job] = _Embedding(message, steps)
                return []
            case worker.Cancel() if message.generation in self.embedding:
                del self.embedding[message.generation]
                return []
            case worker.Cancel():
                found = self.running.pop(message.generation, None)
                return [] if found is None else [self._output([self._end(found, "cancelled")])]
            case worker.Pause() | worker.Resume():
                if message.generation in self.running:
                    paused = isinstance(message, worker.Pause)
                    self.running[message.generation].paused = paused
                return []
            case worker.Ping():
                return [worker.Pong(nonce=message.nonce, stats=self._stats())]
            case worker.Park():
                self.parked[message.session] = message.context
                tokens = len(message.context) // 4
                return [worker.Parked(session=message.session, tokens=tokens, file_bytes=tokens)]
            case worker.Restore():
                return [self._restored(message)]
            case worker.Forget():
                self.parked.pop(message.session, None)
        return []

    def _restored(self, message: worker.Restore) -> worker.Restored:
        file = self.parked.get(message.session, b"")
        tokens = 0
        while (
            4 * tokens < len(file) and message.context[: 4 * tokens + 4] == file[: 4 * tokens + 4]
        ):
            tokens += 1
        return worker.Restored(session=message.session, tokens=tokens, exact_tokens=tokens)

    def step(self, now: float = 0.0) -> list[object]:
        runs = []
        self.steps += 1
        for generation, sequence in list(self.running.items()):
            if not sequence.paused:
                run = self._advance(sequence, now)
                if run.finish is not None:
                    del self.running[generation]
                runs.append(run)
        return [*([self._output(runs)] if runs else ()), *self._embed()]

    def _embed(self) -> list[object]:
        """One step of the embedding that came first."""
        found = next(iter(self.embedding.values()), None)
        if found is None:
            return []
        found.steps_left -= 1
        if found.steps_left > 0:
            return []
        embed = found.embed
        del self.embedding[embed.job]
        vectors = tuple(map(made_up_vector, embed.inputs))
        tokens = sum(map(len, embed.inputs)) // 4
        return [worker.Embedded(job=embed.job, vectors=vectors, tokens=tokens)]

    def _advance(self, sequence: _Sequence, now: float) -> worker.OutputRun:
        submit, first = sequence.submit, sequence.made
        tokens: list[int] = []
        reason = ""
        mark = self.mark(submit.generation) << TOKEN_BITS
        if submit.wall_ms and now - sequence.started_s >= submit.wall_ms / 1000:
            reason = "expired"
        while not reason and len(tokens) < self.burst:
            if sequence.made == submit.max_new_tokens:
                reason = "length"
                break
            token, would_end = self._draw(sequence)
            if would_end:
                reason = "eos"
                break
            tokens.append(token | mark)
            self.computed(submit.generation, sequence.made, token | mark)
            sequence.made += 1
            sequence.text.push([token])
            reason = "stop" if sequence.text.stop else ""
        self.made += len(tokens)
        if reason:
            return self._end(sequence, reason, first, tokens)
        return worker.OutputRun(
            generation=submit.generation,
            first_index=first,
            ids=pack_ids(tokens),
            logprobs=_records(submit, first, tokens),
            cached=0 if first else self.cached(submit),
        )

    def _draw(self, sequence: _Sequence) -> tuple[int, bool]:
        submit = sequence.submit
        if self.answer is not expected_tokens:
            prompt = PackedIds(submit.context[: 4 * submit.prompt_tokens])
            place = submit.generated_tokens + sequence.made + 1
            return self.answer(prompt, place)[-1], False
        token, would_end = sequence.drawing.draw()
        place = submit.generated_tokens + sequence.made
        if would_end and self.model.ends and place >= submit.sampling.min_tokens:
            return 0, True
        sequence.drawing.push(token)
        return token, False

    def _sequence(self, submit: worker.Submit, now: float) -> _Sequence:
        sampling = submit.sampling
        stops = () if self.is_deaf else sampling.stop
        text = AnswerText(VOCABULARY, (), stops, sampling.min_tokens)
        text.push(unpack_ids(submit.context[4 * submit.prompt_tokens :]))
        kills_at = killing_token(submit.context[: 4 * submit.prompt_tokens])
        return _Sequence(submit, self._drawing(submit), now, text, kills_at)

    def _drawing(self, submit: worker.Submit) -> Drawing:
        return self.model.drawing(
            submit.context,
            seed=submit.sampling.seed,
            prompt_tokens=submit.prompt_tokens,
            made=submit.generated_tokens,
        )

    def _end(
        self, sequence: _Sequence, reason: str, first: int | None = None, tokens: Sequence[int] = ()
    ) -> worker.OutputRun:
        cached = self.cached(sequence.submit)
        usage = Usage(
            prompt_tokens=len(sequence.submit.context) // 4,
            cached_tokens=min(cached, sequence.submit.prompt_tokens),
            completion_tokens=sequence.made,
        )
        start = sequence.made if first is None else first
        return worker.OutputRun(
            generation=sequence.submit.generation,
            first_index=start,
            ids=pack_ids(tokens),
            finish=Finish(reason=reason, usage=usage, stop=sequence.text.stop),
            logprobs=_records(sequence.submit, start, tokens),
            cached=0 if start else cached,
        )

    def _output(self, runs: list[worker.OutputRun]) -> worker.Output:
        return worker.Output(runs=tuple(runs), stats=self._stats())

    def _stats(self) -> worker.WorkerStats:
        return worker.WorkerStats(
            steps=self.steps, decode_tokens=self.made, lanes_used=len(self.running)
        )


def _records(submit: worker.Submit, first: int, tokens: Sequence[int]) -> bytes:
    """The log-probabilities of tokens from a generation's `first` one on, when asked for."""
    if not submit.sampling.logprobs:
        return b""
    others, before = submit.sampling.logprobs - 1, submit.generated_tokens + first
    return b"".join(
        made_up_record(token, before + place, others) for place, token in enumerate(tokens)
    )
