"""The token ids of a session's context, with how each stretch of them is computed.

Head and node keep one each. They agree when length and digest are equal, so an append sends only
what is new. The digest is BLAKE2b-128 over the ids as u32 little-endian, kept incrementally.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

from bus.errors import Invalid
from bus.ids import PackedIds, count_ids
from bus.messages.parts import Segment

DIGEST_BYTES = 16


def context_digest(packed: bytes) -> bytes:
    """BLAKE2b-128 over packed ids (u32 little-endian).

    Source: RFC 7693, digest length 16, no key.
    """
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


#: The digest of a context without tokens.
EMPTY_DIGEST = context_digest(b"")


class TokenContext:
    """A row of token ids, added to at its end. Owns its bytes; used by one thread.

    Invariant: the segments cover the ids in order, none is empty, and neighbours differ in kind
    (chunks of any size give the same bits, so two in a row are one).
    """

    __slots__ = ("_hash", "_packed", "_segments")

    def __init__(self) -> None:
        self._packed = bytearray()
        self._segments: list[Segment] = []
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def append(self, ids: bytes, segments: Iterable[Segment] = ()) -> None:
        """Add packed ids at the end.

        Args:
            ids: packed u32 little-endian.
            segments: cover `ids` in order; none means one chunk.

        Raises:
            Invalid: the bytes are no packed ids, or the segments do not cover them. Nothing is
                added then.
        """
        if len(ids) % 4:
            raise Invalid(f"{len(ids)} bytes are no packed token ids (4 bytes each)", param="ids")
        added = tuple(segments) or (Segment(tokens=count_ids(ids)),)
        covered = sum(segment.tokens for segment in added)
        if covered != count_ids(ids):
            raise Invalid(
                f"the segments cover {covered} tokens and {count_ids(ids)} came", param="segments"
            )
        self._packed += ids
        self._hash.update(ids)
        for segment in added:
            self._add_segment(segment)

    def _add_segment(self, segment: Segment) -> None:
        if segment.tokens == 0:
            return
        last = self._segments[-1] if self._segments else None
        if last is not None and last.by_step == segment.by_step:
            self._segments[-1] = Segment(
                tokens=last.tokens + segment.tokens, by_step=segment.by_step
            )
        else:
            self._segments.append(segment)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens only; all, when it has no more."""
        kept = self.slice_segments(0, length)
        del self._packed[4 * length :]
        self._segments = list(kept)
        self._hash = hashlib.blake2b(self._packed, digest_size=DIGEST_BYTES)

    def __len__(self) -> int:
        """How many tokens it holds."""
        return len(self._packed) // 4

    def digest(self) -> bytes:
        """BLAKE2b-128 of all ids."""
        return self._hash.digest()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Stretches in order; empty for an empty context."""
        return tuple(self._segments)

    def matches(self, length: int, digest: bytes) -> bool:
        """Whether it holds `length` tokens with this digest."""
        return length == len(self) and digest == self.digest()

    def slice(self, start: int = 0, stop: int | None = None) -> PackedIds:
        """Token ids `start` to `stop` (to the end when None), packed."""
        return PackedIds(bytes(self._packed[4 * start : None if stop is None else 4 * stop]))

    def slice_segments(self, start: int = 0, stop: int | None = None) -> tuple[Segment, ...]:
        """The segments that cover token ids `start` to `stop`."""
        end = len(self) if stop is None else min(stop, len(self))
        covering: list[Segment] = []
        at = 0
        for segment in self._segments:
            low, high = max(start, at), min(end, at + segment.tokens)
            if low < high:
                covering.append(Segment(tokens=high - low, by_step=segment.by_step))
            at += segment.tokens
        return tuple(covering)

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        if len(self._packed) % 4 or sum(s.tokens for s in self._segments) != len(self):
            raise ValueError("the segments do not cover the ids")
        if any(s.tokens == 0 for s in self._segments):
            raise ValueError("a segment is empty")
        kinds = [s.by_step for s in self._segments]
        if any(a == b for a, b in itertools.pairwise(kinds)):
            raise ValueError("neighbouring segments are of one kind")
        if self.digest() != context_digest(bytes(self._packed)):
            raise ValueError("the incremental digest differs from the whole one")
