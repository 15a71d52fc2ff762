"""Which texts of a chat are escaped on their way into a template (bus/text/escaping.py), and how.

What is said is escaped in full. Names, kinds and values, which templates compare with words of
their own, stay readable where they are such a word: the template that knows "object" gets "object",
also from a model with `<|object_ref_start|>`. Any other name is escaped in full, too, since a
template that writes `<`, a name and `>` would make a control token of `s`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bus.text.escaping import MARK, Escaper
from head.text.messages import REASONING
from head.text.tool_messages import Arguments, Message

#: Key of a message whose content is to be followed by MARK; no client can send it.
MARKED: Any = object()

#: Words of JSON Schema, which templates change and count without naming them.
_SCHEMA_WORDS = frozenset(
    (
        *("object", "array", "string", "number", "integer", "boolean", "null", "type", "enum"),
        *("properties", "required", "items", "description", "default", "format", "const", "title"),
        *("anyOf", "oneOf", "allOf", "not", "minimum", "maximum", "pattern", "examples", "date"),
        *("minItems", "maxItems", "minLength", "maxLength", "additionalProperties", "nullable"),
    )
)


class ChatEscaper:
    """Escapes the parts of one chat.

    Args:
        escaper: of this chat.
        words: that the template compares with or looks up.
        masked: whether no text shall be readable, but words that are in no control token.
    """

    def __init__(self, escaper: Escaper, words: Collection[str], *, masked: bool = False) -> None:
        self._escaper = escaper
        self._words = _SCHEMA_WORDS.union(words)
        self._escape = escaper.escape
        if masked:
            self._escape = escaper.mask
            self._words = _harmless(self._words, escaper.texts)

    def message(self, message: Message) -> Message:
        """A message; its role is one of the head's own words."""
        mark = MARK if MARKED in message else ""
        escape = self._escape
        found: Message = {}
        for key, value in message.items():
            if key == "role":
                found[key] = value
            elif key == "tool_calls":
                found[key] = [self._call(call) for call in value]
            elif key == "content" and isinstance(value, list):
                found[key] = [{**part, "text": escape(part["text"]) + mark} for part in value]
            elif key == "content":
                found[key] = escape(value) + mark
            elif key in REASONING:
                found[key] = escape(value)
            elif key is not MARKED:
                found[self.word(key)] = self.value(value)
        return found

    def tool(self, tool: Mapping[str, Any]) -> Message:
        """A tool, as templates want it."""
        return {"type": "function", "function": self.value(tool)}

    def value(self, value: Any) -> Any:
        """A value with every name and text in it escaped."""
        return self._mapped(value, self.word)

    def word(self, text: str) -> str:
        """A name, or a text that may be a word of the template's."""
        if text in self._words:
            return self._escaper.escape_value(text)
        return self._escape(text)

    def _call(self, call: Message) -> Message:
        function = call["function"]
        arguments: Arguments = function["arguments"]
        shown = Arguments(self._mapped(arguments, self._escape), self._escape(str(arguments)))
        name = self.word(function["name"])
        rest = {key: self.value(value) for key, value in call.items() if key == "id"}
        return {**rest, "type": "function", "function": {"name": name, "arguments": shown}}

    def _mapped(self, value: Any, escape: Callable[[str], str]) -> Any:
        if isinstance(value, str):
            return escape(value)
        if isinstance(value, Mapping):
            return {self.word(str(key)): self._mapped(value[key], escape) for key in value}
        if isinstance(value, list | tuple):
            return [self._mapped(item, escape) for item in value]
        return value


def _harmless(words: Collection[str], special: Collection[str]) -> frozenset[str]:
    """Words that make no control token with signs around them, nor with another word."""
    every = "\n".join(special)
    cores = {re.sub(r"\A[\W_]+|[\W_]+\Z", "", text) for text in special}
    return frozenset(
        word
        for word in words
        if word.isidentifier()
        and (word not in every or (word in _SCHEMA_WORDS and word not in cores))
    )
