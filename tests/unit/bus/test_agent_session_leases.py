"""AgentSession: leases and fencing of docs/link-f.md "Sessions", hand-computed."""

from __future__ import annotations

import pytest

from bus.agent_records import SubmitToWorker
from bus.ids import (
    Epoch,
    SessionId,
    pack_ids,
)
from bus.messages import link, parts
from tests.harness.checked_session import LEASE_MS, PROMPT, Node, S, cancel


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def running(node: Node) -> Node:
    node.assign()
    node.append()
    node.give(node.request())
    return node


def test_all_leases_are_renewed_from_half_of_one_and_again_each_second(node: Node) -> None:
    node.assign(now=0.0)
    node.assign(now=4.0, session=SessionId("s2"), epoch=3)
    assert node.session.next_timeout() == 10.0
    assert node.timeout(9.9) == []
    refs = (
        parts.LeaseRef(session=S, epoch=Epoch(1)),
        parts.LeaseRef(session=SessionId("s2"), epoch=Epoch(3)),
    )
    assert node.timeout(10.0) == [link.LeaseRenew(sent_at_s=10.0, leases=refs)]
    assert node.session.next_timeout() == 11.0
    assert node.timeout(10.5) == []
    assert node.timeout(11.0) == [link.LeaseRenew(sent_at_s=11.0, leases=refs)]
    granted = link.LeaseGrant(sent_at_s=10.0, lease_ms=LEASE_MS, leases=refs)
    assert node.give(granted, 13.0) == []
    # Counted from when it was asked for: 10 + 20 / 2, not 13 + 10.
    assert node.session.next_timeout() == 20.0
    assert node.timeout(19.9) == []


def test_a_grant_counts_from_when_it_was_asked_for(running: Node) -> None:
    refs = (parts.LeaseRef(session=S, epoch=Epoch(1)),)
    running.give(link.LeaseGrant(sent_at_s=10.0, lease_ms=LEASE_MS, leases=refs), 19.0)
    assert cancel() not in running.timeout(29.9)
    assert cancel() in running.timeout(30.0)


@pytest.mark.parametrize(
    "ref",
    [
        parts.LeaseRef(session=S, epoch=Epoch(2)),
        parts.LeaseRef(session=SessionId("other"), epoch=Epoch(1)),
    ],
)
def test_a_grant_for_something_else_stretches_nothing(running: Node, ref: parts.LeaseRef) -> None:
    running.give(link.LeaseGrant(sent_at_s=10.0, lease_ms=LEASE_MS, leases=(ref,)), 11.0)
    assert cancel() in running.timeout(20.0)


def test_a_grant_from_the_future_counts_from_now(running: Node) -> None:
    refs = (parts.LeaseRef(session=S, epoch=Epoch(1)),)
    running.give(link.LeaseGrant(sent_at_s=1e9, lease_ms=LEASE_MS, leases=refs), 5.0)
    assert cancel() in running.timeout(25.0)


def test_a_fenced_session_emits_nothing_until_a_higher_epoch(running: Node) -> None:
    request = running.request(generation=101)
    running.output(0, [1])
    stop, lost = running.timeout(20.0)
    assert stop == cancel()
    assert isinstance(lost, link.Lost)
    assert (lost.epoch, lost.generation, lost.worker) == (1, 100, 0)
    assert running.session.held() == ()
    assert running.session.next_timeout() is None
    assert running.output(1, [2], "eos") == []
    (append,) = running.append(pack_ids([8]), base=PROMPT)
    assert isinstance(append, link.Refused)
    assert (append.code, append.known_epoch) == ("fenced", 1)
    (declined,) = running.give(request)
    assert isinstance(declined, link.Declined)
    assert declined.code == "fenced"
    (assign,) = running.assign(epoch=1, now=21.0)
    assert isinstance(assign, link.Refused)
    assert assign.code == "fenced"
    assert running.assign(epoch=2, now=21.0) == []
    # Its context stayed as a cache.
    assert running.append(pack_ids([8]), base=PROMPT, epoch=2) == []
    (submit,) = running.give(running.request(generation=102, epoch=2, prompt=4))
    assert isinstance(submit, SubmitToWorker)
