"""Sessions that are parked, resumed and forked, by the messages of nodes and clients."""

from __future__ import annotations

from typing import Any

import pytest

from bus.capabilities import CAPABILITIES, PARKING
from bus.context import context_digest
from bus.ids import Epoch, GenerationId, NodeIdentity, SessionId, pack_ids
from bus.messages.link import (
    AppendContent,
    GenerateCancel,
    GenerateReq,
    Reconcile,
    ReconcileAck,
    Refused,
    SessionAssign,
    SessionRevoke,
)
from bus.messages.link_parking import (
    SessionForget,
    SessionPark,
    SessionParked,
    SessionRestore,
    SessionRestored,
)
from bus.messages.parts import Segment
from head.core import CorePolicy
from head.parking import RESTORE_LIMIT_S
from head.placement import POLICIES
from head.rows import FORKED, PutContent, PutParked, PutSession
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.head_bench import TOY, run
from tests.harness.session_talk import Talk

WITHOUT = tuple(name for name in CAPABILITIES if name != PARKING)


class ParkTalk(Talk):
    """A session with `hiA` as its context, placed on n1."""

    def __init__(self, policy: CorePolicy | None = None) -> None:
        super().__init__(policy)
        self.append("hi")
        self.bench.hear(1, run(self.turn(), 0, 65, finish="eos"))

    def park(self) -> dict[str, Any]:
        return self.call("session.park", session=self.session)

    def resume(self) -> bytes:
        return self.send("session.resume", session=self.session)

    def restored(self, link: int, tokens: int = 3) -> SessionRestore:
        """The node says what it reuses; gives what it was asked."""
        asked: SessionRestore = self.bench.last(SessionRestore)
        self.bench.hear(
            link,
            SessionRestored(
                command=asked.command,
                session=asked.session,
                epoch=asked.epoch,
                tokens=tokens,
                exact_tokens=tokens - 1,
                problem="",
            ),
        )
        return asked

    def answered(self, request: bytes) -> bool:
        return any(reply["id"] == request for reply in self.bench.replies)

    @property
    def parked_rows(self) -> list[PutParked]:
        return [row for row in self.bench.rows if isinstance(row, PutParked)]


@pytest.fixture
def talk() -> ParkTalk:
    return ParkTalk()


def test_park_frees_the_node_which_gets_the_rest_of_the_context_first(talk: ParkTalk) -> None:
    assigned: SessionAssign = talk.bench.last(SessionAssign)
    parked = talk.park()
    assert (parked["session"], parked["tokens"], parked["node"]) == (talk.session, 3, "n1")
    append, park = talk.bench.on(1, AppendContent, SessionPark, SessionRevoke)[1:]
    assert (append.ids, append.segments) == (pack_ids(b"A"), (Segment(tokens=1, by_step=True),))
    assert (park.session, park.epoch) == (talk.session, assigned.epoch)
    assert talk.parked_rows == [
        PutParked(session=SessionId(talk.session), parked=True, file_on=NodeIdentity("n1"))
    ]
    seen = talk.get()
    assert (seen["state"], seen["node"], seen["file_on"]) == ("parked", "", "n1")
    (row,) = talk.call("session.ls")["sessions"]
    assert row["state"] == "parked"


def test_park_twice_is_fine_and_does_nothing(talk: ParkTalk) -> None:
    first = talk.park()
    second = talk.park()
    assert {**second, "id": 0} == {**first, "id": 0}
    assert len(talk.bench.on(1, SessionPark)) == len(talk.parked_rows) == 1


def test_park_cancels_the_turn_that_runs(talk: ParkTalk) -> None:
    request = talk.turn()
    running = f"q{talk.number}".encode()
    talk.bench.hear(1, run(request, 0, 66))
    talk.park()
    assert talk.reply(running)["finish"] == "cancelled"
    kinds = [type(m) for m in talk.bench.on(1, GenerateCancel, AppendContent, SessionPark)]
    assert kinds[-3:] == [GenerateCancel, AppendContent, SessionPark]
    # What the node still makes of it is nobody's.
    talk.bench.hear(1, run(request, 1, 90, finish="cancelled"))
    assert talk.get(limit=10)["ids"] == list(b"hiAB")
    assert talk.get()["state"] == "parked"


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("session.generate", {}),
        ("session.append", {"text": "x"}),
        ("session.append", {"tokens": [65]}),
    ],
)
def test_a_parked_session_takes_nothing_until_it_is_resumed(
    talk: ParkTalk, op: str, body: dict[str, Any]
) -> None:
    talk.park()
    error = talk.call(op, session=talk.session, **body)["error"]
    assert error["code"] == "parked"
    assert f"sfctl session resume {talk.session}" in error["message"]
    assert talk.get()["tokens"] == 3
    assert len(talk.bench.on(1, GenerateReq)) == 1


def test_a_session_is_parked_with_the_text_that_was_being_tokenized(talk: ParkTalk) -> None:
    from bus.messages.api import MARK, encode_body
    from tests.harness.head_bench import CLIENT

    bodies = (
        {"op": "session.append", "id": b"t", "session": talk.session, "text": "hi"},
        {"op": "session.park", "id": b"p", "session": talk.session},
    )
    for body in bodies:
        talk.bench.core.client_request(CLIENT, [MARK, encode_body(body)], talk.bench.now)
    talk.bench.settle()
    assert (talk.reply(b"t")["tokens"], talk.reply(b"p")["tokens"]) == (5, 5)
    assert talk.bench.last(AppendContent).ids == pack_ids(b"Ahi")


def test_resume_places_it_where_its_file_is_and_reports_what_is_reused(talk: ParkTalk) -> None:
    before: SessionAssign = talk.bench.last(SessionAssign)
    talk.park()
    talk.bench.node(2, "n0")
    request = talk.resume()
    assert not talk.answered(request)
    assign, append, restore = talk.bench.on(1, SessionAssign, AppendContent, SessionRestore)[-3:]
    assert assign.epoch > before.epoch
    assert (append.base_tokens, append.ids) == (0, pack_ids(b"hiA"))
    assert append.segments == (Segment(tokens=2), Segment(tokens=1, by_step=True))
    assert (restore.session, restore.epoch) == (talk.session, assign.epoch)
    talk.restored(1)
    assert talk.reply(request) == {
        "id": request,
        "kind": "end",
        "session": talk.session,
        "node": "n1",
        "tokens": 3,
        "reused": 3,
        "exact": 2,
        "problem": "",
    }
    assert talk.parked_rows[-1] == PutParked(session=SessionId(talk.session), parked=False)
    again = talk.turn()
    assert (again.epoch, again.prompt_tokens) == (assign.epoch, 3)
    assert talk.bench.on(1, SessionForget) == []


@pytest.mark.parametrize("placement", sorted(POLICIES))
def test_resume_goes_to_the_file_whatever_the_policy(placement: str) -> None:
    talk = ParkTalk(CorePolicy(runs=RunPolicy(waiting=WaitingPolicy(placement=placement))))
    for number in range(3):
        talk.park()
        talk.bench.node(10 + number, f"n{10 + number}")
        talk.bench.core.fleet.claim(NodeIdentity("n1"), TOY, GenerationId(number), 0.0)
        request = talk.resume()
        talk.restored(1)
        assert talk.reply(request)["node"] == "n1"


def test_resume_elsewhere_has_the_file_removed(talk: ParkTalk) -> None:
    talk.park()
    talk.bench.node(2, "n2")
    talk.bench.down(1, left=True)
    request = talk.resume()
    talk.restored(2, tokens=0)
    assert talk.reply(request)["node"] == "n2"
    assert talk.reply(request)["reused"] == 0
    assert talk.bench.on(2, AppendContent)[-1].ids == pack_ids(b"hiA")
    # The first node finds out when it is back: nothing of it is named.
    talk.bench.node(3, "n1")
    assert talk.bench.on(3, Reconcile)[-1].parked == ()


def test_full_nodes_take_a_session_without_a_turn(talk: ParkTalk) -> None:
    talk.park()
    for number in range(3):
        talk.bench.core.fleet.claim(NodeIdentity("n1"), TOY, GenerationId(number), 0.0)
    request = talk.resume()
    talk.restored(1)
    assert talk.reply(request)["node"] == "n1"


def test_resume_of_a_live_session_is_an_error(talk: ParkTalk) -> None:
    error = talk.reply(talk.resume())["error"]
    assert (error["code"], error["param"]) == ("invalid", "session")
    assert talk.parked_rows == []


def test_a_resume_that_fails_leaves_it_parked(talk: ParkTalk) -> None:
    talk.park()
    talk.bench.down(1, left=True)
    error = talk.reply(talk.resume())["error"]
    assert error["code"] == "no_node"
    assert "stays parked" in error["message"]
    assert talk.get()["state"] == "parked"
    assert len(talk.parked_rows) == 1
    talk.bench.node(2)
    request = talk.resume()
    talk.restored(2)
    assert talk.reply(request)["node"] == "n1"


def test_park_is_fine_when_the_node_can_not_be_reached(talk: ParkTalk) -> None:
    talk.bench.down(1)
    assert talk.park()["node"] == ""
    talk.bench.node(2)
    page: Reconcile = talk.bench.on(2, Reconcile)[-1]
    assert (page.sessions, page.parked) == ((), ())


def test_a_node_of_an_older_version_just_gives_it_up(talk: ParkTalk) -> None:
    talk.bench.down(1, left=True)
    talk.bench.node(2, "old", capabilities=WITHOUT)
    talk.bench.hear(2, run(talk.turn(), 0, 66, finish="eos"))
    assert talk.park()["node"] == ""
    assert talk.bench.on(2, SessionPark) == []
    assert talk.bench.on(2, SessionRevoke)[-1].reason == "parked"
    request = talk.resume()
    assert (talk.reply(request)["node"], talk.reply(request)["reused"]) == ("old", 0)
    assert talk.bench.on(2, SessionRestore) == []
    assert talk.turn().prompt_tokens == 4


def test_file_that_could_not_be_written_is_not_counted_on(talk: ParkTalk) -> None:
    talk.park()
    asked: SessionPark = talk.bench.last(SessionPark)
    no_room = SessionParked(session=asked.session, epoch=asked.epoch, code="storage_full")
    talk.bench.hear(1, no_room)
    assert talk.get()["file_on"] == ""
    assert talk.parked_rows[-1] == PutParked(session=asked.session, parked=True)


def test_reconcile_names_the_files_that_are_meant(talk: ParkTalk) -> None:
    talk.park()
    talk.bench.down(1)
    talk.bench.node(2)
    page: Reconcile = talk.bench.on(2, Reconcile)[-1]
    assert (page.sessions, page.parked, page.more) == ((), (SessionId(talk.session),), False)
    talk.call("session.finish", session=talk.session)
    assert talk.bench.on(2, SessionForget) == [
        SessionForget(session=SessionId(talk.session), model=TOY)
    ]
    talk.bench.down(2)
    talk.bench.node(3)
    assert talk.bench.on(3, Reconcile)[-1].parked == ()


def test_who_waits_for_a_resume_hears_of_the_end_of_the_link(talk: ParkTalk) -> None:
    talk.park()
    request = talk.resume()
    talk.bench.down(1)
    assert talk.reply(request)["reused"] == 0
    assert "link" in talk.reply(request)["problem"]
    assert talk.get()["state"] == "idle"


def test_a_node_that_says_nothing_of_a_file_is_waited_for_so_long(talk: ParkTalk) -> None:
    talk.park()
    request = talk.resume()
    talk.bench.hear(1, ReconcileAck(page=0, more=False))
    talk.bench.wait(RESTORE_LIMIT_S - 1)
    assert not talk.answered(request)
    talk.bench.wait(2.0)
    assert talk.reply(request)["reused"] == 0


def test_a_place_that_is_refused_is_none(talk: ParkTalk) -> None:
    talk.park()
    request = talk.resume()
    assign: SessionAssign = talk.bench.last(SessionAssign)
    asked: SessionRestore = talk.bench.last(SessionRestore)
    for command in (assign.command, asked.command):
        refused = Refused(
            command=command,
            session=asked.session,
            epoch=asked.epoch,
            code="too_many_sessions",
            message="full",
            known_epoch=Epoch(0),
        )
        talk.bench.hear(1, refused)
    assert (talk.reply(request)["node"], talk.reply(request)["reused"]) == ("", 0)
    assert talk.reply(request)["problem"] == "full"


def test_a_resumed_session_without_a_turn_gives_its_place_up_after_a_while(
    talk: ParkTalk,
) -> None:
    talk.park()
    talk.resume()
    talk.restored(1)
    talk.bench.wait(599.0)
    assert talk.get()["node"] == "n1"
    talk.bench.wait(2.0)
    assert talk.get()["node"] == ""


def test_an_ended_session_is_neither_parked_nor_resumed(talk: ParkTalk) -> None:
    talk.park()
    talk.call("session.finish", session=talk.session)
    assert talk.get()["state"] == "ended"
    assert talk.park()["error"]["code"] == "invalid"
    assert talk.reply(talk.resume())["error"]["code"] == "invalid"


def test_a_new_session_can_be_parked_and_resumed(talk: ParkTalk) -> None:
    talk.session = talk.call("session.create", model=TOY)["session"]
    assert talk.park()["node"] == ""
    request = talk.resume()
    assert (talk.reply(request)["node"], talk.reply(request)["tokens"]) == ("n1", 0)


# --- fork -------------------------------------------------------------------------------------


def test_fork_has_a_context_of_its_own_as_it_was_computed(talk: ParkTalk) -> None:
    forked = talk.call("session.fork", session=talk.session)
    child = forked["session"]
    assert forked["tokens"] == 3
    talk.append("!")
    assert talk.get(limit=9)["ids"] == list(b"hiA!")
    seen = talk.call("session.get", session=child, limit=9)
    assert (seen["ids"], seen["parent"], seen["state"]) == (list(b"hiA"), talk.session, "idle")
    made = [row for row in talk.bench.rows if isinstance(row, PutSession)][-1]
    assert (made.session, made.parent) == (child, talk.session)
    contents = [
        (row.first, row.ids, row.answer)
        for row in talk.bench.rows
        if isinstance(row, PutContent) and row.session == child
    ]
    assert contents == [(0, pack_ids(b"hi"), 0), (2, pack_ids(b"A"), FORKED)]
    talk.session = child
    talk.turn()
    append: AppendContent = talk.bench.last(AppendContent)
    assert append.session == child
    assert append.segments == (Segment(tokens=2), Segment(tokens=1, by_step=True))
    assert append.base_digest == context_digest(b"")


@pytest.mark.parametrize(("offset", "ids"), [(0, b""), (1, b"h"), (3, b"hiA")])
def test_fork_at_an_offset_has_so_many_tokens(talk: ParkTalk, offset: int, ids: bytes) -> None:
    child = talk.call("session.fork", session=talk.session, offset=offset)["session"]
    assert talk.call("session.get", session=child, limit=9)["ids"] == list(ids)


def test_fork_above_the_context_is_refused(talk: ParkTalk) -> None:
    error = talk.call("session.fork", session=talk.session, offset=4)["error"]
    assert (error["code"], error["details"]) == ("cursor_ahead", {"offset": 4, "have": 3})


def test_fork_is_refused_while_a_turn_runs(talk: ParkTalk) -> None:
    talk.turn()
    assert talk.call("session.fork", session=talk.session)["error"]["code"] == "session_busy"


def test_a_parked_or_ended_session_can_be_forked(talk: ParkTalk) -> None:
    talk.park()
    child = talk.call("session.fork", session=talk.session)["session"]
    assert talk.call("session.get", session=child)["state"] == "idle"
    assert talk.call("session.get", session=child)["file_on"] == ""
    talk.call("session.finish", session=talk.session)
    assert talk.call("session.fork", session=talk.session)["tokens"] == 3


@pytest.mark.parametrize("op", ["session.park", "session.resume", "session.fork"])
def test_a_session_that_is_not_there_is_not_found(talk: ParkTalk, op: str) -> None:
    assert talk.call(op, session="s-9-9")["error"]["code"] == "not_found"
