"""How much sooner answers come with load-aware placement: head core and cost model, virtual time.

The rates at which requests come are shares of the fleet's *capacity*: what one node of speed 1
serves of such requests while more always wait, times the sum of all speeds. No figure here depends
on the machine that computes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean, median

from tests.harness.cost_fleet import Ask, CostFleet

SPEEDS = (1.0, 2.0, 4.0)
LOAD = 0.7
SHARED = 0.7
HOT_TIMES = 3.0
PLAIN_TOKENS, LONG_TOKENS, TAIL_TOKENS = 256, 2048, 64
#: Of answers: at least, and one more than at most.
ANSWER_TOKENS = (32, 97)
#: Requests of the run that measures capacity, and its seed.
CAPACITY_REQUESTS = 300
CAPACITY_SEED = 9


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the runs are: nodes of speeds in turn, requests of a run, and one run a seed."""

    nodes: int = 64
    requests: int = 3000
    seeds: tuple[int, ...] = tuple(range(1, 11))
    in_turn: tuple[float, ...] = SPEEDS

    @property
    def speeds(self) -> list[float]:
        return [self.in_turn[number % len(self.in_turn)] for number in range(self.nodes)]


# --- what is asked ----------------------------------------------------------------------------


def prompt_of(chance: random.Random, tokens: int) -> list[int]:
    """A prompt like no other."""
    return [chance.randrange(97, 122) for _ in range(tokens)]


def plain(chance: random.Random) -> tuple[list[int], int]:
    """256 tokens that nobody asked before, and 32 to 96 to make."""
    return prompt_of(chance, PLAIN_TOKENS), chance.randrange(*ANSWER_TOKENS)


def sharing(nodes: int) -> Ask:
    """Prompts of 2,112 tokens, 70% of which begin with one of two prefixes for each node."""
    prefixes = [prompt_of(random.Random(number), LONG_TOKENS) for number in range(2 * nodes)]

    def ask(chance: random.Random) -> tuple[list[int], int]:
        is_shared = chance.random() < SHARED
        begin = chance.choice(prefixes) if is_shared else prompt_of(chance, LONG_TOKENS)
        return begin + prompt_of(chance, TAIL_TOKENS), chance.randrange(*ANSWER_TOKENS)

    return ask


def of_one_prefix() -> Ask:
    """One prefix of 2,048 tokens for all, and 64 tokens of each request's own."""
    prefix = prompt_of(random.Random(0), LONG_TOKENS)
    return lambda chance: (
        prefix + prompt_of(chance, TAIL_TOKENS),
        chance.randrange(*ANSWER_TOKENS),
    )


def mixed(one: Ask, other: Ask, share: float) -> Ask:
    """A share of one kind of requests among another."""
    return lambda chance: one(chance) if chance.random() < share else other(chance)


def capacity(ask: Ask) -> float:
    """Requests/s of a node of speed 1 that always has work: of the middle of many."""
    fleet = CostFleet("load-aware", [1.0])
    fleet.load(1e6, CAPACITY_REQUESTS, ask, CAPACITY_SEED)
    ends = sorted(fleet.end_s.values())
    first, last = CAPACITY_REQUESTS // 10, CAPACITY_REQUESTS * 9 // 10
    return (last - first) / (ends[last] - ends[first])


# --- what comes of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one run: seconds to first tokens and to ends, in the order in which requests came."""

    first_s: list[float]
    end_s: list[float]


def run(policy: str, scale: Scale, rate: float, ask: Ask, seed: int) -> Waits:
    """One run of `scale.requests` requests, `rate` a second."""
    fleet = CostFleet(policy, scale.speeds)
    fleet.load(rate, scale.requests, ask, seed)
    numbers = range(scale.requests)
    return Waits([fleet.first_s[n] for n in numbers], [fleet.end_s[n] for n in numbers])


def p99(seconds: Iterable[float]) -> float:
    """The value that one in a hundred exceeds."""
    ordered = sorted(seconds)
    return ordered[len(ordered) * 99 // 100]


def _median_of(scale: Scale, figures: Callable[[int], tuple[float, ...]]) -> list[float]:
    """Of each figure the median over all seeds."""
    of_seeds = [figures(seed) for seed in scale.seeds]
    return [round(median(values), 3) for values in zip(*of_seeds, strict=True)]


def load_aware_gain(scale: Scale) -> dict[str, float]:
    """Mean time to the end of round-robin over that of load-aware; nothing is shared."""
    rate = LOAD * sum(scale.speeds) * capacity(plain)

    def figures(seed: int) -> tuple[float, ...]:
        ours = run("load-aware", scale, rate, plain, seed)
        theirs = run("round-robin", scale, rate, plain, seed)
        loaded = run("least-loaded", scale, rate, plain, seed)
        return (
            mean(theirs.end_s) / mean(ours.end_s),
            mean(loaded.end_s) / mean(ours.end_s),
            p99(ours.first_s) / p99(loaded.first_s),
        )

    names = ("load_aware_gain", "gain_over_least_loaded", "first_token_p99_over_least_loaded")
    return dict(zip(names, _median_of(scale, figures), strict=True))


def prefix_gain(scale: Scale) -> dict[str, float]:
    """Mean time to the first token of round-robin over that of load-aware, prefixes shared.

    Nodes save what they computed under either policy; capacity is measured by the same prompts.
    """
    ask = sharing(scale.nodes)
    rate = LOAD * sum(scale.speeds) * capacity(ask)

    def figures(seed: int) -> tuple[float, ...]:
        ours = run("load-aware", scale, rate, ask, seed)
        theirs = run("round-robin", scale, rate, ask, seed)
        return (mean(theirs.first_s) / mean(ours.first_s),)

    return {"prefix_gain": _median_of(scale, figures)[0]}


def hot_prefix_ratio(scale: Scale) -> dict[str, float]:
    """p99 of the time to the first token, load-aware over least-loaded, with one hot prefix.

    Its requests come at three times the rate that the fastest node serves with the prefix saved;
    plain requests fill the fleet up to `LOAD`. Of all requests, and of the run's second half, of
    that also for the time to the end: by then the prefix is on many nodes under either policy.
    """
    of_hot = of_one_prefix()
    hot, other = capacity(of_hot), capacity(plain)
    hot_rate = HOT_TIMES * hot * max(scale.speeds)
    other_rate = (LOAD - hot_rate / (hot * sum(scale.speeds))) * other * sum(scale.speeds)
    rate = hot_rate + other_rate
    ask = mixed(of_hot, plain, hot_rate / rate)

    def figures(seed: int) -> tuple[float, ...]:
        ours = run("load-aware", scale, rate, ask, seed)
        theirs = run("least-loaded", scale, rate, ask, seed)
        half = scale.requests // 2
        return (
            p99(ours.first_s) / p99(theirs.first_s),
            p99(ours.first_s[half:]) / p99(theirs.first_s[half:]),
            p99(ours.end_s[half:]) / p99(theirs.end_s[half:]),
        )

    names = (
        "hot_prefix_ratio",
        "hot_prefix_ratio_second_half",
        "hot_prefix_end_ratio_second_half",
    )
    return dict(zip(names, _median_of(scale, figures), strict=True))
