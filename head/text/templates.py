"""Chat templates: a model's own Jinja source, rendered in a sandbox.

The environment is what Hugging Face's templates are written for: blocks trimmed, `break` and
`continue`, `raise_exception`, `strftime_now`, and a `tojson` that writes characters as they are.
Whatever goes wrong inside a template becomes one sentence.

Texts of users are escaped before rendering (bus/text/escaping.py), so that afterwards the control
tokens in the result are the template's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bus.errors import Invalid
from bus.text.escaping import Escaper
from head.text.messages import normalise

#: Variables that the head sets; options of a request can not.
RESERVED = frozenset({"messages", "add_generation_prompt"})


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks what a model would say; for rendering it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(Exception):
    """The template itself said no."""


def _raise_exception(message: object) -> None:
    raise _Refused(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class ChatTemplate:
    """A model's template, compiled.

    Args:
        model: for messages.
        source: Jinja source; None when the model has none.
        named_tokens: `bos_token`, `eos_token`, ... which templates write.
        wall_time: for templates that write today's date.

    Raises:
        Invalid: there is no template, or it can not be compiled.
    """

    def __init__(
        self,
        model: str,
        source: str | None,
        named_tokens: Mapping[str, str],
        wall_time: Callable[[], datetime] = datetime.now,
    ) -> None:
        if source is None:
            raise Invalid(
                f"model {model} has no chat template, as base models have none; complete a text "
                f"with: sfctl run --raw {model} TEXT (generate with a prompt), or put a template "
                "as chat_template.jinja into its folder",
                param="model",
            )
        self._model = model
        self._named = {name: named_tokens.get(name, "") for name in ("bos_token", "eos_token")}
        self._named.update(named_tokens)
        # Templates that know `developer` handle it; for the others it is what `system` was.
        self._knows_developer = "developer" in source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, _Generation],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: wall_time().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise Invalid(
                f"the chat template of model {model} can not be read: {error.message} in line "
                f"{error.lineno}; put a working one into its folder as chat_template.jinja",
                param="model",
            ) from error

    def render(
        self,
        messages: object,
        escaper: Escaper,
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt's text, with users' texts escaped.

        Args:
            messages: as clients send them.
            options: further variables of the template.

        Raises:
            Invalid: a message is wrong, or the template refuses or fails on them.
        """
        clash = sorted(RESERVED & set(options or ()))
        if clash:
            raise Invalid(f"template.{clash[0]} is set by the head; leave it out", param="template")
        ready = [self._ready(message, escaper) for message in normalise(messages)]
        variables = {
            **self._named,
            **{
                key: _escaped(value, escaper.escape_inside, escaper)
                for key, value in (options or {}).items()
            },
            "messages": ready,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except _Refused as error:
            reason = escaper.restore(str(error)).strip().rstrip(".")
            raise Invalid(
                f"the chat template of model {self._model} refuses these messages: {reason}",
                param="messages",
            ) from error
        except MemoryError:
            raise
        except Exception as error:
            # A template is the model's program: any error in it is about these messages.
            raise Invalid(
                f"the chat template of model {self._model} fails on these messages "
                f"({_reason(error)}); see what it expects in chat_template.jinja",
                param="messages",
            ) from error

    def _ready(self, message: dict[str, Any], escaper: Escaper) -> dict[str, Any]:
        role = message["role"]
        if role == "developer" and not self._knows_developer:
            role = "system"
        rest = {key: value for key, value in message.items() if key != "role"}
        return {"role": role, **_escaped(rest, escaper.escape, escaper)}


def _escaped(value: Any, escape: Callable[[str], str], escaper: Escaper) -> Any:
    """A value with every text in it escaped; of names only the control tokens inside them."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {
            escaper.escape_inside(str(key)): _escaped(item, escape, escaper)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_escaped(item, escape, escaper) for item in value]
    return value


def _reason(error: Exception) -> str:
    """The kind of a template's error, and its text where that speaks of names only."""
    if isinstance(error, jinja2.UndefinedError):
        return str(error.message).rstrip(".")
    return type(error).__name__
