"""A session parked by one worker process and taken up by the next."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bus.errors import UnsupportedOnFleet
from bus.ids import GenerationId, SessionId, pack_ids
from bus.messages.parts import Segment
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Cancel, Forget, Park, Parked, Ready, Restore, Restored, Submit
from tests.harness.models import toy_model_folder
from tests.harness.worker_agent import Agent

SESSION = SessionId("s-1")
PROMPT = [33 + number * 7 % 90 for number in range(150)]
#: Long enough that it is still running when it is cancelled.
ANSWER = 600

Starter = Callable[..., Agent]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    with ExitStack() as stack:

        def start_worker(name: str, *args: str) -> Agent:
            run_dir = tmp_path / name
            run_dir.mkdir(mode=0o700)
            budget = ("--lanes", "2", "--kv-bytes", str(16 << 20))
            agent = Agent(toy_model_folder().path, run_dir, *budget, *args)
            stack.enter_context(closing(agent))
            agent.take(Ready)
            return agent

        yield start_worker


def submit(generation: int, generated: list[int]) -> Submit:
    return Submit(
        generation=GenerationId(generation),
        context=pack_ids([*PROMPT, *generated]),
        sampling=SamplingParams(temperature=0.8, top_p=0.9, seed=5, ignore_eos=True),
        max_new_tokens=ANSWER - len(generated),
        prompt_tokens=len(PROMPT),
        generated_tokens=len(generated),
        segments=segments(generated),
    )


def segments(generated: list[int]) -> tuple[Segment, ...]:
    return (Segment(tokens=len(PROMPT)), Segment(tokens=len(generated), by_step=True))


def test_a_cancelled_and_parked_answer_goes_on_in_the_next_process(
    start: Starter, tmp_path: Path
) -> None:
    undisturbed = start("undisturbed")
    undisturbed.send(submit(1, []))
    undisturbed.finish(1)
    whole = undisturbed.tokens(1)

    first = start("first", "--park", str(tmp_path / "lanes"))
    first.send(submit(1, []))
    first.wait(lambda: len(first.tokens(1)) >= 40)
    first.send(Cancel(generation=GenerationId(1)))
    assert first.finish(1).reason == "cancelled"
    told = first.tokens(1)
    assert told == whole[: len(told)]
    context = pack_ids([*PROMPT, *told])
    first.send(Park(session=SESSION, context=context))
    parked = first.take(Parked)
    assert parked.tokens == len(PROMPT) + len(told) - 1
    assert (tmp_path / "lanes" / "s-1.lane").stat().st_size == parked.file_bytes
    first.child.signal(signal.SIGKILL)
    first.exit_code()

    second = start("second", "--park", str(tmp_path / "lanes"))
    second.send(Restore(session=SESSION, context=context, segments=segments(told)))
    assert second.take(Restored) == Restored(
        session=SESSION, tokens=parked.tokens, exact_tokens=parked.tokens
    )
    second.send(submit(2, told))
    assert second.finish(2).usage.cached_tokens == len(PROMPT)
    assert told + second.tokens(2) == whole

    second.send(Forget(session=SESSION))
    second.send(Restore(session=SESSION, context=context, salt=b"another"))
    assert "not parked" in second.take(Restored).problem
    assert not list((tmp_path / "lanes").iterdir())


def test_a_worker_without_a_folder_parks_nothing_and_says_so(start: Starter) -> None:
    agent = start("worker")
    agent.send(Park(session=SESSION, context=pack_ids(PROMPT)))
    assert agent.take(Parked).code == UnsupportedOnFleet.code
    agent.send(Restore(session=SESSION, context=pack_ids(PROMPT)))
    assert "folder" in agent.take(Restored).problem
