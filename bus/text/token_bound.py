"""How much of a text one token can stand for, where a tokenizer keeps every byte of the text.

A text then has at least its bytes divided by that many tokens. Tokenizers that drop characters
(accents, runs of spaces, what no piece covers), join them (Unicode normalisation) or take a whole
word as one "unknown" have no such bound: what is not known here to keep all bytes is one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bus.text.vocabulary import BYTE_OF_CHARACTER

_BYTE_LEVEL = "ByteLevel"
#: Steps that cut a text, or make it longer.
_CUTS = frozenset({_BYTE_LEVEL, "Digits", "Metaspace"})
_CUTS_UNLESS_REMOVED = frozenset({"Split", "Punctuation"})
_LENGTHENS = frozenset({_BYTE_LEVEL, "Prepend"})
_SPACE_MARK = {"pattern": {"String": " "}, "content": "\u2581"}
#: Bytes that texts have in UTF-8, and how the two kinds of tokenizers write them.
_TEXT_BYTES = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
_BYTE_CHARACTERS = frozenset(c for c, byte in BYTE_OF_CHARACTER.items() if byte in _TEXT_BYTES)
_BYTE_PIECES = frozenset(f"<0x{byte:02X}>" for byte in _TEXT_BYTES)


def longest_token(layout: Mapping[str, Any]) -> int:
    """Most bytes of a text that one token can stand for; 0 when there is no such number.

    Args:
        layout: a tokenizer.json.
    """
    normalizers = list(_steps(layout.get("normalizer"), "normalizers"))
    cuts = list(_steps(layout.get("pre_tokenizer"), "pretokenizers"))
    added = layout.get("added_tokens") or []
    if (
        not all(map(_lengthens, normalizers))
        or not all(map(_cuts, cuts))
        or any(token.get("lstrip") or token.get("rstrip") for token in added)
    ):
        return 0
    is_byte_level = any(step.get("type") == _BYTE_LEVEL for step in (*normalizers, *cuts))
    lengths = _piece_lengths(layout.get("model") or {}, is_byte_level)
    return max([*lengths, *(len(token["content"].encode()) for token in added)]) if lengths else 0


def _piece_lengths(model: Mapping[str, Any], is_byte_level: bool) -> list[int]:
    """Bytes of a text that each piece can stand for; none when some bytes have no piece."""
    pieces = _pieces(model)
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return []
    if is_byte_level and pieces >= _BYTE_CHARACTERS:
        # A byte is one character there.
        return list(map(len, pieces))
    if not is_byte_level and model.get("byte_fallback") and pieces >= _BYTE_PIECES:
        # A text may have the mark of a space itself, so a piece is as long as it is written.
        return [len(piece.encode()) for piece in pieces]
    return []


def _pieces(model: Mapping[str, Any]) -> frozenset[str]:
    match model.get("type"):
        case "BPE":
            return frozenset(model["vocab"])
        case "Unigram":
            return frozenset(piece for piece, _ in model["vocab"])
    return frozenset()


def _steps(step: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """A step, or those of a sequence."""
    if step is not None and step.get("type") == "Sequence":
        for each in step.get(name, ()):
            yield from _steps(each, name)
    elif step is not None:
        yield step


def _lengthens(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Replace":
        return all(step.get(key) == value for key, value in _SPACE_MARK.items())
    return step.get("type") in _LENGTHENS


def _cuts(step: Mapping[str, Any]) -> bool:
    if step.get("type") in _CUTS_UNLESS_REMOVED:
        return str(step.get("behavior")).lower() != "removed"
    return step.get("type") in _CUTS
