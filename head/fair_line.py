"""A line in which everybody's first stands before anybody's second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairLine(Generic[T]):
    """Items in line, owner by owner in turn; of one owner the oldest first."""

    def __init__(self) -> None:
        #: In order of their turns; never an empty deque.
        self._owners: dict[bytes, deque[T]] = {}
        #: Owners at the front whose turn is theirs again since an item came back.
        self._again: set[bytes] = set()

    def __len__(self) -> int:
        return sum(map(len, self._owners.values()))

    def push(self, owner: bytes, item: T) -> None:
        self._owners.setdefault(owner, deque()).append(item)

    def put_back(self, owner: bytes, item: T) -> None:
        """Give back what was just popped: it is next again."""
        items = self._owners.pop(owner, deque())
        items.appendleft(item)
        self._owners = {owner: items, **self._owners}

    def come_back(self, owner: bytes, item: T, age: Callable[[T], int]) -> None:
        """Take back what was taken some time ago: its owner has its turn again.

        Several that come back in the order in which they were taken stand in that order.

        Args:
            age: by which the owner's items are in line, the lowest first.
        """
        items = self._owners.get(owner, deque())
        older = sum(1 for other in items if age(other) < age(item))
        items.insert(older, item)
        if owner not in self._again:
            others = {key: line for key, line in self._owners.items() if key != owner}
            first = {key: others.pop(key) for key in list(others) if key in self._again}
            self._owners = {**first, owner: items, **others}
            self._again.add(owner)

    def pop(self) -> tuple[bytes, T] | None:
        """The next item with its owner, whose turn then comes after all others'."""
        if not self._owners:
            return None
        owner, items = next(iter(self._owners.items()))
        item = items.popleft()
        self._gone(owner)
        if items:
            self._owners[owner] = items
        return owner, item

    def order(self, without: Collection[bytes] = ()) -> Iterator[T]:
        """The items as they would be popped. Nothing may change meanwhile.

        Args:
            without: owners that are passed over.
        """
        lines = deque(iter(line) for key, line in self._owners.items() if key not in without)
        while lines:
            line = lines.popleft()
            for item in line:
                yield item
                lines.append(line)
                break

    def take(self, owner: bytes, item: T) -> None:
        """Remove an item wherever it stands; its owner's turn then comes after all others'.

        Raises:
            ValueError: it stands nowhere.
        """
        items = self._owners.get(owner, deque())
        items.remove(item)
        self._gone(owner)
        if items:
            self._owners[owner] = items

    def remove_if(self, unwanted: Callable[[T], bool]) -> None:
        """Remove the items that nobody wants, wherever they stand."""
        for owner, items in list(self._owners.items()):
            left = deque(item for item in items if not unwanted(item))
            if left:
                self._owners[owner] = left
            else:
                self._gone(owner)

    def _gone(self, owner: bytes) -> None:
        del self._owners[owner]
        self._again.discard(owner)
