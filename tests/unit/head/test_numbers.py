"""Numbers of a head never repeat: across starts, and above what nodes have seen."""

from __future__ import annotations

import pytest

from bus.errors import Invalid
from bus.ids import BootCounter, Epoch
from head.numbers import MAX_BOOT, Numbers


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


def test_epoch_that_no_stored_boot_is_above_changes_nothing() -> None:
    numbers = Numbers(3)
    with pytest.raises(Invalid, match="no higher one can be stored"):
        numbers.above(Epoch(MAX_BOOT << 32))
    assert numbers.epochs.next() == (3 << 32) + 1
