"""What nodes are believed to hold of prompts: a bounded map from hash chains to holders. Pure.

A prompt is named by a chain of hashes, one for each full block of 64 tokens, as workers name their
saved prefixes; a hash covers all blocks before it. A worker that gets a prompt is believed to hold
it from then on, and what it says at the end (`usage.cached_tokens`) corrects that:

- it had less than was believed: what it last used before that prefix is gone too, since workers
  drop what was used longest ago first;
- how much of what was believed it had, smoothed, is how far it is *trusted*. A worker that keeps
  nothing soon draws nobody.

Of each worker the blocks are in order of use, of one prompt the last block first. So what is
dropped are ends of prompts, and a worker that has a block has all blocks before it: the invariant
that makes a search cheap.

Source: prefix sharing by hash chains over blocks as in vLLM (Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention", SOSP 2023, section 4.4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.ids import ModelName, NodeIdentity, WorkerIncarnation

#: As in the workers' prefix caches.
BLOCK_TOKENS = 64
#: A collision costs a wrong guess, no more.
HASH_BYTES = 8
#: Blocks believed to be held by all workers together, about 200 bytes each, and by one of them.
MAX_BLOCKS = 131_072
MAX_HELD_BLOCKS = 4_096
#: Weight of what a worker was trusted against 1 for what it says now.
_OLD_WEIGHT = 3
#: Trust from which it makes no difference.
_BEYOND_DOUBT = 0.99

_BLOCK_BYTES = 4 * BLOCK_TOKENS
#: Of a prompt's last tokens so many are computed in any case.
_LEFT_TO_COMPUTE = 2

#: Hashes of a prompt's leading full blocks.
Chain = Sequence[bytes]


def chain_seed(model: ModelName, media: Sequence[bytes] = ()) -> bytes:
    """What a model's chains start from, 16 bytes.

    Args:
        media: digests of the files that the prompt's placeholders stand for, in order.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"placement")
    for part in (model.encode(), *media):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def prompt_chain(seed: bytes, packed: bytes, start: Chain = ()) -> list[bytes]:
    """The chain over packed token ids: one hash for each full block, of it and all before it.

    Args:
        seed: from `chain_seed`.
        packed: token ids, u32 little-endian.
        start: the chain's beginning where it is known already; it is not computed again.

    Returns:
        All hashes, those of `start` first.

    Source: BLAKE2b, RFC 7693, keyed.
    """
    hashes = list(start)
    before = hashes[-1] if hashes else bytes(HASH_BYTES)
    blake2b = hashlib.blake2b
    end = len(packed) // _BLOCK_BYTES * _BLOCK_BYTES
    for offset in range(len(hashes) * _BLOCK_BYTES, end, _BLOCK_BYTES):
        block = packed[offset : offset + _BLOCK_BYTES]
        before = blake2b(before + block, digest_size=HASH_BYTES, key=seed).digest()
        hashes.append(before)
    return hashes


def reusable_blocks(prompt_tokens: int) -> int:
    """How many leading blocks of a prompt a worker can have taken over."""
    return max(0, prompt_tokens - _LEFT_TO_COMPUTE) // BLOCK_TOKENS


@dataclass(slots=True)
class _Holder:
    """One worker. `used` has its blocks and when each was used, in that order."""

    node: NodeIdentity
    worker: WorkerIncarnation
    used: dict[bytes, int] = field(default_factory=dict)
    trust: float = 1.0


@dataclass(frozen=True, slots=True)
class Believed:
    """What was believed of a worker when it got a prompt.

    Attributes:
        tokens: leading tokens that it was believed to hold.
        used_at: when it had last used the last block of these.
    """

    tokens: int
    used_at: int


class PrefixBeliefs:
    """Owned by the waiting line; reads no clock, does no I/O.

    Invariants: at most `max_blocks` blocks in all and `max_held` of one worker; a holder of a block
    holds every block before it.

    Args:
        max_blocks: of all workers together.
        max_held: of one worker.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, max_held: int = MAX_HELD_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._max_held = max_held
        self._workers: dict[tuple[NodeIdentity, ModelName], _Holder] = {}
        #: Who holds a block, by identity of the node; a chain's seed has the model.
        self._holders: dict[bytes, dict[NodeIdentity, _Holder]] = {}
        #: Those that are not quite trusted.
        self._doubted: set[tuple[NodeIdentity, ModelName]] = set()
        self._uses = 0

    def __len__(self) -> int:
        """How many blocks are believed to be held, each counted once a holder."""
        return sum(len(holder.used) for holder in self._workers.values())

    def cached(self, model: ModelName, chain: Chain) -> dict[NodeIdentity, int]:
        """How many leading tokens of a prompt nodes are believed to hold, as far as trusted.

        Args:
            chain: of that model. The nodes left out hold nothing of it.
        """
        found: dict[NodeIdentity, int] = {}
        for blocks in range(self._known(chain), 0, -1):
            there = self._holders[chain[blocks - 1]]
            # Who holds this block holds those before it: as many holders are the same ones.
            if len(there) == len(found):
                continue
            new = there.keys() - found.keys() if found else there
            found.update(dict.fromkeys(new, blocks * BLOCK_TOKENS))
        for node, of_model in self._doubted:
            if of_model == model and node in found:
                held = int(found[node] * self._workers[node, model].trust)
                found[node] = held if held >= BLOCK_TOKENS else 0
        return found

    def placed(
        self,
        node: NodeIdentity,
        model: ModelName,
        worker: WorkerIncarnation,
        chain: Chain,
        reusable: int,
    ) -> Believed:
        """A worker gets a prompt: it holds all of it from now on.

        Args:
            chain: of all its full blocks.
            reusable: how many of them it can have had already.

        Returns:
            What it was believed to hold of it before.
        """
        holder = self._holder(node, model, worker)
        known = 0
        while known < min(reusable, len(chain)) and chain[known] in holder.used:
            known += 1
        used_at = holder.used[chain[known - 1]] if known else 0
        self._use(holder, chain)
        return Believed(known * BLOCK_TOKENS, used_at)

    def finished(
        self,
        node: NodeIdentity,
        model: ModelName,
        worker: WorkerIncarnation,
        believed: Believed,
        cached_tokens: int,
    ) -> None:
        """A generation ended, and its worker says how many of the prompt's tokens it had."""
        holder = self._workers.get((node, model))
        if holder is None or holder.worker != worker or not believed.tokens:
            return
        right = min(cached_tokens / believed.tokens, 1.0)
        holder.trust = (_OLD_WEIGHT * holder.trust + right) / (_OLD_WEIGHT + 1)
        if holder.trust < _BEYOND_DOUBT:
            self._doubted.add((node, model))
        else:
            self._doubted.discard((node, model))
        if cached_tokens <= believed.tokens - BLOCK_TOKENS:
            gone = [block for block, used_at in holder.used.items() if used_at <= believed.used_at]
            self._drop(holder, gone)

    def grew(
        self, node: NodeIdentity, model: ModelName, worker: WorkerIncarnation, chain: Chain
    ) -> None:
        """A worker computed what followed a prompt: it holds that too.

        Args:
            chain: of the prompt and what followed.
        """
        holder = self._workers.get((node, model))
        if holder is not None and holder.worker == worker:
            self._use(holder, chain)

    def forget(self, node: NodeIdentity, model: ModelName) -> None:
        """The worker of a model on a node is gone, with all that it held."""
        self._doubted.discard((node, model))
        holder = self._workers.pop((node, model), None)
        if holder is not None:
            self._drop(holder, list(holder.used))

    def check_integrity(self) -> None:
        """For tests.

        Raises:
            ValueError: an invariant does not hold.
        """
        held = {(holder.node, block) for holder in self._workers.values() for block in holder.used}
        named = {(node, block) for block, there in self._holders.items() for node in there}
        if held != named or len(held) != len(self):
            raise ValueError("holders and blocks contradict each other")
        if len(self) > self._max_blocks or any(
            len(holder.used) > self._max_held for holder in self._workers.values()
        ):
            raise ValueError("more blocks are kept than may be")

    # --- inside -------------------------------------------------------------------------------

    def _known(self, chain: Chain) -> int:
        """How many leading blocks anybody holds."""
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in self._holders:
                low = middle
            else:
                high = middle - 1
        return low

    def _holder(self, node: NodeIdentity, model: ModelName, worker: WorkerIncarnation) -> _Holder:
        holder = self._workers.get((node, model))
        if holder is not None and holder.worker == worker:
            return holder
        self.forget(node, model)
        made = self._workers[node, model] = _Holder(node, worker)
        for other in self._workers.values():
            self._shrink(other)
        return made

    def _held_limit(self) -> int:
        return max(min(self._max_held, self._max_blocks // max(len(self._workers), 1)), 1)

    def _use(self, holder: _Holder, chain: Chain) -> None:
        """The blocks were used now, the last one first; what is too much is dropped."""
        self._uses += 1
        used, node = holder.used, holder.node
        for block in reversed(chain[: self._held_limit()]):
            if used.pop(block, None) is None:
                self._holders.setdefault(block, {})[node] = holder
            used[block] = self._uses
        self._shrink(holder)

    def _shrink(self, holder: _Holder) -> None:
        """Drop what was used longest ago, until there is no more than may be."""
        excess = len(holder.used) - self._held_limit()
        if excess > 0:
            order = iter(holder.used)
            self._drop(holder, [next(order) for _ in range(excess)])

    def _drop(self, holder: _Holder, blocks: Sequence[bytes]) -> None:
        for block in blocks:
            del holder.used[block]
            there = self._holders[block]
            del there[holder.node]
            if not there:
                del self._holders[block]
