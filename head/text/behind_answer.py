"""Whether a template writes new messages behind an answer, as sessions need it.

A session renders its new messages behind an answer that stands for all that was said, and takes
what follows it. Some templates put messages elsewhere, leave some out, or repeat what was said. So
the same chat is rendered with words in place of what is said, and these are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from bus.errors import Invalid
from head.text.tool_messages import Message

#: Letters only, of different lengths, since templates may count, cut and compare.
_SAID_BEFORE = ("Quarvem", "Zilphotixol")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: What `_word` makes.
_WORD = re.compile("mexov[a-z]{3}yrt")
#: What to do where it does not.
ELSE = "send the whole conversation by chat instead"


def check_behind(
    render: Callable[[Sequence[Message]], str], messages: Sequence[Message], place: int
) -> None:
    """See that all that is said after an answer follows it, and nothing of what is before it.

    Args:
        render: what follows the answer, as people read it, of such messages.
        messages: in the form of head/text/messages.py.
        place: of the answer.

    Raises:
        Invalid: a message would be lost (`param` names it), or something be said that nobody said.
    """
    found = [
        render([_disguised(message, n, place, before) for n, message in enumerate(messages)])
        for before in _SAID_BEFORE
    ]
    shown = found[0].casefold()
    for lost in _missing(shown, messages, place):
        raise Invalid(
            f"messages[{lost}] would be lost: the model's chat template does not write it behind "
            f"the answer before it; {ELSE}",
            param=f"messages[{lost}]",
        )
    if found[0] != found[1] or _SAID_BEFORE[0].casefold() in shown:
        raise Invalid(
            "the model's chat template writes what was said before an answer behind it, too, so a "
            f"session can not go on; {ELSE}",
            param="messages",
        )


def _disguised(message: Message, number: int, place: int, before: str) -> Message:
    """A message with a word in place of what it says; the answer as it is."""
    if number == place or not _says(message):
        return message
    return {**message, "content": before if number < place else _word(number)}


def _missing(shown: str, messages: Sequence[Message], place: int) -> Iterator[int]:
    words = set(_WORD.findall(shown))
    for number, message in enumerate(messages[place + 1 :], place + 1):
        if _says(message) and _word(number) not in words:
            yield number


def _says(message: Message) -> bool:
    """Whether it has text of its own place; the system's may be written anywhere."""
    return message["role"] not in ("system", "developer") and bool(message["content"].strip())


def _word(number: int) -> str:
    """None is a part of another one, nor of two beside each other."""
    letters = []
    for _ in range(3):
        number, letter = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[letter])
    return f"mexov{''.join(letters)}yrt"
