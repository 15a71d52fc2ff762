"""The tokenizers package, with errors of ours for what it can not do.

Where its compiled code fails it panics. What has panicked may be half changed, so that it is opened
anew for the next text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tokenizers import Tokenizer

from bus.errors import ModelIncomplete, TokenizerUnavailable
from bus.text.panics import is_panic

T = TypeVar("T")

#: Characters of what the package says.
_SHOWN = 200


class LibraryTokenizer:
    """A tokenizer that neither cuts nor fills up: a cut prompt would be a wrong one.

    Args:
        text: a tokenizer.json.
        model: for messages.

    Raises:
        ModelIncomplete: it can not be opened.
    """

    def __init__(self, text: str, model: str) -> None:
        self._text = text
        self._model = model
        self._made: Any = None
        try:
            self._made = _opened(text)
        except BaseException as error:
            if not _is_fault(error):
                raise
            raise ModelIncomplete(
                f"the tokenizer of model {model} can not be read ({_why(error)}); import the model "
                "again"
            ) from None

    def encode(self, text: str, *, parse_special: bool, add_special_tokens: bool = False) -> Any:
        """A text's encoding.

        Args:
            text: Unicode text without lone surrogates.
            parse_special: whether control tokens written in it are control tokens.
            add_special_tokens: with what the tokenizer puts around a text.

        Raises:
            TokenizerUnavailable: the package fails on it.
        """

        def encode(tokenizer: Any) -> Any:
            tokenizer.encode_special_tokens = not parse_special
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)

        return self._call(encode)

    def vocabulary(self) -> Mapping[str, int]:
        """Ids of all tokens, by how they are written there."""
        found: Mapping[str, int] = self._call(lambda tokenizer: tokenizer.get_vocab(True))
        return found

    def added_tokens(self) -> Mapping[int, Any]:
        """Those that stand beside the vocabulary, by id."""
        found: Mapping[int, Any] = self._call(
            lambda tokenizer: tokenizer.get_added_tokens_decoder()
        )
        return found

    def token_id(self, text: str) -> int | None:
        """The id of a token; None when there is none."""
        found: int | None = self._call(lambda tokenizer: tokenizer.token_to_id(text))
        return found

    def _call(self, what: Callable[[Any], T]) -> T:
        try:
            if self._made is None:
                self._made = _opened(self._text)
            return what(self._made)
        except BaseException as error:
            if not _is_fault(error):
                raise
            self._made = None
            raise TokenizerUnavailable(
                f"the tokenizer of model {self._model} fails on this text: the tokenizers package "
                f"gives up on it ({_why(error)}); send another text, or import another build of "
                "the model"
            ) from None


def _opened(text: str) -> Any:
    tokenizer: Any = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _is_fault(error: BaseException) -> bool:
    """Whether the package itself says that it can not, or panicked."""
    return type(error) is Exception or is_panic(error)


def _why(error: BaseException) -> str:
    """What the package says. A panic may quote a user's text: it is not told."""
    words = str(error) if type(error) is Exception else "it panicked"
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."
