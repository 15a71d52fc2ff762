"""The blocking client over a real socket, against a scripted head."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import superfluid
from bus.client import Client
from bus.errors import Invalid, NoHead, NoNode, NotFound, TimedOut
from bus.rendered_prompt import RenderedPrompt
from tests.e2e.scripted_head import Body, ScriptedHead, answer_of, end, placed, token

ASK: list[dict[str, str]] = [{"role": "user", "content": "Hello"}]
#: Generous; nothing waits for it to pass.
PATIENCE_S = 30.0


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'api'}"


def _greeter(body: Body) -> list[Body]:
    if body["op"] == "chat":
        return answer_of("Hel", "lo")
    if body["op"] == "nodes":
        return [{"kind": "end", "nodes": [{"identity": "node-1-abc"}]}]
    if body["op"] == "tokenize":
        return [{"kind": "end", "tokens": [ord(c) for c in body["text"]]}]
    if body["op"] == "detokenize":
        return [{"kind": "end", "text": "".join(map(chr, body["tokens"]))}]
    if body["op"] == "render" and body["model"] == "m":
        text = f"{body['messages'][0]['content']} {body['tools'][0]['function']['name']}"
        return [{"kind": "end", "text": text, "tokens": [7], "opened": "<think>", "channels": "x"}]
    error = NotFound("this head has no model 'nope'", param="model").to_dict()
    return [{"kind": "error", "error": error}]


@pytest.fixture
def greeter(address: str) -> Iterator[ScriptedHead]:
    with ScriptedHead(address, _greeter) as head:
        yield head


def test_an_answer_as_a_whole(greeter: ScriptedHead) -> None:
    with superfluid.connect(greeter.address) as client:
        answer = client.chat("m", ASK, max_new=7, temperature=0.0).result()
    assert (answer.text, answer.tokens, answer.finish) == ("Hello", (0, 1), "stop")
    assert (answer.node, answer.session) == ("node-1-abc", "s1")
    assert (answer.usage.prompt, answer.usage.cached, answer.usage.completion) == (3, 1, 2)
    assert answer.timing.tokens_per_s == 50.0
    request = greeter.requests[0]
    assert (request["model"], request["max_new"], request["messages"]) == ("m", 7, ASK)


def test_an_answer_as_it_comes(greeter: ScriptedHead) -> None:
    with superfluid.connect(greeter.address) as client, client.chat("m", ASK).stream() as stream:
        seen = [(event.type, stream.text) for event in stream]
        assert stream.result().text == "Hello"
    assert seen == [("placed", ""), ("token", "Hel"), ("token", "Hello")]


def test_text_that_only_the_end_completes_is_streamed_too(address: str) -> None:
    def script(body: Body) -> list[Body]:
        return [token(0, [1], "caf"), end(1, text="é")]

    with ScriptedHead(address, script), Client(address) as client:
        texts = [
            event.text
            for event in client.generate("m", "p").stream()
            if isinstance(event, superfluid.Token)
        ]
    assert texts == ["caf", "é"]


def test_operations_give_plain_data(greeter: ScriptedHead) -> None:
    with Client(greeter.address) as client:
        assert client.nodes() == [{"identity": "node-1-abc"}]
        assert client.tokenize("m", "AB") == [65, 66]
        assert client.detokenize("m", [65, 66]) == "AB"
        assert client.ping() < 5.0


def test_render_gives_the_prompt(greeter: ScriptedHead) -> None:
    def lookup(word: str) -> str:
        """Look a word up."""
        return word

    with Client(greeter.address) as client:
        found = client.render("m", ASK, tools=[lookup], template={"a": 1}, continue_final=True)
        with pytest.raises(NotFound):
            client.render("nope", ASK)
    assert found == RenderedPrompt(f"{ASK[0]['content']} lookup", (7,), "<think>", "x")
    assert greeter.requests[0]["template"] == {"a": 1}
    assert greeter.requests[0]["continue_final"] is True
    assert greeter.requests[1]["tools"] is None


def test_an_error_reply_raises_its_class(greeter: ScriptedHead) -> None:
    with Client(greeter.address) as client:
        with pytest.raises(NotFound, match="no model 'nope'") as caught:
            client.generate("nope", "p").result()
        assert caught.value.param == "model"
        assert client.tokenize("m", "A") == [65]  # the connection goes on


def test_a_misspelt_option_is_found_before_it_is_sent(greeter: ScriptedHead) -> None:
    with Client(greeter.address) as client, pytest.raises(Invalid, match="temperature"):
        client.generate("m", "p", temprature=0.5)
    assert greeter.ops() == []


def test_no_head_is_said_at_once_with_the_remedy(address: str) -> None:
    with pytest.raises(NoHead, match="sfctl up"):
        Client(address)


def test_several_streams_interleave_in_one_thread(address: str) -> None:
    """The second is served whole while only the first is read, and the other way round."""
    with (
        ScriptedHead(address, lambda body: answer_of(*body["prompt"])) as head,
        Client(address) as client,
    ):
        calls = {text: client.generate("m", text) for text in ("abc", "de", "f")}
        texts = {text: call.result().text for text, call in reversed(calls.items())}
    assert texts == {"f": "f", "de": "de", "abc": "abc"}
    assert head.ops() == ["generate"] * 3


def test_a_long_answer_is_paced_by_credit(address: str) -> None:
    """The head sends as far as credit goes; reading grants more until the end."""
    total = 50
    sent: dict[str, int] = {"next": 0, "credit": 0}
    asked: list[bytes] = []

    class Paced(ScriptedHead):
        def _replies(self, body: Body) -> list[Body]:
            if body["op"] == "generate":
                asked.append(body["id"])
            sent["credit"] += body["credit"]
            replies: list[Body] = [{"kind": "end"}] if body["op"] == "more" else []
            while sent["credit"] and sent["next"] < total:
                event = {"id": asked[0], **token(sent["next"], [sent["next"]], ".")}
                replies.append(event)
                sent["next"] += 1
                sent["credit"] -= 1
            if sent["next"] == total and sent["credit"]:
                replies.append({"id": asked[0], **end(total)})
            return replies

    with Paced(address, lambda body: []) as head, Client(address) as client:
        answer = client.generate("m", "p", credit=8).result(timeout_s=20)
    assert answer.tokens == tuple(range(total))
    assert head.ops().count("more") >= total // 8


def test_cancel_ends_the_answer_as_cancelled(address: str) -> None:
    asked: list[bytes] = []

    def script(body: Body) -> list[Body]:
        if body["op"] == "generate":
            asked.append(body["id"])
            return [token(0, [1], "one")]
        assert (body["op"], body["about"]) == ("cancel", asked[0])
        return [{"kind": "end"}, {"id": asked[0], **end(1, finish="cancelled")}]

    with ScriptedHead(address, script), Client(address) as client:
        with client.generate("m", "p").stream() as stream:
            for event in stream:
                if event.type == "token":
                    stream.cancel()
        assert stream.result().finish == "cancelled"
        assert stream.text == "one"


def test_a_wait_has_a_limit_and_the_request_goes_on(address: str) -> None:
    with (
        ScriptedHead(address, lambda body: [token(0, [1], "x")]) as head,
        Client(address) as client,
    ):
        call = client.generate("m", "p")
        with pytest.raises(TimedOut, match="wait again"):
            call.result(timeout_s=0.1)
        assert call.text == "x"
        assert not call.done
        with pytest.raises(TimedOut, match="raise the timeout"):
            client.generate("m", "p", timeout_s=0.1).result()
        assert client.ping() < 5.0
    assert "cancel" in head.ops()


def test_interrupting_a_wait_cancels_at_the_head(address: str) -> None:
    cancelled = threading.Event()

    def script(body: Body) -> list[Body]:
        if body["op"] == "cancel":
            cancelled.set()
        return []

    with ScriptedHead(address, script), Client(address) as client:
        call = client.generate("m", "p")
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                call.result()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert cancelled.wait(10)


def test_leaving_a_stream_early_cancels(address: str) -> None:
    cancelled = threading.Event()

    def script(body: Body) -> list[Body]:
        if body["op"] == "cancel":
            cancelled.set()
            return []
        return [token(0, [1], "x")]

    with ScriptedHead(address, script), Client(address) as client:
        with client.generate("m", "p").stream() as stream:
            next(stream)
        assert cancelled.wait(10)


def test_closing_says_goodbye_when_something_is_open(address: str) -> None:
    def script(body: Body) -> list[Body]:
        return [{"kind": "end"}] if body["op"] == "goodbye" else []

    with ScriptedHead(address, script) as head:
        with Client(address) as client:
            call = client.generate("m", "p")
        assert head.ops() == ["generate", "goodbye"]
        with pytest.raises(NoHead, match="closed"):
            call.result()
        with Client(address) as client:
            assert client.ping() < 5.0
        assert head.ops() == ["generate", "goodbye"]


def test_closing_does_not_wait_for_a_head_that_says_nothing(address: str) -> None:
    with ScriptedHead(address, lambda body: []):
        client = Client(address)
        client.generate("m", "p")
        started = time.monotonic()
        client.close()
        assert time.monotonic() - started < 5.0


def test_an_answer_goes_on_when_the_head_comes_back(address: str) -> None:
    """Tokens before the cursor are not asked for again, none after it is skipped."""

    def first(body: Body) -> list[Body]:
        return [placed(), token(0, [0], "a"), token(1, [1], "b")]

    def second(body: Body) -> list[Body]:
        assert (body["op"], body["key"], body["offset"]) == ("attach", "k", 2)
        return [token(2, [2], "c"), token(3, [3], "d"), end(4)]

    texts = []
    with ExitStack() as stack:
        head = stack.enter_context(ScriptedHead(address, first))
        client = stack.enter_context(Client(address))
        call = client.generate("m", "p", key="k")
        for event in stack.enter_context(call.stream()):
            if isinstance(event, superfluid.Token):
                texts.append((event.offset, event.text))
                if event.offset == 1:
                    head.close()
                    stack.enter_context(ScriptedHead(address, second))
    assert texts == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert call.result().tokens == (0, 1, 2, 3)


def test_a_head_that_goes_away_ends_what_can_not_go_on(address: str) -> None:
    with ScriptedHead(address, lambda body: []) as head, Client(address) as client:
        call = client.generate("m", "p")
        while not head.ops():
            assert client.ping() < 5.0
        head.close()
        with pytest.raises(NoHead, match="key"):
            call.result()
        with pytest.raises(NoHead):
            client.operation("nodes", timeout_s=0.2)


def test_what_is_asked_while_a_head_restarts_waits_for_it(address: str) -> None:
    with ExitStack() as stack:
        head = stack.enter_context(ScriptedHead(address, _greeter))
        client = stack.enter_context(Client(address))
        assert client.nodes()
        head.close()
        client.pump(client.clock() + PATIENCE_S)  # Until it has seen that the connection ended.
        with pytest.raises(NoHead):
            client.operation("nodes", timeout_s=0.0)
        again = threading.Timer(0.3, lambda: stack.enter_context(ScriptedHead(address, _greeter)))
        again.start()
        assert client.chat("m", ASK).result().text == "Hello"
        again.join()


def test_no_head_is_waited_for_longer_than_what_is_open_may_take(address: str) -> None:
    with ScriptedHead(address, lambda body: []) as head, Client(address) as client:
        call = client.generate("m", "p", key="k", timeout_s=1.0)
        while not head.ops():
            assert client.ping() < 5.0
        head.close()
        started = time.monotonic()
        with pytest.raises(TimedOut):
            call.result()
        # Well below the 15 s that a head is waited for.
        assert time.monotonic() - started < 8.0


def test_the_error_of_a_missing_node_keeps_its_reasons(address: str) -> None:
    error = NoNode("none can serve m", details={"node-1": "down"}, retry_after_ms=700)
    script = {"kind": "error", "error": error.to_dict()}
    with ScriptedHead(address, lambda body: [script]), Client(address) as client:
        with pytest.raises(NoNode) as caught:
            client.generate("m", [1, 2]).result()
        assert caught.value.details == {"node-1": "down"}
        assert caught.value.retry_after_ms == 700
