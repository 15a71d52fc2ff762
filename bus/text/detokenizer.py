"""Token ids to text as they come, without ever splitting a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence

from bus.text.token_table import TokenTable


class Detokenizer:
    """Text of one answer, from its start. One per reader; used by one thread.

    What `push` gave, joined, depends on the ids alone and not on how they were cut. Bytes that
    may still become a character are held back; bytes that can not are one U+FFFD for each run
    that Unicode counts as one (Unicode 15.0, section 3.9, "maximal subparts").

    Args:
        vocabulary: bytes of each id; ids beyond it add nothing.
        special: control tokens, which add nothing.
    """

    def __init__(self, vocabulary: Sequence[bytes], special: Iterable[int] = ()) -> None:
        self._size = len(vocabulary)
        self._bytes_of: Sequence[bytes] | Mapping[int, bytes] = (
            vocabulary.by_id if isinstance(vocabulary, TokenTable) else vocabulary
        )
        self._special = frozenset(special)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        size = self._size
        return self._decoder.decode(
            b"".join(
                self._bytes_of[token]
                for token in ids
                if token < size and token not in self._special
            )
        )

    def push_bytes(self, data: bytes) -> str:
        """The text that bytes complete which no token of the vocabulary adds."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The text that the end completes: none, since a character that was cut is dropped."""
        self._decoder.reset()
        return ""
