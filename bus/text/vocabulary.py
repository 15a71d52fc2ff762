"""What each token id adds to the text, as bytes, and the digest by which tokenizers are compared.

Two kinds of tokenizers exist among language models. *Byte-level BPE* writes each byte as one
printable character (GPT-2's table). *SentencePiece* kinds write text as it is, a space as U+2581,
and a byte that no piece covers as `<0xNN>`. *WordPiece*, of encoders, marks what goes on with a
word by `##`; all else begins one. The `decoder` of tokenizer.json says which one it is.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bus.errors import ModelIncomplete
from bus.messages.text import (
    MAX_SPECIAL,
    MAX_TOKEN_BYTES,
    MAX_VOCABULARY,
    MAX_VOCABULARY_BYTES,
)

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table


BYTE_OF_CHARACTER = _byte_of_character()


def vocabulary_bytes(
    tokens: Mapping[str, int], added: Mapping[int, tuple[str, bool]], decoder: object
) -> tuple[bytes, ...]:
    """The bytes of every id; control tokens and unused ids have none.

    Args:
        tokens: text to id, as tokenizer.json has them.
        added: ids of added tokens to their text and whether they are special.
        decoder: the `decoder` of tokenizer.json.

    Raises:
        ModelIncomplete: a decoder of another kind, or more than a head takes: ids, control tokens
            or bytes of one.
    """
    to_bytes = _converter(list(_steps(decoder)))
    size = max((*tokens.values(), *added), default=-1) + 1
    _check_count(size, "ids", MAX_VOCABULARY)
    _check_count(sum(special for _, special in added.values()), "control tokens", MAX_SPECIAL)
    found = [b""] * size
    for text, token in tokens.items():
        if token not in added:
            found[token] = to_bytes(text)
    for token, (text, special) in added.items():
        found[token] = b"" if special else text.encode()
    written = (len(text.encode()) for text, _ in added.values())
    _check_count(
        max((*map(len, found), *written), default=0), "bytes in one token", MAX_TOKEN_BYTES
    )
    _check_count(sum(map(len, found)), "bytes in all tokens", MAX_VOCABULARY_BYTES)
    return tuple(found)


def _check_count(count: int, of_what: str, most: int) -> None:
    if count > most:
        raise ModelIncomplete(
            f"tokenizer.json has {count} {of_what} and {most} is the most; use another model"
        )


def _steps(decoder: object) -> Iterator[Mapping[str, Any]]:
    """A decoder's steps, sequences taken apart."""
    if isinstance(decoder, Mapping):
        if decoder.get("type") == "Sequence":
            for step in decoder.get("decoders", ()):
                yield from _steps(step)
        else:
            yield decoder


def _converter(steps: Sequence[Mapping[str, Any]]) -> Callable[[str], bytes]:
    kinds = {str(step.get("type")) for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    for step in steps:
        if step.get("type") == "WordPiece":
            return _word_piece(str(step.get("prefix", "##")))
    if not kinds & {"ByteFallback", "Metaspace", "Replace"}:
        raise ModelIncomplete(
            f"tokenizer.json has the decoder {', '.join(sorted(kinds)) or 'none'}, which does not "
            "say what a token adds to the text; use a model with a byte-level, SentencePiece or "
            "WordPiece one"
        )
    return _sentence_piece(_replacements(steps), "ByteFallback" in kinds)


def _byte_level(text: str) -> bytes:
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in text)
    except KeyError:
        # Some vocabularies hold pieces that are no byte characters; they stand for themselves.
        return text.encode()


def _word_piece(prefix: str) -> Callable[[str], bytes]:
    def convert(text: str) -> bytes:
        goes_on = text.startswith(prefix)
        return (text.removeprefix(prefix) if goes_on else f" {text}").encode()

    return convert


def _replacements(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    found = []
    for step in steps:
        if step.get("type") == "Replace" and "String" in step.get("pattern", {}):
            found.append((str(step["pattern"]["String"]), str(step["content"])))
        elif step.get("type") == "Metaspace":
            found.append((str(step.get("replacement", "\u2581")), " "))
    return found


def _sentence_piece(
    replacements: Sequence[tuple[str, str]], byte_fallback: bool
) -> Callable[[str], bytes]:
    def convert(text: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(text) if byte_fallback else None
        if byte:
            return bytes([int(byte[1], 16)])
        for pattern, content in replacements:
            text = text.replace(pattern, content)
        return text.encode()

    return convert


def strips_first_space(decoder: object) -> bool:
    """Whether decoding a whole text drops the one space that encoding put before it."""
    return any(
        (step.get("type") == "Strip" and step.get("content") == " " and step.get("start") == 1)
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        or step.get("type") == "WordPiece"
        for step in _steps(decoder)
    )


def tokenizer_digest(vocabulary: Sequence[bytes]) -> int:
    """Names a vocabulary; equal for tokenizers whose ids mean the same bytes.

    SHA-256 over the u32-LE size, then for each id its u32-LE length and bytes; of it the first
    eight bytes as u64-LE, at least 1 (0 means unknown).
    """
    digest = hashlib.sha256(struct.pack("<I", len(vocabulary)))
    for token in vocabulary:
        digest.update(struct.pack("<I", len(token)))
        digest.update(token)
    return max(1, int.from_bytes(digest.digest()[:8], "little"))
