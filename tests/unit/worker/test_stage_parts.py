"""What chains of stages are made of, each by itself: groups, times, memory, hidden states."""

from __future__ import annotations

import numpy as np
import pytest

from agent.worker.busy_clock import BusyClock
from agent.worker.group_choice import choose_group
from agent.worker.hidden_states import pack_hidden, unpack_hidden
from agent.worker.scheduler import ALONE, Neighbours, Scheduler
from agent.worker.stage_memory import StageBudget
from agent.worker.stat_sums import counters_of, sum_stats
from agent.worker.work import Outcome, PrefillChunk
from bus.errors import ConfigInvalid, DecodeError, Internal
from bus.messages.worker import Submit, WorkerStats
from bus.messages.worker_stages import StageOpen
from tests.harness.engine_run import prompt_of, submit


def scheduler_of(lanes: int = 2) -> Scheduler:
    return Scheduler(lanes=lanes, window=1024, vocab=260, host_kv_bytes=4096, long_chunks=True)


def run_through(scheduler: Scheduler, message: Submit) -> None:
    """Prompt and one token, so that its beginning is kept."""
    scheduler.submit(message, 0.0)
    while isinstance(work := scheduler.next_work(0.0), PrefillChunk):
        outcome = Outcome(65) if work.draw else None
        scheduler.commit_chunk(work, outcome, now=0.0, elapsed_s=0.1)
    scheduler.take_emissions()


def test_a_generation_goes_to_the_group_with_the_fewest() -> None:
    groups = [scheduler_of() for _ in range(3)]
    chosen = []
    for number in range(7):
        message = submit(number, prompt_of(10, number), 5)
        chosen.append(choose_group(groups, message))
        groups[chosen[-1]].submit(message, 0.0)
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("shared", "others", "group"), [(64, 0, 1), (64, 1, 0), (256, 1, 1), (256, 2, 0), (63, 0, 0)]
)
def test_and_to_the_one_that_has_its_beginning(shared: int, others: int, group: int) -> None:
    groups = [scheduler_of(), scheduler_of()]
    prompt = prompt_of(300)
    run_through(groups[1], submit(0, prompt[:shared], 1))
    for number in range(others):
        groups[1].submit(submit(1 + number, prompt_of(9, number), 5), 0.0)
    assert choose_group(groups, submit(9, prompt, 5)) == group


def test_chunks_are_as_short_beside_steps_of_others_as_beside_ones_own() -> None:
    lengths = []
    for neighbours in (ALONE, Neighbours(any=True), Neighbours(any=True, decoding=0)):
        scheduler = scheduler_of()
        scheduler.pacer.chunk_rate = 1000.0
        scheduler.submit(submit(1, prompt_of(600), 5), 0.0)
        work = scheduler.next_work(0.0, neighbours)
        assert isinstance(work, PrefillChunk)
        lengths.append(len(work.ids))
    # A lone prompt's, the longest, and what 50 ms are enough for.
    assert lengths == [256, 128, 50]


def test_those_of_a_lower_class_make_no_chunk_shorter() -> None:
    scheduler = scheduler_of()
    scheduler.pacer.chunk_rate = 1000.0
    scheduler.submit(submit(1, prompt_of(600), 5, qos=1), 0.0)
    work = scheduler.next_work(0.0, Neighbours(any=True, decoding=2))
    assert isinstance(work, PrefillChunk)
    assert len(work.ids) == 128


def test_times_of_units_at_once_are_shared_and_never_more_than_what_passed() -> None:
    clock = BusyClock()
    clock.chunk(1, 10.0)
    clock.step(1, 12.0)
    clock.step(1, 14.0)
    clock.chunk(-1, 17.0)
    clock.step(-1, 20.0)
    clock.stop(21.0)
    clock.step(1, 30.0)
    clock.step(-1, 31.0)
    assert clock.prefill_s == pytest.approx(2 + 1 + 1)
    assert clock.decode_s == pytest.approx(1 + 2 + 3 + 1 + 1)


def budget(kv_tokens: int, host_tokens: int) -> StageBudget:
    return StageBudget(
        kv_bytes=kv_tokens * 100 + 99,
        host_kv_bytes=host_tokens * 100 + 99,
        token_bytes=100,
        max_window=1000,
    )


@pytest.mark.parametrize(
    ("order", "kv_tokens", "host_tokens", "expected"),
    [
        (StageOpen(chain=1, groups=2, lanes=8), 8000, 90, (2, 4, 1000, 45)),
        (StageOpen(chain=1, groups=2, lanes=8), 80_000, 90, (2, 4, 1000, 45)),
        (StageOpen(chain=1, groups=2, lanes=8, window=300), 8000, 90, (2, 4, 300, 45)),
        (StageOpen(chain=1, groups=3, lanes=8), 1200, 0, (3, 2, 200, 0)),
        (StageOpen(chain=1, groups=2, lanes=1), 1200, 90, (2, 1, 600, 45)),
        (StageOpen(chain=1, groups=1, lanes=2, host_tokens=7), 1200, 90, (1, 2, 600, 7)),
        (StageOpen(chain=1, groups=1, lanes=2, window=20), 40, 0, (1, 2, 20, 0)),
    ],
)
def test_what_a_chain_gets(
    order: StageOpen, kv_tokens: int, host_tokens: int, expected: tuple[int, int, int, int]
) -> None:
    shape = budget(kv_tokens, host_tokens).shape(order)
    assert (shape.groups, shape.lanes, shape.window, shape.host_tokens) == expected


def test_too_little_is_refused_with_both_figures() -> None:
    with pytest.raises(ConfigInvalid, match=r"51200 bytes .* and 51199 of 60099 are free"):
        budget(600, 0).shape(StageOpen(chain=1, groups=2, lanes=8), kv_used=8900)


def test_hidden_states_come_back_and_what_is_too_large_is_told() -> None:
    rows = np.array([[1.5, -2.25], [0.0, 65000.0]], np.float32)
    for kind, size in (("float32", 16), ("float16", 8)):
        data = pack_hidden(rows, kind)
        assert len(data) == size
    np.testing.assert_array_equal(
        unpack_hidden(pack_hidden(rows, "float32"), 2, 2, "float32"), rows
    )
    assert pack_hidden(rows[:1], "float16") == bytes.fromhex("003e 80c0")
    with pytest.raises(Internal, match="do not fit float16; open its chains with float32"):
        pack_hidden(rows * 2, "float16")
    with pytest.raises(DecodeError, match="15 bytes of hidden states, and 2 tokens of 2 numbers"):
        unpack_hidden(bytes(15), 2, 2, "float32")


def test_counters_go_on_when_groups_are_gone() -> None:
    first = WorkerStats(steps=5, decode_tokens=9, lanes_used=2, kv_host_bytes=70, phase="decode")
    second = WorkerStats(steps=1, prefill_tokens=4, lanes_used=1, decode_busy_s=3.0)
    both = sum_stats([first, second])
    assert both == WorkerStats(
        steps=6, decode_tokens=9, prefill_tokens=4, lanes_used=3, kv_host_bytes=70
    )
    assert counters_of(both) == WorkerStats(steps=6, decode_tokens=9, prefill_tokens=4)
