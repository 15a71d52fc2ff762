"""32 requests at once for a node with few lanes of a short window, through the whole fleet."""

from __future__ import annotations

import time

import pytest

from bench.cluster import Cluster
from bus.answer import Answer
from bus.call import Call
from bus.errors import ContextLengthExceeded, SuperfluidError
from tests.harness.cluster_checks import check_idle
from tests.harness.models import toy_model_folder

TOKEN_BYTES = 1024
KV_BYTES = 2 << 20
REQUESTS = 32
QOS = ("interactive", "completion", "agent", "background")
#: What the toy model needs for a lane's worth of tokens, on the slowest machine.
SERVED_S = 20.0


def prompt(number: int, window: int) -> list[int]:
    return [40 + (number * place) % 80 for place in range(window - 100 - number)]


def ask(cluster: Cluster, number: int, window: int) -> Call:
    """Fills its lane to the last token."""
    return cluster.client.generate(
        cluster.model,
        prompt(number, window),
        temperature=0.9,
        seed=number,
        ignore_eos=True,
        max_new=2**32 - 1,
        exact=True,
        # The lowest class comes first, and finds all lanes free.
        qos=QOS[3 - number * len(QOS) // REQUESTS],
    )


def outcome(call: Call) -> Answer | SuperfluidError:
    try:
        return call.result()
    except SuperfluidError as error:
        return error


@pytest.mark.parametrize(("lanes", "lanes_held"), [(8, 0), (8, 1), (4, 1)])
def test_all_complete_and_a_fresh_one_is_served_right_after(lanes: int, lanes_held: int) -> None:
    window = KV_BYTES // lanes // TOKEN_BYTES
    settings = {
        "SUPERFLUID_WORKER_KV_BYTES": str(KV_BYTES),
        "SUPERFLUID_WORKER_KV_HOST_BYTES": str(lanes_held * window * TOKEN_BYTES),
    }
    with Cluster(toy_model_folder().path, threads=1, lanes=lanes, settings=settings) as cluster:
        few = (0, 9, REQUESTS - 1)
        alone = {number: ask(cluster, number, window).result() for number in few}
        workers = cluster.workers("node-1")
        calls = [ask(cluster, number, window) for number in range(REQUESTS)]
        too_long = cluster.client.generate(cluster.model, [40] * (window + 1), max_new=1)
        assert isinstance(outcome(too_long), ContextLengthExceeded)
        answers = [call.result() for call in calls]
        for number, answer in enumerate(answers):
            assert answer.finish == "length"
            assert len(answer.tokens) == 100 + number
        for number, answer in alone.items():
            assert answers[number].tokens == answer.tokens
        start = time.monotonic()
        again = ask(cluster, REQUESTS - 1, window).result()
        assert time.monotonic() - start < SERVED_S
        assert again.tokens == answers[-1].tokens
        check_idle(cluster)
        assert cluster.workers("node-1") == workers
