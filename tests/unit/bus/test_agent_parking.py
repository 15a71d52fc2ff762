"""AgentSession: sessions that are parked in files, taken up again and forgotten."""

from __future__ import annotations

import pytest

from bus.agent_parking import NOT_HELD, WORKER_GONE, KeptFiles
from bus.agent_records import ToWorker
from bus.context import EMPTY_DIGEST, context_digest
from bus.ids import CommandId, Epoch, SessionId, pack_ids
from bus.messages import link, worker
from bus.messages.link_parking import (
    SessionForget,
    SessionPark,
    SessionParked,
    SessionRestore,
    SessionRestored,
)
from bus.messages.parts import Segment
from tests.harness.checked_session import HEAD, MODEL, PROMPT, WORKER, Node, S, cancel, view


@pytest.fixture
def node() -> Node:
    """It holds a session with three tokens."""
    made = Node()
    made.assign()
    made.append()
    return made


def park(node: Node, epoch: int = 1) -> SessionPark:
    return SessionPark(command=node.next_command(), session=S, epoch=Epoch(epoch))


def restore(node: Node, epoch: int = 1) -> SessionRestore:
    return SessionRestore(command=node.next_command(), session=S, epoch=Epoch(epoch))


def to_worker(message: worker.Park | worker.Restore | worker.Forget) -> ToWorker:
    return ToWorker(model=MODEL, message=message)


PARK = to_worker(worker.Park(session=S, context=PROMPT))
RESTORE = to_worker(worker.Restore(session=S, context=PROMPT, segments=(Segment(tokens=3),)))
FORGET = to_worker(worker.Forget(session=S))


def test_a_parked_session_is_held_no_more_and_its_file_is_told_of(node: Node) -> None:
    assert node.give(park(node)) == [PARK]
    assert node.session.held() == ()
    node.session.parking.parked(MODEL, worker.Parked(session=S, tokens=3, file_bytes=99))
    assert node.taken() == [SessionParked(session=S, epoch=Epoch(1), tokens=3, file_bytes=99)]


def test_what_runs_is_ended_before_it_is_parked(node: Node) -> None:
    node.give(node.request())
    assert node.give(park(node)) == [cancel(), PARK]


def test_a_session_that_is_not_held_is_not_parked(node: Node) -> None:
    first = park(node)
    node.give(first)
    assert node.give(first) == []
    node.assign(epoch=5)
    (refused,) = node.give(park(node, epoch=4))
    assert isinstance(refused, link.Refused)
    assert (refused.code, refused.known_epoch) == ("stale_epoch", 5)
    assert [ref.epoch for ref in node.session.held()] == [5]


def test_a_session_without_its_whole_context_is_given_up_and_not_parked(node: Node) -> None:
    node.append(pack_ids([9]), base=pack_ids([1, 2]))  # Does not match.
    (said,) = node.give(park(node))
    assert isinstance(said, SessionParked)
    assert (said.tokens, said.code) == (0, NOT_HELD)
    assert node.session.held() == ()


def test_restore_is_asked_once_and_the_file_is_gone_after_it(node: Node) -> None:
    asked = restore(node)
    assert node.give(asked) == [RESTORE]
    assert node.give(asked) == []
    node.session.parking.restored(MODEL, worker.Restored(session=S, tokens=2, exact_tokens=1))
    told = SessionRestored(
        command=asked.command, session=S, epoch=Epoch(1), tokens=2, exact_tokens=1
    )
    assert node.taken() == [FORGET, told]
    node.session.parking.restored(MODEL, worker.Restored(session=S, tokens=2))
    assert node.taken() == []


def test_a_file_that_was_asked_for_while_an_older_one_was_read_is_kept(node: Node) -> None:
    node.give(restore(node))
    node.give(park(node))  # The worker has done both when it is heard.
    node.session.parking.restored(MODEL, worker.Restored(session=S, tokens=2))
    node.session.parking.parked(MODEL, worker.Parked(session=S, tokens=3))
    assert [type(said) for said in node.taken()] == [SessionRestored, SessionParked]
    node.assign(epoch=2)
    node.append(epoch=2)
    node.give(restore(node, epoch=2))
    node.session.parking.restored(MODEL, worker.Restored(session=S, tokens=3))
    assert node.taken()[0] == FORGET


def test_restore_of_a_session_that_is_not_held_is_refused(node: Node) -> None:
    (refused,) = node.give(restore(node, epoch=2))
    assert isinstance(refused, link.Refused)
    assert refused.code == "unknown_epoch"


def test_a_worker_that_dies_takes_its_files_work_along(node: Node) -> None:
    node.give(park(node))
    node.assign(epoch=2)
    node.append(epoch=2)
    asked = restore(node, epoch=2)
    node.give(asked)
    node.session.worker_lost(MODEL, WORKER, "it died")
    parked, restored = node.taken()
    assert parked == SessionParked(session=S, epoch=Epoch(1), code=WORKER_GONE, message="it died")
    assert restored == SessionRestored(
        command=asked.command, session=S, epoch=Epoch(2), problem="it died"
    )


def test_forget_goes_to_the_models_worker(node: Node) -> None:
    assert node.give(SessionForget(session=S, model=MODEL)) == [FORGET]


def test_reconcile_names_the_files_to_keep_over_all_its_pages(node: Node) -> None:
    node.session.parking.take_kept()
    node.session.link_up(HEAD, 1.0)
    two = SessionId("two")
    node.give(link.Reconcile(page=0, more=True, parked=(S,)))
    assert node.session.parking.take_kept() is None
    node.give(link.Reconcile(page=1, more=False, parked=(two,)))
    assert node.session.parking.take_kept() == KeptFiles(frozenset({S, two}))
    assert node.session.parking.take_kept() is None


def test_file_that_is_written_when_nobody_means_it_any_more_is_removed(node: Node) -> None:
    node.give(park(node))
    node.link_to_head(now=1.0)
    node.session.parking.parked(MODEL, worker.Parked(session=S, tokens=3))
    forget, told = node.taken()
    assert forget == FORGET
    assert isinstance(told, SessionParked)


def test_session_that_is_listed_as_placed_goes_on_and_has_no_file(node: Node) -> None:
    node.link_to_head(view(), now=1.0)
    assert node.session.parking.take_kept() == KeptFiles(frozenset())
    assert [ref.session for ref in node.session.held()] == [S]


def test_an_empty_context_is_not_parked() -> None:
    node = Node()
    node.assign()
    assert context_digest(b"") == EMPTY_DIGEST
    (said,) = node.give(park(node))
    assert isinstance(said, SessionParked)
    assert said.code == NOT_HELD
    assert CommandId(node.command) > 0
