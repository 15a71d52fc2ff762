"""Random histories of the prefix cache and the arrays behind it, against a brute-force model."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.worker.host_kv import HostKv
from agent.worker.kv_cache import HostSlab, LaneShape
from agent.worker.prefix_cache import BLOCK_TOKENS, Added, PrefixCache, prefix_hashes

BLOCKS = 5
LANE = LaneShape(kv_heads=1, max_len=BLOCKS * BLOCK_TOKENS, head_dim=1, dtype=np.dtype(np.float32))
BLOCK_BYTES = 2 * 4 * BLOCK_TOKENS  # keys and values of one head of one float32
BUDGET = 12 * BLOCK_BYTES

#: A prompt: each letter stands for a block of 64 equal ids.
PROMPTS = st.text("ab", min_size=1, max_size=BLOCKS)
PICKS = st.randoms(use_true_random=False)


@dataclass
class Saved:
    """An entry as the model knows it. `text` is "" for a lane."""

    text: str
    by_chunk: int
    nbytes: int
    used: int
    pins: int = 0
    gone: bool = False


def hashes_of(text: str) -> list[bytes]:
    return prefix_hashes(b"seed", array("I", [ord(c) for c in text for _ in range(BLOCK_TOKENS)]))


def common(left: str, right: str) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BUDGET)
        self.host = HostKv(BUDGET)
        self.slab = HostSlab(2, 2, LANE)
        self.model: dict[int, Saved] = {}
        self.clock = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def prefixes(self) -> dict[int, Saved]:
        return {n: s for n, s in self.model.items() if s.text and not s.gone}

    # --- what the scheduler does ----------------------------------------------------------

    @rule(text=PROMPTS, by_chunk=st.integers(0, BLOCKS * BLOCK_TOKENS))
    def save_a_prefix(self, text: str, by_chunk: int) -> None:
        blocks = min(by_chunk // BLOCK_TOKENS, len(text))
        covers = [
            s for s in self.prefixes().values() if s.text.startswith(text) and s.by_chunk >= blocks
        ]
        covered = [
            n
            for n, s in self.prefixes().items()
            if text.startswith(s.text) and s.by_chunk <= blocks
        ]
        nbytes = len(text) * BLOCK_BYTES
        added = self.cache.add(hashes_of(text), tokens_by_chunk=by_chunk, nbytes=nbytes)
        if covers:
            assert added is None
            # Which of several that cover it was used is the cache's choice.
            self.resync_use()
            return
        self.expect_room(added, nbytes, covered)
        if added is not None:
            self.fill(text)
            self.store(added, Saved(text, blocks, nbytes, self.tick()))

    @rule(blocks=st.integers(1, BLOCKS))
    def preempt(self, blocks: int) -> None:
        nbytes = blocks * BLOCK_BYTES
        could = self.cache.can_hold(nbytes)
        added = self.cache.hold(nbytes)
        assert could == (added is not None)
        self.expect_room(added, nbytes, [])
        if added is not None:
            self.fill("z" * blocks)
            self.store(added, Saved("", 0, nbytes, self.tick()))

    @rule(text=PROMPTS, exact=st.booleans())
    def find(self, text: str, exact: bool) -> None:
        reach = {
            n: min(common(s.text, text), s.by_chunk if exact else BLOCKS)
            for n, s in self.prefixes().items()
        }
        best = max(reach.values(), default=0)
        match = self.cache.find(hashes_of(text), exact=exact)
        if not best:
            assert match is None
            return
        assert match is not None
        found = self.model[match.entry]
        assert match.tokens == best * BLOCK_TOKENS == reach[match.entry] * BLOCK_TOKENS
        assert match.by_chunk == min(found.by_chunk, best) * BLOCK_TOKENS
        assert found.by_chunk == max(self.model[n].by_chunk for n in reach if reach[n] == best)
        found.used = self.tick()
        self.host.load(match.entry, self.slab, 1, match.tokens)
        want = np.repeat(np.array([ord(c) for c in text[:best]], np.float32), BLOCK_TOKENS)
        for part in self.slab.arrays:
            np.testing.assert_array_equal(part[1, 0, : match.tokens, 0], want)

    @rule(pick=PICKS)
    def pin(self, pick: Random) -> None:
        if self.model:
            entry = pick.choice(sorted(self.model))
            self.cache.pin(entry)
            self.model[entry].pins += 1

    @rule(pick=PICKS)
    def unpin(self, pick: Random) -> None:
        pinned = sorted(n for n, s in self.model.items() if s.pins)
        if pinned:
            entry = pick.choice(pinned)
            saved = self.model[entry]
            saved.pins -= 1
            freed = self.cache.unpin(entry)
            assert freed == ([entry] if saved.gone and not saved.pins else [])
            self.release(freed)

    @rule(pick=PICKS)
    def drop(self, pick: Random) -> None:
        if self.model:
            entry = pick.choice(sorted(self.model))
            self.model[entry].gone = True
            freed = self.cache.drop(entry)
            assert freed == ([] if self.model[entry].pins else [entry])
            self.release(freed)

    # --- what must hold -------------------------------------------------------------------

    @invariant()
    def accounts_are_exact(self) -> None:
        self.cache.check_integrity()
        want = sum(saved.nbytes for saved in self.model.values())
        assert self.cache.nbytes == self.host.nbytes == want <= BUDGET
        lanes = sum(s.nbytes for s in self.model.values() if not s.text and not s.gone)
        assert self.cache.held_bytes == lanes
        assert self.host.entries() == set(self.model)

    # --- the model ------------------------------------------------------------------------

    def expect_room(self, added: Added | None, nbytes: int, covered: list[int]) -> None:
        """What goes: the covered, then the least recently used, as few as are needed."""
        used = sum(saved.nbytes for saved in self.model.values())
        freed = [n for n in covered if not self.model[n].pins]
        used -= sum(self.model[n].nbytes for n in freed)
        rest = [n for n, s in self.prefixes().items() if not s.pins and n not in covered]
        for number in sorted(rest, key=lambda n: self.model[n].used):
            if used + nbytes <= BUDGET:
                break
            freed.append(number)
            used -= self.model[number].nbytes
        if used + nbytes > BUDGET:
            assert added is None
            return
        assert added is not None
        assert sorted(added.evicted) == sorted(freed)
        assert added.entry not in self.model
        for number in covered:
            self.model[number].gone = True
        self.release(added.evicted)

    def store(self, added: Added, saved: Saved) -> None:
        self.model[added.entry] = saved
        tokens = saved.nbytes // BLOCK_BYTES * BLOCK_TOKENS
        assert self.host.save(added.entry, self.slab, 0, tokens) == saved.nbytes

    def release(self, freed: list[int]) -> None:
        for number in freed:
            del self.model[number]
            self.host.drop(number)

    def fill(self, text: str) -> None:
        for part in self.slab.arrays:
            part[0, 0, : len(text) * BLOCK_TOKENS, 0] = np.repeat(
                np.array([ord(c) for c in text], np.float32), BLOCK_TOKENS
            )

    def resync_use(self) -> None:
        for number in self.cache._prefixes:
            self.model[number].used = self.tick()


History.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistory = History.TestCase
