"""The head's desk of tokenizers: fetched once, never on trust, and waited for within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgpack
import pytest

from bus.capabilities import CAPABILITIES, JOBS
from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation, pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.job_bodies import unpack_body
from bus.messages.link import GenerateReq, NodeConfirm, NodeStatus
from bus.messages.link_jobs import JobCancel, JobEnd, JobPart, JobStart
from bus.messages.parts import ModelStatus
from bus.messages.text import Describe, Described, Encode, TextFailed
from bus.text.tokenizer_export import TOKENIZER_JOB, TokenizerBody, export_parts
from bus.text.tokenizer_files import text_digest
from head.core import CorePolicy, HeadCore
from head.fetch_turns import MAX_AT_ONCE
from head.kept_tokenizers import LIMIT, TokenizerKey
from head.rows import PutAnswer, StoredState
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, TOY, Bench, run
from tests.harness.memory_text import DIGEST
from tests.harness.memory_tokenizers import MemoryTokenizers
from tests.unit.head.test_reconcile import RUNNING_ANSWER

FILES = {"tokenizer.json": b'{"model": {}}', "chat_template.jinja": b"x" * 200_000}
TEXT = text_digest(FILES)
KEY = TokenizerKey(TOY, DIGEST, TEXT)
EMPTY = StoredState(boot=3, head_id="h", answers=())


class FetchBench(Bench):
    """A head without a folder of any model, and the nodes that it asks."""

    def __init__(self, *kept: TokenizerKey, stored: StoredState = EMPTY) -> None:
        self.store = MemoryTokenizers()
        #: What a description says in place of the digest that the folder's name has.
        self.says: dict[str, int | TextFailed] = {}
        #: What texts end with that are to be encoded.
        self.fails: TextFailed | None = None
        super().__init__()
        self.store.whole += kept
        self.core = HeadCore(
            CorePolicy(),
            stored,
            entropy=bytes,
            now=0.0,
            wall_s=1e9,
            tokenizers=self.store,
        )
        self.settle()

    def settle(self) -> None:
        super().settle()
        while self.store.is_due:
            self.core.tokenizers.settle(self.now)
            super().settle()

    def text_reply(self, job: object) -> object:
        reply = super().text_reply(job)
        if isinstance(job, Encode) and self.fails is not None:
            return replace(self.fails, job=job.job)
        if isinstance(job, Describe) and isinstance(reply, Described):
            said = self.says.get(job.folder)
            if isinstance(said, TextFailed):
                return replace(said, job=job.job)
            named = int(job.folder[:16], 16) if job.folder[:1] != "/" else DIGEST
            return replace(reply, digest=said or named)
        return reply

    def serve(
        self,
        link: int,
        name: str,
        *models: ModelStatus,
        incarnation: int = 1,
        capabilities: tuple[str, ...] = CAPABILITIES,
    ) -> None:
        confirm = NodeConfirm(
            identity=NodeIdentity(name),
            incarnation=incarnation,
            software="x",
            models=models or (status(),),
            capabilities=capabilities,
        )
        self.core.link_up(link, confirm, self.now)
        self.settle()

    def starts(self, link: int) -> list[JobStart]:
        found = self.on(link, JobStart)
        assert all(start.kind == TOKENIZER_JOB for start in found)
        return found

    def give(
        self, link: int, start: JobStart, files: Mapping[str, bytes] = FILES, *parts: bytes
    ) -> None:
        """A node's whole answer."""
        sent = [*export_parts(files), *parts]
        for seq, part in enumerate(sent):
            self.hear(link, JobPart(job=start.job, seq=seq, body=part))
        self.hear(link, JobEnd(job=start.job, parts=len(sent)))

    def ask_for(self, request: bytes, model: str = "toy", **body: Any) -> None:
        asked = {"op": "generate", "id": request, "model": model, "prompt": "hi", **body}
        self.core.client_request(CLIENT, [MARK, encode_body(asked)], self.now)
        self.settle()

    def error(self, request: bytes) -> dict[str, Any]:
        found: list[dict[str, Any]] = [
            reply["error"]
            for reply in self.replies
            if reply["id"] == request and reply["kind"] == "error"
        ]
        (only,) = found
        return only

    def state(self, model: ModelName = TOY) -> str:
        return self.core.tokenizers.state(model)


def status(
    model: str = "toy", digest: int = DIGEST, text: int = TEXT, phase: str = "ready"
) -> ModelStatus:
    return ModelStatus(
        name=ModelName(model),
        phase=phase,
        window_tokens=64,
        lanes_total=2,
        tokenizer_digest=digest if phase == "ready" else 0,
        text_digest=text if phase == "ready" else 0,
        worker=WorkerIncarnation(1),
    )


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


def test_an_answer_of_a_former_tokenizer_is_read_after_a_restart() -> None:
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
    other = TokenizerKey(TOY, 7, TEXT)
    for kept, code in (((KEY, other), None), ((other,), "tokenizer_unavailable")):
        later = FetchBench(*kept, stored=StoredState(boot=4, head_id="h", answers=(stored,)))
        later.serve(1, "n1", status(digest=7))
        assert later.core.texts.digest(TOY) == 7
        asked = {"op": "attach", "id": b"a", "key": "k"}
        later.core.client_request(CLIENT, [MARK, encode_body(asked)], later.now)
        later.settle()
        if code is None:
            assert [event["text"] for event in later.events("token")] == ["h"]
        else:
            assert later.error(b"a")["code"] == code


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


# --- nodes that are not what they should be ---------------------------------------------------

BAD_PARTS = [
    b"\xc1",
    msgpack.packb(
        {"files": [{"name": "../evil", "size": 1}, {"name": "tokenizer.json", "size": 1}]}
    ),
    msgpack.packb({"files": [{"name": "tokenizer.json", "size": 1 << 40}]}),
    msgpack.packb({"files": []}),
]


@pytest.mark.parametrize("part", BAD_PARTS)
def test_a_node_that_lists_what_it_should_not_is_left_for_another(
    bench: FetchBench, part: bytes
) -> None:
    bench.serve(1, "bad")
    bench.serve(2, "good")
    bench.ask_for(b"r")
    (start,) = bench.starts(1)
    bench.hear(1, JobPart(job=start.job, seq=0, body=part))
    assert [cancel.job for cancel in bench.on(1, JobCancel)] == [start.job]
    # What it still sends is nothing to anybody.
    bench.hear(1, JobPart(job=start.job, seq=1, body=b"x"))
    (other,) = bench.starts(2)
    assert not bench.store.written
    bench.give(2, other)
    assert bench.state() == "fetched"
    assert len(bench.on(1, GenerateReq)) + len(bench.on(2, GenerateReq)) == 1


def test_parts_without_end_are_stopped(bench: FetchBench) -> None:
    bench.serve(1, "bad")
    bench.ask_for(b"r")
    (start,) = bench.starts(1)
    for seq, part in enumerate([*export_parts(FILES), b"more"]):
        bench.hear(1, JobPart(job=start.job, seq=seq, body=part))
    assert [cancel.job for cancel in bench.on(1, JobCancel)] == [start.job]
    assert not bench.store.written
    error = bench.error(b"r")
    assert error["code"] == "tokenizer_unavailable"
    assert "bad: the tokenizer that a node gave is refused: it goes on behind" in error["message"]
    assert error["retry_after_ms"] == 1000


def test_other_files_than_the_status_names_are_not_written(bench: FetchBench) -> None:
    bench.serve(1, "bad")
    bench.ask_for(b"r")
    bench.give(1, bench.starts(1)[0], FILES | {"chat_template.jinja": b"evil"})
    assert not bench.store.written
    assert "its digest is not the one" in bench.error(b"r")["message"]


def test_another_vocabulary_than_the_status_names_is_removed(bench: FetchBench) -> None:
    bench.says[KEY.folder] = 99
    bench.serve(1, "bad")
    bench.ask_for(b"r")
    bench.give(1, bench.starts(1)[0])
    assert bench.store.removed == [KEY]
    assert bench.store.kept() == ()
    assert "is not the one that its status names" in bench.error(b"r")["message"]
    assert bench.state() == ""
    assert "bad: " in bench.core.tokenizers.problem(TOY)


def test_a_tokenizer_that_kills_text_processes_is_removed(bench: FetchBench) -> None:
    bench.says[KEY.folder] = TextFailed(
        job=0, code="tokenizer_unavailable", message="took more memory", retry_after_ms=1000
    )
    bench.serve(1, "bad")
    bench.give(1, bench.starts(1)[0])
    assert bench.store.removed == [KEY]
    assert "took more memory" in bench.core.tokenizers.problem(TOY)


def test_a_node_that_failed_is_asked_again_less_and_less(bench: FetchBench) -> None:
    bench.serve(1, "n1")
    asked_at = list[float]()
    while len(asked_at) < 9:
        start = bench.starts(1)[-1]
        asked_at.append(bench.now)
        end = JobEnd(job=start.job, code="tokenizer_unavailable", message="a disk is broken")
        bench.hear(1, end)
        bench.ask_for(b"%d" % len(asked_at))
        assert "n1: a disk is broken" in bench.error(b"%d" % len(asked_at))["message"]
        count = len(bench.starts(1))
        for _ in range(600):
            if len(bench.starts(1)) > count:
                break
            bench.wait(0.2)
    waits = [round(later - at) for at, later in pairwise(asked_at)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    bench.give(1, bench.starts(1)[-1])
    bench.ask_for(b"r")
    assert len(bench.on(1, GenerateReq)) == 1


def test_nodes_of_an_older_version_are_named(bench: FetchBench) -> None:
    bench.serve(1, "old", capabilities=tuple(c for c in CAPABILITIES if c != JOBS))
    bench.serve(2, "older", status(text=0))
    bench.ask_for(b"r")
    bench.wait(10.0)  # A newer one may come.
    error = bench.error(b"r")
    assert error["code"] == "tokenizer_unavailable"
    assert "from old, older: update nodes that are older" in error["message"]
    assert "sfctl model import FILE --name toy" in error["message"]
    assert not bench.starts(1)
    # One that can give it serves for all.
    bench.serve(3, "new")
    bench.give(3, bench.starts(3)[0])
    bench.ask_for(b"s")
    assert sum(len(bench.on(link, GenerateReq)) for link in (1, 2, 3)) == 1


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
