"""The core against one hand-fed node: what it accepts of it, and what it answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.api_maps import to_map
from bus.errors import StoreCorrupt
from bus.ids import CommandId, Epoch, GenerationId, NodeIdentity, SessionId
from bus.messages.api import MARK, TokenEvent, encode_body
from bus.messages.link import (
    AppendContent,
    Declined,
    GenerateReq,
    LeaseGrant,
    LeaseRenew,
    NeedFull,
    SessionAssign,
    SessionRevoke,
    TokenEvents,
    WatermarkAck,
)
from bus.messages.parts import (
    Finish,
    LeaseRef,
    TokenRun,
    Usage,
)
from head.effects import TextJob
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, TOY, Bench, run
from tests.harness.memory_parts import text_reply


def test_numbers_carry_the_boot(bench: Bench) -> None:
    request = bench.ask()
    assert request.generation >> 32 == 3
    assert request.epoch >> 32 == 3


def test_duplicate_run_is_delivered_once_and_acknowledged_again(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65, 66))
    bench.hear(1, run(request, 0, 65, 66))
    assert bench.tokens() == [65, 66]
    bench.wait(1.0)
    assert bench.last(WatermarkAck).watermarks[0].committed == 2


def test_gap_skips_nothing_and_the_answer_goes_on_under_a_higher_epoch(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65))
    bench.hear(1, run(request, 2, 67))
    assert bench.tokens() == [65]
    assert [link for link, _ in bench.closed] == [1]
    bench.wait(0.5)
    again: GenerateReq = bench.last(GenerateReq)
    assert again.epoch > request.epoch
    assert again.generation > request.generation
    assert (again.generated_tokens, again.max_new_tokens) == (1, request.max_new_tokens - 1)


def test_stale_epoch_and_unknown_generation_are_delivered_to_nobody(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65, epoch=Epoch(request.epoch - 1)))
    bench.hear(1, run(request, 0, 65, generation=GenerationId(1)))
    assert bench.tokens() == []
    bench.hear(1, run(request, 0, 70))
    assert bench.tokens() == [70]


def test_unknown_generation_is_acknowledged_so_that_the_node_forgets_it(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65, finish="eos", generation=GenerationId(9)))
    marks = bench.last(WatermarkAck).watermarks
    assert [(mark.generation, mark.committed) for mark in marks] == [(9, 2)]


def test_another_node_can_not_speak_for_the_one_that_was_asked(bench: Bench) -> None:
    request = bench.ask()
    bench.node(2, "n2")
    bench.hear(2, run(request, 0, 65, finish="eos"))
    assert bench.tokens() == []
    bench.hear(1, run(request, 0, 66, finish="eos"))
    assert bench.tokens() == [66]


def test_more_tokens_than_asked_for_are_not_taken_and_asked_for_elsewhere(bench: Bench) -> None:
    request = bench.ask(max_new=2)
    bench.node(2, "n2")
    bench.hear(1, run(request, 0, 65, 66, 67))
    assert bench.tokens() == []
    assert [link for link, _ in bench.closed] == [1]
    assert bench.sent[-1][0] == 2
    assert bench.last(GenerateReq).epoch > request.epoch


def test_token_outside_the_vocabulary_breaks_the_protocol_and_nothing_is_taken(
    bench: Bench,
) -> None:
    request = bench.ask()
    described = bench.core.texts.described(TOY)
    assert described is not None
    first_beyond = len(described.vocabulary)
    bench.hear(1, run(request, 0, 65, first_beyond - 1))
    bench.hear(1, run(request, 2, 66, first_beyond, finish="eos"))
    assert bench.tokens() == [65, first_beyond - 1]
    assert [link for link, _ in bench.closed] == [1]
    assert f"token id {first_beyond}" in bench.closed[0][1]
    bench.wait(0.5)
    bench.node(2)
    assert bench.last(GenerateReq).epoch > request.epoch


def test_flood_of_unknown_generations_is_acknowledged_in_one_frame_and_then_not_heard(
    bench: Bench,
) -> None:
    for first in (0, 4096, 8192):
        runs = tuple(
            TokenRun(
                session=SessionId("x"),
                epoch=Epoch(1),
                generation=GenerationId(first + at + 1),
                first_seq=2,
                finish=Finish(reason="eos", usage=Usage()),
            )
            for at in range(4096)
        )
        bench.core.link_message(1, TokenEvents(runs=runs), bench.now)
    bench.settle()
    bench.wait(1.0)
    acknowledged = [m for _, m in bench.sent if isinstance(m, WatermarkAck)]
    assert [len(m.watermarks) for m in acknowledged] == [4096]
    assert acknowledged[0].watermarks[-1].committed == 3


def test_what_the_engine_refuses_is_an_error_reply_at_once(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65, finish="refused"))
    assert bench.replies[-1]["error"]["code"] == "internal"
    assert bench.replies[-1]["error"]["details"]["offset"] == 1


def test_engine_error_is_tried_once_more_and_then_an_error_reply(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65, finish="error"))
    assert bench.tokens() == [65]
    bench.wait(0.5)
    again: GenerateReq = bench.last(GenerateReq)
    assert (again.epoch > request.epoch, again.generated_tokens) == (True, 1)
    bench.hear(1, run(again, 0, 66, finish="error"))
    assert bench.tokens() == [65, 66]
    assert bench.replies[-1]["error"]["code"] == "internal"
    assert bench.replies[-1]["error"]["details"]["offset"] == 2


def test_engine_error_is_tried_again_on_another_node_when_there_is_one(bench: Bench) -> None:
    request = bench.ask()
    bench.node(2, "n2")
    bench.hear(1, run(request, 0, finish="error"))
    assert bench.sent[-1][0] == 2


def test_declined_request_goes_to_the_next_node_under_a_new_epoch(bench: Bench) -> None:
    first = bench.ask()
    bench.node(2, "n2")
    bench.hear(
        1,
        Declined(
            command=first.command,
            session=first.session,
            epoch=first.epoch,
            generation=first.generation,
            code="not_found",
            message="no such model here",
        ),
    )
    second = bench.last(GenerateReq)
    assert bench.sent[-1][0] == 2
    assert second.epoch > first.epoch
    assert second.generation != first.generation


def test_declined_by_all_says_what_they_said(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(
        1,
        Declined(
            command=request.command,
            session=request.session,
            epoch=request.epoch,
            generation=request.generation,
            code="not_found",
            message="no such model here",
        ),
    )
    error = bench.replies[-1]["error"]
    assert error["code"] == "no_node"
    assert "no such model here" in error["message"]


def need_full(request: GenerateReq, command: CommandId) -> NeedFull:
    return NeedFull(
        command=command,
        session=request.session,
        epoch=request.epoch,
        length=0,
        digest=bytes(16),
    )


def test_whole_context_that_a_node_asks_for_again_breaks_the_protocol(bench: Bench) -> None:
    request = bench.ask()
    append = bench.last(AppendContent)
    assert append.base_tokens == 0
    before = len(bench.sent)
    bench.hear(1, need_full(request, bench.last(SessionAssign).command))
    bench.hear(1, need_full(request, request.command))
    assert len(bench.sent) == before
    assert bench.closed == []
    bench.hear(1, need_full(request, append.command))
    assert not [m for _, m in bench.sent[before:] if isinstance(m, AppendContent)]
    assert [link for link, _ in bench.closed] == [1]


def test_lease_is_granted_for_what_is_held_and_the_rest_revoked(bench: Bench) -> None:
    request = bench.ask()
    held = LeaseRef(session=request.session, epoch=request.epoch)
    other = LeaseRef(session=request.session, epoch=Epoch(request.epoch - 1))
    bench.hear(1, LeaseRenew(sent_at_s=12.5, leases=(held, other)))
    grant = bench.last(LeaseGrant)
    assert (grant.sent_at_s, grant.lease_ms, grant.leases) == (12.5, 20_000, (held,))
    assert bench.last(SessionRevoke).epoch == other.epoch


def test_end_revokes_the_session_and_frees_the_slot(bench: Bench) -> None:
    request = bench.ask()
    bench.hear(1, run(request, 0, 65, finish="eos"))
    assert bench.last(SessionRevoke).session == request.session
    node = bench.core.fleet.get(NodeIdentity("n1"))
    assert node is not None
    assert not node.claims


def test_finished_answers_are_purged_after_their_retention(bench: Bench) -> None:
    request = bench.ask(key="k")
    bench.hear(1, run(request, 0, 65, finish="eos"))
    bench.wait(3000.0)
    assert len(bench.core.book) == 1
    bench.wait(700.0)
    assert len(bench.core.book) == 0


def test_vanished_client_cancels_its_plain_request_after_the_grace(bench: Bench) -> None:
    request = bench.ask()
    bench.core.client_gone(CLIENT, bench.now)
    bench.wait(4.9)
    assert bench.core.runs.running == 1
    bench.wait(0.2)
    assert bench.core.runs.running == 0
    assert bench.last(SessionRevoke).session == request.session


def test_client_that_came_back_and_vanished_again_has_its_whole_grace(bench: Bench) -> None:
    request = bench.ask()
    bench.core.client_gone(CLIENT, bench.now)
    bench.wait(3.0)
    attach = {"op": "attach", "id": b"again", "session": request.session}
    bench.core.client_request(b"other", [MARK, encode_body(attach)], bench.now)
    bench.core.client_gone(b"other", bench.now)
    bench.wait(4.9)
    assert bench.core.runs.running == 1
    bench.wait(0.2)
    assert bench.core.runs.running == 0


def test_vanished_client_leaves_a_keyed_request_running(bench: Bench) -> None:
    bench.ask(key="k")
    bench.core.client_gone(CLIENT, bench.now)
    bench.wait(60.0)
    assert bench.core.runs.running == 1


@pytest.mark.parametrize(
    "wrong", [{"credit": 0}, {"credit": "x"}, {"op": 5}, {"op": None}, {"model": 3}]
)
def test_readable_id_is_echoed_whatever_else_is_wrong(bench: Bench, wrong: dict[str, Any]) -> None:
    body = {"op": "generate", "id": b"mine", "model": TOY, "prompt": "hi", **wrong}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()
    assert bench.replies[-1]["id"] == b"mine"
    assert bench.replies[-1]["error"]["code"] == "invalid"


@pytest.mark.parametrize("request_id", [b"", b"x" * 65, "text", 7, None])
def test_unreadable_id_is_answered_without_one(bench: Bench, request_id: object) -> None:
    bench.core.client_request(CLIENT, [MARK, encode_body({"op": "ping", "id": request_id})], 0.0)
    bench.settle()
    assert bench.replies[-1]["id"] is None
    assert bench.replies[-1]["error"]["param"] == "id"


def test_node_that_said_goodbye_has_left_and_one_that_did_not_is_down(bench: Bench) -> None:
    bench.node(2, "n2")
    bench.core.link_down(1, "stopped", 1.0, left=True)
    bench.core.link_down(2, "cut", 1.0)
    states = {node.identity: node.state for node in bench.core.fleet.nodes}
    assert states == {"n1": "left", "n2": "down"}
    bench.node(3, "n1")
    assert [node.state for node in bench.core.fleet.nodes] == ["up", "down"]


@pytest.mark.parametrize("budget", [2**64 - 1, -1, 1.5, "soon"])
def test_wall_budget_that_no_message_carries_is_refused(bench: Bench, budget: object) -> None:
    body = {"op": "generate", "id": b"r", "model": TOY, "prompt": "hi", "max_wall_ms": budget}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], 0.0)
    bench.settle()
    assert bench.replies[-1]["error"]["param"] == "max_wall_ms"


def test_two_requests_of_one_id_before_the_tokenizer_is_known(bench: Bench) -> None:
    bench.ask(key="k")
    attach = {"op": "attach", "id": b"twice", "key": "k"}
    for _ in range(2):
        bench.core.client_request(CLIENT, [MARK, encode_body(attach)], 0.0)
    bench.settle()
    errors = [reply for reply in bench.replies if reply["kind"] == "error"]
    assert [error["error"]["param"] for error in errors] == ["id"]


def test_usage_of_the_prompt_is_the_head_s_own_count(bench: Bench) -> None:
    request = bench.ask()
    usage = Usage(prompt_tokens=2**32 - 1, cached_tokens=2**32 - 1)
    events = run(request, 0, 65, finish="eos")
    ended = replace(events.runs[0], finish=Finish(reason="eos", usage=usage))
    bench.hear(1, TokenEvents(runs=(ended,)))
    assert bench.replies[-1]["usage"] == {
        "prompt": 2,
        "cached": 2,
        "completion": 1,
        "replayed": 0,
    }


def test_no_timer_is_left_of_an_ended_request_with_a_wall_budget(bench: Bench) -> None:
    request = bench.ask(max_wall_ms=10**9)
    bench.hear(1, run(request, 0, 65, finish="eos"))
    bench.wait(11.0)
    due = bench.core.next_timeout()
    assert due is not None
    assert due < bench.now + 60


def test_cancelled_answer_stays_cancelled_when_its_restart_timer_fires() -> None:
    bench = Bench(ADMITTED_ANSWER)
    bench.node(1)
    for op, rest in (("attach", {"key": "k"}), ("cancel", {"about": b"attach"})):
        body = {"op": op, "id": op.encode(), **rest}
        bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
        bench.settle()
    bench.wait(20.0)
    assert not any(isinstance(message, GenerateReq) for _, message in bench.sent)
    again = {"op": "attach", "id": b"again", "key": "k"}
    bench.core.client_request(CLIENT, [MARK, encode_body(again)], bench.now)
    bench.settle()
    assert bench.replies[-1]["finish"] == "cancelled"


def test_damaged_row_is_a_corrupt_store() -> None:
    with pytest.raises(StoreCorrupt, match="answer 5"):
        Bench(replace(ADMITTED_ANSWER, state="finished", options=b"\xc1"))


def test_too_many_frames_are_refused_under_their_id(bench: Bench) -> None:
    body = encode_body({"op": "ping", "id": b"many"})
    bench.core.client_request(CLIENT, [MARK, body, *[b"blob"] * 40], 0.0)
    bench.settle()
    assert bench.replies[-1]["id"] == b"many"
    assert "34 frames" in bench.replies[-1]["error"]["message"]


def test_model_folder_that_goes_while_its_text_is_encoded_ends_that_request(bench: Bench) -> None:
    body = {"op": "generate", "id": b"r", "model": TOY, "prompt": "hi"}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], 0.0)
    (job,) = [
        t.output.message for t in bench.core.effects().outputs if isinstance(t.output, TextJob)
    ]
    bench.core.models_found({}, 0.0)
    bench.core.text_reply(text_reply(job), 0.0)
    bench.settle()
    # The head is new: a node may bring it.
    bench.wait(9.9)
    assert not bench.replies
    bench.wait(0.1)
    assert bench.replies[-1]["error"]["code"] == "tokenizer_unavailable"
    assert bench.replies[-1]["id"] == b"r"


def test_a_token_event_has_the_keys_that_its_struct_has(bench: Bench) -> None:
    bench.node(1)
    request = bench.ask()
    bench.hear(1, run(request, 0, 104, 105))
    event = bench.events("token")[-1]
    struct = to_map(TokenEvent(offset=0, tokens=(104, 105), text=event["text"]))
    of_chats = {"reasoning", "tool_calls"}
    assert event == {"id": b"r", "kind": "event"} | {
        name: value for name, value in struct.items() if name not in of_chats
    }
