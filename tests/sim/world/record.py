"""What the oracle knows: plans of calls, what was committed, and every fault with its time.

It is written from what is seen outside of the cores (rows that landed, messages that were taken,
tokens that workers made), never from what a core says of itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bus.ids import Epoch, GenerationId, NodeIdentity, PackedIds, SessionId, pack_ids
from head.rows import PutAnswer, PutFinish, PutGeneration
from tests.sim.world.chat_text import ChatAsk


class Violation(AssertionError):
    """A rule of the system does not hold."""


#: Credit of readers who take everything at once.
ALWAYS_CREDIT = 4096


@dataclass(slots=True)
class Plan:
    """One call as its caller means it, and what the model must answer."""

    name: str
    prompt: PackedIds
    max_new: int
    seed: int
    expected: list[int]
    reason: str
    key: str | None = None
    wall_ms: int = 0
    poison: bool = False
    keep: bool = False
    credit: int = ALWAYS_CREDIT
    #: Texts that end it, of which those of its first tokens are none.
    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    #: Tokens beside each whose log-probabilities are wanted; None for no log-probabilities.
    others: int | None = None
    #: Asks for continuation bit by bit when it has to move.
    exact: bool = False
    #: The stop that ends it, and all of its text when it is not ended before.
    stop: str = ""
    text: str = ""
    #: Of a turn: the made session. Its prompt and answer are known when it is stored, since they
    #: are of what the session has by then.
    session: SessionId | None = None
    #: Of a turn that brings messages: those, and where they joined its session's context.
    chat: ChatAsk | None = None
    joined_at: int | None = None
    #: Tokens of the prompt that were generated, in earlier turns.
    by_step: int = 0
    #: What was stored of it.
    answer: Answer | None = None
    #: When its caller asked for it, and for its end; when its reader went away.
    asked_s: float = 0.0
    cancelled_s: float | None = None
    unread_since: float | None = None
    unread_s: float = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether its reader takes a little at a time."""
        return self.credit < ALWAYS_CREDIT

    def expect(self, model: Callable[[bytes, int, int, int], tuple[list[int], str]]) -> None:
        """Work out its answer, once its prompt is known: up to the stop that ends first."""
        self.expected, self.reason = model(self.prompt, self.max_new, self.seed, self.min_tokens)
        if self.chat is not None:
            self.expected, self.reason = self.chat.until_over(self.expected, self.reason)
            return
        whole = self.text_of(self.expected)
        ends = [
            (start + len(stop), start, stop)
            for stop in self.stops
            if (start := whole.find(stop, self.min_tokens)) >= 0
        ]
        if ends:
            end, start, self.stop = min(ends)
            self.expected, self.reason = self.expected[:end], "stop"
            whole = whole[:start]
        self.text = whole

    @staticmethod
    def text_of(tokens: list[int]) -> str:
        """Of the made-up model: a character for each token."""
        return bytes(token & 0xFF for token in tokens).decode("ascii")


def drawn_sampling(seed: int) -> dict[str, Any]:
    """Stop strings, log-probabilities and `exact` of a plan, for some."""
    rng = random.Random(seed)
    drawn: dict[str, Any] = {}
    if rng.random() < 0.15:
        # Of one or two of the made-up model's 94 characters: some are found, some only begin.
        texts = ["".join(chr(rng.randrange(32, 126)) for _ in range(2)) for _ in range(16)]
        if rng.random() < 0.5:
            texts[0] = texts[0][:1]
        drawn = {"stops": tuple(dict.fromkeys(texts)), "min_tokens": rng.choice((0, 0, 3))}
    if rng.random() < 0.3:
        drawn["others"] = rng.choice((0, 1, 5))
    drawn["exact"] = rng.random() < 0.4
    return drawn


@dataclass(slots=True)
class Run:
    """One generation as committed."""

    row: PutGeneration
    answer: Answer
    #: When the head decided on it, which is before its commit.
    at_s: float
    #: Tokens of it that are durable, and whether its finish is.
    committed: int = 0
    finished: bool = False
    #: The head has heard from its node that it can not go on.
    given_up: bool = False
    #: A worker was given it; or its node has said that none was.
    submitted: bool = False
    declined: bool = False
    #: Its worker was dead already when it was placed, or when its node was told of it.
    was_late: bool = False
    #: Its worker was dead when its node read of it; a node says so, if its head lives to hear it.
    read_late: bool = False

    @property
    def watermark(self) -> int:
        return self.committed + self.finished


@dataclass(slots=True)
class Answer:
    """One answer as committed."""

    row: PutAnswer
    plan: Plan | None
    at_s: float
    tokens: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    finish: PutFinish | None = None
    #: How long its head had been there when it decided on the end.
    head_age_s: float = 0.0
    error: dict[str, object] | None = None
    #: Workers that died while they ran it, or were about to.
    deaths: int = 0
    #: Of those, the ones that it killed.
    kills: int = 0

    @property
    def latest(self) -> Run | None:
        return self.runs[-1] if self.runs else None

    def context(self, offset: int) -> PackedIds:
        """Its context with so many tokens of its own."""
        prompt = self.plan.prompt if self.plan is not None else self.row.prompt
        return PackedIds(prompt + pack_ids(self.tokens[:offset]))


@dataclass(slots=True)
class NodeFacts:
    """What became of one node."""

    name: str
    started_s: float = 0.0
    #: The latest death of its agent or worker, and end of its link.
    broken_s: float = -1.0
    worker_died_s: float = -1.0
    #: Since when the head takes its link to be up; None while down.
    linked_since: float | None = None
    link_down_s: float = 0.0
    #: It has answered to all that the head listed on its present link.
    has_reconciled: bool = False
    #: Times of (down, up again).
    outages: list[tuple[float, float]] = field(default_factory=list)
    paused_since: float | None = None
    resumed_s: float = -1.0
    worker_is_ready: bool = False
    #: The incarnation of its worker; 0 while it has none that is ready.
    worker: int = 0
    is_up: bool = False
    #: It may be drained; the head has said that it is; work for it was asked for at this time.
    drain_asked: bool = False
    drain_told_s: float | None = None
    undrained_s: float = -1.0


@dataclass(slots=True)
class Record:
    """All facts of one run of the simulator."""

    #: By prompt, and those of turns by their key.
    plans: dict[bytes, Plan] = field(default_factory=dict)
    turns: dict[str, Plan] = field(default_factory=dict)
    #: Durable contexts of made sessions, and how many of their tokens were generated.
    contexts: dict[SessionId, list[int]] = field(default_factory=dict)
    generated: dict[SessionId, int] = field(default_factory=dict)
    #: What callers appended and is not durable.
    appended: dict[SessionId, list[list[int]]] = field(default_factory=dict)
    #: Turns that bring messages, in the order in which they were asked for.
    chats: dict[SessionId, list[Plan]] = field(default_factory=dict)
    ended: set[SessionId] = field(default_factory=set)
    #: Sessions that are parked by what is durable, and where a file of each may be.
    parked: dict[SessionId, str] = field(default_factory=dict)
    #: Sessions that were resumed at some time.
    resumed: set[SessionId] = field(default_factory=set)
    #: How each token of a context is computed, and what a fork has still to get of its parent's.
    by_step: dict[SessionId, list[bool]] = field(default_factory=dict)
    inherited: dict[SessionId, list[tuple[int, bool]]] = field(default_factory=dict)
    #: Answers whose tokens have joined their session's context.
    joined: set[int] = field(default_factory=set)
    #: What the model answers: prompt, how many, seed, how many at least.
    model: Callable[[bytes, int, int, int], tuple[list[int], str]] = lambda *_: ([], "")
    answers: dict[int, Answer] = field(default_factory=dict)
    runs: dict[GenerationId, Run] = field(default_factory=dict)
    epochs: dict[Epoch, GenerationId] = field(default_factory=dict)
    sessions: dict[SessionId, list[Answer]] = field(default_factory=dict)
    marks: dict[GenerationId, int] = field(default_factory=dict)
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    #: Where each epoch of a session was assigned.
    assigned: dict[tuple[SessionId, Epoch], str] = field(default_factory=dict)
    #: Until when (true time) a node may compute for a session of an epoch.
    leases: dict[tuple[str, SessionId, Epoch], float] = field(default_factory=dict)
    #: Leases that were over before a grant came that would have stretched them.
    lapsed: set[tuple[str, SessionId, Epoch]] = field(default_factory=set)
    #: Tokens made of a generation, and what its node knows to be durable.
    made: dict[GenerationId, int] = field(default_factory=dict)
    acknowledged: dict[GenerationId, int] = field(default_factory=dict)
    head_started_s: float = 0.0
    head_starts: int = 0
    head_paused: bool = False
    #: Since when some node could serve; None while none can.
    served_since: float | None = None
    unserved_since: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def mark(self, generation: GenerationId) -> int:
        """The mark that a generation's tokens carry."""
        return self.marks.setdefault(generation, len(self.marks) + 1)

    def node(self, name: str | NodeIdentity) -> NodeFacts:
        facts = self.nodes.get(name)
        if facts is None:
            facts = self.nodes[str(name)] = NodeFacts(str(name))
        return facts
