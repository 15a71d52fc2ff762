"""Refuse vocabularies that no tokenizer can be made of, or one that would lose or miscut text.

Source: figures of real vocabularies are of the 19 that docs/tokenizers.md names, SmolLM2's and
Gemma 3's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from agent.models.text_cuts import CUTS
from agent.models.vocabulary_source import BYTE, CONTROL, NORMAL, VocabularySource, word_pieces
from bus.errors import Invalid
from bus.text.vocabulary import BYTE_OF_CHARACTER

#: Characters of a token. The longest real ones are the 512 of Command R, MPT, GPT-NeoX and Aquila
#: (spaces and dashes); with scores in the place of merges it is 31, of Gemma 3. What a thousand
#: add to a text is within `MAX_TOKEN_BYTES` of bus/messages/text.py.
MAX_TOKEN_CHARACTERS = 1000
#: Tokens; Gemma's have 262,144.
MAX_TOKENS = 1 << 20
#: Characters of all tokens together; Command R's have 1.9 million, Gemma's 1.5.
MAX_CHARACTERS = 1 << 23
#: Characters of all pairs of tokens that scores could rank, which the lengths' squares bound;
#: Gemma 3's have 11 million.
MAX_PAIR_CHARACTERS = 1 << 26

#: Byte-level vocabularies lack these: they are in no UTF-8 (c0, c1, f5 on), of private use and
#: of planes without letters (f1 on), or control characters. SmolLM2 lacks 21, Falcon 28.
_RARE_BYTES = frozenset((*range(9), *range(11, 13), *range(14, 32), 127, 0xC0, 0xC1))
_RARE_FROM = 0xF1
_DOWNLOAD = "download the file again"
_CHOOSE = "choose another file of this model"


def check_vocabulary(source: VocabularySource, rows: int | None = None) -> None:
    """Refuse what no tokenizer can be made of, or none that keeps a text, without making one.

    Args:
        rows: of the model's embedding, where it is known: no token may lie beyond them.

    Raises:
        Invalid: a kind or a cut that is not known, ids and texts that do not fit together, what
            takes too much work, or a tokenizer that would lose or miscut text.
    """
    if source.kind not in _CHECKS:
        raise Invalid(
            f"tokenizer kind {source.kind[:60]!r} can not be imported; {', '.join(_CHECKS)} can: "
            "choose a model with one of them",
            param="tokenizer",
        )
    if source.kind == "gpt2":
        _check_cut(source)
    _check_sizes(source)
    if rows is not None and len(source.tokens) > rows:
        raise _wrong(
            "tokens", f"has {len(source.tokens)} tokens and the model knows {rows}", _CHOOSE
        )
    _check_texts(source)
    _check_types(source)
    _check_ids(source)
    _check_merges(source)
    _CHECKS[source.kind](source)


def _wrong(key: str, fact: str, remedy: str = _DOWNLOAD) -> Invalid:
    name = f"tokenizer.ggml.{key}"
    return Invalid(f"{name} {fact}; {remedy}", param=name)


def _check_cut(source: VocabularySource) -> None:
    if source.pre in CUTS:
        return
    if source.pre == "default":
        raise Invalid(
            "the file does not say how its tokenizer cuts text (tokenizer.ggml.pre) and a guess "
            "would give wrong ids; get a newer file of this model, which says it",
            param="tokenizer.ggml.pre",
        )
    raise Invalid(
        f"tokenizer cut {source.pre[:60]!r} is not known here and another would give wrong ids; "
        "choose a model with one that docs/tokenizers.md lists",
        param="tokenizer.ggml.pre",
    )


def _check_sizes(source: VocabularySource) -> None:
    size = len(source.tokens)
    if len(source.kinds) != size or (source.kind == "llama" and len(source.scores) != size):
        raise Invalid(
            f"the tokenizer has {size} texts, {len(source.kinds)} kinds and {len(source.scores)} "
            "scores; download the file again",
            param="tokenizer",
        )


def _check_texts(source: VocabularySource) -> None:
    """Bound the work before any is done that grows with a square."""
    lengths = [len(text) for text in source.tokens]
    longest, whole = max(lengths, default=0), sum(lengths)
    if len(lengths) > MAX_TOKENS:
        raise _wrong("tokens", f"has {len(lengths)} tokens and {MAX_TOKENS} is the most", _CHOOSE)
    if longest > MAX_TOKEN_CHARACTERS:
        raise _wrong(
            "tokens",
            f"has a token of {longest} characters and {MAX_TOKEN_CHARACTERS} is the most",
            _CHOOSE,
        )
    if whole > MAX_CHARACTERS:
        raise _wrong("tokens", f"has {whole} characters and {MAX_CHARACTERS} is the most", _CHOOSE)
    if len(set(source.tokens)) != len(lengths):
        raise Invalid("two tokens have one text; download the file again", param="tokenizer")


def _check_types(source: VocabularySource) -> None:
    odd = next((kind for kind in source.kinds if not NORMAL <= kind <= BYTE), None)
    if odd is not None:
        raise _wrong("token_type", f"has the type {odd}, and {NORMAL} to {BYTE} are all there are")
    if NORMAL not in source.kinds:
        raise _wrong("token_type", f"calls no token ordinary text (type {NORMAL})")


def _check_ids(source: VocabularySource) -> None:
    size = len(source.tokens)
    named = (
        *(source.bos_id, source.eos_id, source.unknown_id, source.pad_id, source.last_id),
        *source.eos_ids,
    )
    wrong = [token for token in named if token is not None and not 0 <= token < size]
    if wrong:
        raise Invalid(
            f"token {wrong[0]} is named and there are {size}; download the file again",
            param="tokenizer",
        )


def _check_merges(source: VocabularySource) -> None:
    """Every merge is of two tokens that make a third."""
    texts = set(source.tokens)
    for merge in source.merges:
        left, _, right = merge.partition(" ")
        if not left or not right or not texts.issuperset((left, right, left + right)):
            raise _wrong("merges", f"has {merge[:60]!r}, which is of no tokens")


def _long_tokens(source: VocabularySource) -> list[int]:
    """Those of ordinary text that must be made of others."""
    return [
        index
        for index, (text, kind) in enumerate(zip(source.tokens, source.kinds, strict=True))
        if kind == NORMAL and len(text) > 1
    ]


def _check_made(source: VocabularySource) -> None:
    """Merges make the tokens: all of them in most vocabularies, and 97 in 100 in Gemma 4's."""
    made = {merge.replace(" ", "", 1) for merge in source.merges}
    wanted = _long_tokens(source)
    found = sum(source.tokens[index] in made for index in wanted)
    if 2 * found < len(wanted):
        raise _wrong(
            "merges",
            f"makes {found} of the {len(wanted)} tokens of several characters, and text would be "
            "cut into too small pieces",
            _CHOOSE,
        )


def _check_scores(source: VocabularySource) -> None:
    """Scores order the merges: 98 in 100 or more have one of their own in real vocabularies."""
    if not all(map(math.isfinite, source.scores)):
        raise _wrong("scores", "has a score that is no number")
    ranked = _long_tokens(source)
    pairs = sum(len(source.tokens[index]) ** 2 for index in ranked)
    if pairs > MAX_PAIR_CHARACTERS:
        raise _wrong(
            "tokens",
            f"has so many long tokens that their pairs may take {pairs} characters and "
            f"{MAX_PAIR_CHARACTERS} is the most",
            _CHOOSE,
        )
    if 2 * len({source.scores[index] for index in ranked}) < len(ranked):
        raise _wrong("scores", "has few scores for many tokens, and does not order them", _CHOOSE)


def _lacks(source: VocabularySource, texts: Iterable[str]) -> str | None:
    """The first text that has no token, or one that adds nothing to a text."""
    known = {
        text
        for text, kind in zip(source.tokens, source.kinds, strict=True)
        if kind != CONTROL and len(text) <= len("<0x00>")
    }
    return next((text for text in texts if text not in known), None)


def _is_unknown(source: VocabularySource) -> bool:
    """Whether the file has a token for what it does not know, which is no ordinary text."""
    if source.unknown_id is None:
        return False
    text = source.tokens[source.unknown_id]
    return source.kinds[source.unknown_id] == CONTROL or (text[:1], text[-1:]) in _BRACKETS


_BRACKETS = (("[", "]"), ("<", ">"))


def _check_bytes(source: VocabularySource) -> None:
    """Every byte of a text has a token: a byte-level tokenizer has nothing else for it."""
    needed = {
        text: byte
        for text, byte in BYTE_OF_CHARACTER.items()
        if byte not in _RARE_BYTES and byte < _RARE_FROM
    }
    lacking = _lacks(source, needed)
    if lacking is not None:
        raise _wrong(
            "tokens",
            f"has no token for the byte 0x{needed[lacking]:02X}, and text with it would be lost",
            _CHOOSE,
        )


def _check_fallback(source: VocabularySource) -> None:
    """A character without a token becomes its bytes, or the unknown token."""
    lacking = _lacks(source, (f"<0x{byte:02X}>" for byte in range(256)))
    if lacking is not None and not _is_unknown(source):
        raise _wrong(
            "tokens",
            f"has no {lacking} and tokenizer.ggml.unknown_token_id names no token that stands for "
            "what has none, so that text would be lost",
            _CHOOSE,
        )


def _check_byte_level(source: VocabularySource) -> None:
    _check_bytes(source)
    _check_made(source)


def _check_sentence_piece(source: VocabularySource) -> None:
    _check_scores(source)
    _check_fallback(source)


def _check_characters(source: VocabularySource) -> None:
    _check_fallback(source)
    _check_made(source)


def _check_word_pieces(source: VocabularySource) -> None:
    if not _is_unknown(source):
        raise _wrong("unknown_token_id", "names no token for what the tokenizer does not know")
    if len(set(word_pieces(source))) != len(source.tokens):
        raise Invalid("two tokens have one text; download the file again", param="tokenizer")


_CHECKS: Mapping[str, Callable[[VocabularySource], None]] = {
    "gpt2": _check_byte_level,
    "llama": _check_sentence_piece,
    "gemma4": _check_characters,
    "bert": _check_word_pieces,
}
