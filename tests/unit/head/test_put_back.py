"""A head on a store that was put back: what ran then ends, and cursors of later are refused."""

from __future__ import annotations

from dataclasses import replace

from bus.ids import Epoch, GenerationId, NodeIdentity, pack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import Reconcile, SessionRevoke
from bus.messages.parts import LeaseRef
from head.put_back import JUMP, SETTING, boot_above_copy
from head.rows import FINISHED, SENT, PutFinish, PutSetting, StoredAnswer, StoredState
from tests.harness.head_bench import ADMITTED_ANSWER, CLIENT, Bench

OLD = 1 << 32
RUNNING = replace(
    ADMITTED_ANSWER,
    answer=OLD + 1,
    state=SENT,
    tokens=pack_ids([65, 66]),
    generation=GenerationId(OLD + 1),
    node=NodeIdentity("n1"),
    epoch=Epoch(OLD + 1),
    worker=1,
)
DONE = replace(
    ADMITTED_ANSWER, answer=OLD + 2, key="done", state=FINISHED, finish="stop", tokens=pack_ids([7])
)


def put_back(*answers: StoredAnswer) -> Bench:
    """A head that found, at start 1 + JUMP, that its store is a copy of start 1."""
    boot = 1 + JUMP
    setting = PutSetting(name=SETTING, value=str(boot))
    stored = StoredState(boot=boot, head_id="h", answers=answers, settings=(setting,))
    return Bench(stored=stored)


def attach(bench: Bench, offset: int, key: str = "k") -> dict[str, object]:
    bench.replies.clear()
    body = {"op": "attach", "id": b"a%d" % offset, "key": key, "offset": offset}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()
    return bench.replies[-1]


def test_what_ran_or_waited_when_the_copy_was_made_ends_by_name() -> None:
    waiting = replace(ADMITTED_ANSWER, answer=OLD + 3, key="w")
    bench = put_back(RUNNING, DONE, waiting)
    ends = {row.answer: row for row in bench.rows if isinstance(row, PutFinish)}
    assert sorted(ends) == [OLD + 1, OLD + 3]
    assert all(row.finish == "error" for row in ends.values())
    assert bench.core.runs.running == 0
    bench.node(1)
    bench.wait(60.0)
    assert not [m for _, m in bench.sent if "Generate" in type(m).__name__]
    for key in ("k", "w"):
        error = attach(bench, 0, key)["error"]
        assert isinstance(error, dict)
        assert error["code"] == "store_restored"
        assert "Ask again" in error["message"]


def test_its_second_start_finds_them_ended_and_keeps_its_own_answers() -> None:
    # What the first start took, when it was killed: its number is of the boot after the jump.
    own = replace(RUNNING, answer=((1 + JUMP) << 32) + 1, key="own")
    setting = PutSetting(name=SETTING, value=str(1 + JUMP))
    stored = StoredState(boot=2 + JUMP, head_id="h", answers=(RUNNING, own), settings=(setting,))
    bench = Bench(stored=stored)
    ends = [row.answer for row in bench.rows if isinstance(row, PutFinish)]
    assert ends == [OLD + 1]
    assert bench.core.runs.running == 1


def test_a_cursor_into_the_copy_is_ahead_and_reading_from_the_start_is_fine() -> None:
    bench = put_back(DONE)
    for offset in (1, 2, 50):
        error = attach(bench, offset, "done")["error"]
        assert isinstance(error, dict)
        assert error["code"] == "cursor_ahead"
        assert error["details"]["have"] == (0 if offset == 1 else 1)
    assert attach(bench, 0, "done")["kind"] == "end"


def test_a_node_that_holds_what_is_unknown_is_told_to_drop_it() -> None:
    bench = put_back(RUNNING)
    later = LeaseRef(session=RUNNING.session, epoch=Epoch((9 << 32) + 4))
    bench.node(1, held=(later,), highest_epoch=(9 << 32) + 4)
    (page,) = [message for _, message in bench.sent if isinstance(message, Reconcile)]
    assert page.sessions == ()
    assert not [message for _, message in bench.sent if isinstance(message, SessionRevoke)]
    assert bench.core.boot == 1 + JUMP
    request = bench.ask()
    assert request.epoch > (9 << 32) + 4


def test_one_copy_put_back_twice_gives_no_number_twice() -> None:
    first = boot_above_copy(5, 1_800_000_000.0)
    # It was started each second of an hour; then the same copy, and nothing else, is put back.
    assert boot_above_copy(5, 1_800_000_000.0 + 3600.0) >= first + 3600
    # A clock that is not known, set back, or ahead, breaks nothing.
    assert boot_above_copy(5, 0.0) == 5 + JUMP
    assert boot_above_copy(5, 1e12) == 2**30
    assert boot_above_copy(2**30, 1e12) == 2**30 + JUMP
