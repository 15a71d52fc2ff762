"""Nodes that did not give a tokenizer: asked again later and later, and known boundedly."""

from __future__ import annotations

from bus.errors import TokenizerUnavailable
from bus.ids import ModelName, NodeIdentity
from head.fetch_failures import MAX_KEPT, FetchFailures
from head.fleet_node import Node
from head.kept_tokenizers import TokenizerKey

NODE = Node(identity=NodeIdentity("n1"), incarnation=1)
WHY = TokenizerUnavailable("no")


def key(number: int, digest: int = 1) -> TokenizerKey:
    return TokenizerKey(ModelName(f"m{number}"), digest, digest)


def test_each_failure_doubles_the_wait_up_to_a_minute() -> None:
    failures = FetchFailures()
    waits = [failures.add(key(1), NODE.identity, 1, WHY, 100.0) - 100.0 for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert not failures.may_ask(key(1), NODE, 159.9)
    assert failures.may_ask(key(1), NODE, 160.0)
    # What is new there is asked for at once.
    assert failures.may_ask(key(1, digest=2), NODE, 100.0)
    failures.remove(ModelName("m1"), NODE.identity)
    assert failures.add(key(1), NODE.identity, 1, WHY, 100.0) == 101.0


def test_a_node_that_names_ever_new_models_fills_no_memory() -> None:
    failures = FetchFailures()
    for number in range(MAX_KEPT):
        failures.add(key(number), NODE.identity, 1, WHY, 0.0)
    failures.add(key(0), NODE.identity, 1, WHY, 0.0)
    failures.add(key(MAX_KEPT), NODE.identity, 1, WHY, 0.0)
    # Of those the one that failed longest ago is forgotten, and the first failed again since.
    assert [failures.may_ask(key(number), NODE, 0.0) for number in (0, 1, 2)] == [
        False,
        True,
        False,
    ]
