"""Case G3 through real processes: cancel a turn, and at once the next one on the same session."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bench.bare_requests import GREEDY
from bench.cluster import Cluster
from bus.call import Call
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Segment
from bus.messages.worker import Submit
from tests.e2e.test_cluster import PROMPT

#: Fills some chunks of prefill.
LONG = [120] * 2000
#: More than are made before a cancel arrives, and less than the window less `LONG`.
MANY = 1900


def bare_answer(toy: Path, prompt: list[int], made: list[int], count: int) -> list[int]:
    """What the bare engine goes on with after a prompt and tokens that it once made."""
    engine = Engine(ModelRunner(ModelFolder.open(toy), device="cpu", threads=1))
    segments = (Segment(tokens=len(prompt)), Segment(tokens=len(made), by_step=True))
    engine.submit(
        Submit(
            generation=GenerationId(1),
            context=pack_ids([*prompt, *made]),
            sampling=GREEDY,
            max_new_tokens=count,
            prompt_tokens=len(prompt) + len(made),
            segments=segments if made else segments[:1],
        ),
        0.0,
    )
    tokens: list[int] = []
    while not engine.idle:
        tokens += [e.token for e in engine.turn(0.0) if e.token is not None]
    return tokens


def read(call: Call, kind: str, tokens: int) -> None:
    """Until an event of a kind has come, and so many tokens."""
    seen = ""
    while seen != kind or len(call.tokens) < tokens:
        event = call.next_event(None)
        assert event is not None, "it ended before"
        seen = event.type


@pytest.mark.parametrize(
    ("prompt", "kind", "tokens"),
    [(PROMPT, "queued", 0), (LONG, "placed", 0), (PROMPT, "token", 1), (PROMPT, "token", 40)],
    ids=["queue", "prefill", "first token", "decode"],
)
def test_g3_the_next_turn_has_the_full_history_and_no_ghosts(
    prompt: list[int], kind: str, tokens: int, toy: Path
) -> None:
    with Cluster(toy, threads=1, lanes=1) as cluster:
        client = cluster.client
        session = client.operation("session.create", model=cluster.model)["session"]
        client.operation("session.append", session=session, tokens=prompt)
        made: list[int] = []
        for _ in range(3):
            # The one lane and the one place ahead of it.
            others = [
                client.generate(cluster.model, PROMPT, max_new=4000, ignore_eos=True)
                for _ in range(2 if kind == "queued" else 0)
            ]
            first = client.session_generate(session, max_new=MANY, temperature=0.0, ignore_eos=True)
            read(first, kind, tokens)
            first.cancel()
            # Not waited for: what is on its way of the first turn crosses the second.
            second = client.session_generate(session, max_new=20, temperature=0.0, ignore_eos=True)
            for other in others:
                other.cancel()
            ended = first.result()
            assert ended.finish == "cancelled"
            assert len(ended.tokens) >= tokens
            made += ended.tokens
            answer = second.result()
            assert list(answer.tokens) == bare_answer(toy, prompt, made, 20)
            assert answer.usage.prompt == len(prompt) + len(made)
            made += answer.tokens
            seen = client.operation("session.get", session=session, limit=10_000)
            assert seen["ids"] == [*prompt, *made]
