"""Words of a peer on their way to a person: nothing in them moves the cursor or begins a line."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """A text whose unprintable characters are shown as escapes, such as `\\u001b`.

    Unprintable are controls (also those of 8 bits), line breaks, and what turns the direction of
    writing or joins characters without being seen.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
