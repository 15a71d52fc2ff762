"""A chat's prompt: its messages and tools through the model's template, and what its end opened.

Texts of users are escaped before rendering (bus/text/escaping.py), and after it what the template
has not written itself (head/text/own_tokens.py), so that the control tokens in the result are its
own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.errors import Invalid, TooLarge
from bus.messages.text import MAX_TEXT_BYTES
from bus.text.escaping import MARK, Escaper
from head.json_values import check_json
from head.text.after_calls import CalledChat, after_calls
from head.text.behind_answer import ELSE, check_behind
from head.text.chat_escaping import MARKED, ChatEscaper
from head.text.fitting import CALL_FORM, fit
from head.text.messages import normalise
from head.text.opened import common_start, opened, unclosed
from head.text.own_tokens import Rendered, settle
from head.text.templates import ChatTemplate, Template
from head.text.tool_messages import Arguments, Message

#: Variables that the head sets; options of a request can not.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered chat.

    Attributes:
        text: with users' texts escaped.
        tail: what its end opened and did not close, as people read it.
        begins: whether it is the beginning of the context.
    """

    text: str
    tail: str
    begins: bool = True


@dataclass(frozen=True, slots=True)
class _Ready:
    """Messages as the template takes them, and the same escaped."""

    fitting: Sequence[Message]
    escaped: Sequence[Message]


class ChatPrompt:
    """One chat on its way through a template.

    Args:
        template: of the model.
        escaper: of this chat alone.
        messages: as clients send them.
        tools: in the form of head/tool_definitions.py.
        options: further variables of the template.

    Raises:
        Invalid: a message or a variable is wrong.
    """

    def __init__(
        self,
        template: ChatTemplate,
        escaper: Escaper,
        messages: object,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._template: Template = template.pick(tools, options)
        self._escaper = escaper
        self._messages = normalise(messages)
        self._tools = tools
        self._options = _checked(options or {})
        self._shown = ChatEscaper(escaper, self._template.words)
        self._variables = self._escaped_variables(self._shown)

    @property
    def format_source(self) -> str:
        """What tells how calls and reasoning are written in the answer.

        It is the template, and where that shows no tools the text that shows them.
        """
        look = self._template.look
        if self._tools and not look.shows_tools and not look.shows_calls:
            return f"{self._template.source}\n{CALL_FORM}"
        return self._template.source

    def whole(self, *, add_generation_prompt: bool = True) -> Prompt:
        """The prompt of an answer to the last message.

        Raises:
            Invalid: the template refuses or fails on the messages.
            TooLarge: it makes more text than one prompt may have.
        """
        ready = self._ready(self._messages)
        text = self._render(ready, add_generation_prompt=add_generation_prompt)
        return Prompt(text, self._tail(ready, text) if add_generation_prompt else "")

    def open_ended(self) -> Prompt:
        """The prompt of an answer that goes on with the last message.

        Raises:
            Invalid: it is no text of the assistant, or the template does not show it.
        """
        last = self._messages[-1]
        where = f"messages[{len(self._messages) - 1}]"
        if last["role"] != "assistant" or last.get("tool_calls") or not last["content"]:
            raise Invalid(
                f"{where} is not an answer's text that could be continued; end the messages with "
                "one of role assistant with content",
                param=where,
            )
        ready = self._ready([*self._messages[:-1], {**last, MARKED: True}])
        text = self._render_marked(ready, "end the messages with one of the user instead")
        tail = unclosed(last["content"], "", 0)
        return Prompt(text.rpartition(MARK)[0], tail or "")

    def after_answer(self, special: Collection[str] = (), ends: Collection[str] = ()) -> Prompt:
        """What follows the last answer among the messages.

        Args:
            special: texts of the model's control tokens.
            ends: those of them that end an answer.

        Raises:
            Invalid: there is no answer, or the template leaves it out, or what follows it.
        """
        place = max(
            (n for n, m in enumerate(self._messages) if m["role"] == "assistant"), default=-1
        )
        if place < 0:
            raise Invalid("messages has no answer that something could follow", param="messages")

        def behind(messages: Sequence[Message]) -> tuple[_Ready, str, str]:
            if messages[place].get("tool_calls"):
                return self._after_calls(messages, place, special, ends)
            return self._after_text(messages, place)

        ready, whole, text = behind(self._messages)
        check_behind(lambda said: self._escaper.restore(behind(said)[2]), self._messages, place)
        return Prompt(text, self._tail(ready, whole), begins=False)

    def _after_text(self, messages: Sequence[Message], place: int) -> tuple[_Ready, str, str]:
        """What follows the message at `place`: ready, all that is rendered, and the text."""
        marked = {"role": "assistant", "content": "", MARKED: True}
        ready = self._ready([*messages[:place], marked, *messages[place + 1 :]])
        text = self._render_marked(ready, ELSE).rpartition(MARK)[2]
        return ready, text, text

    def _after_calls(
        self,
        messages: Sequence[Message],
        place: int,
        special: Collection[str],
        ends: Collection[str],
    ) -> tuple[_Ready, str, str]:
        """The same where that message has calls."""
        ready = self._ready(messages)
        called = self._ready(messages[: place + 1])
        chat = CalledChat(
            whole=self._render(ready, add_generation_prompt=True),
            before=self._render(called, add_generation_prompt=False),
            other_calls=self._rendered([_with_other(one, "tool_calls") for one in messages]),
            other_results=self._rendered([_with_other(one, "content") for one in messages]),
        )
        text = after_calls(chat, special, ends)
        if text is None:
            raise Invalid(
                f"what follows a call can not be told from it in the model's chat template; {ELSE}",
                param="messages",
            )
        return ready, chat.whole, text

    def _rendered(self, messages: Sequence[Message]) -> str:
        return self._render(self._ready(messages), add_generation_prompt=True)

    def _escaped_variables(self, shown: ChatEscaper) -> Message:
        return {
            "documents": None,
            **{key: shown.value(value) for key, value in self._options.items()},
            "tools": [shown.tool(tool) for tool in self._tools] or self._template.look.no_tools,
        }

    def _ready(self, messages: Sequence[Message]) -> _Ready:
        """As the template takes them, and escaped."""
        fitting = fit(
            messages,
            self._tools,
            self._template.look,
            knows_developer=self._template.knows_developer,
        )
        return _Ready(fitting, [self._shown.message(message) for message in fitting])

    def _tail(self, ready: _Ready, text: str) -> str:
        """What the generation prompt at the end of a text opened."""
        try:
            closed = self._render(ready, add_generation_prompt=False).rpartition(MARK)[2]
        except Invalid:
            return ""
        generation = text[common_start(text, closed) :]
        return self._escaper.restore(opened(generation, self._template.look.answer_header))

    def _render_marked(self, ready: _Ready, remedy: str) -> str:
        text = self._render(ready, add_generation_prompt=ready.fitting[-1]["role"] != "assistant")
        if MARK not in text:
            raise Invalid(
                "the model's chat template leaves the last answer out, so nothing can follow it; "
                f"{remedy}",
                param="messages",
            )
        return text

    def _render(self, ready: _Ready, *, add_generation_prompt: bool) -> str:
        def render(variables: Message, messages: Sequence[Message]) -> Rendered:
            more = {"messages": messages, "add_generation_prompt": add_generation_prompt}
            return self._template.render({**variables, **more}, self._escaper)

        def masked() -> Rendered:
            shown = ChatEscaper(self._escaper, self._template.words, masked=True)
            messages = [shown.message(message) for message in ready.fitting]
            return render(self._escaped_variables(shown), messages)

        text = settle(render(self._variables, ready.escaped), masked, self._escaper)
        if len(text) > MAX_TEXT_BYTES:
            raise TooLarge(
                f"the prompt has more than {MAX_TEXT_BYTES} bytes; send fewer or shorter messages",
                param="messages",
            )
        return text


def _with_other(message: Message, key: str) -> Message:
    """A message with other calls, or other results of tools, where it has some."""
    if key == "content":
        return {**message, key: f"?{message[key]}"} if message["role"] == "tool" else message
    if key not in message:
        return message
    other = Arguments({"other": "?"}, '{"other": "?"}')
    calls = [
        {**call, "function": {**call["function"], "arguments": other}} for call in message[key]
    ]
    return {**message, key: calls}


def _checked(options: Mapping[str, object]) -> Any:
    clash = sorted(RESERVED & set(options))
    if clash:
        raise Invalid(f"template.{clash[0]} is set by the head; leave it out", param="template")
    documents = options.get("documents")
    if documents is not None and not (
        isinstance(documents, list) and all(isinstance(one, dict) for one in documents)
    ):
        raise Invalid(
            "template.documents should be a list of maps with title and text",
            param="template.documents",
        )
    return check_json(options, "template")
