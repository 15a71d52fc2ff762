"""What each answer's prompt has in common with what nodes hold, while it waits and runs.

A prompt is hashed once, when its answer begins to wait; the tokens that were made since are hashed
when it ends, since a later turn or a chat's next request begins with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bus.ids import ModelName, NodeIdentity, WorkerIncarnation, count_ids
from head.answers import Answer
from head.prefixes import (
    BLOCK_TOKENS,
    HASH_BYTES,
    Believed,
    PrefixBeliefs,
    chain_seed,
    prompt_chain,
    reusable_blocks,
)
from head.snapshot import NOTHING

#: Packed token ids of an answer's context, with what it has made so far.
ContextOf = Callable[[Answer], bytes]


@dataclass(slots=True)
class _Running:
    """An answer on a worker.

    Attributes:
        hashes: those of its context when it began, in a row.
        todo: tokens of its context to compute, until its first token comes.
    """

    node: NodeIdentity
    worker: WorkerIncarnation
    believed: Believed
    hashes: bytes
    todo: int


@dataclass(frozen=True, slots=True)
class Preference:
    """An answer waits for a node that holds its prefix, though others are open.

    Attributes:
        since_s: when it first left another alone.
        until_s: when it goes to the first that can take it.
    """

    node: NodeIdentity
    since_s: float
    until_s: float


class Affinity:
    """Owned by the waiting line.

    Args:
        context_of: gives an answer's context.
    """

    def __init__(self, context_of: ContextOf) -> None:
        self._context_of = context_of
        self.beliefs = PrefixBeliefs()
        self._chains: dict[int, list[bytes]] = {}
        self._running: dict[int, _Running] = {}
        self._preferences: dict[int, Preference] = {}
        #: Sums of `todo`, by model and node; no zeros.
        self._prefilling: dict[ModelName, dict[NodeIdentity, int]] = {}

    @property
    def preferring(self) -> int:
        """How many answers wait for a node of their choice."""
        return len(self._preferences)

    # --- an answer waits ----------------------------------------------------------------------

    def queued(self, answer: Answer) -> None:
        """An answer waits for a node; if it was on one, it is there no more."""
        self.ended(answer)
        self._chains[answer.id] = self.chain_of(answer)

    def chain_of(self, answer: Answer) -> list[bytes]:
        """The hash chain of an answer's context."""
        known = self._chains.get(answer.id)
        if known is not None:
            return known
        if answer.context_tokens < BLOCK_TOKENS:
            return []
        return prompt_chain(_seed(answer), self._context_of(answer))

    def cached(self, answer: Answer) -> Mapping[NodeIdentity, int]:
        """How many leading tokens of its context nodes are believed to hold."""
        chain = self.chain_of(answer)[: reusable_blocks(answer.context_tokens)]
        return self.beliefs.cached(answer.model, chain) if chain else NOTHING

    def cached_context(self, model: ModelName, context: bytes) -> Mapping[NodeIdentity, int]:
        """The same of a context that no answer has, packed ids."""
        chain = prompt_chain(chain_seed(model), context)[: reusable_blocks(count_ids(context))]
        return self.beliefs.cached(model, chain) if chain else NOTHING

    def prefers(self, answer: int, node: NodeIdentity, wait_s: float, now: float) -> None:
        """It waits for a node that is full, for so long at most."""
        known = self._preferences.get(answer)
        since_s = known.since_s if known is not None else now
        self._preferences[answer] = Preference(node, since_s, now + wait_s)

    def preference(self, answer: int) -> Preference | None:
        """The node that an answer waits for; None when it goes to any."""
        return self._preferences.get(answer)

    # --- it runs ------------------------------------------------------------------------------

    def started(self, answer: Answer, node: NodeIdentity, worker: WorkerIncarnation) -> None:
        """An answer goes to a node, which holds its context from now on."""
        chain = self.chain_of(answer)
        self.ended(answer)
        reusable = reusable_blocks(answer.context_tokens)
        believed = self.beliefs.placed(node, answer.model, worker, chain, reusable)
        todo = max(answer.context_tokens - believed.tokens, 1)
        self._running[answer.id] = _Running(node, worker, believed, b"".join(chain), todo)
        there = self._prefilling.setdefault(answer.model, {})
        there[node] = there.get(node, 0) + todo

    def began(self, answer: Answer) -> None:
        """Its first token since it was placed came: its context is computed."""
        run = self._running.get(answer.id)
        if run is not None and run.todo:
            there = self._prefilling[answer.model]
            there[run.node] -= run.todo
            if not there[run.node]:
                del there[run.node]
            run.todo = 0

    def prefilling(self, model: ModelName) -> Mapping[NodeIdentity, int]:
        """Tokens that nodes have yet to compute of the prompts that they were given."""
        return self._prefilling.get(model, NOTHING)

    def finished(self, answer: Answer, cached_tokens: int) -> None:
        """Its worker ended it, and says how much of its context it had.

        One that ended before its first token, as by a refusal, may never have looked for it.

        Args:
            answer: with all its tokens.
        """
        run = self._running.get(answer.id)
        if run is None or run.todo:
            self.ended(answer)
            return
        del self._running[answer.id]
        self.beliefs.finished(run.node, answer.model, run.worker, run.believed, cached_tokens)
        # Keys and values of the last token are not computed.
        if (answer.context_tokens - 1) // BLOCK_TOKENS > len(run.hashes) // HASH_BYTES:
            steps = range(0, len(run.hashes), HASH_BYTES)
            known = [run.hashes[at : at + HASH_BYTES] for at in steps]
            chain = prompt_chain(_seed(answer), self._context_of(answer)[:-4], known)
            self.beliefs.grew(run.node, answer.model, run.worker, chain)

    def ended(self, answer: Answer) -> None:
        """Nothing more is to be known of an answer here; fine when nothing was."""
        self.began(answer)
        self._chains.pop(answer.id, None)
        self._running.pop(answer.id, None)
        self._preferences.pop(answer.id, None)

    def worker_gone(self, node: NodeIdentity, model: ModelName) -> None:
        """A model's worker on a node ended, or another one serves it."""
        self.beliefs.forget(node, model)


def _seed(answer: Answer) -> bytes:
    places = [b"%d %d %d" % (ref.offset, ref.blob, ref.tokens) for ref in answer.media]
    return chain_seed(answer.model, [*(blob.sha256 for blob in answer.blobs), *places])
