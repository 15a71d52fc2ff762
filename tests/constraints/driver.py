"""Answers drawn from a constraint's masks alone, as a model without any sense would give them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from agent.worker.grammar import Grammar
from bus.messages.sampling import Constraint
from bus.text.constraints import make_matcher
from bus.text.tokenizer import TextModel

#: From so many tokens on, what closes is preferred; an answer of so many is given up.
FREE_TOKENS, MOST_TOKENS = 40, 600
_CLOSING = (b'"', b"}", b"]", b'"}', b'"]', b"}}", b"0", b"1", b",")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was drawn.

    Attributes:
        text: bytes of the tokens.
        finished: whether the constraint let it end.
        error: why it could not go on, when it could not.
    """

    text: bytes
    finished: bool
    error: str = ""


class Driver:
    """Draws answers over one tokenizer."""

    def __init__(self, model: TextModel, tokenizer: LLTokenizer) -> None:
        self._vocabulary = model.vocabulary
        self.tokenizer = tokenizer
        #: The last constraint that texts were held against, at its start.
        self._start: tuple[Constraint, LLMatcher] | None = None
        self._eos = np.array(model.eos)
        closing = [token for token, text in enumerate(self._vocabulary) if text in _CLOSING]
        self._closing = np.array(sorted(closing, key=lambda t: _CLOSING.index(self._vocabulary[t])))

    def grammar(self, constraint: Constraint) -> Grammar:
        """A grammar at its start."""
        words = -(-self.tokenizer.vocab_size // 32)
        return Grammar(make_matcher(self.tokenizer, constraint), words)

    def accepts(self, constraint: Constraint, text: str) -> bool:
        """Whether the whole text matches."""
        if self._start is None or self._start[0] != constraint:
            self._start = (constraint, make_matcher(self.tokenizer, constraint))
        matcher = self._start[1].deep_copy()
        ids = self.tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def draw(self, constraint: Constraint, seed: int, ending: float = 0.3) -> Answer:
        """One answer: tokens evenly among those allowed, then what closes first.

        Args:
            ending: how likely an end is where it is allowed.
        """
        grammar, choice = self.grammar(constraint), random.Random(seed)
        text = b""
        for count in range(MOST_TOKENS):
            bits = np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")
            may_end = bool(bits[self._eos].any())
            bits[self._eos] = 0
            allowed = np.flatnonzero(bits)
            if grammar.failure or not (may_end or len(allowed)):
                return Answer(text, False, grammar.failure or "nothing may follow")
            late = count >= FREE_TOKENS
            if may_end and (late or not len(allowed) or choice.random() < ending):
                return Answer(text, True)
            closing = self._closing[bits[self._closing] > 0] if late else allowed[:0]
            token = int(closing[0] if len(closing) else choice.choice(allowed))
            grammar.take(token)
            text += self._vocabulary[token]
            if grammar.stopped:
                return Answer(text, True)
        return Answer(text, False)
