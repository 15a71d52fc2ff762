"""A worker that is stopped, asleep or busy, as processes: who is ended and who is left alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from agent.proc_state import read_process
from tests.harness.cluster_checks import wait_for
from tests.harness.link_processes import make_state
from tests.harness.logged_process import LoggedProcess

#: Has the `sitecustomize` that lets signals make a worker stand still or compute.
FAULTS = str(Path(__file__).parents[1] / "harness" / "process_faults")
SMALL = ("--lanes", "2", "--kv-bytes", str(4 << 20), "--threads", "1")


def agent(state: Path, *, fault_s: int = 60, **limits: float) -> LoggedProcess:
    """An agent without a head whose worker is asked for its counters five times a second."""
    settings = {f"SUPERFLUID_WORKER_{key.upper()}": str(value) for key, value in limits.items()}
    path = os.pathsep.join(filter(None, (FAULTS, os.environ.get("PYTHONPATH"))))
    settings |= {"PYTHONPATH": path, "FAULT_S": str(fault_s)}
    return LoggedProcess(
        "agent", state, *SMALL, SUPERFLUID_WORKER_PING_INTERVAL_S="0.2", **settings
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder for an address where no head is."""
    made = make_state(tmp_path / "s")
    (made / "agent.toml").write_text(f'[node]\njoin = ["ipc://{made}/run/no-head.sock"]\n')
    return made


def only_worker(process: LoggedProcess) -> int:
    (worker,) = process.children()
    return worker


def end(process: LoggedProcess) -> str:
    """Stop the agent; gives all that it wrote."""
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    return "\n".join(process.lines) + process.rest()


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGSTOP, "its process is stopped"), (signal.SIGUSR2, "its process uses no CPU time")],
)
def test_a_worker_that_stands_still_is_killed_and_another_serves(
    state: Path, number: signal.Signals, why: str
) -> None:
    with agent(state, stall_limit_s=1.0) as process:
        first = process.wait_for("worker_ready")["worker"]
        worker = only_worker(process)
        os.kill(worker, number)
        hung = process.wait_for("worker_hung", model="toy")
        assert hung["worker"] == first
        assert hung["reason"].startswith("hung: no step was made for ")
        assert why in hung["reason"]
        assert process.wait_for("worker_ready")["worker"] > first
        assert only_worker(process) != worker
        assert "worker_hung" not in end(process).partition("worker_hung")[2]


def test_a_stop_that_is_shorter_than_the_limit_changes_nothing(state: Path) -> None:
    with agent(state, stall_limit_s=20.0) as process:
        process.wait_for("worker_ready")
        worker = only_worker(process)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(2.0)  # The fault itself: several pings stay unanswered.
        os.kill(worker, signal.SIGCONT)
        wait_for(lambda: _sleeps(worker), "the worker goes on")
        assert only_worker(process) == worker
        text = end(process)
        assert "worker_hung" not in text
        assert text.count('"worker_ready"') == 1


def _sleeps(worker: int) -> bool:
    """Whether a worker has taken what came and waits on its pipe again."""
    state = read_process(worker)
    return state is not None and state.letter == "S"


def test_a_worker_that_computes_and_holds_its_gil_is_left_alone(state: Path) -> None:
    with agent(state, stall_limit_s=2.0, fault_s=6) as process:
        process.wait_for("worker_ready")
        worker = only_worker(process)
        os.kill(worker, signal.SIGUSR1)
        process.wait_for("fault_over")
        assert only_worker(process) == worker
        assert "worker_hung" not in end(process)


def test_beyond_the_hard_limit_computing_is_no_excuse(state: Path) -> None:
    with agent(state, stall_limit_s=2.0, stall_hard_s=4.0) as process:
        process.wait_for("worker_ready")
        os.kill(only_worker(process), signal.SIGUSR1)
        hung = process.wait_for("worker_hung")
        assert "raise worker.stall_hard_s if it may take so long here" in hung["reason"]
        process.wait_for("worker_ready")


def test_an_agent_that_was_stopped_itself_starts_the_count_again(state: Path) -> None:
    with agent(state, stall_limit_s=3.0) as process:
        process.wait_for("worker_ready")
        worker = only_worker(process)
        process.signal(signal.SIGSTOP)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(4.0)  # The fault itself, longer than the limit.
        process.signal(signal.SIGCONT)
        time.sleep(1.0)  # Within the limit; else it would be ended at the first look.
        assert only_worker(process) == worker
        os.kill(worker, signal.SIGCONT)
        wait_for(lambda: _sleeps(worker), "the worker goes on")
        assert "worker_hung" not in end(process)


def test_a_worker_that_is_stopped_while_it_loads_is_started_again(state: Path) -> None:
    with agent(state, stall_limit_s=1.0) as process:
        process.wait_for("worker_started")
        worker = only_worker(process)
        os.kill(worker, signal.SIGSTOP)
        hung = process.wait_for("worker_hung")
        assert "the model was not loaded" in hung["reason"]
        process.wait_for("worker_ready")


def test_a_model_that_loads_for_too_long_is_started_again(state: Path) -> None:
    # No worker can import ONNX Runtime in a tenth of a second.
    with agent(state, load_limit_s=0.1) as process:
        hung = process.wait_for("worker_hung")
        assert "raise worker.load_limit_s if it may take so long here" in hung["reason"]
        assert process.wait_for("worker_started")["model"] == "toy"
