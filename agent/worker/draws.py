"""What the engine draws with: a state for each generation, and the grammars being built."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from agent.worker.draw_state import DrawState, Grammar
from agent.worker.model_runner import Logits
from agent.worker.sampler import Drawn, sample
from agent.worker.sequence import Sequence
from agent.worker.work import Outcome
from bus.errors import ConstraintInvalid, Internal, SuperfluidError
from bus.ids import GenerationId, unpack_ids
from bus.log import EventLog
from bus.messages.sampling import Constraint
from bus.messages.worker import Submit

log = EventLog(__name__)


class Vocabulary(Protocol):
    """What is asked of a `bus.text.tokenizer.TextModel`."""

    @property
    def vocabulary(self) -> SequenceOf[bytes]: ...

    @property
    def special(self) -> SequenceOf[int]: ...


class GrammarSource(Protocol):
    """Makes grammars beside the loop (`agent.worker.grammar.GrammarBuilder`)."""

    def start(
        self,
        generation: GenerationId,
        constraint: Constraint,
        generated: SequenceOf[int],
        qos: int = 0,
    ) -> None:
        """Put one in line to be built, advanced over the answer so far."""

    def begun(self, generation: GenerationId) -> None:
        """A lane works with it."""

    def sleep(self, generation: GenerationId) -> bool:
        """Do not build it, or let go of it, unless a lane works with it; whether it was so."""

    def wake(self, generation: GenerationId) -> None:
        """Build it after all."""

    def drop(self, generation: GenerationId) -> None:
        """Nobody wants this one any more."""

    def ready(self) -> SequenceOf[tuple[GenerationId, Grammar | SuperfluidError]]:
        """Those that are built, or the reason why they can not be."""


class Draws:
    """Owns the draw states. Driven by the engine.

    Args:
        vocab: width of the logits.
        eos_ids: ids that end a sequence.
        text: the model's tokenizer.
        grammars: None where constraints can not be honoured.
    """

    def __init__(
        self,
        *,
        vocab: int,
        eos_ids: SequenceOf[int],
        text: Vocabulary,
        grammars: GrammarSource | None,
    ) -> None:
        self._vocab = vocab
        self._eos = frozenset(eos_ids)
        self._text = text
        self._special = frozenset(text.special)
        self._grammars = grammars
        self._states: dict[GenerationId, DrawState] = {}
        #: Submits that wait for their grammar.
        self._building: dict[GenerationId, Submit] = {}
        #: Submits whose grammar is built and that no lane works on.
        self._ahead: dict[GenerationId, Submit] = {}

    @property
    def building(self) -> bool:
        """Whether a grammar is being built."""
        return bool(self._building)

    def start(self, submit: Submit) -> None:
        """Make the state of a generation, or begin to build its grammar.

        Raises:
            Invalid: a parameter can not be honoured with this model.
            ConstraintInvalid: this worker has no grammars.
            QueueFull: too many wait for theirs.
        """
        constraint = submit.sampling.constraint
        if constraint is None:
            self._add(submit, None)
            return
        if self._grammars is None:
            raise ConstraintInvalid(
                "this worker was started without support for constraints; leave the constraint out",
                param="constraint",
            )
        generated = unpack_ids(submit.context)[submit.prompt_tokens :]
        self._grammars.start(submit.generation, constraint, generated, submit.qos)
        self._building[submit.generation] = submit

    def take_ready(self) -> list[tuple[GenerationId, SuperfluidError | None]]:
        """Generations whose grammar is built, or the reason why it can not be."""
        if self._grammars is None or not self._building:
            return []
        ready: list[tuple[GenerationId, SuperfluidError | None]] = []
        for generation, grammar in self._grammars.ready():
            submit = self._building.pop(generation, None)
            if submit is not None:
                error = self._try_to_add(submit, grammar)
                ready.append((generation, error))
                if error is None:
                    self._ahead[generation] = submit
        return ready

    def drop(self, generation: GenerationId) -> None:
        """A generation ended."""
        self._states.pop(generation, None)
        known = self._building.pop(generation, None) or self._ahead.pop(generation, None)
        if known is not None and self._grammars is not None:
            self._grammars.drop(generation)

    def begin(self, generation: GenerationId) -> None:
        """A lane works on a generation."""
        if self._ahead.pop(generation, None) is not None and self._grammars is not None:
            self._grammars.begun(generation)

    def pause(self, generation: GenerationId) -> bool:
        """Let go of the grammar of a generation that nobody reads and that has not begun.

        Returns:
            Whether the generation has to be held until its grammar is there again.
        """
        waits = generation in self._building or generation in self._ahead
        if not waits or self._grammars is None or not self._grammars.sleep(generation):
            return False
        submit = self._ahead.pop(generation, None)
        if submit is not None:
            self._building[generation] = submit
            self._states.pop(generation, None)
        return True

    def resume(self, generation: GenerationId) -> None:
        """Have the grammar of a paused generation built."""
        if generation in self._building and self._grammars is not None:
            self._grammars.wake(generation)

    def draw(self, logits: Logits, sequences: list[Sequence]) -> list[Outcome]:
        """The next token of each row.

        Args:
            logits: float32 `[B, vocab]`.
            sequences: of each row; the token stands right after those that are known.
        """
        states = [self._states[sequence.generation] for sequence in sequences]
        drawn = _drawn(logits, states, [len(sequence.tokens) for sequence in sequences])
        return [_outcome(one, state) for one, state in zip(drawn, states, strict=True)]

    def _try_to_add(
        self, submit: Submit, grammar: Grammar | SuperfluidError
    ) -> SuperfluidError | None:
        if isinstance(grammar, SuperfluidError):
            return grammar
        try:
            self._add(submit, grammar)
        except SuperfluidError as error:
            return error
        return None

    def _add(self, submit: Submit, grammar: Grammar | None) -> None:
        tokens = unpack_ids(submit.context)
        try:
            state = DrawState(
                submit.sampling,
                vocab=self._vocab,
                eos_ids=self._eos,
                special_ids=self._special,
                prompt=tokens[: submit.prompt_tokens],
                generated=tokens[submit.prompt_tokens :],
                vocabulary=lambda: self._text.vocabulary,
                grammar=grammar,
            )
        except SuperfluidError:
            raise
        except Exception as error:
            raise _unforeseen(error) from error
        if state.error is not None:
            raise state.error
        self._states[submit.generation] = state


def _drawn(logits: Logits, states: list[DrawState], positions: list[int]) -> list[Drawn]:
    """What `sample` gives; a row with a fault that it does not know of harms no other."""
    try:
        return sample(logits, states, positions)
    except Exception as error:  # noqa: BLE001 - one request's fault is that request's only
        if len(states) == 1:
            return [Drawn(None, error=_unforeseen(error))]
    rows = range(len(states))
    return [_drawn(logits[row : row + 1], [states[row]], [positions[row]])[0] for row in rows]


def _outcome(drawn: Drawn, state: DrawState) -> Outcome:
    if drawn.token is None:
        return Outcome(None, error=drawn.error)
    try:
        taken = state.take(drawn.token)
    except SuperfluidError as error:
        return Outcome(None, error=error)
    except Exception as error:  # noqa: BLE001 - one request's fault is that request's only
        return Outcome(None, error=_unforeseen(error))
    return Outcome(drawn.token, drawn.logprobs, taken.reason, taken.stop)


def _unforeseen(error: Exception) -> Internal:
    log.error("draw_failed", error=repr(error))
    return Internal(
        f"drawing a token failed ({type(error).__name__}); the worker's log has more. Leave out "
        "what is unusual in the sampling parameters"
    )
