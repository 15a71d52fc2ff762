"""Control tokens that a tokenizer would find in texts which only look like them.

Taken for text, a control token's letters go through the tokenizer's model like any others. A
unigram model takes the likeliest pieces of its vocabulary, and control tokens are pieces of it;
other kinds come to one where merges lead to it, or where it is a word of theirs. So the same
tokenizer is made once more, with those tokens under texts that nobody writes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping
from typing import Any


def without_control_pieces(layout: Mapping[str, Any], found: Collection[str] = ()) -> str | None:
    """The same tokenizer with control tokens under texts that nobody writes; all ids stay.

    Args:
        layout: a tokenizer.json, read.
        found: texts of control tokens that its model makes of the same letters.

    Returns:
        A tokenizer.json; None where no text becomes a control token anyway.
    """
    model = layout.get("model") or {}
    added = layout.get("added_tokens") or []
    control = {token["content"] for token in added if token.get("special")}
    if model.get("type") != "Unigram":
        control &= set(found)
    if not control:
        return None
    prefix = secrets.token_hex(16)
    hidden = {text: prefix + text for text in control}
    renamed = [
        {**token, "content": hidden.get(token["content"], token["content"])} for token in added
    ]
    changed = {**layout, "added_tokens": renamed, "model": hiding(model, hidden)}
    return json.dumps(changed, ensure_ascii=False)


def hiding(model: Mapping[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    """A model with texts of its vocabulary changed, and no merge of or to one of them.

    Args:
        model: of a tokenizer.json.
        hidden: texts and what they become; those that it does not have are passed over.
    """
    found = dict(model)
    vocab = model.get("vocab", {})
    if isinstance(vocab, list):
        found["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
        return found
    found["vocab"] = {hidden.get(text, text): token for text, token in vocab.items()}
    if "merges" in model:
        found["merges"] = [one for one in model["merges"] if not hidden.keys() & _of_merge(one)]
    if model.get("unk_token") in hidden:
        found["unk_token"] = hidden[model["unk_token"]]
    return found


def _of_merge(merge: str | list[str]) -> set[str]:
    """The two tokens of a merge and the one that it makes."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return {left, right, left + right}
