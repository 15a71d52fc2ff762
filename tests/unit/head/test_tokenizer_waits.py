"""What waits for a tokenizer: for nodes that come and go, in turn, and within bounds."""

from __future__ import annotations

import pytest

from bus.ids import GenerationId, NodeIdentity
from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq, NodeStatus
from bus.messages.link_jobs import JobCancel, JobEnd, JobPart
from bus.text.tokenizer_export import export_parts
from head.fetch_turns import MAX_AT_ONCE
from head.kept_tokenizers import LIMIT
from head.rows import StoredState
from tests.harness.fetch_bench import FILES, FetchBench, status
from tests.harness.head_bench import CLIENT, TOY
from tests.harness.memory_text import DIGEST
from tests.unit.head.test_reconcile import RUNNING_ANSWER


@pytest.fixture
def bench() -> FetchBench:
    return FetchBench()


# --- nodes that come and go -------------------------------------------------------------------


def test_a_link_that_breaks_in_between_fails_nobody(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    (start,) = bench.starts(1)
    bench.hear(1, JobPart(job=start.job, seq=0, body=next(export_parts(FILES))))
    bench.ask_for(b"r")
    bench.down(1)
    bench.wait(5.0)
    assert not bench.replies
    bench.serve(2, "n1")
    bench.give(2, bench.starts(2)[0])
    assert len(bench.on(2, GenerateReq)) == 1


def test_a_node_that_does_not_come_back_is_waited_for_within_bounds(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.down(1)
    bench.ask_for(b"r")
    bench.wait(9.0)
    assert not bench.replies
    bench.wait(2.0)
    error = bench.error(b"r")
    assert error["code"] == "no_node"
    assert "n1: cut" in error["message"]


def test_a_node_that_loads_the_model_is_waited_for(bench: FetchBench) -> None:
    bench.serve(1, "n1", status(phase="loading"))
    bench.ask_for(b"r")
    bench.wait(3.0)
    assert not bench.replies
    bench.hear(1, NodeStatus(models=(status(),)))
    bench.give(1, bench.starts(1)[0])
    assert len(bench.on(1, GenerateReq)) == 1


def test_another_node_takes_over_from_one_that_is_lost(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.serve(2, "n2")
    bench.ask_for(b"r")
    bench.down(1)
    bench.give(2, bench.starts(2)[0])
    assert len(bench.on(2, GenerateReq)) == 1


# --- a head that has just begun ---------------------------------------------------------------


def test_a_new_head_waits_for_its_nodes(bench: FetchBench) -> None:
    bench.wait(0.1)
    bench.ask_for(b"r")
    bench.ask_for(b"other", "other")
    bench.wait(9.0)
    assert not bench.replies
    bench.serve(1, "n1")
    bench.give(1, bench.starts(1)[0])
    assert len(bench.on(1, GenerateReq)) == 1
    bench.wait(0.9)
    assert "there is no model 'other': no node serves it" in bench.error(b"other")["message"]
    assert not bench.core.texts.awaited


def _drained(bench: FetchBench) -> None:
    """The head has just started, and knows that the node n1 is drained."""
    bench.core.marks.drain(NodeIdentity("n1"), drained=True)
    bench.wait(0.1)


def test_a_drained_node_gives_its_tokenizer_where_no_other_has_it(bench: FetchBench) -> None:
    _drained(bench)
    bench.serve(1, "n1")
    bench.ask_for(b"r")
    assert not bench.replies
    bench.give(1, bench.starts(1)[0])
    assert bench.state() == "fetched"
    bench.wait(1.0)
    assert [reply["type"] for reply in bench.replies] == ["queued"]
    bench.serve(2, "n2")
    assert bench.starts(2) == []
    assert (len(bench.on(1, GenerateReq)), len(bench.on(2, GenerateReq))) == (0, 1)


def test_one_that_a_drained_node_gives_comes_to_its_end(bench: FetchBench) -> None:
    _drained(bench)
    bench.serve(1, "n1")
    (start,) = bench.starts(1)
    bench.serve(2, "n2")
    bench.give(1, start)
    assert (bench.state(), bench.starts(2)) == ("fetched", [])


def test_nodes_that_get_work_are_asked_first(bench: FetchBench) -> None:
    _drained(bench)
    bench.serve(1, "n2")
    (start,) = bench.starts(1)
    bench.serve(2, "n1")
    bench.hear(1, JobEnd(job=start.job, code="tokenizer_unavailable", message="a disk is broken"))
    # What it has is had by a drained node, too.
    (other,) = bench.starts(2)
    bench.give(2, other)
    assert bench.state() == "fetched"


def test_what_only_a_drained_node_has_gives_way_to_what_others_have(bench: FetchBench) -> None:
    _drained(bench)
    bench.serve(1, "n1", status(digest=7))
    bench.give(1, bench.starts(1)[0])
    assert bench.core.texts.digest(TOY) == 7
    bench.serve(2, "n2")
    bench.give(2, bench.starts(2)[0])
    assert bench.core.texts.digest(TOY) == DIGEST


def test_a_node_that_is_drained_leaves_its_model_to_the_others(bench: FetchBench) -> None:
    bench.serve(1, "n1", status(digest=7))
    bench.give(1, bench.starts(1)[0])
    bench.serve(2, "n2")
    assert bench.starts(2) == []
    asked = {"op": "node.drain", "id": b"d", "name": "n1"}
    bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    bench.settle()
    bench.give(2, bench.starts(2)[0])
    bench.ask_for(b"r")
    assert len(bench.on(2, GenerateReq)) == 1


def test_a_session_is_made_once_the_model_is_known(bench: FetchBench) -> None:
    for request, model in ((b"s", TOY), (b"other", "other")):
        asked = {"op": "session.create", "id": request, "model": model}
        bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    bench.wait(9.0)
    assert not bench.replies
    bench.serve(1, "n1")
    bench.give(1, bench.starts(1)[0])
    bench.wait(1.0)
    assert bench.error(b"other")["code"] == "not_found"
    (made,) = [reply for reply in bench.replies if reply["id"] == b"s"]
    assert made["session"]


def test_a_head_that_runs_for_long_refuses_an_unknown_model_at_once(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.wait(10.0)
    bench.ask_for(b"r", "other")
    assert bench.error(b"r")["code"] == "not_found"
    # A node whose link was lost may come back with it.
    bench.down(1)
    bench.wait(5.0)
    bench.ask_for(b"s", "other")
    bench.wait(4.9)
    assert [reply["id"] for reply in bench.replies] == [b"r"]
    bench.wait(0.1)
    assert bench.error(b"s")["code"] == "not_found"
    bench.ask_for(b"t", "other")
    assert bench.error(b"t")["code"] == "not_found"


def test_what_is_asked_no_more_is_not_waited_for(bench: FetchBench) -> None:
    tokenize = {"op": "tokenize", "id": b"t", "model": "toy", "text": "hi"}
    bench.core.client_request(CLIENT, [MARK, encode_body(tokenize)], bench.now)
    assert bench.core.texts.awaited == {TOY}
    bench.core.client_gone(CLIENT, bench.now)
    assert bench.core.texts.awaited == set()


def _restarted() -> FetchBench:
    """A head that ended while an answer ran, and kept nothing of its tokenizer."""
    bench = FetchBench(stored=StoredState(boot=4, head_id="h", answers=(RUNNING_ANSWER,)))
    asked = {"op": "attach", "id": b"a", "key": "k"}
    bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    bench.settle()
    return bench


def test_a_stream_over_a_restart_waits_as_long_as_its_answer() -> None:
    bench = _restarted()
    bench.wait(25.0)
    assert not bench.replies
    bench.serve(1, "n1")
    # What a node gives badly is tried again.
    end = JobEnd(job=bench.starts(1)[0].job, code="tokenizer_unavailable", message="no")
    bench.hear(1, end)
    bench.wait(1.0)
    assert not bench.replies
    bench.give(1, bench.starts(1)[1])
    assert [event["text"] for event in bench.events("token")] == ["AB"]


def test_a_stream_over_a_restart_does_not_wait_for_ever() -> None:
    bench = _restarted()
    bench.wait(34.9)
    assert not bench.replies
    bench.wait(0.1)
    assert bench.error(b"a")["code"] == "not_found"


# --- bounds -----------------------------------------------------------------------------------


def test_few_are_fetched_at_once(bench: FetchBench) -> None:
    models = tuple(status(f"m{number}") for number in range(5))
    bench.serve(1, "n1", *models)
    done = 0
    while done < len(models):
        starts = bench.starts(1)
        assert len(starts) <= done + MAX_AT_ONCE
        bench.give(1, starts[done])
        done += 1
    assert {bench.state(model.name) for model in models} == {"fetched"}


def _hang(bench: FetchBench, *nodes: str) -> None:
    """Nodes with eight models each, that take all jobs and answer nothing."""
    for link, name in enumerate(nodes, start=1):
        bench.serve(link, name, *[status(f"{name}-m{number}") for number in range(8)])


def test_a_node_that_answers_nothing_holds_up_its_own_models_alone(bench: FetchBench) -> None:
    _hang(bench, "x", "y")
    bench.serve(9, "good", status("good"))
    bench.ask_for(b"r", "good")
    assert [len(bench.starts(link)) for link in (1, 2, 9)] == [1, 1, 1]
    bench.give(9, bench.starts(9)[0])
    assert len(bench.on(9, GenerateReq)) == 1
    bench.ask_for(b"first", "x-m0")
    bench.ask_for(b"last", "x-m7")
    bench.wait(30.0)
    error = bench.error(b"first")
    assert error["code"] == "tokenizer_unavailable"
    assert "x: it gave nothing for 30 s" in error["message"]
    assert [cancel.job for cancel in bench.on(1, JobCancel)] == [bench.starts(1)[0].job]
    assert len(bench.starts(1)) == 2
    # Nobody waits for ever for a turn.
    bench.wait(89.9)
    assert not [reply for reply in bench.replies if reply["id"] == b"last"]
    bench.wait(0.1)
    error = bench.error(b"last")
    assert (error["code"], error["retry_after_ms"]) == ("tokenizer_unavailable", 1000)
    assert "others are before it" in error["message"]


def test_nodes_take_turns_when_more_answer_nothing_than_are_asked_at_once(
    bench: FetchBench,
) -> None:
    _hang(bench, *[f"x{number}" for number in range(MAX_AT_ONCE)])
    bench.serve(9, "good", status("good"))
    assert not bench.starts(9)
    bench.wait(30.0)
    assert len(bench.starts(9)) == 1


def test_another_node_is_asked_when_one_answers_nothing(bench: FetchBench) -> None:
    bench.serve(1, "x", *[status(f"m{number}") for number in range(8)], status())
    bench.serve(2, "good")
    bench.ask_for(b"r")
    # It was for x in line; a node that has less to do is asked when it is looked at again.
    bench.down(1)
    bench.give(2, bench.starts(2)[0])
    bench.serve(3, "x", status(), status("new"), incarnation=2)
    bench.serve(4, "idle", status("new"))
    first, second = bench.starts(3), bench.starts(4)
    assert len(first) + len(second) == 1
    bench.wait(30.0)
    assert [len(bench.starts(3)), len(bench.starts(4))] == [1, 1]


def test_a_slow_node_is_not_one_that_answers_nothing(bench: FetchBench) -> None:
    bench.serve(1, "slow")
    (start,) = bench.starts(1)
    parts = list(export_parts(FILES))
    for seq, part in enumerate(parts):
        bench.wait(29.0)
        bench.hear(1, JobPart(job=start.job, seq=seq, body=part))
    bench.hear(1, JobEnd(job=start.job, parts=len(parts)))
    assert bench.state() == "fetched"


def test_more_than_are_kept_are_not_fetched_until_there_is_room(bench: FetchBench) -> None:
    models = tuple(status(f"m{number}") for number in range(LIMIT + 1))
    bench.serve(1, "n1", *models[:-1])
    for done in range(LIMIT):
        bench.give(1, bench.starts(1)[done])
    bench.serve(2, "n2", models[-1])
    assert not bench.starts(2)
    bench.ask_for(b"r", models[-1].name)
    assert f"(it keeps {LIMIT} already)" in bench.error(b"r")["message"]
    bench.hear(1, NodeStatus(models=models[1:-1]))
    bench.down(2)
    bench.serve(3, "n2", models[-1])
    bench.give(3, bench.starts(3)[0])
    assert bench.state(models[-1].name) == "fetched"
    assert models[0].name not in {key.model for key in bench.store.in_use}


def test_a_job_of_another_number_is_nothing_to_it(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.hear(1, JobPart(job=GenerationId(1), seq=0, body=b"\xc1"))
    bench.hear(1, JobEnd(job=GenerationId(1), parts=0))
    bench.give(1, bench.starts(1)[0])
    assert bench.state() == "fetched"
