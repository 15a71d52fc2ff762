"""Ids of texts that were encoded before, so that a conversation's turns are encoded once each.

A rendered chat is cut at its control tokens; what stands between two of them is a text of its own
to the tokenizer. Of a conversation that goes on, all these stretches but the last were there in
the turn before.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable

from bus.ids import PackedIds, pack_ids, unpack_ids

#: What is kept, in ids of four bytes; beyond it the least recently used go, down to half.
MAX_IDS = 2_000_000
#: What a kept text takes beside its ids, in ids.
ENTRY_IDS = 64


class Encodings:
    """Encoded texts, least recently used out. One per text process; not for threads.

    Args:
        max_ids: what is kept at most; texts of more than half of it are not.

    Attributes:
        fresh_bytes: how much text was encoded since the last `take_fresh`, in bytes of UTF-8.
    """

    def __init__(self, max_ids: int = MAX_IDS) -> None:
        self._max_ids = max_ids
        self._kept: OrderedDict[bytes, PackedIds] = OrderedDict()
        self._size = 0
        self.fresh_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def encode(
        self, way: bytes, text: str, encode: Callable[[str], list[int]]
    ) -> array[int] | list[int]:
        """The ids of a text, made by `encode` when they are not known.

        Args:
            way: names the tokenizer and how it is used; equal ways give equal ids.
            text: Unicode text without lone surrogates.
        """
        data = text.encode()
        key = hashlib.sha256(way + b"\0" + data).digest()
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            return unpack_ids(known)
        ids = encode(text)
        self.fresh_bytes += len(data)
        self._keep(key, ids)
        return ids

    def take_fresh(self) -> int:
        """`fresh_bytes`, which then count from 0."""
        taken, self.fresh_bytes = self.fresh_bytes, 0
        return taken

    def _keep(self, key: bytes, ids: list[int]) -> None:
        size = len(ids) + ENTRY_IDS
        if size > self._max_ids // 2:
            return
        self._kept[key] = pack_ids(ids)
        self._size += size
        if self._size > self._max_ids:
            while self._size > self._max_ids // 2:
                _, old = self._kept.popitem(last=False)
                self._size -= len(old) // 4 + ENTRY_IDS
