"""Two models on one node, loaded and unloaded while streams run: real processes, the toy model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.config import default_identity, share_threads
from agent.load import usable_cores
from bench.cluster import Cluster
from bus.call import Call, Placed
from bus.client_events import OtherEvent
from bus.errors import ModelBusy, NoMemory, NoNode, NotFound
from tests.harness.cluster_checks import alive, wait_for
from tests.harness.models import toy_model_folder

PROMPT = list(b"The quick brown fox")
OPTIONS: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "exact": True}
#: What a worker of the toy model is counted with: its lanes, and a little for its graph.
KV_BYTES = 8 << 20
SETTINGS = {
    "SUPERFLUID_WORKER_KV_BYTES": str(KV_BYTES),
    "SUPERFLUID_WORKER_KV_HOST_BYTES": "0",
    "SUPERFLUID_NODE_STATUS_INTERVAL_S": "0.2",
    "SUPERFLUID_TEXT_PROCESSES": "1",
}


class TwoModels(Cluster):
    """Nodes that serve `toy`; `toy2`, a copy of it, lies there."""

    def __init__(self, nodes: int, folder: Path | None = None, **settings: str) -> None:
        super().__init__(
            folder or toy_model_folder().path,
            threads=1,
            lanes=4,
            nodes=nodes,
            settings=SETTINGS | settings | {"SUPERFLUID_MODELS_NAMES": "toy"},
        )
        shutil.copytree(toy_model_folder().path, self.state / "models" / "toy2")

    def identity(self, name: str) -> str:
        return default_identity(self.state / "nodes" / name)

    def served(self, name: str) -> dict[str, str]:
        """From model to phase, as the head has it of an agent."""
        nodes = {node["identity"]: node for node in self.client.nodes()}
        return {m["name"]: m["phase"] for m in nodes[self.identity(name)]["models"]}

    def begin(self, model: str, tokens: int, max_new: int) -> tuple[Call, str]:
        """A stream of which so many tokens have come, and the node that it is on."""
        call = self.client.generate(model, PROMPT, max_new=max_new, **OPTIONS)
        identity = ""
        while len(call.tokens) < tokens:
            event = call.next_event(None)
            if isinstance(event, Placed):
                identity = event.node
        return call, identity

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`sfctl` with whatever exit status."""
        program = Path(sys.executable).with_name("sfctl")
        command = [str(program), "--state", str(self.state), *arguments]
        return subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)


@pytest.fixture
def pair() -> Iterator[TwoModels]:
    with TwoModels(2) as made:
        yield made


def test_a_node_serves_two_models_and_streams_of_an_unloaded_one_go_on_elsewhere(
    pair: TwoModels,
) -> None:
    client = pair.client
    alone = client.generate("toy", PROMPT, max_new=1200, **OPTIONS).result().tokens
    pair.sfctl("model", "load", "toy2", "--all")
    assert pair.served("node-1") == pair.served("node-2") == {"toy": "ready", "toy2": "ready"}
    streams = [pair.begin(model, 5, 1200) for model in ("toy", "toy2")]
    (first, node), (second, _) = streams
    name = next(each for each in ("node-1", "node-2") if pair.identity(each) == node)
    before = set(pair.workers(name))
    done = client.operation("model.unload", node=node, model="toy", grace_s=0)
    assert (done["node"], done["model"], done["phase"]) == (node, "toy", "unloading")
    others = [event for event in first.stream() if isinstance(event, OtherEvent)]
    moved = [event.body for event in others if event.type == "moved"]
    assert [event["from"] for event in moved] == [node]
    assert "toy was unloaded from this node" in moved[0]["reason"]
    assert first.result().tokens == alone
    assert second.result().tokens == alone
    wait_for(lambda: pair.served(name) == {"toy2": "ready"}, "the model is gone")
    (left,) = set(pair.workers(name))
    assert left in before, "the other model's worker is as it was"
    assert not any(alive(pid) for pid in before - {left})
    assert "request_kills_workers" not in pair.log("head")
    # What comes next goes to the node that has it.
    assert client.generate("toy", PROMPT, max_new=3).result().node != node
    models = {model["name"]: model for model in client.models()}
    assert [on["node"] for on in models["toy"]["on"]] == models["toy"]["nodes"]
    assert node not in models["toy"]["nodes"]


def test_a_stream_may_finish_within_the_grace_and_nothing_new_begins() -> None:
    with TwoModels(1) as made:
        client = made.client
        alone = client.generate("toy", PROMPT, max_new=1000, **OPTIONS).result().tokens
        call, node = made.begin("toy", 5, 1000)
        client.operation("model.unload", node=node, model="toy", grace_s=60)
        with pytest.raises(ModelBusy):
            client.operation("model.load", node=node, model="toy")
        late = client.generate("toy", PROMPT, max_new=1)
        answer = call.result()
        assert (answer.tokens, answer.node) == (alone, node)
        with pytest.raises(NoNode, match="toy"):
            late.result()
        wait_for(lambda: made.served("node-1") == {}, "the model is gone")
        assert made.workers("node-1") == []
        made.sfctl("model", "load", "toy", "node-1")
        assert client.generate("toy", PROMPT, max_new=1000, **OPTIONS).result().tokens == alone


def test_a_stream_waits_for_a_node_when_its_only_one_gave_it_up() -> None:
    with TwoModels(1) as made:
        alone = made.client.generate("toy", PROMPT, max_new=1000, **OPTIONS).result().tokens
        call, _ = made.begin("toy", 5, 1000)
        made.sfctl("model", "unload", "toy", "node-1", "--grace", "0")
        assert not call.done
        made.sfctl("model", "load", "toy", "node-1")
        assert call.result().tokens == alone
        assert made.served("node-1") == {"toy": "ready"}


def test_a_restarted_node_serves_what_it_served() -> None:
    with TwoModels(1) as made:
        made.sfctl("model", "load", "toy2", "node-1")
        made.sfctl("model", "unload", "toy", "node-1")
        made.kill("node-1")
        wait_for(lambda: made.client.nodes()[0]["state"] == "down", "the node is down")
        made.start_node("node-1")
        wait_for(lambda: made.served("node-1") == {"toy2": "ready"}, "the same set")
        assert made.client.generate("toy2", PROMPT, max_new=3).result().finish == "length"
        again = made.run("model", "unload", "toy", "node-1")
        assert again.returncode == 0, "an unload of what is not served is done"
        unknown = made.run("model", "unload", "zzz", "--all")
        assert unknown.returncode == 5
        assert "knows no model 'zzz'" in unknown.stderr


def test_cores_are_divided_at_a_workers_start_and_one_that_runs_keeps_its_own() -> None:
    def threads(pid: int) -> int:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return int(words[words.index(b"--threads") + 1])

    with TwoModels(1, SUPERFLUID_WORKER_THREADS="0") as made:
        alone, shared = share_threads(0, usable_cores(), 1), share_threads(0, usable_cores(), 2)
        (first,) = made.workers("node-1")
        assert threads(first) == alone
        made.sfctl("model", "load", "toy2", "node-1")
        (second,) = set(made.workers("node-1")) - {first}
        assert [threads(first), threads(second)] == [alone, shared]
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(set(made.workers("node-1")) - {first}) == 2, "it is started again")
        assert [threads(pid) for pid in made.workers("node-1")] == [shared, shared]


def test_a_model_that_does_not_fit_is_refused_and_fits_once_another_is_gone() -> None:
    # For one worker's lanes and graph, not for two.
    budget = str(KV_BYTES * 3 // 2)
    with TwoModels(1, SUPERFLUID_WORKER_MEMORY_BYTES=budget) as made:
        node = made.identity("node-1")
        with pytest.raises(NoMemory) as refused:
            made.client.operation("model.load", node=node, model="toy2")
        details = refused.value.details
        assert details["loaded"] == ["toy"]
        assert details["needed_bytes"] > details["free_bytes"] > 0
        assert "unload one of toy (" in refused.value.message
        assert made.served("node-1") == {"toy": "ready"}
        failed = made.run("model", "load", "toy2", "node-1")
        assert failed.returncode == NoMemory.exit_code
        assert failed.stderr.count("\n") == 1
        made.sfctl("model", "unload", "toy", "node-1")
        done = made.sfctl("model", "load", "toy2", "node-1", "-o", "json")
        assert '"phase": "ready"' in done
        assert made.served("node-1") == {"toy2": "ready"}


def test_what_can_not_be_loaded_is_named(pair: TwoModels) -> None:
    with pytest.raises(NotFound, match="there is no model 'nope'"):
        pair.client.operation("model.load", node=pair.identity("node-1"), model="nope")
    unknown = pair.run("model", "load", "toy2", "nowhere")
    assert unknown.returncode == NotFound.exit_code
    assert "no node nowhere is known" in unknown.stderr
    assert pair.run("model", "load", "toy2").returncode == 2
    data = pair.state / "models" / "toy2" / "model.onnx"
    os.truncate(data, 100)
    broken = pair.run("model", "load", "toy2", "node-1")
    assert broken.returncode == 1
    assert "model.onnx has 100 bytes" in broken.stderr
    assert pair.served("node-1") == {"toy": "ready"}


def test_a_model_that_is_served_is_not_replaced(pair: TwoModels) -> None:
    out = pair.state / "out"
    assert pair.run("model", "export", "toy", "--genai", str(out)).returncode == 0
    refused = pair.run("model", "import", str(out), "--name", "toy")
    assert refused.returncode == 7
    assert "node-1, node-2 of this machine serves toy, so it is not replaced" in refused.stderr
    # Nodes of other machines are known to the head alone.
    for status in (pair.state / "nodes").glob("*/status.json"):
        status.unlink()
    refused = pair.run("model", "import", str(out), "--name", "toy")
    assert refused.returncode == 7
    for name in ("node-1", "node-2"):
        assert pair.identity(name) in refused.stderr
    assert (pair.state / "models" / "toy").is_symlink()


def test_ids_of_another_tokenizer_than_the_weights_go_to_no_node(tmp_path: Path) -> None:
    """The tokenizer's file is replaced under a running fleet, and put back."""
    folder = Path(shutil.copytree(toy_model_folder().path, tmp_path / "toy"))
    file = folder / "tokenizer.json"
    before = file.read_bytes()
    tokenizer = json.loads(before)
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=lambda token: int(vocabulary[token]))[65:67]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    with TwoModels(1, folder) as made:
        want = made.client.generate("toy", "hello", max_new=4, temperature=0.0).result()
        _replace(file, json.dumps(tokenizer).encode())
        with pytest.raises(NoNode, match="its tokenizer for toy differs"):
            made.client.generate("toy", "hello", max_new=4, temperature=0.0).result()
        _replace(file, before)
        got = made.client.generate("toy", "hello", max_new=4, temperature=0.0).result()
        assert (got.tokens, got.text) == (want.tokens, want.text)


def _replace(file: Path, data: bytes) -> None:
    made = file.with_suffix(".new")
    made.write_bytes(data)
    made.replace(file)
