"""What each part of a decoder takes, from a folder's graph and from a GGUF file's header."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import WorkerSection
from agent.models.__main__ import main
from agent.models.export import export_genai
from agent.models.folder import GRAPH_DATA, RECORD, ModelFolder
from agent.models.foreign import import_foreign
from agent.models.gguf_header import read_header
from agent.models.importer import import_gguf
from agent.models.layer_sizes import KV_HOST_BYTES, LayerSizes, layer_sizes
from bus.errors import Invalid, NotFound
from tests.harness.foreign_folders import OptimumGraph, write_optimum
from tests.harness.gguf_models import FAMILIES, SmallModel, write_model
from tests.harness.models import (
    gemma3_folder,
    gemma3_gguf,
    minilm_folder,
    smollm2_folder,
    smollm2_gguf,
    toy_model_folder,
)


def whole(sizes: LayerSizes) -> int:
    """Bytes of all parts on one node."""
    parts = sum(sizes.layers) + sizes.embedding_bytes + sizes.head_bytes + sizes.every_bytes
    return parts - sizes.shared_bytes


def data_bytes(folder: ModelFolder) -> int:
    """Bytes of the data file, whose last tensor does not fill its page."""
    return -(-folder.files[GRAPH_DATA].size // 4096) * 4096


def test_parts_of_the_toy_are_those_of_its_graph() -> None:
    sizes = layer_sizes(toy_model_folder().path)
    assert len(sizes.layers) == 2
    assert whole(sizes) == data_bytes(toy_model_folder())
    # 2 heads of 32, keys and values, 4 bytes
    assert sizes.kv_bytes == 2 * 2 * 32 * 4
    assert (sizes.hidden, sizes.window) == (128, 4096)
    # cosines and sines of 4096 positions and 16 pairs, in 4 and in 2 bytes
    assert sizes.every_bytes == 2 * 4096 * 16 * 6


@pytest.mark.model
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_file_and_its_folder_agree(model: str) -> None:
    folder = smollm2_folder() if model == "smollm2" else gemma3_folder()
    file = smollm2_gguf() if model == "smollm2" else gemma3_gguf()
    made, to_be = layer_sizes(folder.path), layer_sizes(file)
    assert whole(made) == data_bytes(folder)
    for one, other in zip(made.layers, to_be.layers, strict=True):
        assert one <= other <= 1.02 * one
    assert whole(made) <= whole(to_be) <= 1.01 * whole(made)
    same = replace(to_be, name=made.name, layers=made.layers, head_bytes=made.head_bytes)
    assert made == same


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "Q6_K", "F32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_header_never_promises_less_than_the_folder_has(
    tmp_path: Path, family: str, kind: str
) -> None:
    small = SmallModel(family=family, choose=lambda name: kind, untied=family == "qwen2")
    file = write_model(tmp_path / "m.gguf", small)
    folder = import_gguf(file, tmp_path / "m")
    made, to_be = layer_sizes(folder.path), layer_sizes(file)
    assert whole(made) == data_bytes(folder)
    assert whole(made) <= whole(to_be)
    for one, other in zip(made.layers, to_be.layers, strict=True):
        # at most a page more for each of ten tensors that are stacked in the graph
        assert one <= other <= one + 10 * 2 * 4096
    assert (made.shared_bytes == 0) == (family == "qwen2")


def test_a_header_alone_is_enough(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel(choose=lambda name: "Q4_K"))
    expected = layer_sizes(file)
    first = min(tensor.offset for tensor in read_header(file).tensors.values())
    file.write_bytes(file.read_bytes()[:first])
    assert layer_sizes(file) == expected


def test_what_a_worker_may_save_is_what_its_configuration_says() -> None:
    assert WorkerSection().kv_host_bytes == KV_HOST_BYTES


@pytest.mark.model
def test_only_decoders_have_stages() -> None:
    with pytest.raises(Invalid, match="is an encoder; only decoders"):
        layer_sizes(minilm_folder().path)


def test_a_stage_is_no_whole_model(tmp_path: Path) -> None:
    source, target = toy_model_folder(), tmp_path / "toy.2of2"
    target.mkdir()
    for name in source.files:
        (target / name).symlink_to(source.path / name)
    record = json.loads((source.path / RECORD).read_text())
    inputs = record["signature"]["inputs"]
    record["signature"]["inputs"] = ["hidden_in" if i == "input_ids" else i for i in inputs]
    (target / RECORD).write_text(json.dumps(record))
    with pytest.raises(Invalid, match="is one stage of a model; name the whole model"):
        layer_sizes(target)


def test_the_program_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = toy_model_folder().path
    assert main(["sizes", str(path)]) == 0
    model, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert tuple(model["layers"]) == layer_sizes(path).layers
    assert model["kv_bytes"] == 512
    assert done == {"event": "done", "path": str(path)}
    with pytest.raises(NotFound):
        layer_sizes(tmp_path / "none.gguf")


def test_folders_of_other_programs_are_told_apart_too(tmp_path: Path) -> None:
    back = import_foreign(export_genai(toy_model_folder(), tmp_path / "genai"), tmp_path / "back")
    # it has the float32 graph alone, whose tables take 4 bytes a value; its data has both
    assert layer_sizes(back.path).every_bytes == 2 * 4096 * 16 * 4
    assert whole(layer_sizes(back.path)) < data_bytes(back)
    source = write_optimum(tmp_path / "source", OptimumGraph().model())
    sizes = layer_sizes(import_foreign(source, tmp_path / "optimum").path)
    assert len(sizes.layers) == 2
    assert sizes.layers[0] == sizes.layers[1] > 0
    assert min(sizes.embedding_bytes, sizes.head_bytes, sizes.every_bytes) > 0
