"""The client's part for conversations: sessions, messages with tools, and chats at the head."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from bus.answer import Answer
from bus.call import Pump
from bus.chat_call import ChatAsk, ChatCall
from bus.client_request import checked_messages, checked_options, checked_template
from bus.errors import Invalid, WireError
from bus.fields import kind_of
from bus.ids import RequestId
from bus.messages.api import DEFAULT_CREDIT, MAX_KEY_BYTES
from bus.session_handle import Operations, Session
from bus.tool_functions import checked_tools, tool_name
from bus.tool_results import Message


class Conversations(Pump, Operations):
    """What `Client` has for sessions and chats; it gives the connection."""

    @abstractmethod
    def _ask(
        self, op: str, body: Mapping[str, Any], timeout_s: float | None, credit: int
    ) -> RequestId:
        """Send a request for an answer."""

    # --- sessions ---------------------------------------------------------------------------

    def new_session(self, model: str, *, qos: str = "interactive") -> Session:
        """Make a session for several turns."""
        found = self.operation("session.create", model=model, qos=qos).get("session")
        if not isinstance(found, str):
            raise WireError("the head answered session.create without session; are versions equal?")
        return Session(self, found)

    def open_session(self, session: str) -> Session:
        """A session by its name, which is looked for when it is used."""
        return Session(self, session)

    # --- chats ------------------------------------------------------------------------------

    def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        parallel_tool_calls: bool | None = None,
        channels: str | None = None,
        continue_final: bool | None = None,
        template: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        credit: int = DEFAULT_CREDIT,
        **options: Any,
    ) -> ChatCall:
        """Ask for the next message of a conversation.

        Args:
            model: its name in the fleet.
            messages: maps with `role` and `content`.
            tools: that the model may call: maps with `name`, `description` and `parameters`, or
                Python functions, which `run_tools` of the call runs.
            tool_choice: `auto`, `none`, `required`, or a map with the `name` of one.
            parallel_tool_calls: whether an answer may have several calls; it may unless said.
            channels: how the model writes reasoning and calls, by name; `plain` leaves them in the
                text. None goes by its template.
            continue_final: whether the answer goes on with the last message, the assistant's.
            template: further variables for the model's chat template.
            timeout_s: how long the answer may take from now on.
            credit: events that may wait here unread, 1 to 4096.
            **options: as for `generate`.

        Raises:
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        given = checked_messages(messages)
        kept: dict[str, Any] = {
            "tools": tools,
            "parallel_tool_calls": parallel_tool_calls,
            "channels": channels,
            "template": template,
            "timeout_s": timeout_s,
            "credit": credit,
        }

        def follow(answer: Answer, told: Sequence[Message], turn: str) -> ChatCall:
            whole = [*given, answer.message(), *told]
            return self.chat(model, whole, **kept, **_next_options(options, turn))

        named = {"model": model, "continue_final": continue_final}
        return self._chat("chat", named, given, tool_choice, kept, options, follow)

    def session_chat(
        self,
        session: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tool_choice: Any = None,
        **options: Any,
    ) -> ChatCall:
        """Say something in a session, whose context is kept token by token.

        Args:
            session: its name.
            messages: only what is new since its last answer.
            tool_choice: as for `chat`.
            **options: all others of `chat`.

        Raises:
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        given = checked_messages(messages)
        kept = {name: options.pop(name, None) for name in _CHAT_KEYS}

        def follow(answer: Answer, told: Sequence[Message], turn: str) -> ChatCall:
            return self.session_chat(session, told, **kept, **_next_options(options, turn))

        named = {"session": session}
        return self._chat("session.chat", named, given, tool_choice, kept, options, follow)

    def new_chat(
        self,
        model: str,
        *,
        system: str | None = None,
        tools: Sequence[Any] | None = None,
        qos: str = "interactive",
        **options: Any,
    ) -> Chat:
        """Begin a conversation that the head keeps, turn after turn.

        Args:
            model: its name in the fleet.
            system: how the model is to behave.
            tools: as for `chat`, for all turns.
            qos: who waits for whom.
            **options: of every turn, as for `chat`.

        Raises:
            NotFound: the fleet knows no such model.
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        _check_chat_options(tools, options)
        if system is not None and not isinstance(system, str):
            raise Invalid(f"system should be text, not {kind_of(system)}", param="system")
        session = self.new_session(model, qos=qos)
        return Chat(self, session.id, system=system, tools=tools, options=options)

    def open_chat(
        self, session: str, *, tools: Sequence[Any] | None = None, **options: Any
    ) -> Chat:
        """A conversation by its session's name, which is looked for when it is used.

        Args:
            session: its name.
            tools: that it was begun with; functions are not kept at the head.
            **options: of every turn, as for `chat`.

        Raises:
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        _check_chat_options(tools, options)
        return Chat(self, session, tools=tools, options=options)

    def _chat(
        self,
        op: str,
        named: Mapping[str, Any],
        messages: list[Message],
        tool_choice: Any,
        kept: Mapping[str, Any],
        options: Mapping[str, Any],
        follow: Any,
    ) -> ChatCall:
        tools, functions = checked_tools(kept["tools"] if kept["tools"] is not None else ())
        body: dict[str, Any] = {"messages": messages, **checked_options(options)}
        asked = {**named, "tools": tools or None, "tool_choice": tool_choice}
        asked |= {name: kept[name] for name in ("parallel_tool_calls", "channels")}
        asked["template"] = checked_template(kept["template"])
        body |= {name: value for name, value in asked.items() if value is not None}
        credit = DEFAULT_CREDIT if kept["credit"] is None else kept["credit"]
        request = self._ask(op, body, kept["timeout_s"], credit)
        names = frozenset(map(tool_name, tools))
        ask = ChatAsk(messages=messages, follow=follow, functions=functions, names=names)
        return ChatCall(self, request, ask)


#: Options of chats that are none of all answers.
_CHAT_KEYS = ("tools", "parallel_tool_calls", "channels", "template", "timeout_s", "credit")


def _check_chat_options(tools: Sequence[Any] | None, options: Mapping[str, Any]) -> None:
    """See that every turn can have these, before there is one."""
    checked_tools(tools if tools is not None else ())
    checked_template(options.get("template"))
    others = {name for name in options if name in _CHAT_KEYS or name == "tool_choice"}
    checked_options({name: options[name] for name in options.keys() - others})
    if "key" in options:
        raise Invalid("a key names one answer; give it to the turn that it is for", param="key")


def _next_options(options: Mapping[str, Any], turn: str) -> dict[str, Any]:
    """Those of a request that follows by itself: a key names one answer."""
    key = options.get("key")
    if not isinstance(key, str):
        return dict(options)
    key = f"{key}/{turn}"
    if len(key.encode()) > MAX_KEY_BYTES:
        key = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return {**options, "key": key}


class Chat(Session):
    """A conversation at the head; made by `Client.new_chat`, found by `Client.open_chat`.

    with superfluid.connect() as client:
        chat = client.new_chat("smollm2", system="You are brief.")
        print(chat.say("Name a river.").result().text)
        print(chat.say("And a longer one?").result().text)

    The head keeps the tokens of all turns as they were, so each turn costs what is new in it.
    """

    def __init__(
        self,
        client: Conversations,
        session: str,
        *,
        system: str | None = None,
        tools: Sequence[Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(client, session)
        self._talks = client
        self._tools = tools
        self._options = dict(options or {})
        self._system = system
        #: It may have turns; and it is known to have some.
        self._said = self._begun = False

    def __repr__(self) -> str:
        return f"Chat({self.id!r})"

    def say(self, text: str, **options: Any) -> ChatCall:
        """Say something; the call gives the answer, and runs tools when told to.

        Args:
            text: the user's message.
            **options: of this turn, as for `Client.chat`.

        Raises:
            SessionBusy: the last answer has not ended.
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        return self.send([{"role": "user", "content": text}], **options)

    def send(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatCall:
        """Add messages, such as the results of tools, and ask for the answer to them.

        Raises:
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        given = [*self._opening(), *checked_messages(messages)]
        asked = {"tools": self._tools, **self._options, **options}
        call = self._talks.session_chat(self.id, given, **asked)
        self._said = True
        return call

    def _opening(self) -> list[Message]:
        """What goes before the first turn, until that is there."""
        if self._system is None:
            return []
        if self._said and not self._begun:
            self._begun = bool(self.info().get("tokens"))
        return [] if self._begun else [{"role": "system", "content": self._system}]

    def fork(self, offset: int | None = None) -> Chat:
        """A new conversation with the same context, or its first `offset` tokens."""
        forked = Chat(
            self._talks,
            super().fork(offset).id,
            system=self._system,
            tools=self._tools,
            options=self._options,
        )
        forked._said = True
        return forked
