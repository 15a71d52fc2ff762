"""When a worker counts as hung, under virtual time: busy, stopped, asleep, loading, suspended."""

from __future__ import annotations

import pytest

from agent.proc_state import ProcessState
from agent.worker_watch import WatchPolicy, WorkerWatch
from bus.ids import GenerationId, NumericsId, PackedIds, WorkerIncarnation
from bus.messages.parts import Finish, Usage
from bus.messages.sampling import SamplingParams
from bus.messages.worker import (
    Accepted,
    Cancel,
    Embed,
    Embedded,
    Output,
    OutputRun,
    Pause,
    Ping,
    Pong,
    Ready,
    Rejected,
    Resume,
    Submit,
    WorkerStats,
)

DEFAULT = WatchPolicy()
READY = Ready(
    worker=WorkerIncarnation(1),
    window_tokens=2048,
    lanes=8,
    kv_total_tokens=16_384,
    numerics=NumericsId("num"),
    tokenizer_digest=99,
    device="cpu",
    load_s=0.5,
)
G1, G2 = GenerationId(1), GenerationId(2)


class Process:
    """A watched worker, its process and its clock. `cpu` is the share of a core that it uses."""

    def __init__(self, policy: WatchPolicy = DEFAULT) -> None:
        self.watch = WorkerWatch(policy)
        self.now = 1000.0
        self.letter = "S"
        self.cpu = 0.0
        self.used_s = 0.0
        self.looks = 0
        self.watch.started(self.now)

    def serve(self) -> Process:
        self.hear(READY)
        return self

    def send(self, message: object) -> None:
        self.watch.sent(message, self.now)

    def hear(self, message: object) -> None:
        self.watch.heard(message, self.now)

    def step(self, steps: int, *, phase: str = "decode") -> None:
        self.hear(Output(runs=(), stats=WorkerStats(steps=steps, phase=phase)))

    def pass_time(self, seconds: float) -> str | None:
        """Let time pass, looking when it is due; gives the verdict, at whose time it stops."""
        end = self.now + seconds
        while (at := self.watch.next_timeout()) is not None and at <= end:
            self._move(max(at, self.now))
            self.looks += 1
            why = self.watch.look(ProcessState(self.letter, self.used_s), self.now)
            if why is not None:
                return why
        self._move(end)
        return None

    def jump(self, seconds: float) -> None:
        """Let time pass in which nobody looks: this process was stopped, or the machine slept."""
        self._move(self.now + seconds)

    def _move(self, to: float) -> None:
        self.used_s += self.cpu * (to - self.now)
        self.now = to


def submit(generation: GenerationId) -> Submit:
    return Submit(
        generation=generation,
        context=PackedIds(b"\1\0\0\0"),
        sampling=SamplingParams(),
        max_new_tokens=5,
        prompt_tokens=1,
    )


def end_of(generation: GenerationId, steps: int) -> Output:
    finish = Finish(reason="eos", usage=Usage())
    run = OutputRun(generation=generation, first_index=0, finish=finish)
    return Output(runs=(run,), stats=WorkerStats(steps=steps, phase="idle"))


@pytest.fixture
def serving() -> Process:
    return Process().serve()


# --- hung -------------------------------------------------------------------------------------


def test_l6_a_stopped_worker_with_work_is_hung_after_60_s(serving: Process) -> None:
    serving.send(submit(G1))
    serving.step(1)
    started = serving.now
    serving.letter = "T"
    why = serving.pass_time(1000)
    assert (
        why
        == "hung: no step was made for 61 s and its process is stopped (by SIGSTOP or a debugger)"
    )
    assert 60 <= serving.now - started <= 62


def test_l6_a_worker_that_sleeps_with_work_waiting_is_hung_after_60_s(serving: Process) -> None:
    serving.send(submit(G1))
    why = serving.pass_time(1000)
    assert why == "hung: no step was made for 61 s and its process uses no CPU time"


def test_a_ping_without_an_answer_is_work_that_waits(serving: Process) -> None:
    assert serving.pass_time(3600) is None
    assert serving.looks == 0, "nothing waits, so nothing is looked at"
    serving.send(Ping(nonce=1))
    serving.letter = "T"
    began = serving.now
    assert serving.pass_time(30) is None
    serving.send(Ping(nonce=2))
    serving.send(submit(G1))
    assert serving.pass_time(1000) is not None
    assert serving.now - began <= 62, "counted from the first ping, not from the later work"


def test_it_says_so_once_and_then_watches_no_more(serving: Process) -> None:
    serving.send(submit(G1))
    assert serving.pass_time(100) is not None
    serving.send(submit(G2))
    assert serving.watch.next_timeout() is None
    assert serving.pass_time(1000) is None
    serving.watch.started(serving.now)
    serving.serve()
    assert serving.pass_time(1000) is None, "what the former process owed is not the new one's"


def test_a_thread_that_only_takes_messages_does_not_make_it_alive(serving: Process) -> None:
    # A hundredth of a second each 15 s: what an I/O thread costs.
    serving.cpu = 0.01 / 15
    serving.send(submit(G1))
    why = serving.pass_time(1000)
    assert why is not None
    assert "no CPU time" in why


# --- busy -------------------------------------------------------------------------------------


def test_l5_a_worker_that_holds_its_gil_for_minutes_is_busy_until_the_hard_limit(
    serving: Process,
) -> None:
    serving.send(submit(G1))
    serving.send(Ping(nonce=1))
    serving.cpu = 1.0
    began = serving.now
    assert serving.pass_time(599) is None
    why = serving.pass_time(10)
    assert why == (
        "hung: no step was made for 600 s; raise worker.stall_hard_s if it may take so long here"
    )
    assert 600 <= serving.now - began <= 601


def test_a_starved_worker_that_gets_a_hundredth_of_a_core_is_busy(serving: Process) -> None:
    serving.cpu = 0.01
    serving.send(submit(G1))
    assert serving.pass_time(599) is None


def test_l5_each_prefill_chunk_is_a_step(serving: Process) -> None:
    # Chunks of 50 s each in which it can not be seen to do anything.
    serving.send(submit(G1))
    for chunk in range(1, 30):
        assert serving.pass_time(50) is None
        serving.hear(Pong(nonce=0, stats=WorkerStats(steps=chunk, phase="prefill")))


def test_l5_a_chunk_of_60_s_with_cpu_moving_is_busy(serving: Process) -> None:
    serving.send(submit(G1))
    serving.cpu = 0.5
    for chunk in range(1, 5):
        assert serving.pass_time(60) is None
        serving.hear(Pong(nonce=0, stats=WorkerStats(steps=chunk, phase="prefill")))


def test_the_same_step_counter_again_is_no_step(serving: Process) -> None:
    serving.send(submit(G1))
    serving.step(7)
    for _ in range(6):
        assert serving.pass_time(10) is None
        serving.send(Ping(nonce=1))
        serving.hear(Pong(nonce=1, stats=WorkerStats(steps=7, phase="decode")))
    assert serving.pass_time(3) is not None


def test_l6_stopped_for_less_than_the_limit_is_nothing(serving: Process) -> None:
    serving.send(submit(G1))
    for steps in range(1, 5):
        serving.letter = "T"
        assert serving.pass_time(55) is None
        serving.letter = "R"
        serving.step(steps)
        assert serving.pass_time(20) is None
        serving.step(100 + steps)


def test_a_stop_inside_a_long_chunk_counts_from_when_it_last_ran(serving: Process) -> None:
    serving.send(submit(G1))
    serving.cpu = 1.0
    assert serving.pass_time(300) is None
    serving.cpu, serving.letter = 0.0, "T"
    assert serving.pass_time(58) is None
    serving.cpu, serving.letter = 1.0, "R"
    assert serving.pass_time(50) is None


# --- what is no work --------------------------------------------------------------------------


def test_paused_and_ended_generations_are_no_work(serving: Process) -> None:
    serving.send(submit(G1))
    serving.send(submit(G2))
    serving.hear(Accepted(generation=G1))
    serving.hear(Rejected(generation=G2, code="queue_full", message="full"))
    serving.send(Pause(generation=G1))
    assert serving.pass_time(3600) is None
    serving.send(Resume(generation=G1))
    assert serving.pass_time(59) is None
    serving.hear(end_of(G1, 5))
    assert serving.pass_time(3600) is None
    assert serving.watch.next_timeout() is None


def test_a_resumed_generation_is_work_again(serving: Process) -> None:
    serving.send(submit(G1))
    serving.send(Pause(generation=G1))
    serving.pass_time(3600)
    serving.send(Resume(generation=G1))
    assert serving.pass_time(59) is None
    assert serving.pass_time(3) is not None


def test_one_that_waits_behind_paused_lanes_is_not_held_against_it(serving: Process) -> None:
    serving.send(submit(G1))
    serving.step(1)
    for nonce in range(100):
        assert serving.pass_time(5) is None
        serving.send(Ping(nonce=nonce))
        serving.hear(Pong(nonce=nonce, stats=WorkerStats(steps=1, phase="idle")))


def test_a_pause_of_what_is_unknown_changes_nothing(serving: Process) -> None:
    serving.send(Pause(generation=G1))
    serving.send(Resume(generation=G1))
    assert serving.watch.next_timeout() is None


# --- loading ----------------------------------------------------------------------------------


def test_loading_has_a_limit_of_its_own(serving: Process) -> None:
    loading = Process()
    assert loading.pass_time(1799) is None, "a disk may keep it waiting"
    why = loading.pass_time(10)
    assert why is not None
    assert "the model was not loaded for 1800 s; raise worker.load_limit_s" in why


def test_a_stop_while_it_loads_is_no_loading(serving: Process) -> None:
    loading = Process()
    assert loading.pass_time(500) is None
    loading.letter = "T"
    why = loading.pass_time(62)
    assert why is not None
    assert "stopped" in why


def test_loading_ends_with_ready(serving: Process) -> None:
    loading = Process()
    loading.pass_time(1000)
    loading.serve()
    assert loading.pass_time(1e6) is None


# --- time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["loading", "serving"])
def test_a_gap_in_our_own_time_starts_the_count_again(phase: str) -> None:
    process = Process(WatchPolicy(load_limit_s=60))
    if phase == "serving":
        process.serve()
        process.send(submit(G1))
    assert process.pass_time(50) is None
    process.jump(40)
    assert process.pass_time(58) is None
    assert process.pass_time(4) is not None


def test_looks_that_are_late_by_less_than_5_s_count(serving: Process) -> None:
    serving.send(submit(G1))
    for _ in range(20):
        serving.jump(5.5)
        if serving.watch.look(ProcessState("T", 0.0), serving.now) is not None:
            break
    assert serving.now - 1000 < 70


def test_short_limits_are_looked_at_often_and_forgive_less(serving: Process) -> None:
    short = Process(WatchPolicy(stall_limit_s=0.5)).serve()
    short.send(submit(G1))
    assert short.pass_time(0.49) is None
    assert short.pass_time(0.12) is not None


def test_0_is_no_limit() -> None:
    for_ever = Process(WatchPolicy(load_limit_s=0, stall_limit_s=0, stall_hard_s=0))
    assert for_ever.pass_time(1e5) is None
    for_ever.serve()
    for_ever.send(submit(G1))
    assert for_ever.pass_time(1e5) is None
    assert for_ever.looks == 0
    soft_only = Process(WatchPolicy(stall_hard_s=0)).serve()
    soft_only.send(submit(G1))
    soft_only.cpu = 1.0
    assert soft_only.pass_time(5000) is None


def test_a_process_that_ended_is_not_judged(serving: Process) -> None:
    serving.send(submit(G1))
    for _ in range(100):
        serving.jump(1.0)
        assert serving.watch.look(None, serving.now) is None
    serving.watch.ended()
    assert serving.watch.next_timeout() is None


def test_ready_is_what_ends_loading_not_any_message() -> None:
    loading = Process()
    loading.hear(Pong(nonce=1, stats=WorkerStats()))
    assert loading.pass_time(1700) is None
    assert loading.pass_time(200) is not None


def test_a_job_that_no_worker_ends_counts_as_work_until_it_is_cancelled() -> None:
    process = Process().serve()
    process.send(Embed(job=G1, inputs=()))
    process.send(Embed(job=G2, inputs=()))
    process.hear(Embedded(job=G1, vectors=(), tokens=0))
    assert process.pass_time(59.0) is None
    process.send(Cancel(generation=G2))
    assert process.pass_time(600.0) is None
    process.send(Embed(job=G1, inputs=()))
    assert process.pass_time(59.0) is None
    assert process.pass_time(3.0) is not None
