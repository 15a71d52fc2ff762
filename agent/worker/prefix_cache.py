"""Which saved lanes are kept in host memory, and what a new prompt can take from them. Pure.

A prompt is named by a chain of hashes, one for each full block of 64 tokens: a block's hash covers
all blocks before it, the model, the numerics and the client's salt, so equal hashes mean equal
keys and values. Two kinds of entries share one byte budget:

- *prefixes*, found by hash, the least recently used dropped first;
- *lanes* of preempted or restored generations, which no one else may take and which stay until
  their owner drops them. They push prefixes out; a prefix never pushes them out.

The owner of a cache does what it is told at once and in order: first drop `Added.evicted`, then
save `Added.entry`. Then the arrays (`host_kv.HostKv`) never hold more than the budget.

Tokens were computed by chunk or by step, which round differently. An entry's leading tokens by
chunk are counted, and a request that asks `exact` is offered no more than these.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from bus.errors import Internal
from bus.ids import pack_ids

BLOCK_TOKENS = 64
#: Requests that arrive together wait for each other's prefix when they share as much.
MIN_SHARED_TOKENS = 256
HASH_BYTES = 16
#: Digests that are told of the prefixes held; the head takes 4096 at most.
MAX_DIGESTS = 512
#: At least so many tokens of a prompt are computed: the next token needs logits, and a chunk of
#: one would round like a step.
LEFT_TO_COMPUTE = 2

_DIGEST_EVERY = MIN_SHARED_TOKENS // BLOCK_TOKENS


def prefix_seed(
    *, model: str, numerics: str, salt: bytes = b"", media: Sequence[bytes] = ()
) -> bytes:
    """What a chain starts from: prefixes with different seeds never meet.

    Args:
        model: digest of the model's files.
        numerics: the numerics id.
        salt: of the client; one client's prompts can not be probed by another.
        media: digests of the files that the prompt's placeholders stand for, in order.

    Returns:
        32 bytes; each part goes in with its length, so no two lists of parts are alike.
    """
    digest = hashlib.blake2b(digest_size=32, person=b"superfluid seed")
    for part in (model.encode(), numerics.encode(), salt, *media):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def prefix_hashes(seed: bytes, ids: array[int], start: Sequence[bytes] = ()) -> list[bytes]:
    """The chain over a prompt: one hash for each full block, of it and all before it.

    Args:
        seed: 1 to 64 bytes, from `prefix_seed`. It keys every hash.
        ids: the prompt's token ids.
        start: the chain's beginning where it is known already; it is not computed again.

    Returns:
        `len(ids) // BLOCK_TOKENS` hashes of `HASH_BYTES`, those of `start` first.

    Source: BLAKE2b, RFC 7693, keyed.
    """
    blocks = len(ids) // BLOCK_TOKENS
    hashes = list(start[:blocks])
    done = len(hashes)
    packed = pack_ids(ids[done * BLOCK_TOKENS : blocks * BLOCK_TOKENS])
    block_bytes = 4 * BLOCK_TOKENS
    for offset in range(0, len(packed), block_bytes):
        before = hashes[-1] if hashes else bytes(HASH_BYTES)
        block = packed[offset : offset + block_bytes]
        hashes.append(hashlib.blake2b(before + block, digest_size=HASH_BYTES, key=seed).digest())
    return hashes


def reusable_blocks(prompt_tokens: int) -> int:
    """How many leading blocks of a prompt may be taken over."""
    return max(0, prompt_tokens - LEFT_TO_COMPUTE) // BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Match:
    """Saved tokens that a prompt begins with: the first `tokens` of `entry`, whole blocks.

    The first `by_chunk` of them were computed by chunk, all tokens before them too.
    """

    entry: int
    tokens: int
    by_chunk: int


@dataclass(frozen=True, slots=True)
class Added:
    """Save `entry`, after `evicted` were dropped."""

    entry: int
    evicted: list[int]


@dataclass(slots=True)
class _Entry:
    nbytes: int
    #: Empty for a lane.
    hashes: tuple[bytes, ...] = ()
    chunk_blocks: int = 0
    pins: int = 0
    #: Found no more; its bytes count until the last pin is gone.
    doomed: bool = False


class PrefixCache:
    """Owns the accounts of host memory; the scheduler drives it, arrays are elsewhere.

    Invariant: `nbytes` is the sum over all entries and at most `budget_bytes`; entry ids never
    repeat.

    Args:
        budget_bytes: of prefixes and lanes together; 0 keeps nothing.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        #: Bytes of all entries.
        self.nbytes = 0
        self._next = 1
        #: Prefixes by when they were used, oldest first; those that are doomed are not in it.
        self._prefixes: dict[int, _Entry] = {}
        self._lanes: dict[int, _Entry] = {}
        self._doomed: dict[int, _Entry] = {}
        #: Which prefixes hold a block; the second counts blocks by chunk alone.
        self._holders: dict[bytes, dict[int, None]] = {}
        self._exact_holders: dict[bytes, dict[int, None]] = {}

    # --- prefixes -------------------------------------------------------------------------

    def find(self, hashes: Sequence[bytes], *, exact: bool) -> Match | None:
        """The longest saved beginning of a prompt, which counts as used now.

        Args:
            hashes: of the blocks that may be taken over (`reusable_blocks`).
            exact: pass over what was computed by steps.
        """
        index = self._exact_holders if exact else self._holders
        blocks = 0
        while blocks < len(hashes) and hashes[blocks] in index:
            blocks += 1
        if not blocks:
            return None
        holders = index[hashes[blocks - 1]]
        entry = max(holders, key=lambda number: self._prefixes[number].chunk_blocks)
        self._touch(entry)
        by_chunk = min(blocks, self._prefixes[entry].chunk_blocks)
        return Match(entry, blocks * BLOCK_TOKENS, by_chunk * BLOCK_TOKENS)

    def add(self, hashes: Sequence[bytes], *, tokens_by_chunk: int, nbytes: int) -> Added | None:
        """Make room for a prefix.

        What it covers is dropped: shorter beginnings of the same prompt, unless more of them was
        computed by chunk.

        Args:
            hashes: of its blocks, all of which are saved.
            tokens_by_chunk: leading tokens that were computed by chunk.
            nbytes: what it takes.

        Returns:
            None when another prefix covers it, or when it does not fit beside lanes and what is
            pinned.
        """
        chunk_blocks = min(tokens_by_chunk // BLOCK_TOKENS, len(hashes))
        cover = self._cover(hashes, chunk_blocks)
        if cover is not None:
            self._touch(cover)
        if not hashes or cover is not None:
            return None
        covered = self._covered_by(hashes, chunk_blocks)
        evicted = self._make_room(nbytes, covered)
        if evicted is None:
            return None
        number = self._take_number()
        entry = self._prefixes[number] = _Entry(nbytes, tuple(hashes), chunk_blocks)
        self.nbytes += nbytes
        for count, index in ((len(hashes), self._holders), (chunk_blocks, self._exact_holders)):
            for block in entry.hashes[:count]:
                index.setdefault(block, {})[number] = None
        return Added(number, evicted)

    # --- lanes ----------------------------------------------------------------------------

    def can_hold(self, nbytes: int) -> bool:
        """Whether `hold` would find room."""
        free = self.budget_bytes - self.nbytes
        return nbytes <= free + sum(e.nbytes for e in self._prefixes.values() if not e.pins)

    def hold(self, nbytes: int) -> Added | None:
        """Make room for a lane, at the cost of prefixes; None when there is none."""
        evicted = self._make_room(nbytes, [])
        if evicted is None:
            return None
        number = self._take_number()
        self._lanes[number] = _Entry(nbytes)
        self.nbytes += nbytes
        return Added(number, evicted)

    # --- both -----------------------------------------------------------------------------

    def pin(self, entry: int) -> None:
        """Keep an entry's bytes until `unpin`, as often as it was pinned.

        Raises:
            Internal: there is none.
        """
        self._entry(entry).pins += 1

    def unpin(self, entry: int) -> list[int]:
        """End a `pin`.

        Returns:
            Entries to drop now: this one, when it was dropped or replaced meanwhile.

        Raises:
            Internal: it is not pinned.
        """
        found = self._entry(entry)
        if not found.pins:
            raise Internal(f"saved lane {entry} is not pinned")
        found.pins -= 1
        return self._free(entry) if found.doomed and not found.pins else []

    def drop(self, entry: int) -> list[int]:
        """Forget an entry.

        Returns:
            Entries to drop now: this one, or none while it is pinned (`unpin` gives it then).

        Raises:
            Internal: there is none.
        """
        found = self._entry(entry)
        if entry in self._prefixes:
            self._forget(entry)
        else:
            self._lanes.pop(entry, None)
        found.doomed = True
        self._doomed[entry] = found
        return [] if found.pins else self._free(entry)

    def clear(self) -> list[int]:
        """Forget all prefixes; the entries to drop now."""
        return [n for number in list(self._prefixes) for n in self.drop(number)]

    # --- figures --------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of lanes alone."""
        return sum(entry.nbytes for entry in self._lanes.values())

    def digests(self, limit: int = MAX_DIGESTS) -> tuple[bytes, ...]:
        """Hashes of held beginnings for placement: every 256 tokens and each end, newest first."""
        found: dict[bytes, None] = {}
        for entry in reversed(self._prefixes.values()):
            ends = range(len(entry.hashes), 0, -_DIGEST_EVERY)
            steps = range(_DIGEST_EVERY, len(entry.hashes), _DIGEST_EVERY)
            for stop in (*ends[:1], *steps):
                found[entry.hashes[stop - 1]] = None
            if len(found) >= limit:
                break
        return tuple(found)[:limit]

    def check_integrity(self) -> None:
        """For tests, after every event.

        Raises:
            Internal: the accounts contradict each other.
        """
        entries = {**self._prefixes, **self._lanes, **self._doomed}
        counted = len(self._prefixes) + len(self._lanes) + len(self._doomed)
        sound = (
            len(entries) == counted
            and self.nbytes == sum(entry.nbytes for entry in entries.values())
            and 0 <= self.nbytes <= max(self.budget_bytes, 0)
            and all(entry.pins and entry.doomed for entry in self._doomed.values())
            and self._holders == self._index_of(exact=False)
            and self._exact_holders == self._index_of(exact=True)
        )
        if not sound:
            raise Internal(f"the accounts of host memory contradict each other: {entries}")

    def _index_of(self, *, exact: bool) -> dict[bytes, dict[int, None]]:
        index: dict[bytes, dict[int, None]] = {}
        for number, entry in self._prefixes.items():
            for block in entry.hashes[: entry.chunk_blocks if exact else None]:
                index.setdefault(block, {})[number] = None
        return index

    # --- inside ---------------------------------------------------------------------------

    def _cover(self, hashes: Sequence[bytes], chunk_blocks: int) -> int | None:
        """A prefix that has all of these blocks, as many of them by chunk."""
        holders = self._holders.get(hashes[-1], {}) if hashes else {}
        return next((n for n in holders if self._prefixes[n].chunk_blocks >= chunk_blocks), None)

    def _covered_by(self, hashes: Sequence[bytes], chunk_blocks: int) -> list[int]:
        """Prefixes that are beginnings of these blocks, no more of them by chunk."""
        found: dict[int, None] = {}
        for count, block in enumerate(hashes, 1):
            for number in self._holders.get(block, ()):
                entry = self._prefixes[number]
                if len(entry.hashes) == count and entry.chunk_blocks <= chunk_blocks:
                    found[number] = None
        return list(found)

    def _make_room(self, nbytes: int, covered: list[int]) -> list[int] | None:
        """Drop `covered`, then the least recently used, until `nbytes` more fit; all or nothing."""
        free = self.budget_bytes - self.nbytes
        dropping: list[int] = list(covered)
        free += sum(self._prefixes[n].nbytes for n in covered if not self._prefixes[n].pins)
        for number, entry in self._prefixes.items():
            if free >= nbytes:
                break
            if not entry.pins and number not in covered:
                dropping.append(number)
                free += entry.nbytes
        if free < nbytes:
            return None
        return [freed for number in dropping for freed in self.drop(number)]

    def _touch(self, entry: int) -> None:
        self._prefixes[entry] = self._prefixes.pop(entry)

    def _forget(self, number: int) -> None:
        entry = self._prefixes.pop(number)
        for index in (self._holders, self._exact_holders):
            for block in entry.hashes:
                holders = index.get(block)
                if holders is not None:
                    holders.pop(number, None)
                    if not holders:
                        del index[block]

    def _free(self, number: int) -> list[int]:
        self.nbytes -= self._doomed.pop(number).nbytes
        return [number]

    def _take_number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def _entry(self, number: int) -> _Entry:
        for entries in (self._prefixes, self._lanes, self._doomed):
            if number in entries:
                return entries[number]
        raise Internal(f"there is no saved lane {number}")
