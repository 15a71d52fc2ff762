"""Streams that lose their node, link, worker or engine go on; told by the core's messages."""

from __future__ import annotations

from typing import Any

import pytest

from bus.ids import Epoch, pack_ids
from bus.messages.link import (
    AppendContent,
    GenerateCancel,
    GenerateReq,
    LeaseGrant,
    LeaseRenew,
    Refused,
    SessionAssign,
    SessionRevoke,
)
from bus.messages.parts import LeaseRef, Segment
from head.rows import PutFinish, PutGeneration, PutTokens, RaiseBoot
from tests.harness.head_bench import Bench, cancel, declined, lost, run

# --- what the next node is told -------------------------------------------------------------------


def test_next_node_gets_the_prompt_by_chunk_and_what_was_made_by_step(bench: Bench) -> None:
    request = bench.ask(max_new=10, seed=4)
    bench.hear(1, run(request, 0, 65, 66, 67))
    bench.node(2, "n2")
    bench.died(1, request)
    append, again = bench.on(2, AppendContent, GenerateReq)
    assert append.ids == pack_ids(b"hiABC")
    assert append.segments == (Segment(tokens=2), Segment(tokens=3, by_step=True))
    assert (again.prompt_tokens, again.generated_tokens, again.max_new_tokens) == (2, 3, 7)
    assert again.sampling == request.sampling
    assert again.sampling.seed == 4


def test_the_higher_epoch_is_kept_with_its_generation_in_the_round_that_sends_it(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2")
    bench.rows.clear()
    bench.core.link_message(1, lost(request), bench.now)
    effects = bench.core.effects()
    assert effects.persist is not None
    (row,) = [row for row in effects.persist.rows if isinstance(row, PutGeneration)]
    assert (row.node, row.first_offset, row.epoch > request.epoch) == ("n2", 1, True)
    assert all(tagged.after == effects.persist.lsn for tagged in effects.outputs)


def test_caller_sees_where_it_moved_and_every_token_once(bench: Bench) -> None:
    request = bench.ask(max_new=10, exact=True)
    bench.hear(1, run(request, 0, 65, 66))
    bench.node(2, "n2")
    bench.died(1, request)
    (moved,) = bench.events("moved")
    assert (moved["from"], moved["to"], moved["offset"], moved["exact"]) == ("n1", "n2", 2, True)
    assert "killed by signal 9" in moved["reason"]
    again = bench.last(GenerateReq)
    # What the first node still says is of a past epoch.
    bench.hear(1, run(request, 2, 90))
    bench.hear(2, run(again, 0, 67, finish="eos"))
    assert bench.tokens() == [65, 66, 67]
    assert bench.replies[-1]["finish"] == "stop"
    assert bench.replies[-1]["usage"]["replayed"] == 4


def test_numerics_of_a_node_that_made_no_token_count_for_nothing(bench: Bench) -> None:
    request = bench.ask(max_new=10, exact=True)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2", numerics="other")
    bench.down(1, left=True)
    bench.node(3, "n3", numerics="other")
    bench.node(4, "n4", numerics="same")
    bench.down(2, left=True)
    moved = [(event["to"], event["exact"]) for event in bench.events("moved")]
    assert moved == [("n2", False), ("n4", True)]


def test_other_numerics_are_not_exact_and_only_second_choice(bench: Bench) -> None:
    request = bench.ask(max_new=40)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2", numerics="other")
    bench.died(1, request)
    assert not bench.events("moved")[0]["exact"]
    second = bench.last(GenerateReq)
    bench.hear(2, run(second, 0, *range(66, 86)))
    bench.node(3, "n3", numerics="other")
    bench.node(4, "n0", numerics="same")
    bench.died(2, second)
    assert bench.events("moved")[1]["to"] == "n3"


def test_answer_with_all_its_tokens_ends_by_length_when_its_node_goes(bench: Bench) -> None:
    request = bench.ask(max_new=2)
    bench.hear(1, run(request, 0, 65, 66))
    bench.died(1, request)
    assert bench.replies[-1]["finish"] == "length"
    assert len(bench.on(1, GenerateReq)) == 1


def test_unused_part_of_the_wall_budget_goes_along(bench: Bench) -> None:
    request = bench.ask(max_new=10, max_wall_ms=10_000)
    bench.wait(4.0)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2")
    bench.died(1, request)
    assert bench.last(GenerateReq).wall_ms == 6000


# --- links ------------------------------------------------------------------------------------


def test_lost_link_is_waited_for_and_then_the_stream_moves(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2")
    bench.down(1)
    bench.wait(0.49)
    assert not bench.on(2, GenerateReq)
    bench.wait(0.02)
    assert bench.on(2, GenerateReq)


def test_link_that_is_lost_again_is_waited_for_as_long_again(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2")
    bench.down(1)
    bench.wait(0.3)
    bench.node(3)
    bench.wait(0.1)
    bench.down(3)
    bench.wait(0.4)
    assert not bench.on(2, GenerateReq)
    bench.wait(0.2)
    assert bench.on(2, GenerateReq)


def test_node_that_said_goodbye_is_not_waited_for(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2")
    bench.down(1, left=True)
    assert bench.on(2, GenerateReq)


def test_node_that_was_started_again_gets_its_stream_at_once_under_a_higher_epoch(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.down(1)
    bench.node(2, "n1", incarnation=2)
    again = bench.last(GenerateReq)
    assert bench.on(2, SessionAssign)[0].epoch == again.epoch > request.epoch


def test_stream_waits_for_a_node_and_then_ends_with_its_offset(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.down(1)
    bench.wait(30.4)
    assert not any(reply["kind"] == "error" for reply in bench.replies)
    bench.wait(0.2)
    error = bench.replies[-1]["error"]
    assert error["code"] == "node_lost"
    assert error["details"]["offset"] == 1
    assert "the link to node n1 ended (cut)" in error["message"]


def test_one_node_that_comes_back_in_time_goes_on(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.down(1)
    bench.wait(25.0)
    bench.node(2)
    again = bench.last(GenerateReq)
    assert (again.generated_tokens, again.epoch > request.epoch) == (1, True)


def test_wall_budget_ends_a_stream_that_waits_for_a_node_with_what_it_has(bench: Bench) -> None:
    request = bench.ask(max_new=10, max_wall_ms=3000)
    bench.hear(1, run(request, 0, 65))
    bench.down(1)
    bench.wait(3.1)
    assert bench.replies[-1]["finish"] == "expired"
    assert bench.replies[-1]["usage"]["completion"] == 1


# --- cancel -----------------------------------------------------------------------------------


def test_cancel_during_a_lost_link_ends_it_at_its_watermark(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.down(1)
    cancel(bench, b"r")
    bench.node(2, "n1")
    assert [row.finish for row in bench.rows if isinstance(row, PutFinish)] == ["cancelled"]
    assert not bench.on(2, GenerateReq)
    bench.hear(2, run(request, 1, 66))
    bench.wait(60.0)
    assert not bench.on(2, GenerateReq)
    assert sum(isinstance(row, PutTokens) for row in bench.rows) == 1


def test_cancel_during_a_move_holds_on_the_next_node(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.died(1, request)
    cancel(bench, b"r")
    bench.node(2, "n2")
    bench.wait(60.0)
    assert not bench.on(2, GenerateReq)
    assert any(reply.get("finish") == "cancelled" for reply in bench.replies)


def test_cancel_tells_the_node_to_stop_and_then_to_let_go(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cancel(bench, b"r")
    stop, revoke = bench.on(1, GenerateCancel, SessionRevoke)
    assert isinstance(stop, GenerateCancel)
    assert (stop.generation, revoke.epoch) == (request.generation, request.epoch)


# --- workers and engines ------------------------------------------------------------------------


def test_fenced_session_goes_on_under_a_higher_epoch(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.hear(1, lost(request, worker=0))
    bench.wait(0.3)
    assert bench.last(GenerateReq).epoch > request.epoch


@pytest.mark.parametrize("code", ["context_mismatch", "unknown_session", "model_not_ready"])
def test_decline_that_passes_is_tried_again_there_under_a_higher_epoch(
    bench: Bench, code: str
) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, declined(request, code))
    bench.wait(0.3)
    again = bench.last(GenerateReq)
    assert (again.epoch > request.epoch, again.generation != request.generation) == (True, True)
    assert not bench.events("moved")


def test_refused_session_takes_an_epoch_above_what_the_node_knows(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    assign = bench.last(SessionAssign)
    refused = Refused(
        command=assign.command,
        session=request.session,
        epoch=request.epoch,
        code="stale_epoch",
        message="a higher epoch was assigned here",
        known_epoch=Epoch(9 << 32),
    )
    bench.hear(1, refused)
    bench.wait(0.3)
    assert [row.boot for row in bench.rows if isinstance(row, RaiseBoot)] == [10]
    assert bench.last(GenerateReq).epoch > 9 << 32


def test_refusal_that_knows_an_epoch_above_all_that_can_be_stored_ends_the_link(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    refused = Refused(
        command=request.command,
        session=request.session,
        epoch=request.epoch,
        code="stale_epoch",
        message="a higher epoch was assigned here",
        known_epoch=Epoch(2**63),
    )
    bench.hear(1, refused)
    assert [link for link, _ in bench.closed] == [1]
    assert not any(isinstance(row, RaiseBoot) for row in bench.rows)


def test_messages_about_a_past_epoch_change_nothing(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.hear(1, lost(request, worker=0))
    bench.wait(0.3)
    sent = len(bench.on(1, GenerateReq))
    for stale in (lost(request), declined(request, "not_found")):
        bench.hear(1, stale)
    bench.wait(1.0)
    assert len(bench.on(1, GenerateReq)) == sent


def test_node_that_declined_is_asked_again_once_it_was_started_anew(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.hear(1, lost(request, worker=0))
    bench.wait(0.3)
    bench.hear(1, declined(bench.last(GenerateReq), "not_found"))
    bench.wait(10.0)
    assert len(bench.on(1, GenerateReq)) == 2
    bench.down(1)
    bench.node(2, "n1", incarnation=2)
    assert bench.on(2, GenerateReq)


# --- leases -----------------------------------------------------------------------------------


def test_lease_of_the_old_place_is_revoked_and_of_the_new_one_granted(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.node(2, "n2")
    bench.died(1, request)
    again: Any = bench.last(GenerateReq)
    assert bench.on(2, GenerateReq) == [again]
    old = LeaseRef(session=request.session, epoch=request.epoch)
    new = LeaseRef(session=again.session, epoch=again.epoch)
    for link in (1, 2):
        bench.hear(link, LeaseRenew(sent_at_s=1.0, leases=(old, new)))
    assert [grant.leases for grant in bench.on(2, LeaseGrant)] == [(new,)]
    assert bench.on(1, LeaseGrant) == []
