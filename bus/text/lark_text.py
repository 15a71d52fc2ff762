"""A Lark grammar read for what the engine would take and not hold: options, embedded schemas.

`%json { ... }` inside a grammar is held to the same rules as a JSON Schema of its own and is
rewritten. Options that ask something of the sampler or of the engine's host are refused, since
nothing here would act on them; tokens by name or id are, since an answer is its text: special
tokens are not in it, and an end of sequence would end it in the middle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from bus.text.constraint_errors import refused

#: What is no code: a text, a comment, a regular expression (which the engine lets go on in the next
#: line), an embedded schema. What opens a text or an expression and closes none is refused where it
#: stands: behind it nobody could tell what is code.
_PART = re.compile(
    r"""(?P<quoted>"(?:[^"\\\n]|\\.)*")
      | (?P<comment>//[^\n]*|\#[^\n]*)
      | (?P<regex>/(?:[^/\\]|\\.)+/)
      | (?P<open>["/])
      | (?P<json>%json\b)
      | (?P<options>%llguidance\b)""",
    re.VERBOSE,
)
#: A token by its name, its ids, or any: `<|end|>`, `<[1-9]>`, `<[*]>`.
_TOKEN = re.compile(r"<(?:\[[^\]\n]*\]|[^<>\s]*)>?")
_REFUSED_OPTION = re.compile(r"\b(temperature|max_tokens|stop)\s*=")

Schema = dict[str, Any]
#: From the schema's text to the schema as the engine gets it.
Translate = Callable[[str], Schema]


def translate_lark(source: str, translate: Translate) -> str:
    """The grammar with its embedded schemas translated.

    Raises:
        ConstraintInvalid: it has an option that would not be honoured, or a schema that is refused.
    """
    return "".join(_parts(source, translate))


def _parts(source: str, translate: Translate) -> Iterator[str]:
    at = 0
    while found := _PART.search(source, at):
        yield _code(source[at : found.start()])
        at = found.end()
        if found.lastgroup == "options":
            raise refused("lark", "%llguidance can not be used here; leave it out")
        if found.lastgroup == "open":
            line = source.count("\n", 0, found.start()) + 1
            raise refused("lark", f"the {found[0]} in line {line} is not closed; close it")
        if found.lastgroup == "json":
            at = _json_end(source, at)
            yield f"%json {json.dumps(translate(source[found.end() : at]))}"
        else:
            yield found[0]
    yield _code(source[at:])


def _code(text: str) -> str:
    found = _REFUSED_OPTION.search(text)
    if found:
        raise refused("lark", f"the rule option {found[1]} is not supported; leave it out")
    token = _TOKEN.search(text)
    if token:
        raise refused(
            "lark",
            f"the token {token[0][:60]} can not be asked for: it has no text, or would end the "
            'answer; write the text that is wanted in quotes, as in "a"',
        )
    return text


def _json_end(source: str, start: int) -> int:
    begin = start
    while begin < len(source) and source[begin].isspace():
        begin += 1
    try:
        # Only its end is asked for here; what is in it is read with more care later.
        _, end = json.JSONDecoder(parse_float=str, parse_int=str).raw_decode(source, begin)
    except (ValueError, RecursionError) as error:
        raise refused("lark", f"%json is not followed by JSON ({str(error)[:100]})") from None
    return end
