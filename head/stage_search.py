"""The search behind a plan of stages: ranges of layers for some of the nodes.

A set of nodes in use is a state, and what counts of it is how far its ranges can reach: with the
same nodes, one that reaches further can do all that another can. So states grow by a node at a
time, each to the furthest layer that it can take, until one reaches the last layer; first with any
speed, for the fewest stages, then for ever lower limits of a stage's time.

Of nodes that others surpass in memory and in rate only those are looked at that can be needed. Up
to 13 that are left the search is exhaustive; among more, of each number of nodes the states that
reach furthest are followed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

#: States of one number of nodes: above `_MOST` (13 nodes have 1,716 at most) `_KEPT` are followed.
_MOST, _KEPT = 2048, 256


@dataclass(frozen=True, slots=True)
class Node:
    """What the search knows of a node.

    Attributes:
        memory: bytes that it may take.
        rate: bytes of weights that it goes through in a unit of time; above 0.
    """

    memory: int
    rate: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """Layers `first` up to, not including, `end`, on a node by its place in the list."""

    node: int
    first: int
    end: int


class Costs:
    """What a range of layers takes and costs. Both grow with the range, at either end.

    Args:
        layers: bytes that each layer takes of a node's memory.
        first: bytes that the range with the first layer takes beside, `last` that with the last.
        both: bytes that one with both has once, at most the smaller of the two.
        every: bytes that each range takes beside.
        work: bytes that a step goes through, of each layer; of the last one with the head.
    """

    def __init__(
        self,
        layers: Sequence[int],
        *,
        first: int,
        last: int,
        both: int,
        every: int,
        work: Sequence[int],
    ) -> None:
        self.count = len(layers)
        self._sums = [0, *accumulate(layers)]
        self._work = [0, *accumulate(work)]
        self._first, self._last, self._both, self.every = first, last, both, every

    def memory(self, first: int, end: int) -> int:
        """Bytes of a range."""
        rim = self._first * (first == 0) + self._last * (end == self.count)
        rim -= self._both * (first == 0 and end == self.count)
        return self._sums[end] - self._sums[first] + rim + self.every

    def work(self, first: int, end: int) -> int:
        """Bytes that a step goes through in a range."""
        return self._work[end] - self._work[first]

    def reach(self, node: Node, first: int, limit: float) -> int:
        """The furthest end of a range that a node can take; `first` when it can take none."""
        ends = range(first + 1, self.count + 1)
        fits = bisect_right(ends, node.memory, key=lambda end: self.memory(first, end))
        in_time = bisect_right(ends, limit, key=lambda end: self.work(first, end) / node.rate)
        return first + min(fits, in_time)


def search(costs: Costs, nodes: Sequence[Node]) -> list[Assignment] | None:
    """The fewest ranges that fit, and of those the ones whose slowest takes the least time.

    Args:
        nodes: in the order in which equally good ones are taken.

    Returns:
        Ranges in order, which cover all layers; None where nothing fits.
    """
    found = fewest(costs, nodes)
    if found is None:
        return None
    chosen = _needed(nodes, len(found))
    limits = _times(costs, [nodes[place] for place in chosen])
    low, high = 0, bisect_left(limits, slowest(costs, nodes, found))
    while low < high:
        middle = (low + high) // 2
        better = _cover(costs, nodes, chosen, len(found), limits[middle])
        if better is None:
            low = middle + 1
        else:
            found, high = better, bisect_left(limits, slowest(costs, nodes, better))
    return _cover(costs, nodes, chosen, len(found), slowest(costs, nodes, found)) or found


def slowest(costs: Costs, nodes: Sequence[Node], found: Sequence[Assignment]) -> float:
    """Time of the slowest range."""
    return max(costs.work(each.first, each.end) / nodes[each.node].rate for each in found)


def fewest(costs: Costs, nodes: Sequence[Node]) -> list[Assignment] | None:
    """Ranges on as few nodes as can hold them, whatever their speed; None where nothing fits."""
    by_memory = sorted(range(len(nodes)), key=lambda place: (-nodes[place].memory, place))
    low, high = 1, min(len(nodes), costs.count)
    found: list[Assignment] | None = None
    while low <= high:
        # the first try is with all nodes: it tells whether there is any way
        count = high if found is None else (low + high) // 2
        chosen = by_memory[:count]
        room = sum(nodes[place].memory for place in chosen)
        better = None
        if room >= costs.memory(0, costs.count) + (count - 1) * costs.every:
            better = _cover(costs, nodes, chosen, count, float("inf"))
        if better is not None:
            found, high = better, len(better) - 1
        elif found is None:
            return None
        else:
            low = count + 1
    return found


def _needed(nodes: Sequence[Node], count: int) -> list[int]:
    """Nodes that fewer than `count` others surpass: in place of any other one of those can stand.

    Faster ones come first, so that equally good ranges are given to them.
    """
    order = sorted(range(len(nodes)), key=lambda p: (-nodes[p].rate, -nodes[p].memory, p))
    kept: list[int] = []
    for place in order:
        above = sum(nodes[other].memory >= nodes[place].memory for other in kept)
        if above < count:
            kept.append(place)
    return kept


def _times(costs: Costs, nodes: Sequence[Node]) -> list[float]:
    """Every time that a range can take on one of the nodes, ascending."""
    works = {
        costs.work(first, end)
        for first in range(costs.count)
        for end in range(first + 1, costs.count + 1)
    }
    return sorted({work / rate for work in works for rate in {node.rate for node in nodes}})


@dataclass(slots=True)
class _State:
    """How far some nodes reach, and how; `path` are their places among the chosen ones."""

    end: int
    path: tuple[int, ...]

    def order(self) -> tuple[int, tuple[int, ...]]:
        return -self.end, self.path


def _cover(
    costs: Costs, nodes: Sequence[Node], chosen: Sequence[int], count: int, limit: float
) -> list[Assignment] | None:
    """Ranges over all layers, on at most `count` of the chosen nodes, none slower than `limit`."""
    picked = [nodes[place] for place in chosen]
    kinds = {
        node: [costs.reach(node, first, limit) for first in range(costs.count)]
        for node in set(picked)
    }
    reaches = [kinds[node] for node in picked]
    twins = [_twin(picked, place) for place in range(len(picked))]
    states = {0: _State(0, ())}
    for _ in range(count):
        states = _grown(states, reaches, twins)
        done = [state for state in states.values() if state.end == costs.count]
        if done:
            return _assigned(min(done, key=_State.order), reaches, chosen)
        if len(states) > _MOST:
            best = sorted(states.items(), key=lambda item: item[1].order())[:_KEPT]
            states = dict(best)
    return None


def _twin(nodes: Sequence[Node], place: int) -> int:
    """A bit for the last equal node before this one, which is taken first; 0 for none."""
    for other in reversed(range(place)):
        if nodes[other] == nodes[place]:
            return 1 << other
    return 0


def _grown(
    states: dict[int, _State], reaches: Sequence[Sequence[int]], twins: Sequence[int]
) -> dict[int, _State]:
    """All states with one node more."""
    grown: dict[int, _State] = {}
    for mask, state in states.items():
        for place, reach in enumerate(reaches):
            bit = 1 << place
            end = reach[state.end]
            if mask & bit or twins[place] & ~mask or end == state.end:
                continue
            other = grown.get(mask | bit)
            path = (*state.path, place)
            if other is None or (-end, path) < other.order():
                grown[mask | bit] = _State(end, path)
    return grown


def _assigned(
    state: _State, reaches: Sequence[Sequence[int]], chosen: Sequence[int]
) -> list[Assignment]:
    """The ranges of a state's path."""
    found, first = [], 0
    for place in state.path:
        end = reaches[place][first]
        found.append(Assignment(chosen[place], first, end))
        first = end
    return found
