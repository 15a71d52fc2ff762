"""A tokenizer as the grammar engine gets it: control tokens have no text that anybody could write.

Where a constraint leaves one text to go on with, the engine asks the tokenizer for the ids of that
text, and a control token's own text (`<|im_end|>`) would give the control token, which is not in an
answer's text or ends it. The package can be told to take such text for text, the engine's copy of
it can not. So control tokens are called something else there, and so are other added tokens, which
the engine never lets through: their text is spelled by ordinary tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from bus.text.control_pieces import hiding


def without_added_texts(tokenizer: str, ends: Collection[int], prefix: str) -> str:
    """The same tokenizer with its added tokens' texts begun by a prefix; all ids stay.

    What is an ordinary token, too, and no control token keeps its text, since others may be made of
    it.

    Args:
        tokenizer: text of a tokenizer.json.
        ends: ids that end an answer.
        prefix: that no text has; nobody else should know it.
    """
    layout = json.loads(tokenizer)
    model = layout["model"]
    vocabulary = model["vocab"]
    known = vocabulary if isinstance(vocabulary, dict) else {piece for piece, _ in vocabulary}
    hidden: dict[str, str] = {}
    for token in layout.get("added_tokens") or []:
        text = token["content"]
        if token.get("special") or token["id"] in ends or text not in known:
            token["content"] = hidden[text] = prefix + text
    layout["model"] = hiding(model, hidden)
    return json.dumps(layout, ensure_ascii=False)
