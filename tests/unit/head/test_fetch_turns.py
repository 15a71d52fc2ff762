"""Turns of nodes that are asked for tokenizers."""

from __future__ import annotations

from bus.ids import NodeIdentity
from head.fetch_turns import MAX_AT_ONCE, FetchTurns

X, Y = NodeIdentity("x"), NodeIdentity("y")


class Turns:
    """Keeps who was asked."""

    def __init__(self, *leave_at_once: str) -> None:
        self.begun: list[str] = []
        self._leave_at_once = leave_at_once
        self.turns = FetchTurns[str](self._begin)

    def _begin(self, fetch: str, now: float) -> None:
        self.begun.append(fetch)
        if fetch in self._leave_at_once:
            self.turns.leave(fetch, now)


def test_a_node_is_asked_for_one_at_a_time() -> None:
    made = Turns()
    for fetch in ("x1", "x2", "x3"):
        made.turns.join(fetch, X, 0.0)
    made.turns.join("y1", Y, 0.0)
    assert made.begun == ["x1", "y1"]
    assert (made.turns.load(X), made.turns.load(Y)) == (3, 1)
    assert (made.turns.has_turn("x1"), made.turns.waits("x1")) == (True, False)
    assert (made.turns.has_turn("x2"), made.turns.waits("x2")) == (False, True)
    made.turns.leave("x2", 0.0)
    made.turns.leave("x1", 0.0)
    assert made.begun == ["x1", "y1", "x3"]


def test_few_nodes_are_asked_at_once_and_the_one_asked_longest_ago_is_next() -> None:
    made = Turns()
    for number in range(MAX_AT_ONCE):
        for turn in ("a", "b"):
            made.turns.join(f"{number}{turn}", NodeIdentity(str(number)), 0.0)
    made.turns.join("new", NodeIdentity("new"), 0.0)
    assert len(made.begun) == MAX_AT_ONCE
    made.turns.leave("0a", 0.0)
    assert made.begun[-1] == "new"
    made.turns.leave("1a", 0.0)
    assert made.begun[-1] == "0b"


def test_many_that_leave_at_once_are_followed_by_the_next() -> None:
    names = [f"x{number}" for number in range(3000)]
    made = Turns(*names[1:-1])
    for name in names:
        made.turns.join(name, X, 0.0)
    made.turns.leave(names[0], 0.0)
    assert made.begun == names
    assert made.turns.load(X) == 1
