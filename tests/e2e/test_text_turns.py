"""Conversations over the head's text processes: each turn is encoded once, whoever else talks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.ids import WorkerIncarnation
from bus.messages.text import Encoded, RenderChat
from bus.text.process import DEFAULT_CPU_S, DEFAULT_MEMORY_BYTES
from bus.transport import clock
from bus.transport.loop import Loop
from bus.transport.pool import ProcessPool
from head.text_pool import TextPool
from tests.harness.models import toy_model_folder

TURNS = 50
LIMIT_S = 60.0


class Texts:
    """Two text processes, driven as the head's server does."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        numbers = iter(range(1, 1000))
        self._processes = ProcessPool(
            self.loop, folder / "run", lambda: WorkerIncarnation(next(numbers))
        )
        self._pool = TextPool(
            self._processes, 2, DEFAULT_CPU_S, DEFAULT_MEMORY_BYTES, folder / "text.log"
        )
        self._last = 0

    def render(self, talks: dict[bytes, list[dict[str, Any]]]) -> dict[bytes, Encoded]:
        """One turn of each client, all at once."""
        jobs = {}
        for client, messages in talks.items():
            self._last += 1
            jobs[self._last] = client
            job = RenderChat(
                job=self._last,
                folder=str(toy_model_folder().path),
                messages=msgpack.packb(messages),
            )
            self._pool.submit(client, job)
        found: dict[bytes, Encoded] = {}
        until = clock.now() + LIMIT_S
        while len(found) < len(jobs):
            assert clock.now() < until, "no reply came"
            for reply in self._pool.replies():
                assert isinstance(reply, Encoded), reply
                found[jobs[reply.job]] = reply
            self.loop.turn(0.05)
        return found

    def close(self) -> None:
        self._processes.close(5.0)
        self.loop.close()


@pytest.fixture
def texts(tmp_path: Path) -> Iterator[Texts]:
    made = Texts(tmp_path)
    yield made
    made.close()


def test_fifty_turns_of_two_clients_are_encoded_once_each(texts: Texts) -> None:
    talks: dict[bytes, list[dict[str, Any]]] = {b"a": [], b"b": []}
    fresh = dict.fromkeys(talks, 0)
    for turn in range(TURNS):
        for client, messages in talks.items():
            said = f"{client.decode()} asks question {turn}"
            messages.append({"role": "user", "content": said})
        for client, reply in texts.render(talks).items():
            fresh[client] += reply.fresh_bytes
            said = f"answer {turn} for {client.decode()}"
            talks[client].append({"role": "assistant", "content": said})
    for client, messages in talks.items():
        once = sum(len(f"{one['role']}\n{one['content']}") for one in messages[:-1])
        # And the beginning of an answer, and the lines' ends between turns.
        assert 0 <= fresh[client] - once < 100
