"""What a generation's draws depend on beside its logits, and how each token changes it.

All of it follows from the prompt and the tokens generated so far: a state built from both equals
one that took the same tokens one by one. So a stream that moves goes on as it would have.

Ends: an end-of-sequence id is `eos` unless the request ignores it; a stop id, a stop string, and a
grammar after which nothing may follow are `stop`. Before `min_tokens` of the answer, both kinds of
ids are forbidden, and the text of those tokens is not looked at for stop strings. A grammar's end
goes before `min_tokens`: where it allows nothing else, the ends are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agent.worker.penalties import Penalties, penalises
from bus.errors import ConstraintInvalid, Invalid, SuperfluidError
from bus.ids import unpack_ids
from bus.messages.sampling import MAX_BIAS, SamplingParams
from bus.text.stops import AnswerText

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint32]

#: Temperatures below are argmax: float32 can not hold logits divided by less.
GREEDY_BELOW = 1e-6

#: For each byte of a mask what the logits of its eight tokens may be at most.
_LIMITS = np.where(
    np.arange(256)[:, None] >> np.arange(8) & 1, np.float32(np.inf), np.float32(-np.inf)
)

#: Least and greatest of parameters that would break arithmetic; messages are checked already.
_RANGES = {
    "temperature": (0.0, 1e4),
    "top_k": (0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-1e4, 1e4),
    "frequency_penalty": (-1e4, 1e4),
}


class Grammar(Protocol):
    """A constraint on the answer, at the place that the answer has reached."""

    def mask(self) -> Bits | None:
        """Which tokens may follow.

        Returns:
            uint32 `[ceil(vocab / 32)]`, token `i` at bit `i % 32` of word `i // 32`, 1 for
            allowed; None when all are.
        """

    def take(self, token: int) -> None:
        """Advance.

        Raises:
            ConstraintReplayFailed: the token does not fit.
        """

    @property
    def stopped(self) -> bool:
        """Whether nothing may follow."""

    @property
    def failure(self) -> str:
        """Why the constraint can not be held any further; empty while it can."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a token ended, if anything.

    Attributes:
        reason: "" to go on, "eos" or "stop".
        stop: the stop string that ended it; empty for every other end.
    """

    reason: str = ""
    stop: str = ""


_GO_ON = Taken()
_EOS = Taken("eos")
_STOP = Taken("stop")


class DrawState:
    """One generation's side of its draws. Owned by the engine, read by `sample`.

    Args:
        params: how the request wants its tokens drawn.
        vocab: width of the model's logits.
        eos_ids: ids that end a sequence.
        special_ids: control tokens, exempt from penalties.
        prompt: tokens before the answer.
        generated: the answer's tokens so far, those of earlier generations.
        vocabulary: what each id adds to the text; asked for only when there are stop strings.
        grammar: of the constraint, advanced over `generated` already; None for free text.

    Attributes:
        params: as given.
        vocab: as given.
        greedy: whether the token is the argmax.
        error: why nothing can be drawn, for parameters that can not be honoured; `sample` says it.
    """

    __slots__ = (
        "_biased",
        "_biases",
        "_changes",
        "_ends",
        "_eos",
        "_generated",
        "_grammar",
        "_penalties",
        "_plain",
        "_stop_ids",
        "_text",
        "error",
        "greedy",
        "params",
        "vocab",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab: int,
        eos_ids: Collection[int],
        special_ids: frozenset[int],
        prompt: Sequence[int],
        generated: Sequence[int],
        vocabulary: Callable[[], Sequence[bytes]],
        grammar: Grammar | None,
    ) -> None:
        self.params = params
        self.vocab = vocab
        self.greedy = params.temperature < GREEDY_BELOW
        self.error = _fault(params, vocab)
        self._grammar = grammar
        self._generated = len(generated)
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._stop_ids = frozenset(unpack_ids(params.stop_ids))
        ends = sorted(token for token in self._eos | self._stop_ids if 0 <= token < vocab)
        self._ends = np.array(ends, np.int64)
        self._biased, self._biases = _biases_of(params)
        self._penalties: Penalties | None = None
        if penalises(params) and self.error is None:
            self._penalties = Penalties(
                params, vocab=vocab, special_ids=special_ids, prompt=prompt, generated=generated
            )
        self._text: AnswerText | None = None
        stops = [stop for stop in params.stop if stop]
        if stops:
            self._text = AnswerText(vocabulary(), special_ids, stops, params.min_tokens)
            self._text.push(generated)
        self._changes = grammar is not None or self._penalties is not None or len(self._biased) > 0
        self._plain = (
            self.greedy and not self._changes and not params.logprobs and self.error is None
        )

    @property
    def adjusts(self) -> bool:
        """Whether the next token's logits are changed before the draw."""
        return self._changes or self._generated < self.params.min_tokens

    @property
    def plain(self) -> bool:
        """Whether the next token is the argmax of the logits and no more is wanted."""
        return self._plain and self._generated >= self.params.min_tokens

    def adjusted(self, logits: Logits) -> Logits:
        """The logits after grammar mask, ends forbidden by `min_tokens`, bias and penalties.

        Args:
            logits: float32 `[vocab]`; not changed.

        Returns:
            A copy, -infinity where a token is forbidden.
        """
        mask = self._grammar.mask() if self._grammar is not None else None
        out = logits.copy() if mask is None else _masked(logits, mask)
        if self._generated < self.params.min_tokens and len(self._ends):
            allowed = out[self._ends]
            out[self._ends] = -np.inf
            if mask is not None and out.max() == -np.inf:
                out[self._ends] = allowed
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at what came out
            if len(self._biased):
                out[self._biased] += self._biases
            if self._penalties is not None:
                self._penalties.apply(out)
        return out

    def nothing_allowed(self) -> SuperfluidError:
        """Why every token is forbidden."""
        if self._grammar is None:
            return Invalid(
                "before min_tokens every token of this model is forbidden as an end; lower "
                "min_tokens or give fewer stop_ids",
                param="min_tokens",
            )
        if self._grammar.failure:
            return ConstraintInvalid(
                f"the constraint can not be held any further ({self._grammar.failure}); "
                "make it simpler",
                param="constraint",
            )
        return ConstraintInvalid(
            "the constraint allows no token at this place of the answer; change it so that this "
            "model's tokens can go on",
            param="constraint",
        )

    def take(self, token: int) -> Taken:
        """Count a drawn token and say what it ends.

        Raises:
            ConstraintReplayFailed: the token does not fit the grammar; none that `sample` gave
                with this state does so.
        """
        self._generated += 1
        if self._penalties is not None:
            self._penalties.take(token)
        if self._text is not None:
            self._text.push((token,))
        if token in self._eos:
            return _EOS
        if self._grammar is not None:
            self._grammar.take(token)
        if self._text is not None and self._text.stop:
            return Taken("stop", self._text.stop)
        if token in self._stop_ids or (self._grammar is not None and self._grammar.stopped):
            return _STOP
        return _GO_ON


def _masked(logits: Logits, mask: Bits) -> Logits:
    """A copy with -infinity where the mask has 0, or ends."""
    limits = np.take(_LIMITS, mask.astype("<u4", copy=False).view(np.uint8), axis=0).reshape(-1)
    if len(limits) < len(logits):  # ids that the grammar's tokenizer does not have
        missing = np.full(len(logits) - len(limits), -np.inf, np.float32)
        limits = np.concatenate((limits, missing))
    masked: Logits = np.minimum(logits, limits[: len(logits)])
    return masked


def _biases_of(params: SamplingParams) -> tuple[Ids, Logits]:
    """Ids, each once, and what is added to each."""
    ids = np.frombuffer(params.bias_ids, "<u4").astype(np.int64)
    biases = np.array(params.biases, np.float64)
    if not len(ids) or len(ids) != len(biases):
        return np.empty(0, np.int64), np.empty(0, np.float32)
    found, place = np.unique(ids, return_inverse=True)
    total = np.bincount(place, np.clip(biases, -MAX_BIAS, MAX_BIAS), len(found))
    return found, total.astype(np.float32)


def _fault(params: SamplingParams, vocab: int) -> Invalid | None:
    """Why parameters can not be honoured with this model, or None."""
    for name, (least, most) in _RANGES.items():
        value = getattr(params, name)
        if not least <= value <= most or value == math.inf:
            return Invalid(f"{name} {value} is not from {least:g} to {most:g}", param=name)
    ids = unpack_ids(params.bias_ids)
    if len(ids) != len(params.biases) or any(math.isnan(bias) for bias in params.biases):
        return Invalid(
            f"the logit bias has {len(ids)} token ids and {len(params.biases)} numbers; "
            "give a number for each id",
            param="logit_bias",
        )
    largest = max(ids, default=0)
    if largest >= vocab:
        return Invalid(
            f"the logit bias names token {largest} and this model's ids are below {vocab}; "
            "use this model's tokenizer",
            param="logit_bias",
        )
    return None
