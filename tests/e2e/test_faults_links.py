"""Every fault of a link, in both dial directions and three phases: every stream is whole.

One head and two agents run for all cases; four streams are under way, two on each agent, and one
agent's link is struck. Streams go on where they were when it comes back soon, else they move. The
silence limit is 2 s instead of 30 s, and with it the handshake's limit of 10 s.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor as Threads
from dataclasses import dataclass

import pytest

from bus.transfer import CHUNK_BYTES
from tests.harness.blob_rig import blob_of, some_bytes
from tests.harness.fault_cluster import DIALED, JOINED, FaultCluster
from tests.harness.fault_connection import Connection, Expect, Fault, Sender
from tests.harness.file_client import FileClient

SILENCE_S = 2.0
SLOW_BYTES_PER_S = 300_000.0
PROMPTS = [[number, 2, 3, 5] for number in range(1, 5)]
MAX_NEW = 1200
DIALER, TARGET = Sender.DIALER, Sender.TARGET
#: Which side of its proxy an agent is.
SIDE = {JOINED: DIALER, DIALED: TARGET}
HEAD_SIDE = {JOINED: TARGET, DIALED: DIALER}
#: No two cases use one file.
file_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and the message of a handshake that it hits there.

    Args:
        make: gives the fault; `expect` is its proxy's.
        at: who sends the message, and its number from 1: the dialer's are Hello and Confirm, the
            target's HelloAck and Confirm.
    """

    make: Callable[[Expect], Fault]
    at: tuple[Sender, int]
    #: Of the file that is on its way in the third phase.
    file_bytes: int = 8 << 20


def garbage(sender: Sender) -> Fault:
    """Random bytes between two messages."""
    return lambda link: link.insert(sender, random.Random(5).randbytes(300))


CASES = {
    "reset": Case(lambda _: lambda link: link.cut(reset=True), (DIALER, 1)),
    "closed": Case(lambda _: lambda link: link.cut(reset=False), (TARGET, 1)),
    "half-open": Case(lambda _: Connection.half_open, (TARGET, 1)),
    "dialer-stalls": Case(lambda _: lambda link: link.stall(DIALER), (DIALER, 2)),
    "target-stalls": Case(lambda _: lambda link: link.stall(TARGET), (TARGET, 1)),
    "slow": Case(lambda _: lambda link: link.slow(SLOW_BYTES_PER_S), (DIALER, 1), 600_000),
    "late": Case(
        lambda expect: lambda link: link.arrive_late(expect, held=2, behind=3), (DIALER, 1)
    ),
    "played-again": Case(
        lambda expect: lambda link: link.play_again(expect, behind=2), (TARGET, 2)
    ),
    "dialer-garbage": Case(lambda _: garbage(DIALER), (DIALER, 1)),
    "target-garbage": Case(lambda _: garbage(TARGET), (TARGET, 1)),
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


@pytest.mark.parametrize("agent", [JOINED, DIALED], ids=["joined", "dialed"])
@pytest.mark.parametrize("name", CASES)
def test_blob(
    name: str, agent: str, cluster: FaultCluster, undisturbed: list[tuple[int, ...]]
) -> None:
    case, proxy = CASES[name], cluster.proxies[agent]
    data = some_bytes(case.file_bytes, seed=next(file_numbers))
    sha256 = blob_of(data).sha256
    keys = {"model": cluster.model, "tokens": [1, 2], "blobs": [sha256]}
    # Two requests, one for each agent, so that both agents need the file.
    with FileClient(cluster.api) as one, FileClient(cluster.api) as other, Threads(2) as threads:
        one.put(data)
        calls = cluster.begin(PROMPTS, MAX_NEW, tokens=5)
        fault = case.make(proxy.expect)
        proxy.soon(HEAD_SIDE[agent], 3, fault, least_bytes=CHUNK_BYTES)
        asked = [threads.submit(client.ask, "generate", **keys) for client in (one, other)]
        assert [call.result().tokens for call in calls] == undisturbed
        errors = [each.result()["error"] for each in asked]
    # The toy model takes no files: so its worker says, with the file at hand.
    assert [(error["code"], error["param"]) for error in errors] == [("invalid", "blobs")] * 2
    assert all("takes no files" in error["message"] for error in errors)
    files = [cluster.state / "nodes" / name / "blobs" / sha256.hex() for name in SIDE]
    kept = [file.read_bytes() for file in files if file.exists()]
    assert kept
    assert all(found == data for found in kept)
    cluster.heal(proxy)
