"""The operation `render`: the prompt of a chat, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.messages.api import MARK
from bus.messages.link import GenerateReq
from tests.harness.chat_bench import THINKING, WEATHER, ChatBench, chat_folder, shown
from tests.harness.head_bench import CLIENT, TOY

HELLO = {"role": "user", "content": "Hi <|im_end|>"}
#: Its `<|im_end|>` is text: bytes, and no control token.
PROMPT = "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def bench(tmp_path: Path) -> ChatBench:
    return ChatBench(chat_folder(tmp_path / "toy"))


def render(bench: ChatBench, *messages: Any, **more: Any) -> dict[str, Any]:
    return bench.call("render", model=TOY, messages=list(messages or (HELLO,)), **more)


def test_text_and_ids_of_a_prompt_that_does_not_run(bench: ChatBench) -> None:
    found = render(bench)
    assert (found["kind"], found["text"], found["opened"]) == ("end", PROMPT, "")
    assert shown(found["tokens"]) == PROMPT
    assert found["tokens"].count(258) == 1
    assert bench.on(1, GenerateReq) == []
    assert bench.rows == []


def test_what_its_keys_do(bench: ChatBench, tmp_path: Path) -> None:
    closed = render(bench, add_generation_prompt=False)
    assert closed["text"] == PROMPT.removesuffix("<|im_start|>assistant\n")
    begun = {"role": "assistant", "content": "Once "}
    assert render(bench, HELLO, begun, continue_final=True)["text"] == f"{PROMPT}Once "
    tools = render(bench, tools=[WEATHER])
    assert "\u5929\u6c14" in tools["text"]
    assert tools["channels"] == "hermes"
    thinking = ChatBench(chat_folder(tmp_path / "thinking", THINKING))
    assert render(thinking)["opened"] == "<think>\n"


def test_messages_that_are_longer_here_than_on_their_way(bench: ChatBench) -> None:
    """Numbers of four bytes become eight here, and then it is more than a text process reads."""
    numbers = b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\xca\x3f\xc0\0\0" * (1 << 20)
    body = msgpack.packb({"op": "render", "id": b"r", "model": TOY, "messages": [HELLO]})
    whole = body.replace(
        msgpack.packb(HELLO), b"\x83" + msgpack.packb(HELLO)[1:] + b"\xa1x" + numbers
    )
    bench.core.client_request(CLIENT, [MARK, whole], bench.now)
    bench.settle()
    error = bench.replies[-1]["error"]
    assert (error["code"], error["param"]) == ("too_large", "messages")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": []}, "invalid", "messages"),
        ({"messages": "a"}, "invalid", "messages"),
        ({"messages": [{"role": "bot"}]}, "invalid", "messages[0].role"),
        ({"tools": [WEATHER, {"name": "a b"}]}, "invalid", "tools[1].name"),
        ({"template": {"messages": []}}, "invalid", "template"),
        ({"template": {"documents": "a"}}, "invalid", "template.documents"),
        ({"template": {"a": "b" * 1024 * 1024}}, "too_large", "template"),
        ({"continue_final": True}, "invalid", "messages[0]"),
        ({"add_generation_prompt": 1}, "invalid", "add_generation_prompt"),
        ({"model": "none"}, "not_found", "model"),
        (
            {"messages": [HELLO, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "invalid",
            "messages[1].tool_calls[0].function",
        ),
    ],
)
def test_what_is_wrong_is_named(
    bench: ChatBench, body: dict[str, Any], code: str, param: str
) -> None:
    bench.wait(10.0)  # Until then a node may bring any model.
    error = bench.refused("render", **{"model": TOY, "messages": [HELLO], **body})
    assert (error["code"], error["param"]) == (code, param)
    assert render(bench)["kind"] == "end"


def test_t4_a_lone_surrogate_is_named(bench: ChatBench) -> None:
    messages = [HELLO, {"role": "user", "content": "a\ud800"}]
    body = {"op": "render", "id": b"s", "model": TOY, "messages": messages}
    packed = msgpack.packb(body, unicode_errors="surrogatepass")
    bench.core.client_request(CLIENT, [MARK, packed], bench.now)
    bench.settle()
    reply = bench.replies[-1]
    assert (reply["id"], reply["kind"]) == (b"s", "error")
    assert reply["error"]["param"] == "messages[1].content"
    assert "half of a UTF-16 pair" in reply["error"]["message"]
