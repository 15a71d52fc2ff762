"""Real models over two and three nodes: tokens and log-probabilities of the whole, bit by bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from agent.models.folder import ModelFolder
from bench.cluster import Cluster
from bench.stage_cluster import StageCluster
from bus.answer import Answer
from tests.harness.models import (
    gemma3_float_folder,
    gemma3_folder,
    smollm2_exact_folder,
    smollm2_folder,
    stage_folders,
)
from tests.harness.stage_streams import Streams, alike, answers

pytestmark = pytest.mark.model

TOKENS = 24
#: Each takes more than a second.
FEW = 6
#: The last prompt has several chunks.
STREAMS = (0, 1, 2, 3, 40)
SETTINGS = {"SUPERFLUID_TEXT_PROCESSES": "1", "SUPERFLUID_WORKER_KV_BYTES": str(192 << 20)}
LANES = 6
#: Gemma with float activations takes a minute more: `make stages-long`.
FLOATS = [(smollm2_exact_folder, 3)]
if "SUPERFLUID_TEST_LONG" in os.environ:
    FLOATS.append((gemma3_float_folder, 2))


@pytest.mark.parametrize(("make", "stages"), [(smollm2_folder, 2), (gemma3_folder, 3)])
def test_nodes_say_what_the_whole_model_says_also_when_one_dies(
    make: Callable[[], ModelFolder], stages: int
) -> None:
    folder = make()
    with Cluster(folder.path, threads=1, lanes=LANES, settings=SETTINGS) as cluster:
        whole = answers(cluster, TOKENS, STREAMS)
    with chain(folder, stages) as fleet:
        check(answers(fleet, TOKENS, STREAMS), whole)
        streams = Streams(fleet, TOKENS, STREAMS)
        (worker,) = fleet.workers("node-1")
        os.kill(worker, signal.SIGKILL)
        check(streams.finish(), whole)
        assert streams.moved >= 1


# With float activations kernels round by how many rows a step has, in a whole model too.
@pytest.mark.parametrize(("make", "stages"), FLOATS)
def test_one_stream_at_a_time_is_the_same_with_float_activations(
    make: Callable[[], ModelFolder], stages: int
) -> None:
    folder = make()
    with Cluster(folder.path, threads=1, lanes=LANES, settings=SETTINGS) as cluster:
        whole = [answers(cluster, FEW, [number]) for number in (1, 40)]
    with chain(folder, stages) as fleet:
        for number, expected in zip((1, 40), whole, strict=True):
            check(answers(fleet, FEW, [number]), expected)


def chain(folder: ModelFolder, stages: int) -> StageCluster:
    """A node for each stage."""
    parts = stage_folders(folder, stages)
    served = {f"node-{place}": [part] for place, part in enumerate(parts, 1)}
    return StageCluster(served, lanes=LANES, settings=SETTINGS)


def check(found: list[Answer], whole: list[Answer]) -> None:
    pairs = zip(found, whole, strict=True)
    assert [alike(one, other) for one, other in pairs] == [True] * len(whole)
