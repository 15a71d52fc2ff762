"""What a text opens and does not close: `<think>` at the end of a prompt, or in an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to open and close a part of an answer; each pattern's group is the part's name."""

    opener: re.Pattern[str]
    closer: re.Pattern[str]


#: Names of two closers share no character, so looking for all of them finds each one.
_FORMS = (
    _Form(re.compile(r"<([A-Za-z_][\w:.-]*)>"), re.compile(r"</([A-Za-z_][\w:.-]*)>")),
    _Form(re.compile(r"\[([A-Z_]+)\]"), re.compile(r"\[/([A-Z_]+)\]")),
    _Form(re.compile(r"<\|START_([A-Z_]+)\|>"), re.compile(r"<\|END_([A-Z_]+)\|>")),
    _Form(re.compile(r"<\|begin_of_(\w+)\|>"), re.compile(r"<\|end_of_(\w+)\|>")),
    _Form(re.compile(r"<\|(channel)>"), re.compile(r"<(channel)\|>")),
    _Form(re.compile(r"<\|open\|>(\w+)<\|sep\|>"), re.compile(r"<\|close\|>(\w+)<\|sep\|>")),
)


def opened(generation: str, header: str | None) -> str:
    """What a generation prompt opened and did not close; empty for nothing.

    Args:
        generation: all that the template wrote to begin an answer.
        header: what it writes before an earlier one, if that is known.
    """
    common = generation[: common_start(generation, header or "")]
    if common.rfind("<") > common.rfind(">"):
        common = common[: common.rfind("<")]
    found = unclosed(generation, header, len(common))
    if found is not None:
        return found
    rest = generation[len(common) :]
    return "" if header is None or any(form.opener.search(rest) for form in _FORMS) else rest


def unclosed(text: str, header: str | None, own: int) -> str | None:
    """The text from the last opener on that nothing closes.

    Args:
        header: what begins every answer; what it opens and does not close is no part of one.
        own: from where on the text is not the header's.
    """
    last = -1
    for form in _FORMS:
        closed = _last_closers(form, text)
        closed_in_header = _last_closers(form, header or "")
        for found in form.opener.finditer(text):
            name, start = found[1], found.start()
            if header is None:
                begins_one = "think" in name.lower()
            else:
                begins_one = start >= own or closed_in_header.get(name, -1) >= start
            if begins_one and closed.get(name, -1) < found.end():
                last = max(last, start)
    return None if last < 0 else text[last:]


def common_start(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _last_closers(form: _Form, text: str) -> dict[str, int]:
    """Where the last closer of each name begins; one look, however many openers there are."""
    return {found[1]: found.start() for found in form.closer.finditer(text)}
