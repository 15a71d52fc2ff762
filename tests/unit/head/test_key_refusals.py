"""A refusal that passes is not kept under its request's key; what a node had is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.errors import ContextLengthExceeded, NoNode, QueueFull, RateLimited, SuperfluidError
from bus.ids import NodeIdentity
from bus.messages.api import MARK, encode_body
from bus.messages.link import Declined, GenerateReq
from head.core import CorePolicy
from head.rows import FINISHED, PurgeAnswers, PutAnswer, PutFinish
from head.runs import RunPolicy
from head.store import Store
from head.waiting import WaitingPolicy
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, TOY, Bench, run
from tests.harness.session_talk import Talk
from tests.harness.store_rows import commit

#: Longer than a head that is new, or lost a node, waits for one.
NODE_WAIT_S = 10.1


def ask(bench: Bench, request: bytes, **body: Any) -> None:
    asked = {"op": "generate", "id": request, "model": TOY, "prompt": "hi", "key": "k", **body}
    bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    bench.settle()


def code_of(bench: Bench, request: bytes) -> str:
    """The code of a request's error; empty while it has none."""
    bodies = [r for r in bench.replies if r["id"] == request and r["kind"] == "error"]
    return bodies[0]["error"]["code"] if bodies else ""


def rows(bench: Bench, *kinds: type) -> list[Any]:
    return [row for row in bench.rows if isinstance(row, kinds)]


def test_a_key_refused_at_once_is_a_new_try() -> None:
    bench = Bench()
    bench.wait(NODE_WAIT_S)
    ask(bench, b"a")
    assert code_of(bench, b"a") == "no_node"
    assert rows(bench, PutAnswer, PutFinish) == []
    bench.node(1)
    ask(bench, b"b")
    bench.hear(1, run(bench.last(GenerateReq), 0, 65, finish="eos"))
    assert bench.tokens() == [65]


def test_a_key_refused_after_it_waited_is_a_new_try() -> None:
    bench = Bench()
    ask(bench, b"a")
    bench.wait(NODE_WAIT_S)
    assert code_of(bench, b"a") == "no_node"
    # Until it is tried again, whoever missed the refusal can read it.
    attach = {"op": "attach", "id": b"b", "key": "k"}
    bench.core.client_request(CLIENT, [MARK, encode_body(attach)], bench.now)
    bench.settle()
    assert code_of(bench, b"b") == "no_node"
    bench.node(1)
    ask(bench, b"c")
    bench.hear(1, run(bench.last(GenerateReq), 0, 65, finish="eos"))
    ask(bench, b"d")
    assert bench.tokens() == [65, 65]
    first, second = (row.answer for row in rows(bench, PutAnswer))
    kinds = [type(row) for row in rows(bench, PutAnswer, PurgeAnswers)]
    assert kinds == [PutAnswer, PurgeAnswers, PutAnswer]
    assert rows(bench, PurgeAnswers) == [PurgeAnswers(answers=(first,))]
    assert bench.core.book.get(first) is None
    assert bench.core.book.get(second) is not None


def test_a_key_that_was_refused_may_ask_for_something_else() -> None:
    bench = Bench()
    ask(bench, b"a")
    bench.wait(NODE_WAIT_S)
    bench.node(1)
    ask(bench, b"b", prompt="yo")
    assert code_of(bench, b"b") == ""
    assert len(bench.on(1, GenerateReq)) == 1


def test_a_turn_that_was_refused_is_a_new_try() -> None:
    talk = Talk()
    talk.append("hi")
    talk.bench.hear(1, run(talk.turn(), 0, 65, finish="eos"))
    talk.bench.down(1, left=True)
    talk.send("session.generate", session=talk.session, max_new=3, key="k")
    talk.bench.wait(NODE_WAIT_S)
    assert talk.bench.replies[-1]["error"]["code"] == "no_node"
    talk.bench.node(2)
    talk.send("session.generate", session=talk.session, max_new=3, key="k")
    talk.bench.hear(2, run(talk.bench.last(GenerateReq), 0, 66, finish="eos"))
    assert talk.get(limit=9)["ids"] == list(b"hiAB")


def test_what_a_node_declined_keeps_its_end(bench: Bench) -> None:
    ask(bench, b"a")
    request = bench.last(GenerateReq)
    bench.hear(
        1,
        Declined(
            command=request.command,
            session=request.session,
            epoch=request.epoch,
            generation=request.generation,
            code="not_found",
            message="no such model here",
        ),
    )
    assert code_of(bench, b"a") == "no_node"
    ask(bench, b"b")
    assert code_of(bench, b"b") == "no_node"
    assert len(rows(bench, PutAnswer)) == 1
    ask(bench, b"c", prompt="yo")
    assert code_of(bench, b"c") == "invalid"


def test_a_full_queue_is_not_kept() -> None:
    policy = CorePolicy(runs=RunPolicy(waiting=WaitingPolicy(queue_limit=1)))
    bench = Bench(policy=policy)
    bench.node(1)
    for number in range(8):
        ask(bench, b"r%d" % number, key=None, max_new=10)
    ask(bench, b"a")
    assert code_of(bench, b"a") == "queue_full"
    for request in bench.on(1, GenerateReq):
        bench.hear(1, run(request, 0, 65, finish="eos"))
    bench.wait(0.1)
    ask(bench, b"b")
    assert code_of(bench, b"b") == ""


@pytest.mark.parametrize(
    ("error", "node", "is_new"),
    [
        (NoNode("x"), None, True),
        (QueueFull("x"), None, True),
        (RateLimited("x"), None, True),
        (NoNode("x"), NodeIdentity("n0"), False),
        (ContextLengthExceeded("x"), None, False),
    ],
)
def test_after_a_restart_the_key_is_what_it_was(
    error: SuperfluidError, node: NodeIdentity | None, is_new: bool
) -> None:
    stored = replace(
        ADMITTED_ANSWER,
        state=FINISHED,
        finish="error",
        error=msgpack.packb(error.to_dict()),
        node=node,
        finished_wall_s=1e9,
    )
    bench = Bench(stored)
    bench.node(1)
    ask(bench, b"a", max_new=4)
    assert (code_of(bench, b"a") == "") is is_new
    assert (rows(bench, PurgeAnswers) == [PurgeAnswers(answers=(5,))]) is is_new
    assert len(bench.on(1, GenerateReq)) == is_new


def test_the_store_takes_the_new_try_under_the_same_key(tmp_path: Path) -> None:
    store, state = Store.open(tmp_path / "store")
    bench = Bench(stored=state)
    ask(bench, b"a")
    bench.wait(NODE_WAIT_S)
    commit(store, 1, *bench.rows)
    store.close()
    store, state = Store.open(tmp_path / "store")
    assert [(kept.key, kept.finish) for kept in state.answers] == [("k", "error")]
    bench = Bench(stored=state)
    bench.node(1)
    ask(bench, b"b")
    bench.hear(1, run(bench.last(GenerateReq), 0, 65, finish="eos"))
    commit(store, 1, *bench.rows)
    store.close()
    store, state = Store.open(tmp_path / "store")
    store.close()
    assert [(kept.key, kept.finish) for kept in state.answers] == [("k", "stop")]
