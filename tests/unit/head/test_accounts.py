"""What failures leave of an answer: counted exactly, and known to the next start of the head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.context import context_digest
from bus.ids import NodeIdentity, WorkerIncarnation, pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import Declined, GenerateReq, ReconcileAck, TokenEvents
from bus.messages.parts import Finish, HeldView, LeaseRef, Usage
from head.accounts import keep_account
from head.core import CorePolicy, HeadCore
from head.effects import Persist
from head.rows import PutAccount, PutFinish
from head.suspects import Death
from tests.harness.head_bench import CLIENT, TOY, Bench, run
from tests.harness.memory_disk import Disk

HI = pack_ids(b"hi")


def restarted(bench: Bench, down_s: float = 0.0) -> Bench:
    """The next start of the head, `down_s` seconds of wall time after the last thing it did."""
    disk = Disk()
    disk.boot = 3
    disk.commit(Persist(lsn=1, rows=tuple(bench.rows)))
    made = Bench()
    wall_s = 1e9 + bench.now + down_s
    made.core = HeadCore(CorePolicy(), disk.start(), entropy=bytes, now=0.0, wall_s=wall_s)
    made.core.models_found({TOY: "/toy"}, 0.0)
    made.settle()
    return made


def usage(bench: Bench) -> dict[str, int]:
    (end,) = [reply for reply in bench.replies if reply["kind"] == "end"]
    found: dict[str, int] = end["usage"]
    return found


# --- tokens that were computed again --------------------------------------------------------------


def test_prompt_and_answer_that_the_next_node_computed_are_counted_when_its_first_token_comes(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65, 66, 67, cached=1))
    bench.node(2, "n2")
    bench.died(1, request)
    bench.hear(2, run(bench.last(GenerateReq), 0, 68, finish="eos"))
    # Two tokens of the prompt and three of the answer; it had none of them.
    assert usage(bench) == {"prompt": 2, "cached": 1, "completion": 4, "replayed": 5}


def test_what_the_next_node_had_in_its_cache_is_not_counted(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65, 66))
    bench.node(2, "n2")
    bench.died(1, request)
    bench.hear(2, run(bench.last(GenerateReq), 0, 67, cached=3, finish="eos"))
    assert usage(bench)["replayed"] == 1
    assert usage(bench)["cached"] == 0


def test_a_replay_that_ends_at_once_is_counted_and_leaves_what_was_cached(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65, 66, cached=1))
    bench.node(2, "n2")
    bench.died(1, request)
    usage_there = Usage(prompt_tokens=2, cached_tokens=2, completion_tokens=0)
    finish = Finish(reason="eos", usage=usage_there)
    (ended,) = run(bench.last(GenerateReq), 0, cached=2).runs
    bench.hear(2, TokenEvents(runs=(replace(ended, finish=finish),)))
    # Of four tokens the second node had two, and found that the answer ends there.
    assert usage(bench) == {"prompt": 2, "cached": 1, "completion": 2, "replayed": 2}


def test_a_replay_whose_time_is_over_before_it_began_counts_for_nothing(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65, 66, cached=1))
    bench.node(2, "n2")
    bench.died(1, request)
    finish = Finish(reason="expired", usage=Usage())
    (ended,) = run(bench.last(GenerateReq), 0).runs
    bench.hear(2, TokenEvents(runs=(replace(ended, finish=finish),)))
    assert usage(bench) == {"prompt": 2, "cached": 1, "completion": 2, "replayed": 0}


def test_moves_add_up_and_one_that_fails_before_its_first_token_counts_for_nothing(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.died(1, request)
    for link, name in ((2, "n2"), (3, "n3")):
        bench.node(link, name)
        bench.down(link, left=True)
    bench.node(4, "n4")
    second = bench.last(GenerateReq)
    bench.hear(4, run(second, 0, 66, 67))
    bench.node(5, "n5")
    bench.down(4, left=True)
    bench.hear(5, run(bench.last(GenerateReq), 0, 68, finish="eos"))
    assert usage(bench)["replayed"] == (2 + 1) + (2 + 3)


def test_stream_that_was_never_moved_has_computed_nothing_again(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.down(1)
    bench.node(2)
    view = HeldView(
        session=request.session,
        epoch=request.epoch,
        tokens=2,
        digest=context_digest(pack_ids(b"hi")),
    )
    bench.hear(2, ReconcileAck(page=0, more=False, sessions=(view,)))
    bench.hear(2, run(request, 0, 65, finish="eos"))
    assert usage(bench)["replayed"] == 0


def test_older_nodes_tell_of_cached_tokens_at_the_end_only(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    finish = Finish(reason="eos", usage=Usage(prompt_tokens=2, cached_tokens=1))
    bench.hear(1, run(request, 0, 65))
    (end,) = run(request, 1).runs
    bench.hear(1, TokenEvents(runs=(replace(end, finish=finish),)))
    assert usage(bench) == {"prompt": 2, "cached": 1, "completion": 1, "replayed": 0}


def test_counts_are_known_after_a_restart_of_the_head(bench: Bench) -> None:
    request = bench.ask(max_new=10, key="k")
    bench.hear(1, run(request, 0, 65, cached=1))
    bench.node(2, "n2")
    bench.died(1, request)
    second = bench.last(GenerateReq)
    bench.hear(2, run(second, 0, 66))
    after = restarted(bench)
    after.node(1, "n3")
    after.wait(5.1)
    after.hear(1, run(after.last(GenerateReq), 0, 67, finish="eos"))
    (finish,) = [row for row in after.rows if isinstance(row, PutFinish)]
    assert (finish.cached_tokens, finish.replayed_tokens) == (1, (2 + 1) + (2 + 2))
    # Also of an answer that has ended.
    (answer,) = restarted(_with(bench, after)).core.book
    assert (answer.cached_tokens, answer.replayed_tokens) == (1, 7)


def _with(first: Bench, second: Bench) -> Bench:
    second.rows = first.rows + second.rows
    return second


def test_a_replay_that_the_heads_restart_found_without_a_token_is_counted(bench: Bench) -> None:
    request = bench.ask(max_new=10, key="k")
    bench.node(2, "n2")
    bench.died(1, request)
    second = bench.last(GenerateReq)
    after = restarted(bench)
    ref = LeaseRef(session=second.session, epoch=second.epoch)
    after.node(1, "n2", held=(ref,))
    after.hear(1, run(second, 0, 65, finish="eos"))
    (finish,) = [row for row in after.rows if isinstance(row, PutFinish)]
    assert finish.replayed_tokens == 2


def test_nothing_is_kept_of_an_answer_that_nothing_happened_to(bench: Bench) -> None:
    request = bench.ask(max_new=40)
    bench.hear(1, run(request, 0, *range(60, 80)))
    bench.hear(1, run(request, 20, 65, finish="eos"))
    assert not [row for row in bench.rows if isinstance(row, PutAccount)]


# --- whether it goes on bit by bit ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("exact", "numerics", "said"),
    [(True, "same", True), (True, "other", False), (False, "same", False)],
)
def test_moved_says_exact_of_what_asked_for_it_and_goes_to_equal_numerics(
    exact: bool, numerics: str, said: bool, bench: Bench
) -> None:
    """Who did not ask may have been given keys and values that were computed in another way."""
    request = bench.ask(max_new=10, exact=exact)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2", numerics=numerics)
    bench.died(1, request)
    assert [event["exact"] for event in bench.events("moved")] == [said]


def test_after_a_restart_exact_is_said_of_what_made_the_last_token(bench: Bench) -> None:
    """Not of the node that the head placed it on last, which had made none."""
    request = bench.ask(max_new=10, exact=True, key="k")
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2", numerics="other")
    bench.died(1, request)
    after = restarted(bench)
    attach = {"op": "attach", "id": b"again", "key": "k"}
    after.core.client_request(CLIENT, [MARK, encode_body(attach)], after.now)
    after.settle()
    after.node(1, "n3", numerics="other")
    after.wait(5.1)
    assert [event["exact"] for event in after.events("moved")] == [False]


# --- the wall budget ------------------------------------------------------------------------------


def test_time_without_a_head_uses_up_no_wall_budget(bench: Bench) -> None:
    request = bench.ask(max_new=10, max_wall_ms=20_000, key="k")
    bench.wait(4.0)
    bench.hear(1, run(request, 0, 65))
    after = restarted(bench, down_s=3600.0)
    after.node(1, "n2")
    after.wait(5.1)
    # Four seconds before the restart, and five in which its node was waited for.
    (again,) = after.on(1, GenerateReq)
    assert again.wall_ms == 11_000


def test_budget_that_was_used_at_the_last_placement_is_used(bench: Bench) -> None:
    bench.ask(max_new=10, max_wall_ms=20_000, key="k")
    bench.down(1, left=True)
    bench.wait(6.0)
    bench.node(2, "n1", incarnation=2)
    assert bench.last(GenerateReq).wall_ms == 14_000
    after = restarted(bench, down_s=3600.0)
    after.node(1, "n2")
    after.wait(5.1)
    assert after.last(GenerateReq).wall_ms == 9_000


def test_budget_goes_on_to_be_used_up_after_a_restart(bench: Bench) -> None:
    request = bench.ask(max_new=10, max_wall_ms=20_000, key="k")
    bench.wait(4.0)
    bench.hear(1, run(request, 0, 65))
    after = restarted(bench, down_s=3600.0)
    after.wait(15.9)
    assert not [row for row in after.rows if isinstance(row, PutFinish)]
    after.wait(0.2)
    (finish,) = [row for row in after.rows if isinstance(row, PutFinish)]
    assert (finish.finish, finish.completion_tokens) == ("expired", 1)


# --- suspicions -----------------------------------------------------------------------------------


def test_worker_that_died_before_the_restart_and_one_after_it_are_two(bench: Bench) -> None:
    request = bench.ask(max_new=10, key="k")
    bench.node(2, "n2")
    bench.died(1, request)
    second = bench.last(GenerateReq)
    after = restarted(bench)
    after.node(1, "n2", held=(LeaseRef(session=second.session, epoch=second.epoch),))
    after.died(1, second)
    (finish,) = [row for row in after.rows if isinstance(row, PutFinish)]
    assert (finish.finish, b"request_kills_workers" in finish.error) == ("error", True)


def test_death_that_was_known_before_a_restart_stays_so_when_its_node_comes_back(
    bench: Bench,
) -> None:
    """The answer waited to move; where it waits is not kept, so it is taken up at its old place."""
    bench.died(1, bench.ask(max_new=10, key="k"))
    after = restarted(bench)
    after.node(1, worker=2)
    (answer,) = after.core.book
    assert [death.worker for death in answer.suspicion.seen] == [("n1", 1)]


def test_what_the_restart_found_is_cleared_in_the_store_too(bench: Bench) -> None:
    bench.ask(max_new=10, key="k")
    (answer,) = bench.core.book
    answer.suspicion.seen.append(Death((NodeIdentity("n1"), WorkerIncarnation(1))))
    keep_account(answer, bench.core.outbox)
    bench.settle()
    after = restarted(bench)
    (restored,) = after.core.book
    assert restored.suspicion.deaths == 1
    keep_account(restored, after.core.outbox)
    after.settle()
    assert not [row for row in after.rows if isinstance(row, PutAccount)]
    restored.suspicion.clear()
    keep_account(restored, after.core.outbox)
    after.settle()
    (row,) = [row for row in after.rows if isinstance(row, PutAccount)]
    assert row.suspicion == b""


def test_one_death_that_is_told_before_and_after_a_restart_is_one(bench: Bench) -> None:
    """The head moved the neighbour and ended before it had moved this one."""
    request = bench.ask(max_new=10, key="k")
    bench.died(1, request)
    bench.node(2, "n2")
    bench.rows = bench.rows[: _place(bench, "n2")]
    after = restarted(bench)
    after.node(1, worker=2, held=(LeaseRef(session=request.session, epoch=request.epoch),))
    view = HeldView(
        session=request.session,
        epoch=request.epoch,
        tokens=2,
        digest=context_digest(pack_ids(b"hi")),
    )
    after.hear(1, run(request, 0))
    after.hear(1, ReconcileAck(page=0, more=False, sessions=(view,)))
    assert not [row for row in after.rows if isinstance(row, PutFinish)]


def test_death_of_which_an_earlier_start_had_heard_has_all_its_suspects(bench: Bench) -> None:
    """The other was placed as the worker died, and no word came of it before the restart."""
    first, late = bench.ask(b"a", max_new=10, key="a"), bench.ask(b"b", max_new=10, key="b")
    bench.died(1, first)
    after = restarted(bench)
    requests = (first, late)
    refs = tuple(LeaseRef(session=each.session, epoch=each.epoch) for each in requests)
    after.node(1, worker=2, held=refs)
    views = tuple(
        HeldView(session=ref.session, epoch=ref.epoch, tokens=2, digest=context_digest(HI))
        for ref in refs
    )
    after.hear(1, ReconcileAck(page=0, more=False, sessions=views))
    deaths = {answer.key: answer.suspicion.deaths for answer in after.core.book}
    assert deaths == {"a": 1, "b": 0}


def _place(bench: Bench, node: str) -> int:
    nodes = [getattr(row, "node", "") for row in bench.rows]
    return nodes.index(node)


def test_tokens_clear_it_also_in_the_store(bench: Bench) -> None:
    request = bench.ask(max_new=40)
    bench.node(2, "n2")
    bench.died(1, request)
    second = bench.last(GenerateReq)
    bench.hear(2, run(second, 0, *range(60, 76)))
    first, *_, last = [row for row in bench.rows if isinstance(row, PutAccount)]
    assert first.suspicion
    assert (last.suspicion, last.replayed_tokens) == (b"", 2)


def test_what_a_worker_of_another_node_did_excuses_nobody(bench: Bench) -> None:
    """Two nodes count their workers alike, and one is not the other."""
    request = bench.ask(max_new=10)
    bench.died(1, request, worker=1)
    bench.node(2, "n2", worker=1)
    second = bench.last(GenerateReq)
    code = "queue_full"
    bench.hear(
        2,
        Declined(
            command=second.command,
            session=second.session,
            epoch=second.epoch,
            generation=second.generation,
            code=code,
            message=code,
        ),
    )
    (answer,) = bench.core.book
    assert answer.suspicion.deaths == 1
