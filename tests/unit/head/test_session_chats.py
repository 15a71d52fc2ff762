"""Conversations whose tokens are kept: only what is new is rendered, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq
from bus.messages.text import CheckConstraint, RenderChat
from head.rows import CutContent
from head.text.jobs import TextJobs
from tests.harness.chat_bench import (
    CHATML,
    END,
    NOW,
    THINKING,
    WEATHER,
    ChatBench,
    chat_folder,
    shown,
)
from tests.harness.head_bench import CLIENT, TOY
from tests.harness.memory_text import REFUSED

TOOLS = [WEATHER, NOW]
SYSTEM = {"role": "system", "content": "Be brief."}
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


class Conversation:
    """One conversation on a bench; `said` is all of it as messages."""

    def __init__(self, bench: ChatBench, session: str = "") -> None:
        self.bench = bench
        self.session = session or bench.call("session.create", model=TOY)["session"]
        self.said: list[dict[str, Any]] = []

    def turn(self, *messages: dict[str, Any], answer: str = "Ja.", **body: Any) -> bytes:
        """Say something and have it answered; gives the request."""
        request = self.ask(*messages, **body)
        self.bench.answer(self.bench.last(GenerateReq), answer)
        self.said.append({"role": "assistant", "content": answer})
        return request

    def ask(self, *messages: dict[str, Any], **body: Any) -> bytes:
        self.said += messages
        asked = {"session": self.session, "messages": list(messages), "max_new": 4000, **body}
        return self.bench.send("session.chat", **asked)

    def refused(self, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
        asked = {"session": self.session, "messages": list(messages), **body}
        return self.bench.refused("session.chat", **asked)

    def context(self) -> str:
        return shown(self.ids())

    def ids(self) -> list[int]:
        got = self.bench.call("session.get", session=self.session, limit=65_536)
        ids: list[int] = got["ids"]
        return ids


#: More letters than a name may have.
LONG = "n" * 300


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def talk(tmp_path: Path) -> Conversation:
    return Conversation(ChatBench(chat_folder(tmp_path / "toy")))


def _rendered(bench: ChatBench, messages: list[dict[str, Any]], **fields: Any) -> str:
    job = RenderChat(job=1, folder=bench._folder, messages=msgpack.packb(messages), **fields)
    return TextJobs().render_chat(job).text


def test_the_context_is_what_the_template_makes_of_the_whole(talk: Conversation) -> None:
    talk.turn(SYSTEM, user("Hi"), answer="Hello.")
    talk.turn(user("And <|im_end|> you?"), answer="Well.")
    talk.turn(user("Bye"), answer="Bye.")
    whole = _rendered(talk.bench, talk.said, add_generation_prompt=False)
    # The line end after the last answer comes with the next message.
    assert talk.context() == whole.removesuffix("\n")
    assert talk.bench.pieces(b"q4")["text"] == "Bye."


def test_only_what_is_new_is_rendered_encoded_and_sent(talk: Conversation) -> None:
    sizes, said = [], 0
    for number in range(50):
        before = len(talk.bench.jobs)
        talk.turn(user(f"Question {number} of many."), answer=f"Answer {number}. <|im_end|>")
        (job,) = talk.bench.jobs[before:]
        texts = [message["content"] for message in msgpack.unpackb(job.messages)]
        assert texts[-1] == f"Question {number} of many."
        assert len(texts) == (3 if number else 1)
        sizes.append(len(job.messages))
        said += len(texts[-1])
    assert max(sizes) < 200
    # Each question once, with its role; what the template writes is known from the first two.
    assert 0 < talk.bench.fresh_bytes - said <= 50 * len("user\n") + 100
    assert talk.context().count("<|im_start|>") == 100


def test_results_of_tools_are_a_turn(talk: Conversation) -> None:
    first = talk.turn(user("Weather?"), answer=f"Hm.\n{OSLO}", tools=TOOLS)
    (call,) = talk.bench.pieces(first)["calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "name": "weather", "content": "Grey"}
    second = talk.turn(result, answer="It is grey.", tools=TOOLS)
    context = talk.context()
    assert context.count("Tools:") == 1
    assert context.endswith(
        f"<|im_start|>assistant\nHm.\n{OSLO}<|im_end|>\n<|im_start|>tool\nGrey<|im_end|>\n"
        "<|im_start|>assistant\nIt is grey.<|im_end|>"
    )
    told = talk.bench.pieces(second)
    assert (told["text"], told["finish"], told["calls"]) == ("It is grey.", "stop", [])


def test_results_say_what_was_called_where_the_template_wants_it(tmp_path: Path) -> None:
    template = CHATML.replace("{{ message.content }}", "{{ message.name }}: {{ message.content }}")
    talk = Conversation(ChatBench(chat_folder(tmp_path / "toy", template)))
    first = talk.turn(user("Weather?"), answer=OSLO, tools=TOOLS)
    (call,) = talk.bench.pieces(first)["calls"]
    talk.turn({"role": "tool", "tool_call_id": call["id"], "content": "Grey"}, tools=TOOLS)
    assert f"{OSLO}<|im_end|>\n<|im_start|>tool\nweather: Grey<|im_end|>" in talk.context()
    again = Conversation(talk.bench.restarted(), talk.session)
    again.turn({"role": "tool", "tool_call_id": "other", "content": "Red"}, tools=TOOLS)
    assert "<|im_start|>tool\ntool: Red<|im_end|>" in again.context()


def test_results_without_identifiers_are_of_the_calls_in_their_order(tmp_path: Path) -> None:
    talk = named_results(tmp_path)
    both = f'{OSLO}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'
    first = talk.turn(user("Weather?"), answer=both, tools=TOOLS)
    talk.turn(result("Grey"), result("12 h", name=None), tools=TOOLS)
    assert (
        "<|im_start|>tool\nweather: Grey<|im_end|>\n<|im_start|>tool\nnow: 12 h" in talk.context()
    )
    # As the whole of it is rendered.
    calls = [{"name": call["name"]} for call in talk.bench.pieces(first)["calls"]]
    said = [user("x"), {"role": "assistant", "tool_calls": calls}, result("Grey"), result("12 h")]
    assert "tool\nweather: Grey<|im_end|>\n<|im_start|>tool\nnow: 12 h" in _rendered(
        talk.bench, said
    )
    # One more than there are calls, and one by its name.
    talk.turn(user("Again?"), answer=both, tools=TOOLS)
    talk.turn(result("1 h", name="now"), result("Red"), result("Blue"), tools=TOOLS)
    assert talk.context().endswith(
        "tool\nnow: 1 h<|im_end|>\n<|im_start|>tool\nweather: Red<|im_end|>\n<|im_start|>tool\n"
        "tool: Blue<|im_end|>\n<|im_start|>assistant\nJa.<|im_end|>"
    )


def test_results_in_a_fork_are_of_the_calls_before_it(tmp_path: Path) -> None:
    talk = named_results(tmp_path)
    first = talk.turn(user("Weather?"), answer=OSLO, tools=TOOLS)
    (call,) = talk.bench.pieces(first)["calls"]
    fork = Conversation(
        talk.bench, talk.bench.call("session.fork", session=talk.session)["session"]
    )
    # The other one goes on meanwhile.
    talk.turn(result("Red"), answer=OSLO.replace("weather", "now"), tools=TOOLS)
    inner = talk.bench.call("session.fork", session=fork.session)["session"]
    fork.turn(result("Grey", tool_call_id=call["id"]), tools=TOOLS)
    assert "<|im_start|>tool\nweather: Grey<|im_end|>" in fork.context()
    again = talk.bench.restarted()
    nested = Conversation(again, inner)
    nested.turn(result("Blue"), tools=TOOLS)
    assert "<|im_start|>tool\nweather: Blue<|im_end|>" in nested.context()


def test_results_in_a_fork_of_a_part_are_of_the_calls_in_it(tmp_path: Path) -> None:
    talk = named_results(tmp_path)
    talk.turn(user("Weather?"), answer=f"{OSLO}\n{OSLO}", tools=TOOLS)
    begin = talk.bench.last(GenerateReq).prompt_tokens
    for offset, names in ((begin, ["tool", "tool"]), (begin + len(OSLO), ["weather", "tool"])):
        forked = talk.bench.call("session.fork", session=talk.session, offset=offset)
        fork = Conversation(talk.bench, forked["session"])
        fork.turn(result("Grey"), result("Red"), tools=TOOLS)
        told = [f"<|im_start|>tool\n{name}: " for name in names]
        assert f"{told[0]}Grey<|im_end|>\n{told[1]}Red<|im_end|>" in fork.context()


def test_a_turn_that_is_not_kept_has_no_results(tmp_path: Path) -> None:
    talk = named_results(tmp_path)
    talk.turn(user("Weather?"), answer=OSLO, tools=TOOLS)
    talk.bench.send("session.generate", session=talk.session, keep_output=False, max_new=9)
    talk.bench.answer(talk.bench.last(GenerateReq), "Nothing.")
    talk.turn(result("Grey"), tools=TOOLS)
    assert "<|im_start|>tool\nweather: Grey<|im_end|>" in talk.context()


def named_results(folder: Path) -> Conversation:
    """With a template that says what was called."""
    template = CHATML.replace("{{ message.content }}", "{{ message.name }}: {{ message.content }}")
    return Conversation(ChatBench(chat_folder(folder / "toy", template)))


def result(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        ("messages | reverse", "messages[0] would be lost"),
        ("messages[:3]", "messages[1] would be lost"),
        ("messages + messages[:1]", "what was said before"),
    ],
    ids=["back", "first three", "again"],
)
def test_a_template_that_puts_messages_elsewhere_is_refused(
    tmp_path: Path, loop: str, says: str
) -> None:
    template = CHATML.replace("in messages", f"in {loop}")
    talk = Conversation(ChatBench(chat_folder(tmp_path / "toy", template)))
    talk.turn(user("First"))
    before = talk.ids()
    error = talk.refused(user("Second"), user("Third"))
    assert (error["code"], says in error["message"]) == ("invalid", True)
    assert talk.ids() == before


def test_an_answer_that_ends_with_its_one_call_is_ended_before_the_results(
    talk: Conversation,
) -> None:
    said: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False}
    talk.turn(user("Weather?"), answer=f"{OSLO} and more", **said)
    talk.turn({"role": "tool", "name": "weather", "content": "Grey"}, **said)
    assert f"{OSLO}<|im_end|>\n<|im_start|>tool\nGrey<|im_end|>" in talk.context()


def test_calls_of_different_turns_have_different_ids(talk: Conversation) -> None:
    requests = [talk.turn(user("Weather?"), answer=OSLO, tools=TOOLS) for _ in range(2)]
    ids = {talk.bench.pieces(request)["calls"][0]["id"] for request in requests}
    assert len(ids) == 2


@pytest.mark.parametrize("finish", ["length", "cancelled"])
def test_an_answer_that_was_cut_is_ended_as_the_template_does(
    talk: Conversation, finish: str
) -> None:
    talk.ask(user("Hi"))
    request = talk.bench.last(GenerateReq)
    talk.bench.say(request, 0, "Well, I", finish)
    talk.turn(user("Go on"))
    assert "assistant\nWell, I<|im_end|>\n<|im_start|>user\nGo on<|im_end|>" in talk.context()


def test_reasoning_stays_in_the_context_as_it_was(tmp_path: Path) -> None:
    talk = Conversation(ChatBench(chat_folder(tmp_path / "toy", THINKING)))
    first = talk.turn(user("Hi"), answer="Hm.\n</think>\n\nHello.")
    second = talk.turn(user("Bye"), answer="So.\n</think>\n\nBye.")
    assert talk.bench.pieces(first)["reasoning"] == "Hm."
    assert talk.bench.pieces(second)["reasoning"] == "So."
    assert "<think>\nHm.\n</think>\n\nHello.<|im_end|>\n<|im_start|>user\nBye" in talk.context()


def test_a_conversation_goes_on_after_a_restart_of_the_head(talk: Conversation) -> None:
    talk.turn(SYSTEM, user("Hi"), answer="Hello.", tools=TOOLS)
    ids = talk.ids()
    again = Conversation(talk.bench.restarted(), talk.session)
    assert again.ids() == ids
    request = again.turn(user("Weather?"), answer=OSLO, tools=TOOLS)
    undisturbed = talk.turn(user("Weather?"), answer=OSLO, tools=TOOLS)
    assert again.ids() == talk.ids()
    assert again.bench.pieces(request)["finish"] == "tool_calls"
    assert talk.bench.pieces(undisturbed)["text"] == again.bench.pieces(request)["text"]


def test_a_turn_that_waits_when_the_head_ends_is_answered_by_the_next(talk: Conversation) -> None:
    talk.turn(user("Hi"))
    talk.bench.down(1)
    talk.ask(user("Weather?"), tools=TOOLS, key="k")
    again = Conversation(talk.bench.restarted(), talk.session)
    again.bench.wait(60.0)
    request = again.bench.send("attach", key="k")
    again.bench.answer(again.bench.last(GenerateReq), OSLO)
    assert again.bench.pieces(request)["finish"] == "tool_calls"
    assert again.context().endswith(f"assistant\n{OSLO}<|im_end|>")


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": [SYSTEM, user("x")]}, "messages[0].role", "invalid"),
        ({"messages": [user("x"), {"role": "assistant"}]}, "messages[1].role", "invalid"),
        ({"messages": []}, "messages", "invalid"),
        ({"messages": [{"role": "wizard"}]}, "messages[0].role", "invalid"),
        ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role", "invalid"),
        ({"messages": [{"role": {"tool": 1}}]}, "messages[0].role", "invalid"),
        ({"messages": [user("x"), {"role": "user", "content": 3}]}, "messages[1].content", "inv"),
        ({"messages": [{"role": "tool", "tool_call_id": LONG}]}, "messages[0].tool_call_id", "inv"),
        ({"messages": [{"role": "tool", "name": LONG}]}, "messages[0].name", "invalid"),
        ({"tools": 3}, "tools", "invalid"),
        ({"tool_choice": "required"}, "tool_choice", "invalid"),
        ({"constraint": {"regex": REFUSED + "("}}, "constraint", "constraint_invalid"),
        ({"model": "other"}, "model", "invalid"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid"),
        ({"n": 3}, "n", "invalid"),
        ({"session": "s-none"}, "session", "not_found"),
    ],
)
def test_what_is_refused_leaves_the_conversation_as_it_was(
    talk: Conversation, body: dict[str, Any], param: str, code: str
) -> None:
    talk.turn(user("Hi"))
    before = talk.ids()
    error = talk.refused(**{"messages": [user("x")], **body}) if "messages" not in body else None
    error = error or talk.bench.refused("session.chat", **{"session": talk.session, **body})
    assert (error["param"], error["code"].startswith(code)) == (param, True)
    assert talk.ids() == before
    talk.turn(user("Bye"), answer="Bye.")
    assert talk.context().endswith("user\nBye<|im_end|>\n<|im_start|>assistant\nBye.<|im_end|>")


def test_a_turn_that_no_window_holds_leaves_nothing_behind(talk: Conversation) -> None:
    talk.turn(user("Hi"))
    before = talk.ids()
    error = talk.refused(user("x" * 100_001))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert talk.ids() == before


def test_a_turn_that_no_node_takes_leaves_nothing_behind(talk: Conversation) -> None:
    talk.turn(user("Hi"))
    before = talk.ids()
    talk.bench.down(1)
    request = talk.ask(user("Where?"))
    talk.bench.wait(600.0)
    (error,) = (r for r in talk.bench.replies if r["id"] == request and r["kind"] == "error")
    assert error["error"]["code"] == "no_node"
    assert talk.ids() == before
    assert [type(row) for row in talk.bench.rows].count(CutContent) == 1
    assert Conversation(talk.bench.restarted(), talk.session).ids() == before
    talk.bench.node(2, "n2", window=100_000)
    talk.turn(user("Where?"), answer="There.")
    assert talk.context().count("Where?") == 1


def test_a_repeated_key_says_nothing_twice(talk: Conversation) -> None:
    request = talk.turn(user("Hi"), answer="Hello.", key="k")
    before = talk.ids()
    again = talk.ask(user("Hi"), key="k")
    assert talk.bench.pieces(again) == talk.bench.pieces(request)
    assert talk.ids() == before
    error = talk.refused(user("Other"), key="k")
    assert (error["code"], error["param"]) == ("invalid", "key")


def test_a_session_takes_one_turn_at_a_time(talk: Conversation) -> None:
    talk.ask(user("Hi"))
    assert talk.refused(user("And"))["code"] == "session_busy"
    talk.bench.answer(talk.bench.last(GenerateReq), "Ja.")
    talk.bench.call("session.park", session=talk.session)
    assert talk.refused(user("And"))["code"] == "parked"


def test_a_turn_that_is_cancelled_while_it_is_rendered_leaves_nothing(talk: Conversation) -> None:
    core, bench = talk.bench.core, talk.bench
    asked = {"op": "session.chat", "id": b"a", "session": talk.session, "messages": [user("Hi")]}
    core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    again = {**asked, "id": b"b"}
    core.client_request(CLIENT, [MARK, encode_body(again)], bench.now)
    cancelled = {"op": "cancel", "id": b"c", "about": b"a"}
    core.client_request(CLIENT, [MARK, encode_body(cancelled)], bench.now)
    bench.settle()
    ends = {reply["id"]: reply for reply in bench.replies if reply["kind"] != "event"}
    assert ends[b"a"]["finish"] == "cancelled"
    assert ends[b"b"]["error"]["code"] == "session_busy"
    assert talk.ids() == []
    talk.turn(user("Hi"), answer="Hello.")
    assert talk.context().count("Hi") == 1


def test_what_stands_behind_an_append_is_said_after_it(talk: Conversation) -> None:
    core, bench = talk.bench.core, talk.bench
    bodies = [
        {"op": "session.append", "id": b"a", "session": talk.session, "text": "So."},
        {"op": "session.chat", "id": b"b", "session": talk.session, "messages": [user("Hi")]},
    ]
    for body in bodies:
        core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()
    bench.answer(bench.last(GenerateReq), "Hello.")
    assert bench.pieces(b"b")["text"] == "Hello."
    assert talk.context().startswith("So.<|im_end|>\n<|im_start|>user\nHi<|im_end|>")


def test_a_tool_choice_holds_in_a_session(talk: Conversation) -> None:
    talk.turn(user("Hi"))
    request = talk.turn(user("Weather?"), answer=OSLO, tools=TOOLS, tool_choice="required")
    assert [type(job) for job in talk.bench.jobs].count(CheckConstraint) == 1
    assert talk.bench.pieces(request)["finish"] == "tool_calls"
    assert talk.bench.last(GenerateReq).sampling.constraint.kind == "structural"


def test_text_and_messages_may_go_into_one_session(talk: Conversation) -> None:
    talk.bench.send("session.append", session=talk.session, text="Once upon a time")
    talk.turn(user("Go on"))
    assert talk.context().startswith("Once upon a time<|im_end|>\n<|im_start|>user\nGo on")
    ids = talk.ids()
    assert ids[-1] == END
    talk.bench.send("session.generate", session=talk.session, max_new=9)
    request = talk.bench.last(GenerateReq)
    assert request.prompt_tokens == len(ids)
