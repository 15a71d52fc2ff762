"""A model folder exported for onnxruntime-genai gives the same logits from the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agent.models.encoder_importer import import_encoder
from agent.models.export import export_genai
from agent.models.folder import GENAI_CONFIG, GRAPH, GRAPH_DATA, ModelFolder
from agent.models.foreign import import_foreign
from agent.models.selftest import open_session, prompt_logits
from bus.errors import Invalid
from tests.harness.foreign_folders import Head, OptimumGraph, write_optimum
from tests.harness.models import smollm2_folder, toy_model_folder
from tests.harness.small_encoder import write_small_encoder

ROOM = 64


def exported_logits(
    session: Any, folder: ModelFolder, prompts: npt.NDArray[np.int64], room: int = ROOM
) -> npt.NDArray[np.float32]:
    """What the exported graph gives after equally long prompts: `[B, 1, vocab]`."""
    figures = folder.signature
    cache = np.zeros((len(prompts), figures.kv_heads, room, figures.head_dim), np.float32)
    feeds: dict[str, Any] = {"input_ids": prompts, "attention_mask": np.ones_like(prompts)}
    for value in session.get_inputs():
        feeds.setdefault(value.name, cache)
    found: npt.NDArray[np.float32] = session.run(["logits"], feeds)[0]
    return found


def test_logits_are_the_last_rows_of_each_prompt(tmp_path: Path) -> None:
    folder = toy_model_folder()
    session = open_session(export_genai(folder, tmp_path / "out") / GRAPH)
    prompts = np.array([[65, 66, 67, 68], [80, 32, 81, 33]], np.int64)
    got = exported_logits(session, folder, prompts)
    assert got.shape == (2, 1, folder.signature.vocab)
    plain = open_session(folder.graph)
    for row, prompt in zip(got, prompts.tolist(), strict=True):
        expected = prompt_logits(plain, folder.signature, prompt)[-1]
        np.testing.assert_allclose(row[0], expected, atol=1e-4)


@pytest.mark.model
def test_logits_of_a_real_model_are_the_same_bits(tmp_path: Path) -> None:
    folder = smollm2_folder()
    session = open_session(export_genai(folder, tmp_path / "out") / GRAPH)
    prompt = list(folder.self_test.prompt)
    got = exported_logits(session, folder, np.array([prompt], np.int64))
    expected = prompt_logits(open_session(folder.graph), folder.signature, prompt)[-1]
    np.testing.assert_array_equal(got[0, 0], expected)


def test_weights_are_the_same_file(tmp_path: Path) -> None:
    folder = toy_model_folder()
    target = export_genai(folder, tmp_path / "out")
    assert (target / GRAPH_DATA).read_bytes() == (folder.path / GRAPH_DATA).read_bytes()
    assert {file.name for file in target.iterdir()} >= {GRAPH, GENAI_CONFIG, "tokenizer.json"}
    assert not (target / "superfluid.json").exists()


def test_configuration_names_what_the_graph_has(tmp_path: Path) -> None:
    target = export_genai(toy_model_folder(), tmp_path / "out")
    decoder = json.loads((target / GENAI_CONFIG).read_text("utf-8"))["model"]["decoder"]
    session = open_session(target / GRAPH)
    layers = range(decoder["num_hidden_layers"])
    for side, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        named = [
            name % layer if "%d" in name else name
            for name in decoder[side].values()
            for layer in (layers if "%d" in name else [0])
        ]
        assert sorted(named) == sorted(value.name for value in values)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    with pytest.raises(Invalid, match="choose a new folder"):
        export_genai(toy_model_folder(), tmp_path)
    assert kept.read_text() == "mine"


def test_an_encoder_is_refused_as_one(tmp_path: Path) -> None:
    encoder = import_encoder(write_small_encoder(tmp_path / "a"), tmp_path / "small")
    with pytest.raises(Invalid, match="small is an encoder; it makes embeddings, not text"):
        export_genai(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stage_is_refused(tmp_path: Path) -> None:
    folder = toy_model_folder()
    stage = replace(folder, signature=replace(folder.signature, first_layer=1))
    with pytest.raises(Invalid, match="export the whole model"):
        export_genai(stage, tmp_path / "out")


@pytest.mark.parametrize("rotary_inside", [True, False])
@pytest.mark.parametrize("head", ["plain", "capped", "reshaped", "computed", "last", "keep"])
def test_logits_of_an_imported_optimum_folder_are_the_same(
    tmp_path: Path, rotary_inside: bool, head: Head
) -> None:
    graph = OptimumGraph(rotary_inside=rotary_inside, head=head).model()
    folder = import_foreign(write_optimum(tmp_path / "source", graph), tmp_path / "model")
    target = export_genai(folder, tmp_path / "out")
    prompt = [65, 66, 67, 68, 9]
    got = exported_logits(open_session(target / GRAPH), folder, np.array([prompt], np.int64))
    expected = prompt_logits(open_session(folder.graph), folder.signature, prompt)[-1]
    np.testing.assert_allclose(got[0, 0], expected, atol=1e-5)
    search = json.loads((target / GENAI_CONFIG).read_text("utf-8"))["search"]
    assert search == {
        "max_length": folder.signature.max_positions,
        "past_present_share_buffer": True,
    }


def test_a_folder_of_a_float16_graph_only_is_refused(tmp_path: Path) -> None:
    graph = OptimumGraph(float16=True).model()
    source = write_optimum(tmp_path / "source", graph, name="model_fp16")
    folder = import_foreign(source, tmp_path / "model")
    with pytest.raises(Invalid, match=r"has a float16 graph only.* import .* with --variant"):
        export_genai(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
