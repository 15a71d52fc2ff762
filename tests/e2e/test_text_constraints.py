"""Constraints in the head's text processes: what could explode ends alone, others are served."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bus.ids import WorkerIncarnation, unpack_ids
from bus.messages.sampling import Constraint
from bus.messages.text import CheckConstraint, ConstraintChecked, Encode, Encoded, TextFailed
from bus.text.process import DEFAULT_CPU_S, DEFAULT_MEMORY_BYTES
from bus.transport import clock
from bus.transport.loop import Loop
from bus.transport.pool import ProcessPool
from head.text_pool import TextPool
from tests.harness.models import toy_model_folder

TOY = str(toy_model_folder().path)
#: Refused before native code works on it, which took seven million states; compiling the other
#: takes no end of stack.
ENDLESS = {"allOf": [{"type": "integer", "multipleOf": n} for n in (3, 5, 7, 11, 13, 17, 19, 23)]}
RULES = "\n".join(f'r{n}: r{n + 1} | "x" r{n + 1}' for n in range(3000))
DEEP = f'start: r0\n{RULES}\nr3000: "e"'


@dataclass(slots=True)
class Texts:
    """The head's text processes, driven as its server does, and the times of their replies."""

    pool: TextPool
    loop: Loop
    replies: dict[int, Any] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)

    def take(self, now: float) -> None:
        for reply in self.pool.replies():
            number = getattr(reply, "job", 0)
            self.replies[number], self.times[number] = reply, now

    def until(self, condition: Callable[[], bool]) -> None:
        until = clock.now() + 60.0
        while not condition():
            assert clock.now() < until, f"it never came true; replies: {self.replies}"
            self.loop.turn(0.05)

    def check(self, job: int, kind: str, source: Any, client: bytes = b"a") -> None:
        text = source if isinstance(source, str) else json.dumps(source)
        constraint = Constraint(kind=kind, source=text)
        self.pool.submit(client, CheckConstraint(job=job, folder=TOY, constraint=constraint))

    def checked(self, kind: str, source: Any) -> Any:
        """The reply, and that it came in time."""
        self.replies.pop(1, None)
        self.check(1, kind, source)
        self.until(lambda: 1 in self.replies)
        return self.replies[1]


@pytest.fixture
def texts(tmp_path: Path) -> Iterator[Texts]:
    loop = Loop()
    numbers = iter(range(1, 1000))
    processes = ProcessPool(loop, tmp_path / "run", lambda: WorkerIncarnation(next(numbers)))
    pool = TextPool(processes, 2, DEFAULT_CPU_S, DEFAULT_MEMORY_BYTES, tmp_path / "text.log")
    made = Texts(pool, loop)
    loop.on_turn(made.take)
    made.until(lambda: pool.ready)
    yield made
    processes.close(5.0)
    processes.close(5.0)
    loop.close()


def test_s1_constraints_are_refused_by_name_or_honoured(texts: Texts) -> None:
    assert texts.checked("json_schema", {"type": "string"}) == ConstraintChecked(job=1)
    assert texts.checked("regex", "[a-z]+") == ConstraintChecked(job=1)
    email = {"type": "string", "format": "email"}
    assert texts.checked("json_schema", email) == ConstraintChecked(job=1)
    for source in ('"text"', "[]", "", '{"not": {}}', '{"type": "strin"}'):
        failed = texts.checked("json_schema", source)
        assert isinstance(failed, TextFailed), source
        assert (failed.code, failed.param) == ("constraint_invalid", "constraint")
        assert "json_schema" in failed.message


def test_s2_what_explodes_is_refused_in_time_and_others_are_served_meanwhile(
    texts: Texts,
) -> None:
    start = clock.now()
    texts.check(1, "json_schema", ENDLESS)
    texts.check(2, "lark", DEEP)
    served = 0
    while not {1, 2} <= texts.replies.keys():
        # The next job goes in when the last one is answered: a client that streams its own text.
        number = 100 + served
        text = f"text {served}"
        texts.pool.submit(b"b", Encode(job=number, folder=TOY, text=text))
        texts.until(lambda number=number: number in texts.replies)  # type: ignore[misc]
        reply = texts.replies[number]
        assert isinstance(reply, Encoded)
        assert bytes(list(unpack_ids(reply.ids))).decode() == text
        served += 1
    for number in (1, 2):
        failed = texts.replies[number]
        assert isinstance(failed, TextFailed)
        assert (failed.code, failed.param) == ("constraint_invalid", "constraint")
        assert ("multipleOf" if number == 1 else "smaller or simpler") in failed.message
    assert served > 10
    # Each has five seconds of CPU time; the machine may be busy with other tests.
    assert max(texts.times[1], texts.times[2]) - start < 30
    assert texts.checked("regex", "a") == ConstraintChecked(job=1)


def test_checks_that_end_their_process_keep_no_text_waiting(texts: Texts) -> None:
    """Six at once took both processes for a minute; they have one of their own, in turn."""
    for number in range(1, 7):
        texts.check(number, "lark", f"{DEEP}\n// {number}")
    waited: list[float] = []
    while not set(range(1, 7)) <= texts.replies.keys():
        start, number = clock.now(), 100 + len(waited)
        texts.pool.submit(b"b", Encode(job=number, folder=TOY, text="x"))
        texts.until(lambda number=number: number in texts.replies)  # type: ignore[misc]
        waited.append(clock.now() - start)
    assert {texts.replies[number].code for number in range(1, 7)} == {"constraint_invalid"}
    # None waited for a check, nor for the start of a process; the machine may be busy.
    assert max(waited) < 1.0
    assert len(waited) > 100


def test_a_grammar_may_not_take_the_memory_of_other_jobs(texts: Texts) -> None:
    wide = {"enum": [f"value {n} " + "x" * 40 for n in range(4000)]}
    assert texts.checked("json_schema", wide) == ConstraintChecked(job=1)
    # Limits of one job are not left to the next.
    texts.replies.clear()
    for number in range(2, 8):
        texts.check(number, "json_schema", {"type": "integer", "minimum": number})
    texts.until(lambda: len(texts.replies) == 6)
    assert {type(reply) for reply in texts.replies.values()} == {ConstraintChecked}
