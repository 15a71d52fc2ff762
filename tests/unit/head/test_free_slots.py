"""A client's jobs go to the process that has encoded its texts before."""

from __future__ import annotations

import pytest

from head.free_slots import MAX_CLIENTS, FreeSlots


def slots(*names: str) -> FreeSlots:
    made = FreeSlots()
    for name in names:
        made.add(name)
    return made


def test_a_client_gets_its_process_again() -> None:
    free = slots("a", "b")
    assert free.take(b"one") == "b"
    assert free.take(b"two") == "a"
    assert not free
    free.add("b")
    free.add("a")
    assert free.take(b"one") == "b"
    free.add("b")
    assert free.take(b"two") == "a"


def test_one_whose_process_works_gets_another() -> None:
    free = slots("a", "b")
    free.take(b"one")
    assert free.take(b"one") == "a"
    free.add("a")
    free.add("b")
    # The last one that worked for it.
    assert free.take(b"one") == "a"


def test_somebody_new_gets_the_one_that_became_free_last() -> None:
    free = slots("a", "b", "c")
    free.take(b"one")
    free.add("c")
    assert free.take(b"new") == "c"


def test_a_process_that_ended_has_nothing_of_a_client() -> None:
    free = slots("a", "b")
    assert free.take(b"one") == "b"
    free.remove("b")
    assert free.take(b"one") == "a"
    with pytest.raises(IndexError):
        free.take(b"two")
    free.add("a")
    free.remove("a")
    free.remove("a")
    assert not free


def test_the_clients_that_are_remembered_are_bounded() -> None:
    free = slots("a", "b")
    assert free.take(b"first") == "b"
    for number in range(MAX_CLIENTS):
        free.take(b"%d" % number)
        free.add("a")
    assert free.take(b"x") == "a"
    free.add("b")
    free.add("a")
    # Forgotten: it gets the last that became free.
    assert free.take(b"first") == "a"
