"""What of another program's folder can not be imported: one clear error each, and no trace left."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent.models.examine import examine
from agent.models.export import export_genai
from agent.models.foreign import import_foreign, prepare
from agent.worker.model_runner import ModelRunner
from bus.errors import Invalid, ModelIncomplete, NotFound, StartError, SuperfluidError
from tests.harness.foreign_folders import HIDDEN, OptimumGraph, config, write_optimum
from tests.harness.models import toy_model_folder

Change = Callable[[onnx.ModelProto], None]


def refusal(source: Path, kind: type[SuperfluidError], variant: str | None = None) -> str:
    """The message with which both `check` and `import` refuse."""
    with pytest.raises(kind) as checked:
        prepare(source, variant)
    target = source.parent / "model"
    with pytest.raises(kind) as imported:
        import_foreign(source, target, variant=variant)
    assert not target.exists()
    assert [file.name for file in source.parent.iterdir()] == [source.name]
    assert checked.value.message == imported.value.message
    return imported.value.message


def changed(tmp_path: Path, change: Change, graph: OptimumGraph | None = None) -> Path:
    """A folder whose graph was changed."""
    model = (graph or OptimumGraph()).model()
    change(model)
    return write_optimum(tmp_path / "source", model)


def attention(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def test_attention_with_a_growing_cache(tmp_path: Path) -> None:
    def plain(model: onnx.ModelProto) -> None:
        for node in attention(model):
            node.op_type = "MultiHeadAttention"

    message = refusal(changed(tmp_path, plain), Invalid)
    assert message.startswith(
        "its graph has no GroupQueryAttention but MultiHeadAttention: its cache grows by a copy "
        "with every token"
    )
    assert "import the model's GGUF file" in message


def test_a_mask_that_is_used_elsewhere(tmp_path: Path) -> None:
    def masked(model: onnx.ModelProto) -> None:
        product = next(node for node in model.graph.node if "lm_head" in node.input)
        product.output[0] = "logits.unmasked"
        cast = helper.make_node("Cast", ["attention_mask"], ["soft"], to=TensorProto.FLOAT)
        total = helper.make_node("ReduceSum", ["soft"], ["weight"], keepdims=0)
        last = helper.make_node("Mul", ["logits.unmasked", "weight"], ["logits"], name="scaling")
        model.graph.node.extend([cast, total, last])

    message = refusal(changed(tmp_path, masked), Invalid)
    assert message.startswith("its graph needs attention_mask for its Cast")


def test_an_attention_bias(tmp_path: Path) -> None:
    def biased(model: onnx.ModelProto) -> None:
        for node in attention(model):
            node.input.extend(["", "some.bias"])

    assert "takes a bias made of the mask" in refusal(changed(tmp_path, biased), Invalid)


def test_a_cache_that_passes_through_other_nodes(tmp_path: Path) -> None:
    def detour(model: onnx.ModelProto) -> None:
        node = attention(model)[0]
        identity = helper.make_node("Identity", [node.input[3]], ["detour"])
        node.input[3] = "detour"
        model.graph.node.insert(0, identity)

    assert "can not be kept in place" in refusal(changed(tmp_path, detour), Invalid)


def test_a_graph_that_looks_at_its_cache(tmp_path: Path) -> None:
    def looks(model: onnx.ModelProto) -> None:
        past = attention(model)[0].input[3]
        made = [
            helper.make_node("Shape", [past], ["past.shape"]),
            helper.make_node("Cast", ["past.shape"], ["past.float"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["past.float"], ["past.sum"], keepdims=0),
            helper.make_node("Add", ["embed.x", "past.sum"], ["moved"]),
        ]
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                if name == "embed.x":
                    node.input[place] = "moved"
        place = next(n for n, node in enumerate(model.graph.node) if "embed.x" in node.output)
        for node in reversed(made):
            model.graph.node.insert(place + 1, node)

    assert "looks at its cache outside" in refusal(changed(tmp_path, looks), Invalid)


def test_a_branch(tmp_path: Path) -> None:
    def branching(model: onnx.ModelProto) -> None:
        bodies = {}
        for name in ("then_branch", "else_branch"):
            node = helper.make_node("Identity", ["cos"], [f"{name}.cos"])
            out = helper.make_tensor_value_info(f"{name}.cos", TensorProto.FLOAT, None)
            bodies[name] = helper.make_graph([node], name, [], [out])
        model.graph.initializer.append(helper.make_tensor("long", TensorProto.BOOL, [], [False]))
        model.graph.node.insert(0, helper.make_node("If", ["long"], ["chosen"], **bodies))
        for node in attention(model):
            node.input[7] = "chosen"

    assert "an operator If with graphs of its own" in refusal(changed(tmp_path, branching), Invalid)


def test_positions_of_images(tmp_path: Path) -> None:
    def three(model: onnx.ModelProto) -> None:
        value = next(value for value in model.graph.input if value.name == "position_ids")
        value.type.tensor_type.shape.dim.add(dim_value=3)

    source = changed(tmp_path, three, OptimumGraph(rotary_inside=False))
    assert "positions of 3 dimensions" in refusal(source, Invalid)


def test_a_cache_of_bfloat16(tmp_path: Path) -> None:
    def bfloat(model: onnx.ModelProto) -> None:
        for value in model.graph.input:
            if value.name.startswith("past_key_values"):
                value.type.tensor_type.elem_type = TensorProto.BFLOAT16

    assert "keeps its cache as bfloat16" in refusal(changed(tmp_path, bfloat), Invalid)


def test_an_old_opset(tmp_path: Path) -> None:
    def old(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 11

    assert "opset 11" in refusal(changed(tmp_path, old), Invalid)


def test_a_graph_that_the_runtime_does_not_take(tmp_path: Path) -> None:
    def unknown(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if node.op_type == "Add").op_type = "Plus"

    source = changed(tmp_path, unknown)
    with pytest.raises(Invalid, match=r"ONNX Runtime does not run .*model_q4\.onnx"):
        import_foreign(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_graph_whose_rows_depend_on_each_other(tmp_path: Path) -> None:
    def mixed(model: onnx.ModelProto) -> None:
        product = next(node for node in model.graph.node if "lm_head" in node.input)
        product.output[0] = "raw"
        mean = helper.make_node("ReduceSum", ["raw", "one"], ["sum"], keepdims=1)
        model.graph.node.extend([mean, helper.make_node("Add", ["raw", "sum"], ["logits"])])

    source = changed(tmp_path, mixed)
    with pytest.raises(ModelIncomplete, match="gives other logits than the source's"):
        import_foreign(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("tail", [[HIDDEN], [HIDDEN // 2, 2]])
def test_a_graph_for_one_request_at_a_time(tmp_path: Path, tail: list[int]) -> None:
    def flat(model: onnx.ModelProto) -> None:
        place, first = next(
            (n, node)
            for n, node in enumerate(model.graph.node)
            if node.op_type == "Gather" and "input_ids" in node.input
        )
        x, first.output[0] = first.output[0], "of.all"
        for name, shape in (("one.row", [1, -1, *tail]), ("back", [1, -1, HIDDEN])):
            model.graph.initializer.append(
                numpy_helper.from_array(np.array(shape, np.int64), f"{name}.shape")
            )
        nodes = [
            helper.make_node("Reshape", ["of.all", "one.row.shape"], ["one.row"]),
            helper.make_node("Reshape", ["one.row", "back.shape"], [x]),
        ]
        for offset, node in enumerate(nodes):
            model.graph.node.insert(place + 1 + offset, node)

    source = changed(tmp_path, flat)
    with pytest.raises(Invalid, match="was made for one request at a time"):
        import_foreign(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_hidden_layers", 3, "says 3 for the layers and its graph has 2"),
        ("num_attention_heads", 8, "says 8 for the heads and its graph has 4"),
        ("num_key_value_heads", 4, "says 4 for the heads of keys and its graph has 2"),
        ("head_dim", 32, "says 32 for the head's width and its graph has 16"),
        ("vocab_size", 300, "says 300 for the vocabulary and its graph has 260"),
    ],
)
def test_figures_that_are_not_the_graphs(tmp_path: Path, key: str, value: int, said: str) -> None:
    source = changed(tmp_path, lambda model: None)
    (source / "config.json").write_text(json.dumps({**config(), key: value}))
    assert said in refusal(source, ModelIncomplete)


def test_a_width_that_is_not_the_graphs(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda model: None)
    (source / "config.json").write_text(json.dumps({**config(), "hidden_size": 32}))
    with pytest.raises(Invalid, match="ONNX Runtime does not run"):
        import_foreign(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("value", [None, 0, -1, "64", 2.5, True, 10**30])
def test_a_figure_that_is_missing_or_senseless(tmp_path: Path, value: Any) -> None:
    source = changed(tmp_path, lambda model: None)
    (source / "config.json").write_text(json.dumps({**config(), "hidden_size": value}))
    message = refusal(source, ModelIncomplete)
    assert "config.json has no usable hidden_size" in message
    assert message.endswith("download the folder again")


def test_a_configuration_that_is_no_json(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda model: None)
    (source / "config.json").write_text("{" * 100_000)
    assert "config.json can not be read" in refusal(source, ModelIncomplete)


def test_a_field_missing_in_a_genai_configuration(tmp_path: Path) -> None:
    source = export_genai(toy_model_folder(), tmp_path / "source")
    file = source / "genai_config.json"
    found = json.loads(file.read_text())
    del found["model"]["decoder"]["head_size"]
    found["model"]["decoder"]["hidden_size"] = None
    file.write_text(json.dumps(found))
    assert "no usable model.decoder.hidden_size" in refusal(source, ModelIncomplete)


def test_a_genai_folder_of_more_than_a_decoder(tmp_path: Path) -> None:
    source = export_genai(toy_model_folder(), tmp_path / "source")
    file = source / "genai_config.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({"model": {**found["model"], "vision": {"filename": "v.onnx"}}}))
    assert "a part 'vision'" in refusal(source, Invalid)
    found["model"]["decoder"]["filename"] = "../model.onnx"
    file.write_text(json.dumps(found))
    assert "outside of its folder" in refusal(source, Invalid)


@pytest.mark.parametrize("genai", [True, False])
def test_no_tokenizer(tmp_path: Path, genai: bool) -> None:
    if genai:
        source = export_genai(toy_model_folder(), tmp_path / "source")
    else:
        source = changed(tmp_path, lambda model: None)
    (source / "tokenizer.json").unlink()
    message = refusal(source, ModelIncomplete)
    assert "has no tokenizer.json" in message
    assert "save_pretrained" in message


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda model: None)
    (source / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refusal(source, ModelIncomplete)


def test_a_tokenizer_of_a_larger_model(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda model: None)
    file = source / "tokenizer.json"
    found = json.loads(file.read_text("utf-8"))
    extra = {**found["added_tokens"][-1], "id": 260, "content": "<|more|>"}
    found["added_tokens"].append(extra)
    file.write_text(json.dumps(found))
    assert "has 261 tokens and its graph has logits of 260" in refusal(source, ModelIncomplete)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_a_graph_that_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model())
    graph = source / "onnx" / "model_q4.onnx"
    graph.unlink()
    make(graph)
    assert f"{graph} is missing, or no file" in refusal(source, ModelIncomplete)


def test_no_weights_beside_the_graph(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model(), external=True)
    data = source / "onnx" / "model_q4.onnx_data"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1000])
    message = refusal(source, ModelIncomplete)
    assert f"{data} has {len(whole) - 1000} bytes and tensor" in message
    data.unlink()
    assert f"{data} is missing, which has weights of model_q4.onnx" in refusal(
        source, ModelIncomplete
    )


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../b", ""])
def test_weights_outside_of_the_folder(tmp_path: Path, location: str) -> None:
    def outside(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[1]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    model = OptimumGraph().model()
    source = write_optimum(tmp_path / "source", model)
    outside(model)
    (source / "onnx" / "model_q4.onnx").write_bytes(model.SerializeToString())
    assert "weights lie outside its folder" in refusal(source, ModelIncomplete)


@pytest.mark.parametrize("dims", [[2**62, 2**62], [-4, 8], [2**40], [3, 5]])
def test_dimensions_that_are_not_the_bytes(tmp_path: Path, dims: list[int]) -> None:
    def swollen(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == "lm_head")
        tensor.dims[:] = dims

    message = refusal(changed(tmp_path, swollen), ModelIncomplete)
    assert "tensor lm_head" in message


def test_values_that_are_listed_and_too_few(tmp_path: Path) -> None:
    def listed(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == "lm_head")
        tensor.ClearField("raw_data")
        tensor.float_data.extend([1.0] * 10)

    assert "has 10 values" in refusal(changed(tmp_path, listed), ModelIncomplete)


def test_a_graph_cut_short_or_full_of_noise_is_refused_by_type(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model(), external=True)
    file = source / "onnx" / "model_q4.onnx"
    whole = file.read_bytes()
    rng = random.Random(5)
    refused = 0
    for trial in range(300):
        raw = bytearray(whole[: rng.randrange(len(whole))] if trial % 2 else whole)
        for _ in range(rng.randrange(1, 6)):
            if raw:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        file.write_bytes(raw)
        try:
            prepare(source)
        except (Invalid, ModelIncomplete):
            refused += 1
    assert refused > 150


def test_a_variant_that_is_not_there(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda model: None)
    assert "has no variant 'fp16'; it has: q4" in refusal(source, NotFound, "fp16")


def test_an_optimum_folder_without_a_graph(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda model: None)
    (source / "onnx" / "model_q4.onnx").rename(source / "onnx" / "decoder_model_merged.onnx")
    message = refusal(source, ModelIncomplete)
    assert "has no onnx/model*.onnx (it has decoder_model_merged.onnx)" in message


def test_a_folder_of_nothing_known(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    assert "neither genai_config.json nor config.json" in refusal(source, Invalid)


def test_a_folder_of_ours(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="copy it into the folder of models"):
        import_foreign(toy_model_folder().path, tmp_path / "model")


def test_a_float16_model_on_a_cpu(tmp_path: Path) -> None:
    graph = OptimumGraph(float16=True).model()
    source = write_optimum(tmp_path / "source", graph, name="model_fp16")
    folder = import_foreign(source, tmp_path / "model")
    with pytest.raises(StartError, match=r"has a float16 graph only.*--variant q4"):
        ModelRunner(folder, device="cpu")


def test_examine_tells_it_as_a_reason(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda model: None)
    assert examine(source)["usable"] is True
    (source / "tokenizer.json").unlink()
    found = examine(source)
    assert found["usable"] is False
    assert "has no tokenizer.json" in found["reasons"][0]
