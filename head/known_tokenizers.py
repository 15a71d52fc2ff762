"""What the head knows of models' tokenizers: what they are, and what they were before.

What it needs in its own loop, the bytes of each token, comes once per model with `Described`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from bus.errors import TokenizerUnavailable
from bus.ids import ModelName
from bus.messages.sampling import SamplingParams
from bus.messages.text import Described
from bus.text.stops import AnswerText

#: Tokenizers that answers may still be read by after another took their model's name.
MAX_FORMER = 4


class KnownTokenizers:
    """The part of the text desk that answers are read by."""

    def __init__(self) -> None:
        self._described: dict[ModelName, Described] = {}
        #: What models were before, by their tokenizers' digests.
        self._former: OrderedDict[tuple[ModelName, int], Described] = OrderedDict()

    def described(self, model: ModelName) -> Described | None:
        return self._described.get(model)

    def vocabulary_size(self, model: ModelName, digest: int = 0) -> int:
        """How many token ids a model has, as the head's own copy says; 0 while it is not known.

        Args:
            digest: of the tokenizer that is meant; 0 for the one that the model has now.
        """
        known = self._with_digest(model, digest)
        return len(known.vocabulary) if known else 0

    def least_tokens(self, model: ModelName, text_bytes: int) -> int:
        """As few tokens as a text of so many bytes can have; 0 where that is not known."""
        known = self._described.get(model)
        return -(-text_bytes // known.longest) if known and known.longest else 0

    def vocabulary(self, model: ModelName, digest: int = 0) -> Sequence[bytes]:
        """What each token id adds to a text.

        Args:
            digest: of the tokenizer that is meant; 0 for the one that the model has now.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        return self._known(model, digest).vocabulary

    def description(self, model: ModelName, digest: int = 0) -> Described:
        """A tokenizer.

        Args:
            digest: of the one that is meant; 0 for the one that the model has now.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        return self._known(model, digest)

    def new_answer_text(
        self, model: ModelName, sampling: SamplingParams, digest: int = 0
    ) -> AnswerText:
        """What makes an answer's text of its tokens, from their start.

        Args:
            digest: of the tokenizer that its ids are of; 0 for the one that the model has now.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        known = self._known(model, digest)
        return AnswerText(known.vocabulary, known.special, sampling.stop, sampling.min_tokens)

    def check_readable(self, model: ModelName, digest: int) -> None:
        """See that texts of ids of a tokenizer can be made.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        self._known(model, digest)

    def remember(self, model: ModelName, described: Described) -> None:
        """A description that a model had before."""
        self._former[model, described.digest] = described
        while len(self._former) > MAX_FORMER:
            self._former.popitem(last=False)

    def _note(self, model: ModelName, described: Described) -> None:
        """A model's description from now on."""
        self._keep_former(model)
        self._described[model] = described
        self._former.pop((model, described.digest), None)

    def _keep_former(self, model: ModelName) -> None:
        """A model's description is replaced, or its folder is gone."""
        before = self._described.pop(model, None)
        if before is not None:
            self._former.pop((model, before.digest), None)
            self.remember(model, before)

    def _with_digest(self, model: ModelName, digest: int) -> Described | None:
        known = self._described.get(model)
        if not digest or (known is not None and known.digest == digest):
            return known
        return self._former.get((model, digest))

    def _known(self, model: ModelName, digest: int) -> Described:
        known = self._with_digest(model, digest)
        if known is not None:
            return known
        if model in self._described:
            raise TokenizerUnavailable(
                f"this is of another tokenizer of {model} ({digest:016x}) than the head has now; "
                f"import the file that {model} was made of before, under this name or on another "
                "head"
            )
        raise TokenizerUnavailable(
            f"the head has no tokenizer for {model}: no node has given it yet; start a node that "
            "serves it"
        )
