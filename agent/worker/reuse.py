"""Keys and values that a sequence need not compute: where they are, and what is kept of them. Pure.

They come from a lane whose sequence began with the same tokens, or from a lane that was saved when
its sequence ended. Lanes are compared token by token and saved ones found by the hashes of their
blocks, then compared to the last token too. Requests that arrive together with a long beginning in
common compute it once: those behind wait until the first has it (`leader`). That sequence may end
early; nothing is noted down about who waits, so the next of them becomes the first.

Source: prefix sharing by hash chains over blocks as in vLLM (Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention", SOSP 2023, section 4.4).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from agent.worker.prefix_cache import (
    BLOCK_TOKENS,
    LEFT_TO_COMPUTE,
    MIN_SHARED_TOKENS,
    Added,
    Match,
    PrefixCache,
    prefix_hashes,
    reusable_blocks,
)
from agent.worker.sequence import Sequence
from agent.worker.spans import Spans, common_tokens, cut_ahead, tokens_by_chunk, usable
from agent.worker.work import DropSaved, LaneOp, SaveLane, TakeRestored
from bus.errors import Internal

#: An ended lane is saved when what no other saved one has costs as much as so many tokens by
#: chunk, and as an eighth of it. A token by step costs more, at least by so much.
NEWS_TOKENS = BLOCK_TOKENS
NEWS_SHARE = 8
STEP_COST = 4


@dataclass(frozen=True, slots=True)
class Source:
    """The first `tokens` tokens are in `lane` of a running sequence, or else in saved `entry`.

    The first `exact_tokens` of them are what the sequence would compute itself, bit by bit.
    """

    tokens: int
    exact_tokens: int
    lane: int | None
    entry: int | None


class Holder(Protocol):
    """What has keys and values: how they were computed, and how many of them just so."""

    @property
    def tokens(self) -> array[int]: ...

    @property
    def spans(self) -> Spans: ...

    @property
    def exact_tokens(self) -> int: ...

    @property
    def salt(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Prefix:
    """What an entry of the cache holds: all its tokens, the first `exact_tokens` as `spans` say."""

    tokens: array[int]
    spans: Spans
    exact_tokens: int
    salt: bytes


class Reuse:
    """Owns the accounts of host memory, and what is in it. Driven by the scheduler.

    Args:
        budget_bytes: of host memory; 0 saves nothing and lets nothing be preempted.
        token_bytes: keys and values of one token.
        seed: what the hashes of a salt's prefixes begin with.
        grid: whether chunks keep to the middles of blocks (`chunk_grid`).

    Attributes:
        grid: as given.
    """

    def __init__(
        self,
        *,
        budget_bytes: int,
        token_bytes: int,
        seed: Callable[[bytes], bytes],
        grid: bool = False,
    ) -> None:
        self._cache = PrefixCache(budget_bytes)
        self._token_bytes = token_bytes
        self._seed = seed
        self.grid = grid
        self._prefixes: dict[int, Prefix] = {}
        #: Tokens of preempted sequences.
        self._held: dict[int, int] = {}

    # --- what a sequence can take over ----------------------------------------------------

    def best_source(self, sequence: Sequence, placed: Iterable[Sequence]) -> Source | None:
        """Where most of a sequence's tokens are, or None when it is not worth a copy.

        Args:
            sequence: without a lane.
            placed: sequences in lanes.
        """
        best: Source | None = None
        for other in placed:
            tokens, exact_tokens = _shared(sequence, other, other.computed, self.grid)
            if tokens >= BLOCK_TOKENS and (best is None or tokens > best.tokens):
                best = Source(tokens, exact_tokens, other.lane, None)
        saved = self._best_saved(sequence) if self._prefixes else None
        if saved is not None and (best is None or saved.tokens > best.tokens):
            return saved
        return best

    def has(self, source: Source) -> bool:
        """Whether a source is still to be had: what is held since may have taken its room."""
        return source.entry is None or source.entry in self._prefixes

    def leader(
        self, sequence: Sequence, source: Source | None, prefilling: Iterable[Sequence]
    ) -> Sequence | None:
        """The sequence that is computing what this one can take over soon, if that is much more.

        Args:
            sequence: without a lane.
            source: what it could take over now.
            prefilling: sequences in lanes that go on.
        """
        enough = (source.tokens if source else 0) + MIN_SHARED_TOKENS
        if len(sequence.tokens) < enough:
            return None
        for other in prefilling:
            if _shared(sequence, other, len(other.tokens), self.grid)[0] >= enough:
                return other
        return None

    def _best_saved(self, sequence: Sequence) -> Source | None:
        hashes = self._hashes(sequence)[: reusable_blocks(len(sequence.tokens))]
        best: Source | None = None
        for exact in (False, True):
            match = self._cache.find(hashes, exact=exact)
            if match is not None:
                prefix = self._prefixes[match.entry]
                tokens, exact_tokens = _shared(sequence, prefix, len(prefix.tokens), self.grid)
                if tokens >= BLOCK_TOKENS and (best is None or tokens > best.tokens):
                    best = Source(tokens, exact_tokens, None, match.entry)
        return best

    def _hashes(self, sequence: Sequence, tokens: int | None = None) -> list[bytes]:
        """Of its first tokens' full blocks; all when None."""
        ids = sequence.tokens if tokens is None else sequence.tokens[:tokens]
        blocks = len(ids) // BLOCK_TOKENS
        if blocks > len(sequence.hashes):
            sequence.hashes = prefix_hashes(self._seed(sequence.salt), ids, sequence.hashes)
        return sequence.hashes[:blocks]

    # --- what is kept ---------------------------------------------------------------------

    def keep_prefix(self, sequence: Sequence, lane: int) -> list[LaneOp]:
        """Save the lane of a sequence that ends, if that is worth it and there is room."""
        tokens = sequence.computed
        if tokens < BLOCK_TOKENS or not self._cache.budget_bytes:
            return []
        hashes = self._hashes(sequence, tokens)
        match = self._cache.find(hashes, exact=False)
        if match and not self._has_news(sequence, match):
            return []
        prefix = Prefix(
            sequence.tokens[:tokens], sequence.spans, sequence.exact_tokens, sequence.salt
        )
        kept = self._keep(prefix, hashes)
        return [] if kept is None else [*kept[1], SaveLane(lane, kept[0], tokens)]

    def _keep(self, prefix: Prefix, hashes: list[bytes]) -> tuple[int, list[LaneOp]] | None:
        """An entry for a prefix, and what must go first; None when it is not kept."""
        tokens = len(prefix.tokens)
        by_chunk = _exact_by_chunk(prefix, tokens)
        added = self._cache.add(hashes, tokens_by_chunk=by_chunk, nbytes=tokens * self._token_bytes)
        if added is None:
            return None
        self._prefixes[added.entry] = prefix
        return added.entry, self._dropped(added.evicted)

    def _has_news(self, sequence: Sequence, match: Match) -> bool:
        """Whether a lane has much that the entry, the best there is, has not."""
        tokens, known = sequence.computed, self._prefixes[match.entry].tokens
        enough = max(NEWS_TOKENS, tokens // NEWS_SHARE)
        common = common_tokens(sequence.tokens, known, min(tokens, len(known)))
        steps = max(0, tokens - max(common, sequence.context_tokens))
        news = tokens - common + (STEP_COST - 1) * steps
        by_chunk = _exact_by_chunk(sequence, tokens)
        return news >= enough or by_chunk - match.by_chunk >= enough

    def can_hold(self, sequence: Sequence) -> bool:
        """Whether `hold` would make room for a sequence."""
        tokens = sequence.computed
        return bool(self._cache.budget_bytes) and self._cache.can_hold(tokens * self._token_bytes)

    def hold(self, sequence: Sequence, lane: int) -> list[LaneOp] | None:
        """Make room for a sequence that loses its lane; None when there is none."""
        tokens = sequence.computed
        if not self._cache.budget_bytes:
            return None
        if not tokens:
            return []
        added: Added | None = self._cache.hold(tokens * self._token_bytes)
        if added is None:
            return None
        sequence.saved = added.entry
        self._held[added.entry] = tokens
        return [*self._dropped(added.evicted), SaveLane(lane, added.entry, tokens)]

    def release(self, sequence: Sequence) -> list[LaneOp]:
        """Free what is held for a sequence, if anything is."""
        entry, sequence.saved = sequence.saved, None
        if entry is None:
            return []
        del self._held[entry]
        return self._dropped(self._cache.drop(entry))

    def lose(self, entry: int) -> list[LaneOp]:
        """A prefix could not be saved, or not be read."""
        return self._dropped(self._cache.drop(entry)) if entry in self._prefixes else []

    def _dropped(self, entries: Iterable[int]) -> list[LaneOp]:
        ops: list[LaneOp] = []
        for entry in entries:
            self._prefixes.pop(entry, None)
            ops.append(DropSaved(entry))
        return ops

    def held_tokens(self, tokens: array[int], salt: bytes) -> int:
        """How many leading tokens of a prompt are in host memory, in whole blocks."""
        if not self._prefixes:
            return 0
        match = self._cache.find(prefix_hashes(self._seed(salt), tokens), exact=False)
        return match.tokens if match else 0

    # --- what is parked and restored -----------------------------------------------------

    def pin_longest(self, tokens: array[int], salt: bytes) -> tuple[int, Prefix] | None:
        """The entry with most of a session's tokens, and these; it stays until `unpin`."""
        match = self._cache.find(prefix_hashes(self._seed(salt), tokens), exact=False)
        if match is None:
            return None
        found = self._prefixes[match.entry]
        common = common_tokens(tokens, found.tokens, min(len(tokens), len(found.tokens)))
        # What is parked are the spans up to there alone.
        common = cut_ahead(found.spans, common, grid=self.grid)
        self._cache.pin(match.entry)
        exact_tokens = min(common, found.exact_tokens)
        return match.entry, Prefix(tokens[:common], found.spans, exact_tokens, salt)

    def unpin(self, entry: int) -> list[LaneOp]:
        """Let an entry go that `pin_longest` gave."""
        return self._dropped(self._cache.unpin(entry))

    def adopt(self, prefix: Prefix) -> tuple[int, list[LaneOp]] | None:
        """An entry for a prefix that was read from a file; None when it is not kept."""
        kept = self._keep(prefix, prefix_hashes(self._seed(prefix.salt), prefix.tokens))
        return None if kept is None else (kept[0], [*kept[1], TakeRestored(kept[0])])

    # --- figures --------------------------------------------------------------------------

    @property
    def host_bytes(self) -> int:
        """Bytes of all that is saved."""
        return self._cache.nbytes

    def digests(self) -> tuple[bytes, ...]:
        """Hashes of the prefixes held, newest first."""
        return self._cache.digests()

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """For tests, after every event.

        Args:
            waiting: sequences without a lane.

        Raises:
            Internal: the accounts contradict the sequences.
        """
        self._cache.check_integrity()
        held = {s.saved: s.computed for s in waiting if s.saved is not None}
        tokens = sum(held.values()) + sum(len(p.tokens) for p in self._prefixes.values())
        if held != self._held or self._cache.nbytes != tokens * self._token_bytes:
            raise Internal(f"host memory has {self._held}, and preempted sequences {held}")


def _exact_by_chunk(holder: Holder, tokens: int) -> int:
    """How many leading ones of a holder's first `tokens` tokens went by chunk, and exactly."""
    return min(tokens_by_chunk(holder.spans, tokens), holder.exact_tokens)


def _shared(sequence: Sequence, holder: Holder, known: int, grid: bool) -> tuple[int, int]:
    """How many of a holder's first `known` tokens a sequence may take over, and how many exactly.

    Both are 0 when it is not worth a look.
    """
    limit = min(len(sequence.tokens) - LEFT_TO_COMPUTE, known)
    if limit < BLOCK_TOKENS or sequence.salt != holder.salt:
        return 0, 0
    common = common_tokens(sequence.tokens, holder.tokens, limit)
    alike = min(common, holder.exact_tokens)
    exactly = usable(sequence.spans, holder.spans, alike, exact=True, grid=grid)
    if sequence.exact:
        return exactly, exactly
    return usable(sequence.spans, holder.spans, common, exact=False, grid=grid), exactly
