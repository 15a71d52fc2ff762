"""Case G3 through real processes: cancel a turn, and at once the next one on the same session."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster import Cluster
from bus.call import Call
from tests.e2e.test_cluster import PROMPT, bare_tokens
from tests.harness.models import toy_model_folder

#: Fills some chunks of prefill.
LONG = [120] * 2000


@pytest.fixture
def toy() -> Path:
    return toy_model_folder().path


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
        context = list(prompt)
        for _ in range(3):
            # The one lane and the one place ahead of it.
            others = [
                client.generate(cluster.model, PROMPT, max_new=4000, ignore_eos=True)
                for _ in range(2 if kind == "queued" else 0)
            ]
            first = client.session_generate(session, max_new=600, temperature=0.0, ignore_eos=True)
            read(first, kind, tokens)
            first.cancel()
            # Not waited for: what is on its way of the first turn crosses the second.
            second = client.session_generate(session, max_new=20, temperature=0.0, ignore_eos=True)
            for other in others:
                other.cancel()
            ended = first.result()
            assert ended.finish == "cancelled"
            assert len(ended.tokens) >= tokens
            context += ended.tokens
            answer = second.result()
            assert [list(answer.tokens)] == bare_tokens(toy, [context], 20)
            assert answer.usage.prompt == len(context)
            context += answer.tokens
            seen = client.operation("session.get", session=session, limit=10_000)
            assert seen["ids"] == context
