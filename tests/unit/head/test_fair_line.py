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


def test_owners_that_are_passed_over_are_not_in_the_order() -> None:
    line: FairLine[int] = FairLine()
    for owner, item in ((b"a", 1), (b"a", 2), (b"b", 10), (b"c", 20), (b"b", 11)):
        line.push(owner, item)
    assert list(line.order(without={b"a"})) == [10, 20, 11]
    assert drained(line) == [1, 10, 20, 2, 11]


def test_several_that_come_back_stand_as_they_were_taken() -> None:
    line: FairLine[int] = FairLine()
    owners = {1: b"a", 10: b"b", 2: b"a", 11: b"b", 3: b"a", 20: b"c"}
    for item, owner in owners.items():
        line.push(owner, item)
    order = list(line.order())
    assert order == [1, 10, 20, 2, 11, 3]
    popped = [line.pop() for _ in range(5)]
    for found in popped:
        assert found is not None
        line.come_back(*found, int)
    assert drained(line) == order


def test_what_comes_back_later_goes_behind_what_came_back_before() -> None:
    line: FairLine[int] = FairLine()
    for owner, item in ((b"a", 2), (b"b", 11), (b"c", 20), (b"d", 30)):
        line.push(owner, item)
    line.come_back(b"c", 19, int)
    line.come_back(b"a", 1, int)
    assert list(line.order()) == [19, 1, 11, 30, 20, 2]
    line.take(b"c", 19)
    line.come_back(b"b", 10, int)
    assert list(line.order()) == [1, 10, 30, 20, 2, 11]
