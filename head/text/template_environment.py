"""The Jinja environment that chat templates are written for, as a sandbox.

It is what Hugging Face documents for them: blocks trimmed, `break` and `continue`,
`{% generation %}`, `raise_exception`, `strftime_now`, and a `tojson` that writes characters as they
are. What a template can cost is bounded by the limits of its process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: A character of users' escaped texts (bus/text/escaping.py) as JSON writes it in ASCII.
_ESCAPED_IN_ASCII = re.compile(r"\\u(db[c-f][0-9a-f])\\u(d[c-f][0-9a-f]{2})")


class TemplateRefusal(Exception):
    """The template itself said no."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks what a model would say; for rendering it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as for the callers of such a block where models are trained.
        return jinja2.nodes.Scope(body).set_lineno(line)


def make_environment(wall_time: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """An environment for chat templates.

    Args:
        wall_time: for templates that write today's date.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _Generation],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: wall_time().strftime(form)
    return environment


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )
    return _ESCAPED_IN_ASCII.sub(_character, text) if ensure_ascii else text


def _listed(value: object) -> list[object]:
    """What filters such as `map` give, which other engines for templates make lists of."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} can not be written as JSON")


def _character(pair: re.Match[str]) -> str:
    high, low = int(pair[1], 16), int(pair[2], 16)
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
