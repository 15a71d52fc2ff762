"""A real worker process with an encoder's folder, and the program that makes one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agent.models.encoder_importer import import_encoder
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Embed, Embedded, EmbedFailed, Output, Ready, Stop, Submit
from bus.text.tokenizer import TextModel
from tests.e2e.test_model_commands import sfctl
from tests.harness.encoder_reference import ReferenceEncoder
from tests.harness.models import minilm_folder, minilm_source
from tests.harness.small_encoder import write_small_encoder
from tests.harness.worker_agent import Agent

PROGRAM = [sys.executable, "-P", "-m", "agent.models"]


def embed(job: int, *inputs: list[int], pooling: str = "") -> Embed:
    packed = tuple(pack_ids(ids) for ids in inputs)
    return Embed(job=GenerationId(job), inputs=packed, pooling=pooling)


def test_a_small_encoder_serves_jobs_and_refuses_generations(tmp_path: Path, run_dir: Path) -> None:
    folder = import_encoder(write_small_encoder(tmp_path / "source"), tmp_path / "small")
    agent = Agent(folder.path, run_dir, "--lanes", "4", "--device", "auto")
    try:
        ready = agent.take(Ready)
        assert (ready.window_tokens, ready.lanes, ready.kv_total_tokens) == (24, 1, 0)
        assert (ready.device, len(ready.numerics)) == ("cpu", 32)
        assert ready.tokenizer_digest == TextModel.open(folder.path).digest
        agent.send(embed(1, [2, 5, 3], [2, *[6] * 20, 3]))
        agent.send(embed(2, [5] * 30))
        agent.send(
            Submit(
                generation=GenerationId(3),
                context=pack_ids([2, 5]),
                sampling=SamplingParams(),
                max_new_tokens=4,
                prompt_tokens=2,
            )
        )
        answer = agent.take(Embedded)
        assert answer.tokens == 25
        reference = ReferenceEncoder(tmp_path / "source")
        known = reference.vector([2, 5, 3], "mean", normalize=True)
        assert np.abs(np.frombuffer(answer.vectors[0], "<f4") - known).max() < 1e-5
        failed = agent.take(EmbedFailed)
        assert (failed.code, failed.length, failed.max) == ("context_length_exceeded", 30, 24)
        assert agent.finish(3).error_code == "invalid"
        assert agent.take(Output).runs[0].generation == 3
        agent.send(Stop())
        assert agent.exit_code() == 0
    finally:
        agent.close()


@pytest.mark.model
def test_minilm_says_which_texts_are_alike(run_dir: Path) -> None:
    folder = minilm_folder()
    agent = Agent(folder.path, run_dir)
    try:
        text = TextModel.open(folder.path)
        # Published for these sentences by sentence-transformers: 0.6660, 0.1046, 0.1411.
        sentences = (
            "The weather is lovely today.",
            "It's so sunny outside!",
            "He drove to the stadium.",
        )
        agent.send(embed(9, *(text.encode_whole(sentence) for sentence in sentences)))
        vectors = np.array([np.frombuffer(v, "<f4") for v in agent.take(Embedded).vectors])
        assert vectors.shape == (3, 384)
        near = vectors @ vectors.T
        found = [near[0, 1], near[0, 2], near[1, 2]]
        assert np.abs(np.array(found) - [0.6660, 0.1046, 0.1411]).max() < 1e-4
        ids = text.encode_whole(sentences[0])
        agent.send(embed(10, ids, pooling="cls"))
        (vector,) = agent.take(Embedded).vectors
        known = ReferenceEncoder(minilm_source()).vector(ids, "cls", normalize=True)
        assert np.abs(np.frombuffer(vector, "<f4") - known).max() < 1e-4
        agent.send(embed(11, [101, *[2000] * 511, 102]))
        assert "513 tokens and the model takes 512 at most" in agent.take(EmbedFailed).message
    finally:
        agent.close()


def test_the_program_imports_lists_checks_and_shows_an_encoder(tmp_path: Path) -> None:
    source, models = write_small_encoder(tmp_path / "source"), tmp_path / "models"

    def run(*arguments: object) -> list[dict[str, object]]:
        command = [*PROGRAM, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    (found, _) = run("check", source)
    assert (found["usable"], found["architecture"], found["window"]) == (True, "bert", 24)
    assert run("import", source, "--into", models, "--name", "enc")[-1]["path"] == str(
        models / "enc"
    )
    (listed, _) = run("ls", models)
    assert (listed["name"], listed["usable"], listed["architecture"]) == ("enc", True, "bert")
    assert (listed["kind"], listed["window"], listed["kv_bytes_per_token"]) == ("encoder", 24, 0)
    (shown, _) = run("show", models, "enc")
    assert (shown["kind"], shown["pooling"], shown["normalize"]) == ("encoder", "mean", True)
    assert (shown["dimensions"], shown["trained_tokens"]) == (16, 20)
    (checked, _) = run("check", models / "enc", "--verify")
    assert (checked["usable"], checked["verified"]) == (True, True)


def test_check_says_all_that_hinders_an_import(tmp_path: Path) -> None:
    source = write_small_encoder(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    (source / "tokenizer.json").write_text("{}")
    done = subprocess.run([*PROGRAM, "check", source], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[0])
    assert found["usable"] is False
    tokenizer, tensors = found["reasons"]
    assert "no tensor encoder.layer.2." in tensors
    assert "tokenizer.json can not be read" in tokenizer


def test_sfctl_imports_and_shows_an_encoder(tmp_path: Path) -> None:
    source = write_small_encoder(tmp_path / "Some-Encoder")
    state = tmp_path / "state"
    made = sfctl(state, "import", source)
    assert (made.exit_code, made.stdout.strip()) == (0, str(state / "models" / "some-encoder"))
    for name in ("show", "check"):
        shown = sfctl(state, name, "some-encoder")
        assert shown.exit_code == 0
        lines = [line.split(None, 1) for line in shown.stdout.splitlines()]
        assert ["architecture", "bert"] in lines
        assert ["kind", "encoder" if name == "show" else "folder"] in lines
        assert ["pooling", "mean"] in lines
        assert ["dimensions", "16"] in lines
