"""Which control tokens in a rendered chat are the template's own.

A template is compiled with a private-use character in place of each control token that it writes.
No text of a user's has such a character, so whatever the template does with it, what is found with
letters afterwards is no control token. Some templates make theirs of pieces, as `<|`, a role and
`|>`. Those are told by rendering the chat again with users' texts masked: what is found then was
made without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

import jinja2
import jinja2.nodes

from bus.errors import Invalid
from bus.text.escaping import OWN_FIRST, OWN_LAST, Escaper, Span, control_pattern

_MARKS = re.compile(f"[{chr(OWN_FIRST)}-{chr(OWN_LAST)}]")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered text.

    Attributes:
        text: as it is read.
        own: where the control tokens are that the template marked, in order.
    """

    text: str
    own: list[Span]


class OwnTokens:
    """Marks the control tokens of one template.

    Args:
        special: texts of the model's control tokens.
    """

    def __init__(self, special: Collection[str]) -> None:
        self._tokens = control_pattern(special)
        self._marks: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def compile(self, environment: jinja2.Environment, source: str) -> jinja2.Template:
        """A template whose own control tokens are marks."""
        tree = environment.parse(source)
        for data in tree.find_all(jinja2.nodes.TemplateData):
            data.data = self.mark(data.data)
        for const in tree.find_all(jinja2.nodes.Const):
            if isinstance(const.value, str):
                const.value = self.mark(const.value)
        code = environment.compile(tree)
        return environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )

    def mark(self, text: str) -> str:
        """A text of the template's with marks for its control tokens."""
        return self._tokens.sub(lambda found: self._mark(found[0]), text)

    def read(self, text: str) -> Rendered:
        """A rendered text with the marks turned back."""
        parts: list[str] = []
        own: list[Span] = []
        begin = size = 0
        for found in _MARKS.finditer(text):
            token = self._texts.get(found[0], found[0])
            parts += [text[begin : found.start()], token]
            size += found.start() - begin
            if found[0] in self._texts:
                own.append((size, size + len(token)))
            size += len(token)
            begin = found.end()
        return Rendered("".join([*parts, text[begin:]]), own)

    def _mark(self, token: str) -> str:
        # Words are compared and looked up; they stay, and are told as those made of pieces are.
        if token not in self._marks and _is_marked(token):
            if OWN_FIRST + len(self._marks) > OWN_LAST:
                return token
            self._marks[token] = chr(OWN_FIRST + len(self._marks))
            self._texts[self._marks[token]] = token
        return self._marks.get(token, token)


def settle(seen: Rendered, masked: Callable[[], Rendered], escaper: Escaper) -> str:
    """The prompt, in which every control token is the template's own.

    Args:
        seen: the chat as the template writes it.
        masked: renders it with users' texts masked.
        escaper: of the chat.
    """
    if escaper.tokens(seen.text) == seen.own:
        return seen.text
    # Made of pieces by the template or of users' texts: only a look at another rendering tells.
    try:
        blind = masked()
    except Invalid:
        # It does without words that it looks for; then none is made of pieces.
        return escaper.escape_between(seen.text, seen.own)
    every = _with_others(blind, escaper, None)
    made = {blind.text[start:end] for start, end in set(every) - set(blind.own)}
    kept = _with_others(seen, escaper, made)
    if not made or _texts(seen.text, kept) == _texts(blind.text, every):
        return escaper.escape_between(seen.text, kept)
    return escaper.escape_between(blind.text, every)


def _with_others(rendered: Rendered, escaper: Escaper, kinds: Collection[str] | None) -> list[Span]:
    """The marked control tokens, and others of these kinds that are apart from them."""
    found: list[Span] = []
    begin = 0
    for span in [*rendered.own, (len(rendered.text), len(rendered.text))]:
        between = rendered.text[begin : span[0]]
        for start, end in escaper.tokens(between):
            if kinds is None or between[start:end] in kinds:
                found.append((begin + start, begin + end))
        found.append(span)
        begin = span[1]
    return found[:-1]


def _texts(text: str, spans: Collection[Span]) -> list[str]:
    return [text[start:end] for start, end in spans]


def _is_marked(token: str) -> bool:
    return any(not (letter.isalnum() or letter.isspace() or letter == "_") for letter in token)
