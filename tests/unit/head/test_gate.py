"""Nothing leaves early, nothing overtakes, nothing stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import Internal
from head.effects import Effects, Output, Persist, Reply, SendLink, Tagged
from head.gate import OutputGate


def effects(lsn: int | None, *after: int, first: int = 0) -> Effects:
    return Effects(
        persist=None if lsn is None else Persist(lsn=lsn, rows=()),
        outputs=tuple(
            Tagged(after=lsn_needed, output=Reply(client=b"c", body={"n": first + n}))
            for n, lsn_needed in enumerate(after)
        ),
    )


def numbers(outputs: list[Output]) -> list[int]:
    return [output.body["n"] for output in outputs if isinstance(output, Reply)]


def test_what_rests_on_nothing_leaves_at_once() -> None:
    gate = OutputGate()
    persist, released = gate.admit(effects(None, 0, 0))
    assert persist is None
    assert numbers(released) == [0, 1]


def test_an_output_leaves_when_its_lsn_is_durable() -> None:
    gate = OutputGate()
    persist, released = gate.admit(effects(1, 0, 1))
    assert persist == Persist(lsn=1, rows=())
    assert numbers(released) == [0]
    assert numbers(gate.admit(effects(2, 2, first=2))[1]) == []
    assert numbers(gate.durable(1)) == [1]
    assert gate.waiting == 1
    assert numbers(gate.durable(2)) == [2]
    assert gate.waiting == 0


def test_one_commit_of_several_releases_all_in_order() -> None:
    gate = OutputGate()
    for lsn in (1, 2, 3):
        gate.admit(effects(lsn, lsn, lsn, first=10 * lsn))
    assert numbers(gate.durable(3)) == [10, 11, 20, 21, 30, 31]


def test_a_later_output_does_not_overtake() -> None:
    gate = OutputGate()
    gate.admit(effects(1, 1))
    assert numbers(gate.admit(effects(None, 0, first=1))[1]) == []
    assert numbers(gate.durable(1)) == [0, 1]


@pytest.mark.parametrize(
    "wrong", [effects(2), effects(0), effects(None, 1), effects(1, 2), effects(None, -1)]
)
def test_an_order_that_is_none_is_an_error(wrong: Effects) -> None:
    with pytest.raises(Internal):
        OutputGate().admit(wrong)


def test_the_store_can_not_go_back_or_ahead() -> None:
    gate = OutputGate()
    gate.admit(effects(1))
    gate.admit(effects(2))
    gate.durable(1)
    for wrong in (0, 3):
        with pytest.raises(Internal):
            gate.durable(wrong)


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=60), st.data())
def test_any_interleaving(steps: list[int | None], data: st.DataObject) -> None:
    """A step is a commit of some lsns (None) or a round of the core with that many outputs."""
    gate = OutputGate()
    needs: list[int] = []
    submitted, admitted, left = 0, 0, 0

    def check(outputs: list[Output]) -> int:
        seen = numbers(outputs)
        assert seen == list(range(left, left + len(seen)))
        assert all(needs[n] <= gate.durable_lsn for n in seen)
        return left + len(seen)

    for step in steps:
        if step is None:
            left = check(gate.durable(data.draw(st.integers(gate.durable_lsn, submitted))))
            continue
        lsn = submitted + 1 if data.draw(st.booleans()) else None
        submitted = lsn or submitted
        after = [data.draw(st.integers(0, submitted)) for _ in range(step)]
        needs += after
        left = check(gate.admit(effects(lsn, *after, first=admitted))[1])
        admitted += step
    left = check(gate.durable(submitted))
    assert left == admitted
    assert gate.waiting == 0


def test_what_is_only_passed_on_waits_for_nothing() -> None:
    gate = OutputGate()
    gate.admit(effects(1, 1))
    unit = SendLink(link=3, message="a unit of work")
    _, released = gate.admit(replace(effects(2, 0, first=1), forwards=(unit,)))
    assert released == [unit]
    assert gate.waiting == 2
