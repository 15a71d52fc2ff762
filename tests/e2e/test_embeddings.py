"""Embeddings end to end: client, head, text process, agent and an encoder's worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from agent.models.encoder_importer import import_encoder
from bench.cluster import Cluster, process_cpu_s
from bus.errors import ContextLengthExceeded, Invalid
from bus.text.tokenizer import TextModel
from tests.harness.encoder_reference import ReferenceEncoder
from tests.harness.models import minilm_folder
from tests.harness.small_encoder import WINDOW, write_small_encoder

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, ReferenceEncoder]]:
    """A fleet of one node with the small encoder, and the same in numpy."""
    folder = tmp_path_factory.mktemp("small-encoder")
    source = write_small_encoder(folder / "source")
    import_encoder(source, folder / "small")
    with Cluster(folder / "small", threads=1) as cluster:
        yield cluster, ReferenceEncoder(source)


def test_vectors_are_those_of_the_reference(small: tuple[Cluster, ReferenceEncoder]) -> None:
    cluster, reference = small
    text = TextModel.open(cluster.state / "models" / "small")
    texts = ["a", "b c", "hello.", *(f"{'x' * (1 + n % 9)} y" for n in range(200))]
    for pooling, normalize in (("mean", True), ("cls", False)):
        made = cluster.client.embed("small", texts, pooling=pooling, normalize=normalize)
        assert made.dtype == np.float32
        assert made.shape == (len(texts), 16)
        known = [
            reference.vector(text.encode_whole(each), pooling, normalize=normalize)
            for each in texts
        ]
        assert np.abs(made - np.array(known)).max() < 1e-5


def test_errors_name_the_text(small: tuple[Cluster, ReferenceEncoder]) -> None:
    client = small[0].client
    with pytest.raises(Invalid, match=r"input\[1\] is empty") as empty:
        client.embed("small", ["a", ""])
    assert empty.value.param == "input[1]"
    with pytest.raises(ContextLengthExceeded) as long:
        client.embed("small", ["a", "a b", "a " * 23])
    assert long.value.param == "input[2]"
    assert long.value.details == {"length": 25, "max": WINDOW}
    with pytest.raises(Invalid, match="small is an encoder: it makes embeddings, not text"):
        client.generate("small", "a").result()


def test_sfctl_prints_a_line_of_json_for_each(
    small: tuple[Cluster, ReferenceEncoder], tmp_path: Path
) -> None:
    cluster = small[0]
    file = tmp_path / "texts"
    file.write_text("a b\n\nc\n")
    printed = [json.loads(line) for line in cluster.sfctl("embed", "small", str(file)).splitlines()]
    assert [(each["file"], each["line"]) for each in printed] == [(str(file), 1), (str(file), 3)]
    known = cluster.client.embed("small", ["a b", "c"])
    assert np.array_equal(np.array([each["embedding"] for each in printed], np.float32), known)
    file.write_text("a\n" + "b " * 40)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        cluster.sfctl("embed", "small", str(file))
    assert f"input[1] is line 2 of {file}" in failed.value.stderr


@pytest.mark.model
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_worker_killed_in_the_middle_costs_nothing_but_time(nodes: int) -> None:
    """Whether another node takes the job or the same one, the vectors are the same, all of them."""
    texts = [f"Sentence {n} is about {'rivers and ' * (n % 12)}hills." for n in range(240)]
    with Cluster(minilm_folder().path, threads=1, nodes=nodes) as cluster:
        known = cluster.client.embed("minilm", texts)
        pids = [pid for name in list_nodes(nodes) for pid in cluster.workers(name)]
        before = {pid: process_cpu_s(pid) for pid in pids}
        made: list[npt.NDArray[np.float32]] = []

        def ask() -> None:
            with cluster.connect() as client:
                made.append(client.embed("minilm", texts))

        asking = threading.Thread(target=ask)
        asking.start()
        busy = wait_for(lambda: next((p for p in pids if process_cpu_s(p) > before[p] + 0.5), 0))
        assert not made
        os.kill(busy, signal.SIGKILL)
        asking.join(LIMIT_S)
        assert len(made) == 1
        assert np.abs(made[0] - known).max() < 1e-5
        assert "SIGKILL" in "".join(map(cluster.log, list_nodes(nodes)))


@pytest.mark.model
def test_a_head_that_is_killed_in_the_middle_is_asked_again() -> None:
    texts = [f"Sentence {n} is about {'rivers and ' * (n % 12)}hills." for n in range(240)]
    with Cluster(minilm_folder().path, threads=1) as cluster, cluster.connect() as client:
        known = client.embed("minilm", texts)
        (worker,) = cluster.workers("node-1")
        made: list[npt.NDArray[np.float32]] = []
        asking = threading.Thread(target=lambda: made.append(client.embed("minilm", texts)))
        before = process_cpu_s(worker)
        asking.start()
        wait_for(lambda: int(process_cpu_s(worker) > before + 0.5))
        assert not made
        cluster.kill("head")
        cluster.start_head()
        asking.join(LIMIT_S)
        assert np.abs(made[0] - known).max() < 1e-5
        # What the former head had asked for was ended: nothing of it is computed now.
        wait_for(lambda: int(is_idle(cluster)))


def is_idle(cluster: Cluster) -> bool:
    with cluster.connect() as client:
        (node,) = client.nodes()
        return bool(node["jobs"] == 0 and node["models"][0]["worker_phase"] == "idle")


def list_nodes(count: int) -> list[str]:
    return [f"node-{number}" for number in range(1, count + 1)]


def wait_for(condition: Callable[[], int]) -> int:
    """Ask until it is so; gives what it was."""
    until = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found
