"""Numbers of a head never repeat: across starts, and above what nodes have seen."""

from __future__ import annotations

import pytest

from bus.errors import Invalid
from bus.ids import BootCounter, Epoch
from head.numbers import MAX_BOOT, MAX_RAISE, Numbers
from head.rows import RaiseBoot


def test_numbers_carry_the_boot_above_and_count_below() -> None:
    counter = BootCounter(3)
    assert (counter.last, counter.next(), counter.next()) == (3 << 32, (3 << 32) + 1, (3 << 32) + 2)


def test_raised_counter_begins_again_under_the_higher_boot_and_never_goes_back() -> None:
    counter = BootCounter(3)
    counter.next()
    counter.raise_to(5)
    assert counter.next() == (5 << 32) + 1
    counter.raise_to(4)
    assert counter.next() == (5 << 32) + 2
    for boot in (0, 2**32):
        with pytest.raises(ValueError, match="outside"):
            counter.raise_to(boot)


def test_only_an_epoch_above_the_last_one_raises_all_counters() -> None:
    numbers = Numbers(3)
    first = numbers.epochs.next()
    assert numbers.above(Epoch(first)) is None
    row = numbers.above(Epoch(first + 1))
    assert row is not None
    assert (row.boot, numbers.boot) == (4, 4)
    counters = (numbers.answers, numbers.epochs, numbers.generations, numbers.commands)
    assert {counter.next() for counter in counters} == {(4 << 32) + 1}


@pytest.mark.parametrize("boot", [3, MAX_BOOT - 1])
def test_an_epoch_too_far_above_is_not_believed_and_changes_nothing(boot: int) -> None:
    numbers = Numbers(boot)
    with pytest.raises(Invalid, match="sfctl node revoke"):
        numbers.above(Epoch(min(MAX_BOOT, boot + MAX_RAISE) << 32))
    assert numbers.epochs.next() == (boot << 32) + 1


def test_nodes_together_raise_one_start_by_a_million_boots_at_most() -> None:
    """A node may claim any epoch, at each link and in each `Refused`."""
    numbers = Numbers(3)
    for claimed in (3 + 2**19, 3 + 2**20 - 1):
        row = numbers.above(Epoch(claimed << 32))
        assert row is not None
        assert row.boot == claimed + 1
    for further in (0, 1, 2**10, 2**20, 2**30):
        with pytest.raises(Invalid, match=f"at start {3 + 2**20}"):
            numbers.above(Epoch(3 + 2**20 + further << 32 | 1))
    assert numbers.boot == 3 + 2**20
    # One that was put back from a copy and restarted goes on from there.
    assert Numbers(numbers.boot + 1).above(Epoch(numbers.boot + 1 << 32 | 5)) is not None


def test_a_counter_that_is_half_used_up_takes_the_next_boot() -> None:
    numbers = Numbers(5)
    numbers.epochs.next()
    assert numbers.renew() is None
    numbers.commands._counter = 2**31
    assert numbers.renew() == RaiseBoot(boot=6)
    assert numbers.epochs.next() == numbers.commands.next() == (6 << 32) | 1
    assert numbers.renew() is None


def test_numbers_end_rather_than_repeat() -> None:
    counter = BootCounter(5)
    counter._counter = 2**32 - 2
    assert counter.next() == (6 << 32) - 1
    with pytest.raises(OverflowError, match="boot number 5"):
        counter.next()
