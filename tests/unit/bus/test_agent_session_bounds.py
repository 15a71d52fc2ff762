"""AgentSession: nothing on a node grows without bound, and nothing is dropped for it."""

from __future__ import annotations

import pytest

from bus.agent_records import SubmitToWorker, ToWorker
from bus.ids import CommandId, Epoch, GenerationId, SessionId, pack_ids
from bus.messages import link, parts, worker
from bus.messages.sampling import SamplingParams
from tests.harness.checked_session import HEAD, LEASE_MS, MODEL, WORKER, Node, known, view


def start(node: Node, number: int) -> list[object]:
    """A session of its own with generation `number` on an empty context."""
    session = SessionId(f"x{number}")
    node.assign(session=session)
    request = link.GenerateReq(
        command=node.next_command(),
        session=session,
        epoch=Epoch(1),
        generation=GenerationId(number),
        sampling=SamplingParams(),
        max_new_tokens=1000,
        prompt_tokens=0,
    )
    return node.give(request)


def listed(number: int, committed: int) -> parts.SessionView:
    return view(known(committed, generation=number), session=SessionId(f"x{number}"), ids=b"")


def pause(number: int) -> ToWorker:
    return ToWorker(model=MODEL, message=worker.Pause(generation=GenerationId(number)))


def resume(number: int) -> ToWorker:
    return ToWorker(model=MODEL, message=worker.Resume(generation=GenerationId(number)))


def test_all_pause_at_three_quarters_of_the_whole_and_go_on_below_half() -> None:
    """Of 4,000 bytes, 3,000 are 750 ids and 2,000 are 500 ids."""
    node = Node(retained_limit=4000)
    for number in (1, 2):
        start(node, number)
    node.session.link_down(0.0)
    assert node.output(0, list(range(700)), generation=1) == []
    assert node.output(0, list(range(49)), generation=2) == []
    assert node.session.retained_bytes == 4 * 749
    assert node.output(49, [5], generation=2) == [pause(1), pause(2)]
    # What was on its way still comes and is kept, and a new one starts paused.
    assert node.output(50, [6], generation=2) == []
    assert node.session.retained_bytes == 4 * 751
    said = node.link_to_head(listed(1, 0), listed(2, 0))
    assert sum(len(run.ids) for e in said if isinstance(e, link.TokenEvents) for run in e.runs) == (
        4 * 751
    )
    submit, waits = start(node, 3)
    assert isinstance(submit, SubmitToWorker)
    assert waits == pause(3)
    assert node.acknowledge(251, generation=1) == []
    assert node.acknowledge(252, generation=1) == [resume(1), resume(2), resume(3)]
    assert node.session.retained_bytes == 4 * 499


def test_the_tighter_of_both_bounds_counts() -> None:
    node = Node(retained_limit=4000)
    for number in (1, 2):
        start(node, number)
    said = node.output(0, list(range(768)), generation=1)
    assert said[1:] == [pause(1), pause(2)]
    # Half of 1,024 events is 512, half of 4,000 bytes 500 ids.
    assert node.acknowledge(257, generation=1) == []
    assert node.acknowledge(268, generation=1) == []
    assert node.acknowledge(269, generation=1) == [resume(1), resume(2)]


def test_one_that_is_full_itself_stays_paused_when_the_whole_has_room() -> None:
    """Half of 8,000 bytes are 1,000 ids; of 1,024 events half are 512."""
    node = Node(retained_limit=8000)
    for number in (1, 2):
        start(node, number)
    assert node.output(0, list(range(768)), generation=1)[1:] == [pause(1)]
    assert node.output(0, list(range(760)), generation=2)[1:] == [pause(2)]
    assert node.acknowledge(529, generation=2) == [resume(2)]
    assert node.acknowledge(256, generation=1) == []
    assert node.acknowledge(257, generation=1) == [resume(1)]


def test_finished_ones_count_until_they_are_acknowledged() -> None:
    """A finish counts 128 bytes and its message."""
    node = Node(retained_limit=4000)
    start(node, 1)
    run = worker.OutputRun(
        generation=GenerationId(1),
        first_index=0,
        ids=pack_ids([1, 2]),
        finish=parts.Finish(reason="error", message="no"),
    )
    node.session.worker_output(MODEL, WORKER, [run])
    assert node.session.retained_bytes == 8 + 128 + 2
    node.taken()
    node.acknowledge(2, generation=1)
    assert node.session.retained_bytes == 128 + 2
    node.acknowledge(3, generation=1)
    assert node.session.retained_bytes == 0


def test_a_session_retains_at_most_16_finished_generations() -> None:
    node = Node()
    node.assign()
    for number in range(16):
        assert isinstance(node.give(node.request(generation=number, prompt=0))[0], SubmitToWorker)
        node.output(0, [1], "eos", generation=number)
    (declined,) = node.give(node.request(generation=16, prompt=0))
    assert isinstance(declined, link.Declined)
    assert declined.code == "session_busy"
    node.acknowledge(2, generation=3)
    assert isinstance(node.give(node.request(generation=16, prompt=0))[0], SubmitToWorker)


def test_a_node_holds_at_most_65536_sessions() -> None:
    node = Node()

    def assign(number: int) -> None:
        node.session.receive(
            link.SessionAssign(
                command=CommandId(number + 1),
                session=SessionId(f"x{number}"),
                epoch=Epoch(1),
                model=MODEL,
                lease_ms=LEASE_MS,
            ),
            0.0,
        )

    for number in range(65_536):
        assign(number)
    assert node.session.actions() == []
    assign(65_536)
    (refused,) = (action.message for action in node.session.actions())  # type: ignore[union-attr]
    assert isinstance(refused, link.Refused)
    assert refused.code == "too_many_sessions"
    assert len(node.session.held()) == 65_536
    # A head that means none of them gets them named 1,024 a page.
    node.session.link_up(HEAD, 1.0)
    node.session.receive(link.Reconcile(page=0, more=False), 1.0)
    pages = [action.message for action in node.session.actions()]  # type: ignore[union-attr]
    assert len(pages) == 64
    assert node.session.held() == ()


@pytest.mark.parametrize("cut", [0, 1])
def test_a_cancelled_run_that_still_talks_fills_nothing(cut: int) -> None:
    node = Node()
    start(node, 1)
    node.output(0, [1, 2, 3], generation=1)
    if cut:
        node.link_to_head()
    else:
        node.assign(session=SessionId("x1"), epoch=2)
    assert node.output(3, list(range(5000)), generation=1) == []
    assert node.session.retained_bytes == 0
