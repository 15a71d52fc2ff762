"""Stand-ins for the outside world of the cores: a disk, text processes, workers; all deterministic.

They are what the cores' adapters would reach by I/O. The cores themselves are the real ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bus.ids import (
    GenerationId,
    ModelName,
    NumericsId,
    PackedIds,
    WorkerIncarnation,
    pack_ids,
    unpack_ids,
)
from bus.messages import text, worker
from bus.messages.link import Finish, Usage
from bus.text.vocabulary import tokenizer_digest
from head.effects import Persist
from head.rows import (
    ADMITTED,
    FINISHED,
    PLACED,
    SENT,
    MarkSent,
    PurgeAnswers,
    PutAnswer,
    PutFinish,
    PutGeneration,
    PutTokens,
    StoredAnswer,
    StoredState,
)

MODEL = ModelName("toy")
VOCABULARY = tuple(bytes([byte]) for byte in range(256))
DIGEST = tokenizer_digest(VOCABULARY)
WINDOW = 512
#: Virtual seconds of a worker's step, and the least between two turns of a loop.
STEP_S = 0.02
TURN_S = 0.001


def expected_tokens(prompt: PackedIds, count: int) -> list[int]:
    """What the made-up model answers to a prompt: printable, and telling of every position."""
    made = []
    for position in range(count):
        seed = bytes(prompt) + position.to_bytes(4, "little")
        made.append(32 + hashlib.blake2b(seed, digest_size=1).digest()[0] % 94)
    return made


class Disk:
    """The head's durable state: survives its restarts; only what was committed is there."""

    def __init__(self) -> None:
        self.boot = 0
        self.durable_lsn = 0
        self._answers: dict[int, StoredAnswer] = {}

    def start(self) -> StoredState:
        self.boot += 1
        self.durable_lsn = 0
        return StoredState(boot=self.boot, head_id="head", answers=tuple(self._answers.values()))

    def tokens(self, session: str) -> int:
        """How many tokens of a session's answer are durable."""
        found = [a for a in self._answers.values() if a.session == session]
        return len(found[0].tokens) // 4 if found else 0

    def commit(self, persist: Persist) -> None:
        for row in persist.rows:
            self._apply(row)
        self.durable_lsn = persist.lsn

    def _apply(self, row: Any) -> None:
        match row:
            case PutAnswer():
                self._answers[row.answer] = StoredAnswer(
                    answer=row.answer,
                    session=row.session,
                    owner=row.owner,
                    key=row.key,
                    model=row.model,
                    prompt=row.prompt,
                    options=row.options,
                    on_disconnect=row.on_disconnect,
                    created_wall_s=row.created_wall_s,
                    state=ADMITTED,
                    tokens=PackedIds(b""),
                    finish="",
                    error=b"",
                    prompt_tokens=0,
                    cached_tokens=0,
                    finished_wall_s=0.0,
                    generation=None,
                    node=None,
                )
            case PutGeneration():
                self._change(row.answer, state=PLACED, generation=row.generation, node=row.node)
            case PutTokens():
                old = self._answers[row.answer]
                if len(old.tokens) // 4 != row.offset:
                    raise ValueError(f"tokens at {row.offset} after {len(old.tokens) // 4}")
                self._change(row.answer, tokens=PackedIds(old.tokens + row.ids))
            case PutFinish():
                self._change(
                    row.answer,
                    state=FINISHED,
                    finish=row.finish,
                    error=row.error,
                    finished_wall_s=row.finished_wall_s,
                )
            case MarkSent():
                self._change(row.answer, state=SENT)
            case PurgeAnswers():
                for answer in row.answers:
                    self._answers.pop(answer, None)

    def _change(self, answer: int, **changes: Any) -> None:
        self._answers[answer] = replace(self._answers[answer], **changes)


def text_reply(job: object) -> object:
    """What a text process answers for a model whose tokens are bytes."""
    match job:
        case text.Describe():
            return text.Described(
                job=job.job,
                vocabulary=VOCABULARY,
                special=(),
                bos=None,
                eos=(),
                digest=DIGEST,
                has_template=True,
            )
        case text.Encode():
            return text.Encoded(job=job.job, ids=pack_ids(job.text.encode()))
        case text.Decode():
            return text.Decoded(job=job.job, text=bytes(unpack_ids(job.ids)).decode("latin-1"))
    raise ValueError(f"no reply to {job}")


@dataclass(slots=True)
class _Sequence:
    submit: worker.Submit
    made: int = 0
    paused: bool = False


@dataclass(slots=True)
class MadeUpWorker:
    """A worker whose tokens are made up; one step makes one token a generation."""

    incarnation: WorkerIncarnation
    window: int = WINDOW
    answer: Callable[[PackedIds, int], list[int]] = expected_tokens
    running: dict[GenerationId, _Sequence] = field(default_factory=dict)

    def ready(self) -> worker.Ready:
        return worker.Ready(
            worker=self.incarnation,
            window_tokens=self.window,
            lanes=4,
            kv_total_tokens=4 * self.window,
            numerics=NumericsId("made-up"),
            tokenizer_digest=DIGEST,
            device="none",
            load_s=0.0,
        )

    def receive(self, message: object) -> list[object]:
        match message:
            case worker.Submit():
                self.running[message.generation] = _Sequence(message)
                return [worker.Accepted(generation=message.generation)]
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
        return []

    def step(self) -> list[object]:
        runs = []
        for generation, sequence in list(self.running.items()):
            if sequence.paused:
                continue
            if sequence.made == sequence.submit.max_new_tokens:
                del self.running[generation]
                runs.append(self._end(sequence, "length"))
                continue
            token = self.answer(sequence.submit.context, sequence.made + 1)[-1]
            runs.append(
                worker.OutputRun(
                    generation=generation, first_index=sequence.made, ids=pack_ids([token])
                )
            )
            sequence.made += 1
        return [self._output(runs)] if runs else []

    def _end(self, sequence: _Sequence, reason: str) -> worker.OutputRun:
        usage = Usage(
            prompt_tokens=len(sequence.submit.context) // 4, completion_tokens=sequence.made
        )
        return worker.OutputRun(
            generation=sequence.submit.generation,
            first_index=sequence.made,
            finish=Finish(reason=reason, usage=usage),
        )

    def _output(self, runs: list[worker.OutputRun]) -> worker.Output:
        return worker.Output(runs=tuple(runs), stats=self._stats())

    def _stats(self) -> worker.WorkerStats:
        return worker.WorkerStats(lanes_used=len(self.running))
