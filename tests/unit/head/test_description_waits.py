"""What waits for a model's tokenizer is bounded, of a client and of all."""

from __future__ import annotations

import pytest

from bus.errors import QueueFull, RateLimited
from bus.ids import ModelName
from bus.messages.api import MARK, encode_body
from head.description_waits import MAX_OF_CLIENT, MAX_WAITING, DescriptionWaits
from head.effects import NOBODY, ClientKey
from head.pending_texts import MAX_CLIENT_BYTES
from tests.harness.fetch_bench import FetchBench, status
from tests.harness.head_bench import CLIENT

TOY = ModelName("toy")
ANN, BEN = ClientKey(b"ann"), ClientKey(b"ben")


def nothing(reply: object, now: float) -> None:
    """Nobody is told."""


def test_requests_of_a_client_are_counted_until_they_are_taken() -> None:
    waits = DescriptionWaits[ModelName]()
    for _ in range(MAX_OF_CLIENT):
        waits.add(TOY, nothing, ANN, 0)
    with pytest.raises(RateLimited) as caught:
        waits.add(ModelName("other"), nothing, ANN, 0)
    assert caught.value.retry_after_ms == 1000
    waits.add(TOY, nothing, BEN, 0)
    assert len(waits.take(TOY)) == MAX_OF_CLIENT + 1
    waits.add(TOY, nothing, ANN, 0)
    assert TOY in waits


def test_what_a_client_holds_is_counted() -> None:
    waits = DescriptionWaits[ModelName]()
    for _ in range(4):
        waits.add(TOY, nothing, ANN, MAX_CLIENT_BYTES // 4)
    with pytest.raises(QueueFull) as caught:
        waits.add(TOY, nothing, ANN, 1)
    assert caught.value.retry_after_ms == 1000
    for number in range(3):
        waits.add(TOY, nothing, ClientKey(bytes([number])), MAX_CLIENT_BYTES)
    with pytest.raises(QueueFull):
        waits.add(TOY, nothing, BEN, 1)
    waits.take(TOY)
    waits.add(TOY, nothing, ANN, MAX_CLIENT_BYTES)


def test_all_together_are_counted() -> None:
    waits = DescriptionWaits[ModelName]()
    for _ in range(MAX_WAITING):
        waits.add(TOY, nothing, NOBODY, 0)
    with pytest.raises(QueueFull):
        waits.add(TOY, nothing, ANN, 0)


@pytest.mark.parametrize("op", ["detokenize", "generate"])
def test_requests_of_token_ids_are_refused_when_too_many_wait(op: str) -> None:
    bench = FetchBench()
    bench.serve(1, "n1", status(phase="loading"))
    for number in range(MAX_OF_CLIENT + 1):
        asked = {"op": op, "id": str(number).encode(), "model": "toy", "tokens": [1, 2]}
        bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    bench.settle()
    (refused,) = [reply for reply in bench.replies if reply["kind"] == "error"]
    assert refused["id"] == str(MAX_OF_CLIENT).encode()
    assert refused["error"]["code"] == "rate_limited"


def test_an_append_that_is_refused_leaves_its_session_free() -> None:
    bench = FetchBench()
    bench.serve(1, "n1", status(phase="loading"))

    def ask(op: str, id: bytes, **body: object) -> dict[str, object]:
        before = len(bench.replies)
        request = encode_body({"op": op, "id": id, **body})
        bench.core.client_request(CLIENT, [MARK, request], bench.now)
        bench.settle()
        return bench.replies[-1] if len(bench.replies) > before else {}

    session = ask("session.create", b"s", model="toy")["session"]
    for number in range(MAX_OF_CLIENT):
        ask("detokenize", str(number).encode(), model="toy", tokens=[1])
    refused = ask("session.append", b"a", session=session, tokens=[1])["error"]
    assert isinstance(refused, dict)
    assert refused["code"] == "rate_limited"
    assert ask("session.get", b"g", session=session)["tokens"] == 0
