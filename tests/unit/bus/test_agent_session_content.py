"""AgentSession: assign, append and revoke of docs/link-f.md "Sessions", hand-computed."""

from __future__ import annotations

import pytest

from bus.agent_records import SubmitToWorker
from bus.context import EMPTY_DIGEST, context_digest
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    PackedIds,
    pack_ids,
)
from bus.messages import link, parts, worker
from bus.messages.sampling import SamplingParams
from tests.harness.checked_session import LEASE_MS, MODEL, PROMPT, Node, S, cancel


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def running(node: Node) -> Node:
    node.assign()
    node.append()
    node.give(node.request())
    return node


def test_an_assign_is_held_without_an_answer(node: Node) -> None:
    assert node.assign(epoch=7) == []
    assert node.session.held() == (parts.LeaseRef(session=S, epoch=Epoch(7)),)
    assert node.session.highest_epoch == 7


def test_a_lower_epoch_is_refused_and_the_known_one_named(node: Node) -> None:
    node.assign(epoch=7)
    (refused,) = node.assign(epoch=6)
    assert isinstance(refused, link.Refused)
    assert (refused.code, refused.epoch, refused.known_epoch) == ("stale_epoch", 6, 7)
    assert refused.command == node.command
    assert node.session.held() == (parts.LeaseRef(session=S, epoch=Epoch(7)),)


def test_a_replayed_assign_changes_nothing(running: Node) -> None:
    replay = link.SessionAssign(
        command=CommandId(1), session=S, epoch=Epoch(1), model=MODEL, lease_ms=LEASE_MS
    )
    assert running.give(replay, 15.0) == []
    # Its lease was not stretched by the replay: it still ends at 20 s.
    assert running.timeout(20.0)[0] == cancel()


def test_a_higher_epoch_ends_the_generation_and_keeps_the_context(running: Node) -> None:
    running.output(0, [1, 2])
    assert running.assign(epoch=2) == [cancel()]
    assert running.output(2, [3]) == []
    (submit,) = running.give(running.request(generation=101, epoch=2))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.context == PROMPT


def test_qos_above_three_counts_as_three(node: Node) -> None:
    node.assign(qos=200)
    node.append()
    (submit,) = node.give(node.request())
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.qos == 3


@pytest.mark.parametrize("exact", [False, True])
def test_appends_extend_by_length_and_digest(node: Node, exact: bool) -> None:
    node.assign()
    assert node.append(PROMPT) == []
    stepped = pack_ids([8, 9])
    segments = (parts.Segment(tokens=2, by_step=True),)
    assert node.append(stepped, base=PROMPT, segments=segments) == []
    (submit,) = node.give(node.request(prompt=3, generated_tokens=2, exact=exact))
    # What was generated goes by step again only where the same bits are asked for.
    whole = (parts.Segment(tokens=3), parts.Segment(tokens=2, by_step=True))
    assert submit == SubmitToWorker(
        model=MODEL,
        submit=worker.Submit(
            generation=GenerationId(100),
            context=pack_ids([5, 6, 7, 8, 9]),
            segments=whole if exact else (),
            sampling=SamplingParams(temperature=0.0),
            max_new_tokens=10,
            prompt_tokens=3,
            generated_tokens=2,
            exact=exact,
        ),
    )


@pytest.mark.parametrize("base", [pack_ids([5, 6, 8]), pack_ids([5, 6]), pack_ids([5, 6, 7, 8])])
def test_a_mismatch_needs_the_full_context(node: Node, base: PackedIds) -> None:
    node.assign()
    node.append(PROMPT)
    (answer,) = node.append(pack_ids([9]), base=base)
    assert answer == link.NeedFull(
        command=CommandId(node.command),
        session=S,
        epoch=Epoch(1),
        length=3,
        digest=context_digest(PROMPT),
    )
    (declined,) = node.give(node.request())
    assert isinstance(declined, link.Declined)
    assert declined.code == "context_mismatch"
    whole = pack_ids([1, 2, 3, 4])
    assert node.append(whole) == []
    (submit,) = node.give(node.request(prompt=4))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.context == whole


def test_a_replayed_append_changes_nothing(node: Node) -> None:
    node.assign()
    message = link.AppendContent(
        command=node.next_command(),
        session=S,
        epoch=Epoch(1),
        base_tokens=0,
        base_digest=EMPTY_DIGEST,
        ids=PROMPT,
    )
    assert node.give(message) == []
    assert node.append(pack_ids([8]), base=PROMPT) == []
    assert node.give(message) == []
    (submit,) = node.give(node.request(prompt=4))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.context == pack_ids([5, 6, 7, 8])


def test_appends_that_can_not_be_applied_are_refused_with_their_command(node: Node) -> None:
    (unknown,) = node.append()
    assert isinstance(unknown, link.Refused)
    assert (unknown.code, unknown.command, unknown.known_epoch) == ("unknown_session", 1, 0)
    node.assign(epoch=5)
    (stale,) = node.append(epoch=4)
    assert isinstance(stale, link.Refused)
    assert (stale.code, stale.command, stale.known_epoch) == ("stale_epoch", 3, 5)
    (ahead,) = node.append(epoch=6)
    assert isinstance(ahead, link.Refused)
    assert (ahead.code, ahead.known_epoch) == ("unknown_epoch", 5)
    (wrong,) = node.append(epoch=5, segments=(parts.Segment(tokens=2),))
    assert isinstance(wrong, link.Refused)
    assert wrong.code == "invalid"


def revoke(node: Node, epoch: int) -> list[object]:
    return node.give(
        link.SessionRevoke(
            command=node.next_command(), session=S, epoch=Epoch(epoch), reason="finish"
        )
    )


def test_a_revoke_ends_the_session_and_its_generation(running: Node) -> None:
    assert revoke(running, 1) == [cancel()]
    assert running.session.held() == ()
    assert running.output(0, [1]) == []
    (refused,) = running.append()
    assert isinstance(refused, link.Refused)
    assert refused.code == "unknown_session"
    assert revoke(running, 1) == []


def test_a_stale_revoke_is_refused(node: Node) -> None:
    node.assign(epoch=2)
    (refused,) = revoke(node, 1)
    assert isinstance(refused, link.Refused)
    assert (refused.code, refused.known_epoch) == ("stale_epoch", 2)
    assert len(node.session.held()) == 1


def test_messages_about_other_things_are_left_to_others(node: Node) -> None:
    assert not node.session.receive(link.Heartbeat(), 0.0)
    assert node.taken() == []
