"""Chat templates: a model's own Jinja source, rendered in a sandbox.

A model may have several, by name: `tool_use` is taken when tools are given, `rag` when documents
are, and `default` otherwise. Whatever goes wrong inside a template becomes one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bus.errors import Invalid
from bus.text.escaping import Escaper
from head.text.own_tokens import OwnTokens, Rendered
from head.text.template_environment import TemplateRefusal, make_environment
from head.text.template_look import TemplateLook

DEFAULT, TOOL_USE, WITH_DOCUMENTS = "default", "tool_use", "rag"
#: Whose text a template's refusal may quote, and how much of it a sentence has room for.
_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class _Marked:
    """A template compiled with marks for these control tokens."""

    special: tuple[str, ...]
    own: OwnTokens
    template: jinja2.Template
    named: Mapping[str, str]


class Template:
    """One template, compiled.

    Args:
        model: for messages.
        source: Jinja source.
        named_tokens: variables of every rendering.
        environment: what it is compiled in.

    Raises:
        Invalid: it can not be compiled.
    """

    def __init__(
        self,
        model: str,
        source: str,
        named_tokens: Mapping[str, str],
        environment: ImmutableSandboxedEnvironment,
    ) -> None:
        self.source = source
        self._model = model
        self._named = named_tokens
        self._kept: _Marked | None = None
        #: Templates that know `developer` handle it; for the others it is what `system` was.
        self.knows_developer = "developer" in source
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:
            raise Invalid(
                f"the chat template of model {model} can not be read: {_syntax(error)}; put a "
                "working one into its folder as chat_template.jinja",
                param="model",
            ) from error

    @cached_property
    def look(self) -> TemplateLook:
        """What it makes of messages of each kind."""
        return TemplateLook(self._try)

    @cached_property
    def words(self) -> frozenset[str]:
        """What it compares with, and the names that it looks up."""
        tree = self._template.environment.parse(self.source)
        constants = {node.value for node in tree.find_all(jinja2.nodes.Const)}
        names = {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
        return frozenset(names | {text for text in constants if isinstance(text, str)})

    def render(self, variables: Mapping[str, Any], escaper: Escaper) -> Rendered:
        """The text that it makes, and where its own control tokens are in it.

        Raises:
            Invalid: it refuses or fails on the variables.
        """
        marked = self._marked(escaper.texts)
        try:
            return marked.own.read(marked.template.render({**marked.named, **variables}))
        except TemplateRefusal as error:
            said = escaper.restore(marked.own.read(str(error)).text)
            reason = " ".join(said.split()).rstrip(".")
            shown = reason.encode("utf-8", "replace").decode()[:_REASON_CHARACTERS]
            raise Invalid(
                f"the chat template of model {self._model} refuses these messages: {shown}",
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

    def _marked(self, special: tuple[str, ...]) -> _Marked:
        """The template with its control tokens marked; a model's are the same every time."""
        if self._kept is None or self._kept.special != special:
            own = OwnTokens(special)
            template = own.compile(self._template.environment, self.source)
            named = {name: own.mark(text) for name, text in self._named.items()}
            self._kept = _Marked(special, own, template, named)
        return self._kept

    def _try(self, variables: Mapping[str, Any]) -> str | None:
        try:
            return self._template.render({**self._named, **variables})
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - a template may fail in any way
            return None


class ChatTemplate:
    """The templates of a model; each is compiled when it is first needed.

    Args:
        model: for messages.
        source: Jinja source of the default one; None when the model has none.
        named_tokens: `bos_token`, `eos_token`, ... which templates write.
        wall_time: for templates that write today's date.
        named: sources of further ones, by name.

    Raises:
        Invalid: there is no template, or it can not be compiled.
    """

    def __init__(
        self,
        model: str,
        source: str | None,
        named_tokens: Mapping[str, str],
        wall_time: Callable[[], datetime] = datetime.now,
        named: Mapping[str, str] | None = None,
    ) -> None:
        self._sources = dict(named or {})
        if source is not None:
            self._sources[DEFAULT] = source
        if not self._sources:
            raise Invalid(
                f"model {model} has no chat template, as base models have none; complete a text "
                f"with: sfctl run --raw {model} TEXT (generate with a prompt), or put a template "
                "as chat_template.jinja into its folder",
                param="model",
            )
        self._model = model
        self._named = {name: named_tokens.get(name, "") for name in ("bos_token", "eos_token")}
        self._named.update(named_tokens)
        self._environment = make_environment(wall_time)
        self._compiled: dict[str, Template] = {}
        self.pick(())

    def pick(
        self, tools: Sequence[object], options: Mapping[str, object] | None = None
    ) -> Template:
        """The template for a chat with these tools and variables.

        Raises:
            Invalid: it can not be compiled, or there is none for chats like that.
        """
        wanted = [DEFAULT]
        if (options or {}).get("documents"):
            wanted.insert(0, WITH_DOCUMENTS)
        if tools:
            wanted.insert(0, TOOL_USE)
        name = next((name for name in wanted if name in self._sources), None)
        if name is None:
            # One that has only others by name: any is better than none.
            name = sorted(self._sources)[0]
        if name not in self._compiled:
            self._compiled[name] = Template(
                self._model, self._sources[name], self._named, self._environment
            )
        return self._compiled[name]


def _syntax(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.message} in line {error.lineno}"
    return type(error).__name__


def _reason(error: Exception) -> str:
    """The kind of a template's error, and its text where that speaks of names only."""
    if isinstance(error, jinja2.UndefinedError):
        return str(error.message).rstrip(".")
    return type(error).__name__
