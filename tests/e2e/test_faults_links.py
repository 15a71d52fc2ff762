"""Every fault of a link, in both dial directions and three phases: every stream is whole.

One head and two agents run for all cases; four streams are under way, two on each agent, and one
agent's link is struck. Streams go on where they were when it comes back soon, else they move. The
silence limit is 2 s instead of 30 s, and with it the handshake's limit of 10 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.harness.fault_cluster import DIALED, JOINED, FaultCluster
from tests.harness.fault_connection import Connection, Expect, Fault, Sender

SILENCE_S = 2.0
SLOW_BYTES_PER_S = 300_000.0
PROMPTS = [[number, 2, 3, 5] for number in range(1, 5)]
MAX_NEW = 1200
DIALER, TARGET = Sender.DIALER, Sender.TARGET
#: Which side of its proxy an agent is.
SIDE = {JOINED: DIALER, DIALED: TARGET}


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and the message of a handshake that it hits there.

    Args:
        make: gives the fault; `expect` is its proxy's.
        at: who sends the message, and its number: the dialer's are Hello and Confirm, the
            target's HelloAck and Confirm.
    """

    make: Callable[[Expect], Fault]
    at: tuple[Sender, int]


def garbage(sender: Sender) -> Fault:
    """Random bytes between two messages."""
    return lambda link: link.insert(sender, random.Random(5).randbytes(300))


CASES = {
    "reset": Case(lambda _: lambda link: link.cut(reset=True), (DIALER, 0)),
    "closed": Case(lambda _: lambda link: link.cut(reset=False), (TARGET, 0)),
    "half-open": Case(lambda _: Connection.half_open, (TARGET, 0)),
    "dialer-stalls": Case(lambda _: lambda link: link.stall(DIALER), (DIALER, 1)),
    "target-stalls": Case(lambda _: lambda link: link.stall(TARGET), (TARGET, 0)),
    "slow": Case(lambda _: lambda link: link.slow(SLOW_BYTES_PER_S), (DIALER, 0)),
    "late": Case(
        lambda expect: lambda link: link.arrive_late(expect, held=2, behind=3), (DIALER, 0)
    ),
    "played-again": Case(
        lambda expect: lambda link: link.play_again(expect, behind=2), (TARGET, 1)
    ),
    "dialer-garbage": Case(lambda _: garbage(DIALER), (DIALER, 0)),
    "target-garbage": Case(lambda _: garbage(TARGET), (TARGET, 0)),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[FaultCluster]:
    with FaultCluster(SILENCE_S) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(cluster: FaultCluster) -> list[tuple[int, ...]]:
    """The tokens of each prompt's answer when nothing happens."""
    return [call.result().tokens for call in cluster.begin(PROMPTS, MAX_NEW, tokens=0)]


@pytest.mark.parametrize("agent", [JOINED, DIALED], ids=["joined", "dialed"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_handshake(
    case: Case, agent: str, cluster: FaultCluster, undisturbed: list[tuple[int, ...]]
) -> None:
    proxy = cluster.proxies[agent]
    calls = cluster.begin(PROMPTS, MAX_NEW, tokens=5)
    proxy.next(*case.at, case.make(proxy.expect))
    proxy.now(lambda link: link.cut(reset=True))
    assert [call.result().tokens for call in calls] == undisturbed
    cluster.heal(proxy)


@pytest.mark.parametrize("agent", [JOINED, DIALED], ids=["joined", "dialed"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_streaming(
    case: Case, agent: str, cluster: FaultCluster, undisturbed: list[tuple[int, ...]]
) -> None:
    proxy = cluster.proxies[agent]
    calls = cluster.begin(PROMPTS, MAX_NEW, tokens=5)
    proxy.soon(SIDE[agent], 3, case.make(proxy.expect))
    assert [call.result().tokens for call in calls] == undisturbed
    cluster.heal(proxy)
