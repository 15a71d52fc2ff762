"""A head without a copy of any model: it fetches tokenizers from its nodes, once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.models.encoder_importer import import_encoder
from bench.cluster import Cluster
from bus.client import Client
from bus.errors import Invalid, NotFound
from bus.messages.api import TokenEvent
from tests.harness.cluster_checks import wait_for
from tests.harness.models import smollm2_folder
from tests.harness.small_encoder import write_small_encoder

CITY = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TALK = [{"role": "user", "content": "Name a river. <|im_end|> \u00e9\U0001f600"}]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new": 12}


class Copyless(Cluster):
    """A cluster whose head has an empty models folder; the agents' one is elsewhere."""

    def __init__(self, model_folder: Path, *, nodes: int = 1) -> None:
        super().__init__(model_folder, threads=1, lanes=2, nodes=nodes)
        own = self.state / "agents-models"
        own.mkdir()
        link = self.state / "models" / self.model
        link.rename(own / self.model)
        self._env["SUPERFLUID_MODELS_FOLDER"] = str(own)

    def wait_ready(self, client: Client | None = None) -> None:
        """The same for another client, when the first one's head is gone."""
        if client is not None:
            self.client.close()
            self.client = client
        super().wait_ready()

    def complaints(self) -> str:
        """What `sfctl status` says is wrong."""
        program = Path(sys.executable).with_name("sfctl")
        done = subprocess.run(
            [program, "--state", str(self.state), "status"],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        return str(done.stderr)

    def kept(self) -> list[Path]:
        """The folders of fetched tokenizers."""
        return sorted((self.state / "tokenizers").iterdir())


@pytest.fixture
def copyless(toy: Path) -> Iterator[Copyless]:
    with Copyless(toy) as made:
        yield made


def _asked(client: Client, model: str) -> dict[str, Any]:
    """What all operations that need a tokenizer give."""
    text = client.generate(model, "The quick brown \u00e9", **GREEDY).result()
    chat = client.chat(model, TALK, **GREEDY).result()
    city = client.chat(model, TALK, schema=CITY, **(GREEDY | {"max_new": 40})).result()
    stopped = client.generate(model, "Hello", stop=["e", "o"], **GREEDY).result()
    ids = client.tokenize(model, "Hi <|im_end|> \u00e9")
    session = client.new_session(model)
    session.append("Three rivers: ")
    turn = session.generate(**GREEDY).result()
    session.finish()
    return {
        "answers": [
            (each.tokens, each.text, each.usage.prompt)
            for each in (text, chat, city, stopped, turn)
        ],
        "ids": list(ids),
        "text": client.detokenize(model, ids),
    }


def test_without_a_copy_all_is_as_with_one(copyless: Copyless, cluster: Cluster) -> None:
    assert list((copyless.state / "models").iterdir()) == []
    mine = _asked(copyless.client, copyless.model)
    assert mine == _asked(cluster.client, cluster.model)
    (model,) = copyless.client.models()
    assert (model["head_folder"], model["tokenizer"]) == (None, "fetched")
    (folder,) = copyless.kept()
    names = {file.name for file in folder.iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "kept.json"} <= names
    assert not any("onnx" in name for name in names)


def test_the_head_starts_again_and_fetches_nothing(copyless: Copyless) -> None:
    before = copyless.client.chat(copyless.model, TALK, key="kept", **GREEDY).result()
    (folder,) = copyless.kept()
    written = (folder / "tokenizer.json").stat().st_ino
    assert copyless.stop("node-1") == 0
    copyless.kill("head")
    copyless.start_head()
    with copyless.connect() as client:
        # No node is there; texts are read and made all the same.
        kept = client.attach(key="kept").result()
        assert (kept.tokens, kept.text) == (before.tokens, before.text)
        ids = client.tokenize(copyless.model, "Hi")
        assert client.detokenize(copyless.model, ids) == "Hi"
        copyless.start_node("node-1")
        copyless.wait_ready(client)
        again = client.chat(copyless.model, TALK, **GREEDY).result()
        assert (again.tokens, again.text) == (before.tokens, before.text)
    assert (folder / "tokenizer.json").stat().st_ino == written


def test_a_stream_goes_on_over_a_restart_that_finds_nothing_kept(copyless: Copyless) -> None:
    options: dict[str, Any] = {"max_new": 200, "temperature": 0.0, "ignore_eos": True}
    whole = copyless.client.generate(copyless.model, "Hello", **options).result()
    tokens, text, killed = list[int](), "", False
    with copyless.client.generate(copyless.model, "Hello", **options).stream() as stream:
        for event in stream:
            if not isinstance(event, TokenEvent):
                continue
            tokens += event.tokens
            text += event.text
            if not killed:
                copyless.kill("head")
                (folder,) = copyless.kept()
                (folder / "kept.json").unlink()
                copyless.start_head()
                killed = True
    assert (tuple(tokens), text) == (tuple(whole.tokens), whole.text)


def test_what_was_damaged_is_fetched_again(copyless: Copyless) -> None:
    before = copyless.client.chat(copyless.model, TALK, **GREEDY).result()
    (folder,) = copyless.kept()
    assert copyless.stop("head") == 0
    (folder / "tokenizer.json").write_text("{}")
    copyless.start_head()
    with copyless.connect() as client:
        copyless.wait_ready(client)
        again = client.chat(copyless.model, TALK, **GREEDY).result()
        assert again.tokens == before.tokens
    assert json.loads((folder / "tokenizer.json").read_text())["model"]


def test_a_model_that_nobody_has_is_not_found(copyless: Copyless) -> None:
    with pytest.raises(NotFound, match="there is no model 'nope': no node serves it"):
        copyless.client.generate("nope", "x").result()


def test_a_copy_on_the_head_goes_first(copyless: Copyless, toy: Path) -> None:
    before = copyless.client.chat(copyless.model, TALK, **GREEDY).result()
    own = copyless.state / "models" / copyless.model
    shutil.copytree(toy, own)

    def tokenizer() -> str:
        (model,) = copyless.client.models()
        return str(model["tokenizer"])

    wait_for(lambda: tokenizer() == "own", "the head uses its own folder")
    assert copyless.client.chat(copyless.model, TALK, **GREEDY).result().tokens == before.tokens
    shutil.rmtree(own)
    wait_for(lambda: tokenizer() == "fetched", "the head uses what it fetched")
    assert copyless.client.chat(copyless.model, TALK, **GREEDY).result().tokens == before.tokens


def test_a_copy_on_the_head_that_no_node_has_is_not_used(copyless: Copyless, toy: Path) -> None:
    before = copyless.client.chat(copyless.model, TALK, **GREEDY).result()
    own = copyless.state / "models" / copyless.model
    shutil.copytree(toy, own)
    layout = json.loads((own / "tokenizer.json").read_text())
    vocabulary = layout["model"]["vocab"]
    first, second, *_ = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (own / "tokenizer.json").write_text(json.dumps(layout))

    def shown() -> dict[str, Any]:
        (model,) = copyless.client.models()
        return model

    wait_for(lambda: shown()["head_folder"] == str(own), "the head sees its folder")
    wait_for(lambda: shown()["tokenizer"] == "fetched", "the head goes by the fleet's")
    assert copyless.client.chat(copyless.model, TALK, **GREEDY).result().tokens == before.tokens
    assert "has another tokenizer than its nodes" in copyless.complaints()


def test_an_encoder_needs_no_copy_either(tmp_path: Path) -> None:
    target = tmp_path / "models" / "small"
    target.parent.mkdir()
    import_encoder(write_small_encoder(tmp_path / "source"), target)
    found = []
    for cluster in (Copyless(target), Cluster(target, threads=1)):
        with cluster:
            (model,) = cluster.client.models()
            assert model["kind"] == "encoder"
            found.append([list(each) for each in cluster.client.embed("small", ["a b", "c"])])
            with pytest.raises(Invalid, match="small is an encoder"):
                cluster.client.generate("small", "a").result()
    assert found[0] == found[1]


@pytest.mark.model
def test_smollm2_without_a_copy_is_as_with_one() -> None:
    folder = smollm2_folder().path
    with Copyless(folder) as copyless:
        without = _asked(copyless.client, copyless.model)
    with Cluster(folder, threads=1, lanes=2) as cluster:
        assert without == _asked(cluster.client, cluster.model)
