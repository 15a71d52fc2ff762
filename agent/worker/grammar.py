"""Constraints at work: which tokens may follow, and matchers made off the decode path.

A `Grammar` is a matcher at the place that its answer has reached. It is a function of the
constraint and the answer's tokens, so a stream that moves makes a new one and replays the tokens.

Making one may take a second, and the engine's table of tokens several. So a `GrammarBuilder` does
it in a thread of its own; the native code does not hold the interpreter meanwhile. A grammar may
take some 60 MB, so few are made ahead of the lanes, those of each class of requests for itself:
the many of a lower class do not keep those of a higher one from being made.
"""

from __future__ import annotations

import queue
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from bus.errors import ConstraintReplayFailed, Internal, QueueFull, SuperfluidError
from bus.ids import GenerationId
from bus.log import EventLog
from bus.messages.sampling import Constraint
from bus.text.constraints import make_matcher, make_tokenizer
from bus.text.tokenizer import TextModel

log = EventLog("agent.worker.grammar")

Bits = npt.NDArray[np.uint32]

#: Grammars of one class that are made, or being made, beside one for each lane.
AHEAD = 4
#: Grammars that may wait to be made; the head sends no more than lanes and a small buffer.
MAX_WAITING = 256
#: CPU time of one mask beyond which its constraint is given up: all lanes wait for it. The check
#: before admission refuses at less than half.
SLOW_MASK_S = 0.25
#: The compiler recurses, and a stack that ends would end the worker. The check before admission has
#: a quarter of this, so what it let through fits.
_STACK_BYTES = 32 * 1024 * 1024


class Grammar:
    """One answer's constraint. Driven by the engine's thread, never by two at once.

    The engine of grammars may run into its limits far inside an answer; the constraint can not be
    held from there on, so nothing is allowed any more and the answer ends with an error.

    Args:
        matcher: at its start.
        words: of a mask: `ceil(vocab / 32)`.
    """

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros(words, np.uint32)
        self._known = False
        #: Why it can not go on; empty while it can.
        self.failure = ""

    def mask(self) -> Bits:
        """Which tokens may follow.

        Returns:
            uint32 `[ceil(vocab / 32)]`, token `i` at bit `i % 32` of word `i // 32`, 1 for allowed;
            the same array each time. Ends are allowed where the answer may end. All zero when the
            constraint can not be held any more.
        """
        if not self._known:
            self._fill()
            self._known = True
        return self._mask

    def take(self, token: int) -> None:
        """Advance by a token.

        Raises:
            ConstraintReplayFailed: the token does not fit.
        """
        was_allowed = self._known and bool(self._mask[token >> 5] >> (token & 31) & 1)
        self._known = False
        if self._matcher.consume_token(token):
            return
        if not was_allowed:
            raise ConstraintReplayFailed(
                f"token {token} does not fit the constraint; start the request again"
            )
        self._fail(self._matcher.get_error())

    def replay(self, tokens: Sequence[int]) -> None:
        """Advance by the answer's tokens of earlier generations.

        Raises:
            ConstraintReplayFailed: they do not fit.
        """
        fitting = self._matcher.try_consume_tokens(list(tokens))
        self._known = False
        if fitting < len(tokens):
            raise ConstraintReplayFailed(
                f"of {len(tokens)} tokens delivered so far the constraint allows {fitting}: the "
                "nodes' tokenizers differ, or the constraint is too large for this node; start "
                "the request again"
            )

    @property
    def stopped(self) -> bool:
        """Whether nothing may follow."""
        return not self.failure and self._matcher.is_stopped()

    def _fill(self) -> None:
        if self.failure:
            return
        start = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        elapsed_s = time.thread_time() - start
        if self._matcher.is_error():
            self._fail(self._matcher.get_error())
        elif elapsed_s > SLOW_MASK_S:
            self._fail(f"a mask took {elapsed_s:.2f} s")

    def _fail(self, why: str) -> None:
        self.failure = why.strip().splitlines()[0] if why.strip() else "the engine gives no reason"
        self._mask[:] = 0
        log.warning("constraint_given_up", reason=self.failure[:200])


def _started(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name="grammars", daemon=True)
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(before)
    return thread


@dataclass(frozen=True, slots=True)
class _Job:
    generation: GenerationId
    constraint: Constraint
    generated: array[int]
    qos: int = 0


Made = tuple[GenerationId, Grammar | SuperfluidError]


class GrammarBuilder:
    """Makes grammars, one after the other, in a thread that starts with the first.

    Owned by the engine: `start`, `drop`, `ready` and `close` are for its thread.

    Args:
        open_model: gives the tokenizer; called once, in the thread, for the first constraint.
        vocab: width of the model's logits.
        lanes: of the worker.
    """

    def __init__(self, open_model: Callable[[], TextModel], vocab: int, lanes: int = 1) -> None:
        self._open_model = open_model
        self._vocab = vocab
        self._most_ahead = lanes + AHEAD
        self._tokenizer: LLTokenizer | None = None
        self._thread: threading.Thread | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        #: Filled by the thread, emptied by `ready`; appending and popping are atomic.
        self._made: deque[tuple[_Job, Grammar | SuperfluidError]] = deque()
        #: Asked for and not handed out, in order.
        self._wanted: dict[GenerationId, _Job] = {}
        #: Given to the thread or handed out, and no lane works on them yet.
        self._ahead: dict[GenerationId, _Job] = {}
        #: Not to be made for now.
        self._asleep: set[GenerationId] = set()

    @property
    def waiting(self) -> int:
        """How many are not handed out yet."""
        return len(self._wanted)

    @property
    def ahead(self) -> int:
        """How many are made, or being made, and wait for a lane."""
        return len(self._ahead)

    def start(
        self,
        generation: GenerationId,
        constraint: Constraint,
        generated: Sequence[int],
        qos: int = 0,
    ) -> None:
        """Put a grammar in line.

        Args:
            generation: whose answer it is for; each once at a time.
            constraint: checked by the head already, and checked again.
            generated: the answer's tokens so far, replayed at once.
            qos: class, 0 to 3; 0 is made first.

        Raises:
            QueueFull: too many wait.
        """
        if len(self._wanted) >= MAX_WAITING:
            raise QueueFull(
                f"{MAX_WAITING} constraints wait to be compiled on this worker; try again in a "
                "second",
                retry_after_ms=1000,
            )
        if self._thread is None:
            self._thread = _started(self._run)
        self._wanted[generation] = _Job(generation, constraint, array("I", generated), qos)
        self._give_out()

    def drop(self, generation: GenerationId) -> None:
        """Nobody wants this one any more; unknown ones are passed over."""
        self._wanted.pop(generation, None)
        self._ahead.pop(generation, None)
        self._asleep.discard(generation)
        self._give_out()

    def begun(self, generation: GenerationId) -> None:
        """A lane works on it: it keeps none that waits from being made."""
        if self._ahead.pop(generation, None) is not None:
            self._give_out()

    def sleep(self, generation: GenerationId) -> bool:
        """Its reader has stopped before a lane had it: make room for one that can go on.

        Returns:
            Whether it has to be made, or made again, after `wake`.
        """
        job = self._wanted.pop(generation, None) or self._ahead.get(generation)
        if job is None:
            return False
        self._ahead.pop(generation, None)
        # Another job, so that what the thread makes of the first is not handed out.
        self._wanted[generation] = replace(job)
        self._asleep.add(generation)
        self._give_out()
        return True

    def wake(self, generation: GenerationId) -> None:
        """It may be made; unknown ones are passed over."""
        self._asleep.discard(generation)
        self._give_out()

    def ready(self) -> list[Made]:
        """Grammars that are made, or why one can not be, since the last call."""
        found: list[Made] = []
        while self._made:
            job, made = self._made.popleft()
            if self._wants(job):
                del self._wanted[job.generation]
                found.append((job.generation, made))
                if isinstance(made, SuperfluidError):
                    self._ahead.pop(job.generation, None)
        self._give_out()
        return found

    def close(self) -> None:
        """End the thread, after what it is at."""
        self._wanted.clear()
        self._ahead.clear()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _give_out(self) -> None:
        """Give the thread what may be made now, the highest class first."""
        for job in sorted(self._wanted.values(), key=lambda job: job.qos):
            if job.generation in self._ahead or job.generation in self._asleep:
                continue
            of_class = sum(other.qos == job.qos for other in self._ahead.values())
            # What was dropped meanwhile is in the thread's line until it comes to it.
            if of_class < self._most_ahead and self._jobs.qsize() < self._most_ahead:
                self._ahead[job.generation] = job
                self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._wants(job):
                self._made.append((job, self._make_safely(job)))

    def _wants(self, job: _Job) -> bool:
        """Whether nobody has dropped it, nor started another one of its generation since."""
        return self._wanted.get(job.generation) is job

    def _make_safely(self, job: _Job) -> Grammar | SuperfluidError:
        try:
            return self._make(job)
        except SuperfluidError as error:
            return error
        except BaseException as error:  # noqa: BLE001 - native code's panics are no Exception
            log.error("grammar_failed", kind=type(error).__name__)
            return Internal(f"the constraint could not be compiled ({type(error).__name__})")

    def _make(self, job: _Job) -> Grammar:
        if self._tokenizer is None:
            self._tokenizer = make_tokenizer(self._open_model(), self._vocab)
        matcher = make_matcher(self._tokenizer, job.constraint)
        grammar = Grammar(matcher, -(-self._tokenizer.vocab_size // 32))
        grammar.replay(job.generated)
        # The first mask of a matcher is its most expensive one.
        grammar.mask()
        return grammar
