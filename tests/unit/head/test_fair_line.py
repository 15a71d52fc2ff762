"""Owners take turns; within one the oldest goes first."""

from __future__ import annotations

import pytest

from head.fair_line import FairLine


def drained(line: FairLine[int]) -> list[int]:
    found = []
    while (popped := line.pop()) is not None:
        found.append(popped[1])
    return found


def test_everybody_s_first_goes_before_anybody_s_second() -> None:
    line: FairLine[int] = FairLine()
    for item in (1, 2, 3):
        line.push(b"a", item)
    line.push(b"b", 10)
    line.push(b"c", 20)
    line.push(b"c", 21)
    assert len(line) == 6
    assert drained(line) == [1, 10, 20, 2, 21, 3]


def test_item_given_back_is_next_again() -> None:
    line: FairLine[int] = FairLine()
    for owner, item in ((b"a", 1), (b"a", 2), (b"b", 10)):
        line.push(owner, item)
    assert line.pop() == (b"a", 1)
    line.put_back(b"a", 1)
    assert drained(line) == [1, 10, 2]


def test_unwanted_items_leave_wherever_they_stand() -> None:
    line: FairLine[int] = FairLine()
    for owner, item in ((b"a", 1), (b"a", 2), (b"b", 10), (b"c", 20)):
        line.push(owner, item)
    line.remove_if(lambda item: item in (1, 10))
    assert drained(line) == [2, 20]
    assert len(line) == 0


def test_the_order_is_that_of_taking_turns_and_takes_nothing() -> None:
    line: FairLine[int] = FairLine()
    for owner, item in ((b"a", 1), (b"a", 2), (b"a", 3), (b"b", 10), (b"c", 20), (b"c", 21)):
        line.push(owner, item)
    assert list(line.order()) == [1, 10, 20, 2, 21, 3]
    assert drained(line) == [1, 10, 20, 2, 21, 3]
    assert list(line.order()) == []


def test_whose_item_is_taken_comes_after_all_others() -> None:
    line: FairLine[int] = FairLine()
    for owner, item in ((b"a", 1), (b"a", 2), (b"b", 10), (b"c", 20)):
        line.push(owner, item)
    line.take(b"a", 2)
    assert drained(line) == [10, 20, 1]
    with pytest.raises(ValueError, match="not in"):
        line.take(b"a", 2)
