"""The head's desk of tokenizers: fetched once, kept, and given up for the fleet's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.ids import pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.job_bodies import unpack_body
from bus.messages.link import GenerateReq, NodeStatus
from bus.messages.link_jobs import JobCancel, JobEnd
from bus.messages.text import TextFailed
from bus.text.tokenizer_export import TokenizerBody
from bus.text.tokenizer_files import text_digest
from head.description_waits import MAX_OF_CLIENT
from head.kept_tokenizers import TokenizerKey
from head.rows import PutAnswer, StoredState
from tests.harness.fetch_bench import FILES, KEY, TEXT, FetchBench, status
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, TOY, run
from tests.harness.memory_text import DIGEST


@pytest.fixture
def bench() -> FetchBench:
    return FetchBench()


# --- once for each digest ---------------------------------------------------------------------


def test_requests_wait_while_it_is_fetched_and_are_served_then(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    (start,) = bench.starts(1)
    body = unpack_body(TokenizerBody, start.body)
    assert (start.model, body.digest, body.text_digest) == ("toy", DIGEST, TEXT)
    assert 0 < start.wall_ms <= 120_000
    bench.ask_for(b"a")
    bench.ask_for(b"b", tokens=[104, 105], prompt=None)
    tokenize = {"op": "tokenize", "id": b"t", "model": "toy", "text": "hi"}
    bench.core.client_request(CLIENT, [MARK, encode_body(tokenize)], bench.now)
    bench.settle()
    assert bench.state() == "fetching"
    assert not bench.on(1, GenerateReq)
    assert not bench.replies
    bench.give(1, start)
    assert bench.store.written == {KEY: FILES}
    assert bench.store.kept() == (KEY,)
    assert bench.state() == "fetched"
    assert len(bench.on(1, GenerateReq)) == 2
    (tokens,) = [reply["tokens"] for reply in bench.replies if reply["id"] == b"t"]
    assert tokens == [104, 105]
    (model,) = bench.core.status(0.0)["models"]
    assert (model["ready"], model["head_folder"], model["tokenizer"]) == (True, None, "fetched")


def test_no_text_is_asked_of_an_encoder_that_is_being_fetched(bench: FetchBench) -> None:
    bench.serve(1, "n1", replace(status(), kind="encoder"))
    assert bench.state() == "fetching"
    bench.ask_for(b"r")
    assert "toy is an encoder" in bench.error(b"r")["message"]
    assert bench.core.status(0.0)["models"][0]["kind"] == "encoder"


def test_it_is_fetched_once_whoever_serves_it(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.give(1, bench.starts(1)[0])
    bench.serve(2, "n2")
    bench.down(1)
    bench.serve(3, "n1", incarnation=2)
    bench.wait(100.0)
    assert [len(bench.starts(link)) for link in (1, 2, 3)] == [1, 0, 0]


def test_what_a_stopped_client_asked_for_is_dropped(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    tokenize = {"op": "tokenize", "id": b"t", "model": "toy", "text": "hi"}
    bench.core.client_request(CLIENT, [MARK, encode_body(tokenize)], bench.now)
    bench.core.client_gone(CLIENT, bench.now)
    bench.give(1, bench.starts(1)[0])
    assert bench.state() == "fetched"
    assert not bench.replies


def test_after_a_restart_what_is_kept_is_used_without_a_node() -> None:
    older = TokenizerKey(TOY, DIGEST, TEXT + 1)
    bench = FetchBench(older, KEY)
    tokenize = {"op": "tokenize", "id": b"t", "model": "toy", "text": "hi"}
    bench.core.client_request(CLIENT, [MARK, encode_body(tokenize)], bench.now)
    bench.settle()
    assert bench.replies[-1]["tokens"] == [104, 105]
    # The last used one; and a node that has it is asked for nothing.
    bench.serve(1, "n1")
    assert not bench.starts(1)
    assert bench.state() == "fetched"


def test_a_damaged_one_is_fetched_again() -> None:
    bench = FetchBench(KEY)
    bench.store.damaged.add(KEY)
    bench.serve(1, "n1")
    (start,) = bench.starts(1)
    bench.give(1, start)
    assert bench.store.kept() == (KEY,)
    assert bench.state() == "fetched"


@pytest.mark.parametrize("code", ["not_found", "model_incomplete"])
def test_one_that_is_damaged_while_it_is_used_is_fetched_again(
    bench: FetchBench, code: str
) -> None:
    bench.serve(1, "n1")
    bench.give(1, bench.starts(1)[0])
    bench.fails = TextFailed(job=0, code=code, message="tokenizer.json can not be read")
    bench.ask_for(b"r")
    assert bench.error(b"r")["code"] == "tokenizer_unavailable"
    assert "they are fetched from a node again" in bench.error(b"r")["message"]
    bench.fails = None
    bench.ask_for(b"s")
    assert not bench.on(1, GenerateReq)
    bench.give(1, bench.starts(1)[1])
    assert len(bench.on(1, GenerateReq)) == 1


def test_a_damaged_one_without_a_node_is_not_found() -> None:
    bench = FetchBench(KEY)
    bench.store.damaged.add(KEY)
    bench.ask_for(b"r")
    bench.wait(10.0)
    assert bench.error(b"r")["code"] == "not_found"
    bench.ask_for(b"s", "other")
    assert "there is no model 'other': no node serves it" in bench.error(b"s")["message"]


def test_the_fleets_files_change_with_its_nodes(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.give(1, bench.starts(1)[0])
    changed = {"tokenizer.json": b"{}"}
    bench.serve(2, "n2", status(digest=7, text=text_digest(changed)))
    assert not bench.starts(2)
    assert bench.core.texts.digest(TOY) == DIGEST
    bench.down(1)
    (start,) = bench.starts(2)
    bench.give(2, start, changed)
    assert bench.core.texts.digest(TOY) == 7
    # What was made by the former one can still be read.
    bench.core.texts.check_readable(TOY, DIGEST)


def test_another_template_of_the_same_tokenizer_is_fetched(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.give(1, bench.starts(1)[0])
    changed = FILES | {"chat_template.jinja": b"y"}
    new = status(text=text_digest(changed))
    for phase in (status(phase="loading"), new):
        bench.hear(1, NodeStatus(models=(phase,)))
    bench.give(1, bench.starts(1)[1], changed)
    assert bench.store.kept()[0] == TokenizerKey(TOY, DIGEST, text_digest(changed))
    assert bench.state() == "fetched"


def _stored_answer() -> StoredState:
    """What a head has of an answer, which is of the tokenizer `KEY`."""
    bench = FetchBench()
    bench.serve(1, "n1")
    bench.give(1, bench.starts(1)[0])
    bench.ask_for(b"r", key="k", max_new=1)
    request = bench.on(1, GenerateReq)[0]
    bench.hear(1, run(request, 0, 104, finish="length"))
    (row,) = [row for row in bench.rows if isinstance(row, PutAnswer)]
    stored = replace(
        ADMITTED_ANSWER, answer=row.answer, options=row.options, state="finished",
        tokens=pack_ids([104]), finish="length",
    )  # fmt: skip
    return StoredState(boot=4, head_id="h", answers=(stored,))


def test_an_answer_of_a_former_tokenizer_is_read_after_a_restart() -> None:
    other = TokenizerKey(TOY, 7, TEXT)
    for kept, code in (((KEY, other), None), ((other,), "tokenizer_unavailable")):
        later = FetchBench(*kept, stored=_stored_answer())
        later.serve(1, "n1", status(digest=7))
        assert later.core.texts.digest(TOY) == 7
        asked = {"op": "attach", "id": b"a", "key": "k"}
        later.core.client_request(CLIENT, [MARK, encode_body(asked)], later.now)
        later.settle()
        if code is None:
            assert [event["text"] for event in later.events("token")] == ["h"]
        else:
            assert later.error(b"a")["code"] == code


def test_so_many_may_wait_for_a_former_tokenizer_to_be_read() -> None:
    later = FetchBench(KEY, TokenizerKey(TOY, 7, TEXT), stored=_stored_answer())
    later.serve(1, "n1", status(digest=7))
    for number in range(MAX_OF_CLIENT + 1):
        asked = {"op": "attach", "id": b"%d" % number, "key": "k"}
        later.core.client_request(CLIENT, [MARK, encode_body(asked)], later.now)
    later.settle()
    assert later.error(b"%d" % MAX_OF_CLIENT)["code"] == "rate_limited"
    assert len(later.events("token")) == MAX_OF_CLIENT


# --- the head's own folder --------------------------------------------------------------------


def test_a_folder_of_the_head_goes_first(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    bench.core.models_found({TOY: "/toy"}, bench.now)
    bench.settle()
    assert bench.state() == "own"
    assert len(bench.on(1, JobCancel)) == 1
    bench.give(1, bench.starts(1)[0])
    assert not bench.store.written
    bench.core.models_found({}, bench.now)
    bench.settle()
    assert bench.state() == "fetching"
    bench.give(1, bench.starts(1)[1])
    bench.core.models_found({TOY: "/toy"}, bench.now)
    bench.settle()
    assert bench.core.texts.folders == {TOY: "/toy"}
    bench.core.models_found({}, bench.now)
    bench.settle()
    assert bench.state() == "fetched"
    assert len(bench.starts(1)) == 2


OWN = status(digest=0x0DD, text=5)


def _odd(bench: FetchBench) -> None:
    """The head has a folder with a tokenizer that the node n1 has not."""
    bench.says["/toy"] = 0x0DD
    bench.core.models_found({TOY: "/toy"}, bench.now)
    bench.settle()
    bench.serve(1, "n1")


def test_a_folder_that_no_node_goes_by_gives_way_to_the_fleets(bench: FetchBench) -> None:
    _odd(bench)
    assert (bench.state(), bench.core.texts.digest(TOY)) == ("own", 0x0DD)
    bench.give(1, bench.starts(1)[0])
    assert (bench.state(), bench.core.texts.digest(TOY)) == ("fetched", DIGEST)
    bench.ask_for(b"r")
    assert len(bench.on(1, GenerateReq)) == 1
    (model,) = bench.core.status(0.0)["models"]
    assert (model["head_folder"], model["tokenizer"]) == ("/toy", "fetched")
    # An outage does not change it.
    bench.down(1)
    assert bench.state() == "fetched"
    # A node with the head's own does, and then the other is the odd one.
    bench.serve(2, "n2", OWN)
    bench.serve(3, "n1")
    assert (bench.state(), bench.core.texts.digest(TOY)) == ("own", 0x0DD)
    assert len(bench.starts(3)) == 0
    bench.down(2)
    assert bench.state() == "own"


def test_a_folder_that_changes_to_what_nodes_have_is_used(bench: FetchBench) -> None:
    _odd(bench)
    bench.give(1, bench.starts(1)[0])
    del bench.says["/toy"]
    bench.core.models_found({TOY: "/toy"}, bench.now, {TOY: "new"})
    bench.settle()
    assert (bench.state(), bench.core.texts.digest(TOY)) == ("own", DIGEST)


def test_a_folder_that_no_node_goes_by_stays_while_none_gives_its_own(bench: FetchBench) -> None:
    _odd(bench)
    end = JobEnd(job=bench.starts(1)[0].job, code="tokenizer_unavailable", message="no")
    bench.hear(1, end)
    assert bench.state() == "own"
    bench.wait(1.0)
    bench.give(1, bench.starts(1)[1])
    assert bench.state() == "fetched"


def test_an_odd_folder_that_is_removed_leaves_what_was_fetched(bench: FetchBench) -> None:
    _odd(bench)
    bench.give(1, bench.starts(1)[0])
    bench.core.models_found({}, bench.now)
    bench.settle()
    assert bench.state() == "fetched"
    bench.ask_for(b"r")
    assert (len(bench.on(1, GenerateReq)), len(bench.starts(1))) == (1, 1)


def test_with_a_folder_of_its_own_nothing_is_fetched(bench: FetchBench) -> None:
    bench.core.models_found({TOY: "/toy"}, bench.now)
    bench.settle()
    bench.serve(1, "n1")
    assert not bench.starts(1)
