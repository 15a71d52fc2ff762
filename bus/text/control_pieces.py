"""Control tokens that a unigram tokenizer would find in any text.

A unigram model takes the likeliest pieces of its vocabulary, and control tokens are pieces of it: a
`</s>` that a user writes would become one even where the package is told to take it for text. Other
kinds only make what merges or words lead to.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any


def without_control_pieces(layout: Mapping[str, Any]) -> str | None:
    """The same tokenizer with control tokens under texts that nobody writes; all ids stay.

    Args:
        layout: a tokenizer.json, read.

    Returns:
        A tokenizer.json; None where no text becomes a control token anyway.
    """
    model = layout.get("model") or {}
    added = layout.get("added_tokens") or []
    control = [token["content"] for token in added if token.get("special")]
    if model.get("type") != "Unigram" or not control:
        return None
    prefix = secrets.token_hex(16)
    hidden = {text: prefix + text for text in control}
    renamed = [
        {**token, "content": hidden.get(token["content"], token["content"])} for token in added
    ]
    pieces = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
    changed = {**layout, "added_tokens": renamed, "model": {**model, "vocab": pieces}}
    return json.dumps(changed, ensure_ascii=False)
