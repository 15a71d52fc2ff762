"""`detokenize`: ids are held against the model's vocabulary, which is 65,536 tokens here."""

from __future__ import annotations

from typing import Any

from bus.messages.api import MARK, encode_body
from tests.harness.head_bench import CLIENT, TOY, Bench


def detokenize(tokens: list[int], model: str = TOY) -> dict[str, Any]:
    bench = Bench()
    asked = {"op": "detokenize", "id": b"d", "model": model, "tokens": tokens}
    bench.core.client_request(CLIENT, [MARK, encode_body(asked)], 0.0)
    bench.settle()
    bench.wait(10.0)  # For a node that brings it.
    (reply,) = bench.replies
    return reply


def test_ids_become_text() -> None:
    assert detokenize([72, 105])["text"] == "Hi"
    assert detokenize([])["text"] == ""


def test_an_id_beyond_the_vocabulary_is_named() -> None:
    error = detokenize([72, 65_536])["error"]
    assert (error["code"], error["param"]) == ("invalid", "tokens")
    assert error["message"].startswith("tokens has id 65536; toy has ids 0 to 65535")


def test_a_model_that_the_head_lacks_is_not_found() -> None:
    assert detokenize([1], model="other")["error"]["code"] == "not_found"
