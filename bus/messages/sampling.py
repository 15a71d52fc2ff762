"""How a request wants its tokens drawn: part of requests, of Link-F and of the worker's messages.

All of it is derived from the prompt's length and the tokens generated so far, so a generation that
goes on elsewhere draws what it would have drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, MaxItems, OneOf, Range
from bus.ids import PackedIds
from bus.messages.parts import U32, Fraction

#: What a constraint may be: a JSON Schema, a regular expression, a Lark grammar, or JSON that says
#: which tags free text may open and what must stand in them.
CONSTRAINT_KINDS = frozenset({"json_schema", "regex", "lark", "structural"})
MAX_CONSTRAINT_BYTES = 256 * 1024
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_STOP_IDS = 256
MAX_BIASES = 4096
#: Of a logit bias, which is added; more is the same as forbidding or forcing.
MAX_BIAS = 1e4
#: Most tokens beside the chosen one whose log-probability may be asked for.
MAX_TOP_LOGPROBS = 20

RepetitionPenalty = Annotated[float, Range(0.01, 100.0)]
Penalty = Annotated[float, Range(-100.0, 100.0)]
#: Token ids as 4 bytes each.
StopIds = Annotated[PackedIds, MaxBytes(4 * MAX_STOP_IDS)]
BiasIds = Annotated[PackedIds, MaxBytes(4 * MAX_BIASES)]
Bias = Annotated[float, Range(-MAX_BIAS, MAX_BIAS)]
StopText = Annotated[str, MaxBytes(MAX_STOP_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What the answer's text must match; `source` is as the caller gave it, checked already."""

    kind: Annotated[str, OneOf(CONSTRAINT_KINDS)]
    source: Annotated[str, MaxBytes(MAX_CONSTRAINT_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. Temperature 0 is argmax; top_k 0 and top_p 1 switch off.

    Attributes:
        repetition_penalty: divides positive logits of tokens seen and multiplies negative ones.
        presence_penalty: subtracted once from the logits of tokens generated.
        frequency_penalty: subtracted for each time that a token was generated.
        bias_ids: token ids with a bias, each once, ascending.
        biases: what is added to the logit of each of them.
        min_tokens: neither end of sequence nor stops before so many tokens of the answer.
        stop_ids: token ids that end the answer.
        stop: texts that end the answer.
        logprobs: 0 for none; else 1 + the number of tokens beside the chosen one.
        constraint: None for free text.
    """

    temperature: Annotated[float, Range(0.0, 100.0)] = 1.0
    top_k: U32 = 0
    top_p: Fraction = 1.0
    min_p: Fraction = 0.0
    seed: int = 0
    ignore_eos: bool = False
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    bias_ids: BiasIds = PackedIds(b"")
    biases: Annotated[tuple[Bias, ...], MaxItems(MAX_BIASES)] = ()
    min_tokens: U32 = 0
    stop_ids: StopIds = PackedIds(b"")
    stop: Annotated[tuple[StopText, ...], MaxItems(MAX_STOPS)] = ()
    logprobs: Annotated[int, Range(0, 1 + MAX_TOP_LOGPROBS)] = 0
    constraint: Constraint | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a node that knows nothing after `ignore_eos` draws the same."""
        first = SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )
        return self == first

    @property
    def record_bytes(self) -> int:
        """The length of a token's record of log-probabilities, as in `TokenRun`; 0 for none."""
        return 4 + 8 * (self.logprobs - 1) if self.logprobs else 0
