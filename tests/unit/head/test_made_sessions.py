"""Sessions of several turns, by the messages of nodes and clients."""

from __future__ import annotations

from typing import Any

import pytest

from bus.context import context_digest
from bus.ids import ModelName, NodeIdentity, SessionId, pack_ids
from bus.messages.link import (
    AppendContent,
    GenerateCancel,
    GenerateReq,
    LeaseGrant,
    LeaseRenew,
    NeedFull,
    NodeStatus,
    ReconcileAck,
    SessionAssign,
    SessionRevoke,
)
from bus.messages.parts import HeldView, LeaseRef, Segment
from head.effects import Persist
from head.made_sessions import MAX_SESSIONS
from head.rows import EndSession, PurgeSessions, PutContent, PutSession
from head.sessions import Session
from tests.harness.head_bench import CLIENT, TOY, Bench, run
from tests.harness.memory_disk import Disk
from tests.harness.memory_text import DIGEST
from tests.harness.session_talk import Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_next_turn_sends_only_what_is_new_under_the_same_epoch(talk: Talk) -> None:
    assert talk.append("hi")["tokens"] == 2
    first = talk.turn()
    talk.bench.hear(1, run(first, 0, 65, 66, finish="eos"))
    assert talk.append("yo")["tokens"] == 6
    second = talk.turn()
    whole, delta = talk.bench.on(1, AppendContent)
    assert whole.ids == pack_ids(b"hi")
    assert (delta.base_tokens, delta.base_digest) == (2, context_digest(pack_ids(b"hi")))
    assert delta.ids == pack_ids(b"AByo")
    assert delta.segments == (Segment(tokens=2, by_step=True), Segment(tokens=2))
    assert len(talk.bench.on(1, SessionAssign)) == 1
    assert second.epoch == first.epoch
    assert (second.prompt_tokens, second.generated_tokens) == (6, 0)
    assert talk.bench.on(1, SessionRevoke) == []


def test_g3_turn_right_after_a_cancel_sees_the_full_history_and_no_ghosts(talk: Talk) -> None:
    talk.append("hi")
    first = talk.turn()
    talk.bench.hear(1, run(first, 0, 65))
    talk.call("cancel", about=f"q{talk.number}".encode())
    second = talk.turn()
    orders = talk.bench.on(1, GenerateCancel, SessionAssign, AppendContent, GenerateReq)[3:]
    assert [type(order) for order in orders] == [
        GenerateCancel,
        SessionAssign,
        AppendContent,
        GenerateReq,
    ]
    assert second.epoch > first.epoch
    assert orders[2].ids == pack_ids(b"A")
    # What the node still makes of the cancelled turn is nobody's.
    talk.bench.hear(1, run(first, 1, 90, finish="cancelled"))
    talk.bench.hear(1, run(second, 0, 66, finish="eos"))
    assert talk.get(limit=10)["ids"] == list(b"hiAB")


def test_output_that_is_not_to_be_kept_does_not_join_the_context(talk: Talk) -> None:
    talk.append("hi")
    request = talk.turn(keep_output=False)
    talk.bench.hear(1, run(request, 0, 65, finish="eos"))
    assert talk.get(limit=10)["ids"] == list(b"hi")
    talk.append("!")
    talk.turn()
    assert talk.bench.last(AppendContent).ids == pack_ids(b"!")


def test_output_that_a_moved_turn_left_on_a_node_is_replaced_there(talk: Talk) -> None:
    talk.append("hi")
    request = talk.turn(keep_output=False)
    talk.bench.hear(1, run(request, 0, 65))
    talk.bench.down(1, left=True)
    talk.bench.node(2, "n2")
    moved: GenerateReq = talk.bench.last(GenerateReq)
    assert talk.bench.last(AppendContent).ids == pack_ids(b"hiA")
    talk.bench.hear(2, run(moved, 0, 66, finish="eos"))
    talk.append("!")
    talk.turn()
    whole = talk.bench.last(AppendContent)
    assert (whole.base_tokens, whole.ids) == (0, pack_ids(b"hi!"))


def test_context_is_sent_whole_once_when_the_node_lacks_it(talk: Talk) -> None:
    talk.append("hi")
    first = talk.turn()
    talk.bench.hear(1, run(first, 0, 65, finish="eos"))
    talk.append("!")
    second = talk.turn()
    added: AppendContent = talk.bench.last(AppendContent)
    assert added.base_tokens > 0
    need = NeedFull(
        command=added.command,
        session=second.session,
        epoch=second.epoch,
        length=0,
        digest=bytes(16),
    )
    before = len(talk.bench.on(1, AppendContent))
    for _ in range(5):
        talk.bench.hear(1, need)
    sent = talk.bench.on(1, AppendContent)[before:]
    assert [(whole.base_tokens, whole.ids) for whole in sent] == [(0, pack_ids(b"hiA!"))]
    assert talk.bench.closed == []


def test_node_that_lacks_the_context_when_the_next_turn_waits_already_gets_it(talk: Talk) -> None:
    talk.append("hi")
    first = talk.turn()
    talk.bench.hear(1, run(first, 0, 65, 66))
    talk.bench.down(1, left=True)
    talk.bench.node(2)
    moved: GenerateReq = talk.bench.last(GenerateReq)
    assert moved.generated_tokens == 2
    talk.call("cancel", about=f"q{talk.number}".encode())
    talk.bench.core.fleet.status(2, NodeStatus(models=(), draining=True), talk.bench.now)
    talk.turn()
    assert talk.get()["state"] == "queued"
    need = NeedFull(
        command=moved.command, session=moved.session, epoch=moved.epoch, length=0, digest=bytes(16)
    )
    talk.bench.hear(2, need)
    whole = talk.bench.last(AppendContent)
    assert (whole.base_tokens, whole.ids) == (0, pack_ids(b"hiAB"))


@pytest.mark.parametrize("op", ["session.generate", "session.append"])
def test_one_thing_at_a_time(talk: Talk, op: str) -> None:
    talk.append("hi")
    talk.turn()
    body = {"session": talk.session} | ({"text": "x"} if op == "session.append" else {})
    assert talk.call(op, **body)["error"]["code"] == "session_busy"


def test_state_is_told_from_creation_to_end(talk: Talk) -> None:
    assert (talk.get()["state"], talk.get()["tokens"], talk.get()["node"]) == ("idle", 0, "")
    talk.append("hi")
    request = talk.turn()
    talk.bench.hear(1, run(request, 0, 65))
    busy = talk.get()
    assert (busy["state"], busy["tokens"], busy["answer_tokens"]) == ("running", 2, 1)
    assert busy["node"] == "n1"
    talk.call("session.finish", session=talk.session)
    ended = talk.get()
    assert (ended["state"], ended["tokens"], ended["node"]) == ("ended", 3, "")
    assert talk.bench.on(1, SessionRevoke)[-1].session == request.session
    assert talk.call("session.append", session=talk.session, text="x")["error"]["code"] == "invalid"


def test_a_turn_that_has_ended_is_counted_as_session_ls_does(talk: Talk) -> None:
    talk.append("hi")
    talk.bench.hear(1, run(talk.turn(), 0, 65, 66, finish="eos"))
    idle = talk.get()
    assert (idle["state"], idle["tokens"], idle["answer_tokens"]) == ("idle", 4, 2)
    (row,) = talk.call("session.ls")["sessions"]
    assert row["answer_tokens"] == 2


def test_everything_is_kept_in_rows(talk: Talk) -> None:
    talk.append("hi")
    request = talk.turn()
    talk.bench.hear(1, run(request, 0, 65, finish="eos"))
    talk.call("session.finish", session=talk.session)
    kinds = (PutSession, PutContent, EndSession)
    rows = [row for row in talk.bench.rows if isinstance(row, kinds)]
    assert [type(row) for row in rows] == [PutSession, PutContent, PutContent, EndSession]
    appended, made = rows[1:3]
    assert isinstance(appended, PutContent)
    assert isinstance(made, PutContent)
    assert (appended.first, appended.ids, appended.answer) == (0, pack_ids(b"hi"), 0)
    assert (made.first, made.ids, made.answer > 0) == (2, pack_ids(b"A"), True)


def test_ended_session_is_purged_after_its_retention(talk: Talk) -> None:
    talk.call("session.finish", session=talk.session)
    talk.bench.wait(3500.0)
    assert talk.get()["state"] == "ended"
    talk.bench.wait(200.0)
    assert talk.get()["error"]["code"] == "not_found"
    purged = [row.sessions for row in talk.bench.rows if isinstance(row, PurgeSessions)]
    assert purged == [(talk.session,)]


def test_idle_session_keeps_its_lease_for_ten_minutes(talk: Talk) -> None:
    talk.append("hi")
    request = talk.turn()
    talk.bench.hear(1, run(request, 0, 65, finish="eos"))
    ref = LeaseRef(session=request.session, epoch=request.epoch)
    talk.bench.wait(599.0)
    talk.bench.hear(1, LeaseRenew(sent_at_s=1.0, leases=(ref,)))
    assert talk.bench.last(LeaseGrant).leases == (ref,)
    assert talk.bench.on(1, SessionRevoke) == []
    talk.bench.wait(2.0)
    assert talk.bench.last(SessionRevoke).epoch == request.epoch
    again = talk.turn()
    assert again.epoch > request.epoch
    assert talk.bench.last(AppendContent).ids == pack_ids(b"hiA")


def test_idle_session_of_a_node_that_left_goes_whole_to_another(talk: Talk) -> None:
    talk.append("hi")
    request = talk.turn()
    talk.bench.hear(1, run(request, 0, 65, finish="eos"))
    talk.bench.down(1)
    talk.bench.wait(1.0)
    talk.bench.node(2, "n2")
    again = talk.turn()
    assert talk.bench.on(2, GenerateReq) == [again]
    assert talk.bench.on(2, AppendContent)[0].ids == pack_ids(b"hiA")


def test_node_that_holds_the_session_is_preferred_while_it_has_a_free_lane(talk: Talk) -> None:
    talk.append("hi")
    first = talk.turn()
    talk.bench.hear(1, run(first, 0, 65, finish="eos"))
    talk.bench.node(2, "n0")
    second = talk.turn()
    assert talk.bench.on(1, GenerateReq)[-1] == second
    talk.bench.hear(1, run(second, 0, 66, finish="eos"))
    node = talk.bench.core.fleet.get(NodeIdentity("n1"))
    assert node is not None
    for number in (1, 2):
        talk.bench.core.fleet.claim(node.identity, TOY, number, 0.0)  # type: ignore[arg-type]
    third = talk.turn()
    assert talk.bench.on(2, GenerateReq) == [third]
    assert talk.bench.on(1, SessionRevoke)[-1].epoch == first.epoch


def test_turn_that_is_repeated_by_its_key_attaches(talk: Talk) -> None:
    talk.append("hi")
    request = talk.turn(key="k")
    again = talk.send(
        "session.generate", key="k", credit=7, max_new=10, session=talk.session, seed=None
    )
    talk.bench.hear(1, run(request, 0, 65, finish="eos"))
    assert talk.reply(again)["finish"] == "stop"
    assert len(talk.bench.on(1, GenerateReq)) == 1


def test_refused_turn_leaves_the_answer_before_it_to_be_attached_to(talk: Talk) -> None:
    talk.append("hi")
    talk.send("session.generate", session=talk.session, max_new=2)
    talk.bench.hear(1, run(talk.bench.last(GenerateReq), 0, 65, 66, finish="length"))
    refused = talk.call("session.generate", session=talk.session, stop_ids=[9_999_999])
    assert refused["error"]["param"] == "stop_ids"
    assert talk.get()["answer_tokens"] == 2
    assert talk.call("attach", session=talk.session)["usage"]["completion"] == 2


def test_key_of_another_request_is_refused_and_nothing_happens(talk: Talk) -> None:
    talk.append("hi")
    request = talk.turn(key="k")
    talk.bench.hear(1, run(request, 0, 65, finish="eos"))
    other = talk.call("session.create", model="toy")["session"]
    before = talk.get()["tokens"]
    for op, body in (
        ("session.generate", {"session": talk.session, "max_new": 11}),
        ("session.generate", {"session": other, "max_new": 10}),
        ("generate", {"model": "toy", "prompt": "hi", "max_new": 10}),
        ("chat", {"model": "toy", "messages": [{"role": "user", "content": "hi", b"n": 1}]}),
    ):
        error = talk.call(op, key="k", **body)["error"]
        assert (error["code"], error["param"]) == ("invalid", "key"), body
    assert talk.get()["tokens"] == before == 3
    assert len(talk.bench.on(1, GenerateReq)) == 1
    assert len(talk.bench.core.book) == 1


def test_vanished_client_leaves_its_turn_running(talk: Talk) -> None:
    talk.append("hi")
    talk.turn()
    talk.bench.core.client_gone(CLIENT, talk.bench.now)
    talk.bench.wait(15.0)
    assert talk.bench.core.runs.running == 1


def test_session_of_another_owner_is_not_found(talk: Talk) -> None:
    made = talk.bench.core.runs.made
    made.create(SessionId("theirs"), "someone else", ModelName("toy"), 0, 0.0)
    for op in ("session.get", "session.generate"):
        assert talk.call(op, session="theirs")["error"]["code"] == "not_found"
    talk.call("session.finish", session="theirs")
    assert made.find("someone else", SessionId("theirs")).ended_s is None


@pytest.mark.parametrize(
    ("op", "body", "param"),
    [
        ("session.create", {}, "model"),
        ("session.create", {"model": "nope"}, "model"),
        ("session.create", {"model": "toy", "qos": "urgent"}, "qos"),
        ("session.append", {}, "text"),
        ("session.append", {"text": "a", "tokens": [1]}, "text"),
        ("session.append", {"tokens": []}, "text"),
        ("session.append", {"tokens": [2**16]}, "tokens"),
        ("session.generate", {}, "session"),
        ("session.generate", {"stop": [""]}, "stop[0]"),
        ("session.generate", {"tools": [{"name": "x"}]}, "tools"),
        ("session.generate", {"keep_output": "yes"}, "keep_output"),
        ("session.generate", {"model": "other"}, "model"),
        ("session.get", {"limit": 1 << 20}, "limit"),
    ],
)
def test_wrong_parameter_is_refused_by_name(
    talk: Talk, op: str, body: dict[str, Any], param: str
) -> None:
    named = {} if op == "session.create" else {"session": talk.session}
    talk.bench.wait(10.0)  # Until then a node may bring any model.
    assert talk.call(op, **named, **body)["error"]["param"] == param
    assert talk.get()["state"] == "idle"


def test_session_of_one_answer_takes_no_further_turns_and_says_so(talk: Talk) -> None:
    talk.send("generate", model=TOY, tokens=[65], max_new=2)
    request = talk.bench.last(GenerateReq)
    for op in ("session.append", "session.park", "session.fork"):
        error = talk.call(op, session=request.session, **({"text": "x"} if "app" in op else {}))
        assert error["error"]["code"] == "not_found"
        assert "is of one answer" in error["error"]["message"]


def test_finishing_what_is_not_there_is_fine(talk: Talk) -> None:
    assert talk.call("session.finish", session="nothing")["kind"] == "end"


def test_sessions_are_bounded(talk: Talk) -> None:
    made = talk.bench.core.runs.made
    for number in range(MAX_SESSIONS - 1):
        made.create(SessionId(f"{number}"), "local", TOY, 0, 0.0)
    assert talk.call("session.create", model=TOY)["error"]["code"] == "rate_limited"


def test_context_is_bounded(talk: Talk) -> None:
    made: Session = talk.bench.core.runs.made.find("local", SessionId(talk.session))
    made.context.append(bytes(4 * ((1 << 20) - 1)))
    assert talk.append("hi")["error"]["code"] == "context_length_exceeded"
    assert talk.append("h")["tokens"] == 1 << 20


def test_turn_that_began_since_the_node_was_asked_what_it_holds_is_not_in_its_answer(
    talk: Talk,
) -> None:
    talk.append("hi")
    first = talk.turn()
    talk.bench.hear(1, run(first, 0, 65, finish="eos"))
    talk.bench.down(1)
    talk.bench.node(2)
    second = talk.turn()
    held = HeldView(
        session=first.session, epoch=first.epoch, tokens=2, digest=context_digest(pack_ids(b"hi"))
    )
    talk.bench.hear(2, ReconcileAck(page=0, more=False, sessions=(held,)))
    assert talk.bench.on(2, GenerateReq) == [second]
    talk.bench.hear(2, run(second, 0, 66, finish="eos"))
    assert talk.get()["tokens"] == 4


def test_a_session_of_another_tokenizer_goes_on_with_none_of_the_new_one(talk: Talk) -> None:
    talk.append("hi")
    talk.bench.hear(1, run(talk.turn(), 0, 65, finish="eos"))
    # Head and node have another tokenizer from now on.
    talk.bench.text_digest = 0x5EED
    talk.bench.core.models_found({TOY: "/toy"}, 0.0, {TOY: 2})
    talk.bench.settle()
    for error in (
        talk.append("yo")["error"],
        talk.call("session.append", session=talk.session, tokens=[66])["error"],
        talk.call("session.generate", session=talk.session, max_new=3)["error"],
    ):
        assert error["code"] == "tokenizer_unavailable"
        assert "was begun with another tokenizer of toy" in error["message"]
        assert "begin a new session" in error["message"]
    assert len(talk.bench.on(1, GenerateReq)) == 1
    forked = talk.call("session.fork", session=talk.session, offset=2)["session"]
    assert "error" in talk.call("session.append", session=forked, tokens=[66])
    new = talk.call("session.create", model=TOY)["session"]
    assert talk.call("session.append", session=new, text="yo")["tokens"] == 2


def restarted(talk: Talk) -> None:
    """The head ends, and starts on what it had stored."""
    disk = Disk()
    disk.boot = 3
    disk.commit(Persist(lsn=1, rows=tuple(talk.bench.rows)))
    talk.bench = Bench(stored=disk.start())


@pytest.mark.parametrize("is_fork", [False, True])
def test_a_restart_does_not_forget_the_tokenizer_of_a_session_without_turns(
    talk: Talk, is_fork: bool
) -> None:
    talk.append("hi")
    if is_fork:
        talk.session = talk.call("session.fork", session=talk.session)["session"]
    restarted(talk)
    talk.bench.text_digest = 0x5EED
    talk.bench.core.models_found({TOY: "/toy"}, 0.0, {TOY: 2})
    talk.bench.settle()
    for error in (
        talk.append("yo")["error"],
        talk.call("session.generate", session=talk.session, max_new=3)["error"],
    ):
        assert error["code"] == "tokenizer_unavailable"
        assert f"({DIGEST:016x}) than the head has now (0000000000005eed)" in error["message"]
    assert talk.get(limit=9)["ids"] == list(b"hi")


def test_a_session_goes_on_after_a_restart_with_its_own_tokenizer(talk: Talk) -> None:
    talk.append("hi")
    restarted(talk)
    assert talk.append("yo")["tokens"] == 4
    contents = [row for row in talk.bench.rows if isinstance(row, PutContent)]
    assert [row.tokenizer_digest for row in contents] == [DIGEST]
