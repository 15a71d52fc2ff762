"""Which peers a closed connection takes with it, with descriptors that are used again."""

from __future__ import annotations

from bus.transport.connections import ConnectionTable
from bus.transport.monitor import ConnectionEvent, Happening


def _accepted(fd: int) -> ConnectionEvent:
    return ConnectionEvent(Happening.ACCEPTED, fd)


def _ended(fd: int) -> ConnectionEvent:
    return ConnectionEvent(Happening.DISCONNECTED, fd)


def test_a_closed_connection_names_its_peers_only() -> None:
    table = ConnectionTable()
    assert table.apply([_accepted(7), _accepted(8)]) == []
    assert table.place(b"a", 7)
    assert table.place(b"b", 8)
    assert table.apply([_ended(7)]) == [b"a"]
    assert b"a" not in table
    assert b"b" in table
    assert table.apply([_ended(7)]) == []


def test_a_descriptor_used_again_is_another_connection() -> None:
    table = ConnectionTable()
    table.apply([_accepted(7)])
    table.place(b"old", 7)
    old = table.number_of(b"old")
    assert table.apply([_ended(7), _accepted(7)]) == [b"old"]
    assert table.place(b"new", 7)
    assert (old, table.number_of(b"new")) == (1, 2)
    assert table.fd_of(b"old") is None
    assert table.fd_of(b"new") == 7


def test_an_accept_without_the_end_of_the_former_use_ends_it() -> None:
    table = ConnectionTable()
    table.apply([_accepted(7)])
    table.place(b"old", 7)
    assert table.apply([_accepted(7)]) == [b"old"]


def test_a_peer_of_an_ended_connection_is_not_placed() -> None:
    table = ConnectionTable()
    table.apply([_accepted(7), _ended(7)])
    assert not table.place(b"late", 7)
    assert b"late" not in table


def test_a_removed_peer_is_not_named_again() -> None:
    table = ConnectionTable()
    table.apply([_accepted(7)])
    table.place(b"a", 7)
    table.remove(b"a")
    table.remove(b"a")
    assert table.apply([_ended(7)]) == []
    assert len(table) == 0
