"""Messages between a process and its text processes, over PUSH/PULL pipes.

One job is in flight per text process; its death while it has a job is that job's error. `folder`
is the path of a model folder. Every job is answered by its own reply or by `TextFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from bus.codec import Codec
from bus.fields import MaxBytes, MaxItems
from bus.ids import PackedIds
from bus.messages.parts import U32, Name
from bus.messages.sampling import Constraint
from bus.text.token_table import TokenTable

TEXT = Codec("text", max_bytes=128 * 1024 * 1024)

#: Longest text of one job; longer prompts are refused before they get here.
MAX_TEXT_BYTES = 8 * 1024 * 1024
#: Further template variables of one chat, and its tools.
MAX_OPTIONS_BYTES = 1024 * 1024
MAX_TOOLS_BYTES = 1024 * 1024
#: What one token adds to a text, and how many there are.
MAX_TOKEN_BYTES = 4096
MAX_VOCABULARY = 1 << 21
MAX_VOCABULARY_BYTES = 64 * 1024 * 1024
MAX_SPECIAL = 1 << 20
#: Ids that end a text.
MAX_ENDS = 256

FolderPath = Annotated[str, MaxBytes(4096)]
Document = Annotated[str, MaxBytes(MAX_TEXT_BYTES)]


# --- jobs -------------------------------------------------------------------------------------


@TEXT.message(tag=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """Load a model's tokenizer and say all about it that needs no encoding."""

    job: int
    folder: FolderPath


@TEXT.message(tag=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """Text to token ids. With `add_special` the model's own BOS rule applies, at most once.

    Special tokens written inside the text are text unless `parse_special`.
    """

    job: int
    folder: FolderPath
    text: Document
    add_special: bool = True
    parse_special: bool = False


@TEXT.message(tag=3)
@dataclass(frozen=True, slots=True, kw_only=True)
class RenderChat:
    """Chat messages through the model's template, then to ids.

    `messages` is a msgpack list of maps with `role` and `content`; `options` a msgpack map of
    further template variables, `tools` a msgpack list as head/tool_definitions.py packs it.
    Special tokens inside all of them stay text.

    With `continue_final` the text ends where the last message's content does, and the answer goes
    on from there. With `after_answer` it is only what follows the last assistant message: how the
    template ends it, the messages after it, and what begins the next answer.
    """

    job: int
    folder: FolderPath
    messages: Annotated[bytes, MaxBytes(MAX_TEXT_BYTES)]
    add_generation_prompt: bool = True
    options: Annotated[bytes, MaxBytes(MAX_OPTIONS_BYTES)] = b"\x80"
    tools: Annotated[bytes, MaxBytes(MAX_TOOLS_BYTES)] = b"\x90"
    continue_final: bool = False
    after_answer: bool = False


@TEXT.message(tag=4)
@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Token ids to text, special tokens left out when `skip_special`."""

    job: int
    folder: FolderPath
    ids: PackedIds
    skip_special: bool = True


@TEXT.message(tag=5)
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConstraint:
    """Whether a constraint can be honoured with a model's tokens, in time and memory of its own.

    Answered by `ConstraintChecked`, or by `TextFailed` with the code `constraint_invalid`.
    """

    job: int
    folder: FolderPath
    constraint: Constraint


@TEXT.message(tag=6)
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeTexts:
    """Each text to ids for a model that makes a vector of it, with what goes around a text.

    Control tokens written in a text are text. `first` is the place of the first one among the
    texts of its request, for errors.
    """

    job: int
    folder: FolderPath
    texts: Annotated[tuple[Document, ...], MaxItems(1024)]
    first: U32 = 0


# --- replies ----------------------------------------------------------------------------------


@TEXT.message(tag=32)
@dataclass(frozen=True, slots=True, kw_only=True)
class TextReady:
    """The process is up and takes its first job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """All about a tokenizer but its vocabulary.

    `special` lists ids that are control tokens, and `special_texts` how each of them is written:
    an answer's reasoning and calls may be marked by some. `bos` is None when the model has none.
    `kind` is that of the model (head/model_kinds.py). `longest` is the most bytes of a text that
    one token can stand for; 0 when there is no such number.
    """

    job: int
    special: Annotated[tuple[U32, ...], MaxItems(MAX_SPECIAL)]
    bos: int | None
    eos: Annotated[tuple[U32, ...], MaxItems(MAX_ENDS)]
    digest: int
    has_template: bool
    kind: Name = "decoder"
    special_texts: Annotated[
        tuple[Annotated[str, MaxBytes(MAX_TOKEN_BYTES)], ...], MaxItems(MAX_SPECIAL)
    ] = ()
    longest: U32 = 0

    def _facts(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(TokenizerFacts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described(TokenizerFacts):
    """A tokenizer: `vocabulary[i]` is what token i adds to the text, as bytes.

    Specials add nothing there. It travels as a `Description`.
    """

    vocabulary: Sequence[bytes]

    def packed(self) -> Description:
        data, ends = TokenTable.of(self.vocabulary).packed
        return Description(**self._facts(), data=data, ends=ends)


@TEXT.message(tag=39)
@dataclass(frozen=True, slots=True, kw_only=True)
class Description(TokenizerFacts):
    """The reply to `Describe`: `data` and `ends` are a `TokenTable`.

    A list of all tokens would hold up the loop that reads it for some hundredths of a second.
    """

    data: Annotated[bytes, MaxBytes(MAX_VOCABULARY_BYTES)] = b""
    ends: Annotated[PackedIds, MaxBytes(4 * MAX_VOCABULARY)] = PackedIds(b"")

    def unpacked(self) -> Described:
        """What was packed.

        Raises:
            DecodeError: the vocabulary is none.
        """
        return Described(**self._facts(), vocabulary=TokenTable(self.data, self.ends))


@TEXT.message(tag=34)
@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Ids of the tokenizer with this digest; 0 for unknown.

    `fresh_bytes` is how much of the text, in UTF-8, had to be encoded: the rest was known. `tail`
    is what the end of a chat's prompt opened and did not close, such as `<think>`: the answer
    begins inside it. `channels` names the format of answers that the chat's template is written
    for (head/text/channel_formats.py).
    """

    job: int
    ids: PackedIds
    text: Document = ""
    digest: int = 0
    fresh_bytes: U32 = 0
    tail: Document = ""
    channels: Name = ""


@TEXT.message(tag=35)
@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    job: int
    text: Document


@TEXT.message(tag=36)
@dataclass(frozen=True, slots=True, kw_only=True)
class TextFailed:
    """`code` is one of bus/errors.py; the message is one plain sentence.

    `retry_after_ms` above 0 says that the same job may well succeed then.
    """

    job: int
    code: Name
    message: Annotated[str, MaxBytes(4096)]
    param: Name = ""
    retry_after_ms: U32 = 0


@TEXT.message(tag=37)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintChecked:
    """The constraint can be honoured."""

    job: int


@TEXT.message(tag=38)
@dataclass(frozen=True, slots=True, kw_only=True)
class TextsEncoded:
    """Ids of each text, of the tokenizer with this digest."""

    job: int
    ids: Annotated[tuple[PackedIds, ...], MaxItems(1024)]
    digest: int = 0
