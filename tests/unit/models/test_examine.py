"""Can this be served, and why not."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest

from agent.models.blocks import FORMATS, decode_blocks
from agent.models.estimate import KV_BYTES, LANES, estimate
from agent.models.examine import describe_folder, examine
from agent.models.gguf_file import GgufFile
from agent.models.gguf_header import read_header
from agent.models.graph import write_graphs
from agent.models.tensors import Precision
from agent.models.toy import IM_END
from agent.worker import kv_cache
from bus.errors import NotFound
from tests.harness.gguf_models import FAMILIES, SmallModel, write_model
from tests.harness.models import toy_model_folder
from tests.harness.toy_variants import random_blocks


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_can_be_served(tmp_path: Path, family: str) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel(family=family, choose=lambda name: "Q4_K"))
    found = examine(file)
    assert (found["usable"], found["reasons"], found["notes"]) == (True, [], [])
    assert found["architecture"] == family
    assert found["window"] == 256
    # 2 layers, keys and values, 2 heads of 64, 4 bytes
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 64 * 4
    assert (found["lanes"], found["lane_tokens"]) == (8, 256)
    assert found["kv_bytes"] == 8 * 256 * 2048
    assert found["quantization"]["Q4_K"] == 15
    assert found["tokenizer"] == "gpt2 (gpt-2)"
    assert found["eos_ids"] == [256, IM_END]
    assert found["chat_template"] is True


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    more = {"rope.scaling.type": "longrope"}
    file = write_model(tmp_path / "m.gguf", SmallModel(more=more))
    raw = bytearray(file.read_bytes())
    at = raw.index(b"gpt-2")
    raw[at : at + 5] = b"gpt-9"
    file.write_bytes(raw[:-50_000])
    found = examine(file)
    assert found["usable"] is False
    assert found["architecture"] == "llama"
    assert [reason.split(" ")[0] for reason in found["reasons"]] == [
        str(file),
        "rotary",
        "tokenizer",
    ]
    whole, scaling, cut = found["reasons"]
    assert "its tensors end at" in whole
    assert "'longrope'" in scaling
    assert "'gpt-9'" in cut


def test_of_a_file_cut_within_its_header_little_is_known(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel())
    file.write_bytes(file.read_bytes()[:500])
    found = examine(file)
    assert found["usable"] is False
    assert "500 bytes end its header" in found["reasons"][0]


def test_types_that_can_not_be_imported_are_named(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel(choose=lambda name: "Q4_0"))
    raw = bytearray(file.read_bytes())
    at = raw.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 16
    raw[at : at + 4] = (20).to_bytes(4, "little")
    file.write_bytes(raw)
    (reason,) = examine(file)["reasons"]
    assert reason.startswith("tensors of type IQ4_NL can not be imported (such as blk.0.ffn_up")


def test_what_is_worth_knowing_is_noted(tmp_path: Path) -> None:
    model = SmallModel(choose=lambda name: "BF16", positions=1 << 19)
    found = examine(write_model(tmp_path / "m.gguf", model))
    assert found["usable"] is True
    assert found["window"] == 1 << 18
    assert any("524288 tokens is cut to 262144" in text for text in found["notes"])
    assert any("15 matrices are without quantisation" in text for text in found["notes"])


def test_neither_file_nor_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        examine(tmp_path / "x.gguf")


def test_a_folder(tmp_path: Path) -> None:
    toy = toy_model_folder()
    assert examine(toy.path, verify=True)["usable"] is True
    copy = tmp_path / "toy"
    shutil.copytree(toy.path, copy)
    data = copy / "model.onnx.data"
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)
    assert examine(copy)["usable"] is True
    (reason,) = examine(copy, verify=True)["reasons"]
    assert "model.onnx.data is damaged" in reason
    data.unlink()
    (reason,) = examine(copy)["reasons"]
    assert "model.onnx.data is missing" in reason


def test_a_folder_describes_itself() -> None:
    toy = toy_model_folder()
    found = describe_folder(toy)
    assert found["template_file"] == "chat_template.jinja"
    assert found["eos_ids_by_file"] == {
        "superfluid.json": [256, IM_END],
        "genai_config.json": [256, IM_END],
    }
    assert found["source"] == {"kind": "toy", "seed": "7"}
    assert found["digest"] == toy.digest
    assert found["files"]["model.onnx"]["sha256"] == toy.files["model.onnx"].sha256


def test_lanes_are_those_that_a_worker_has() -> None:
    assert (LANES, KV_BYTES) == (kv_cache.DEFAULT_LANES, kv_cache.DEFAULT_KV_BYTES)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_table_of_formats_says_what_decoding_gives(kind: str) -> None:
    row, weight = FORMATS[kind], decode_blocks(kind, random_blocks(kind, 2, 256, 0), 2)
    assert (row.bits, row.group) == (weight.bits, weight.block_size)
    assert row.affine == (weight.minimum is not None)


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_0", "Q6_K", "F16"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_weights_are_estimated_as_the_graph_has_them(
    tmp_path: Path, family: str, kind: str, untied: bool
) -> None:
    model = SmallModel(family=family, choose=lambda name: kind, untied=untied)
    file = write_model(tmp_path / "m.gguf", model)
    weights = GgufFile(file)
    expected = estimate(weights.config, read_header(file).tensors).weights
    write_graphs(tmp_path, weights.config, weights, {Precision.FLOAT32: "m.onnx"})
    graph = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph
    places = set()
    for tensor in graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            places.add((int(entries["offset"]), int(entries["length"])))
    got = sum(length for _, length in places)
    # norms are small enough to lie in the graph file itself
    assert got == pytest.approx(expected, rel=0.02)
