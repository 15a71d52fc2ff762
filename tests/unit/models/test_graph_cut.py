"""Graphs of stages cut out of whole ones, against those that are built alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from agent.models.architecture import DecoderConfig, WeightSource
from agent.models.gguf_file import GgufFile
from agent.models.graph import EXACT, INT8_ACTIVATIONS, LayerRange, Numerics, write_graphs
from agent.models.graph_cut import GraphCutter
from agent.models.graph_values import sweep
from agent.models.selftest import open_session
from agent.models.toy import CONFIG, ToyWeights
from bus.errors import Invalid
from tests.harness.gguf_models import FAMILIES, SmallModel, write_model
from tests.harness.graph_logits import FILES
from tests.harness.toy_variants import WIDE, VariedWeights


def without_places(model: onnx.ModelProto) -> bytes:
    """The graph but for where in the data file its tensors lie."""
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
    return bytes(model.SerializeToString())


def check_cuts(
    folder: Path,
    config: DecoderConfig,
    weights: WeightSource,
    ranges: list[LayerRange],
    numerics: Numerics = INT8_ACTIVATIONS,
) -> None:
    """Cut each range out of both graphs; it must be what the builder makes of it."""
    write_graphs(folder, config, weights, FILES, numerics=numerics)
    for part in ranges:
        alone = folder / str(part)
        alone.mkdir()
        write_graphs(alone, config, weights, FILES, numerics=numerics, layers=part)
        for name in FILES.values():
            whole = onnx.load(folder / name, load_external_data=False)
            cut = GraphCutter(whole, config.layers, config.hidden).cut(part)
            built = onnx.load(alone / name, load_external_data=False)
            assert without_places(cut) == without_places(built)


TWO = [LayerRange(0, 1), LayerRange(1, 2)]


@pytest.mark.parametrize("numerics", [INT8_ACTIVATIONS, EXACT])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", None])
def test_cut_and_built_graphs_are_equal(
    tmp_path: Path, kind: str | None, numerics: Numerics
) -> None:
    check_cuts(tmp_path, WIDE, VariedWeights(lambda name: kind), TWO, numerics)


def test_an_untied_head(tmp_path: Path) -> None:
    check_cuts(tmp_path, WIDE, VariedWeights(lambda name: "Q4_0", untied=True), TWO)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(tmp_path: Path, family: str) -> None:
    model = SmallModel(
        family=family,
        layers=4,
        choose=lambda name: "Q5_0" if "attn_v" in name else "Q4_K",
        biases="qkv" if family == "qwen2" else "",
    )
    file = GgufFile(write_model(tmp_path / "m.gguf", model))
    check_cuts(tmp_path, file.config, file, [LayerRange(0, 1), LayerRange(1, 3), LayerRange(3, 4)])


def whole_toy(folder: Path) -> onnx.ModelProto:
    write_graphs(folder, CONFIG, ToyWeights(), FILES)
    return onnx.load(folder / FILES[next(iter(FILES))], load_external_data=False)


def test_a_graph_that_looks_back_over_the_cut_is_refused(tmp_path: Path) -> None:
    """The second layer reads the embedding once more, beside the hidden state."""
    model = whole_toy(tmp_path)
    joint = next(node for node in model.graph.node if "layer.1.attention_norm" in node.output)
    place = list(model.graph.node).index(joint)
    model.graph.node.insert(
        place + 1, helper.make_node("Add", ["layer.1.attention_norm", "embedding"], ["again"])
    )
    reader = model.graph.node[place + 2]
    assert reader.input[0] == "layer.1.attention_norm"
    reader.input[0] = "again"
    with pytest.raises(Invalid, match=r"can not be cut before layer 1.* import the model's GGUF"):
        GraphCutter(model, CONFIG.layers, CONFIG.hidden).cut(LayerRange(1, 2))


def test_a_graph_without_sums_between_its_layers_is_refused(tmp_path: Path) -> None:
    model = whole_toy(tmp_path)
    for node in model.graph.node:
        if node.op_type == "SkipSimplifiedLayerNormalization":
            node.op_type = "Mul"
    with pytest.raises(Invalid, match="can not be cut before layer 1"):
        GraphCutter(model, CONFIG.layers, CONFIG.hidden).cut(LayerRange(0, 1))


def test_what_asks_how_many_ids_there_are_asks_the_hidden_state(tmp_path: Path) -> None:
    model = whole_toy(tmp_path)
    model.graph.node.insert(0, helper.make_node("Shape", ["input_ids"], ["lengths"]))
    model.graph.node.append(helper.make_node("Cast", ["lengths"], ["told"], to=TensorProto.FLOAT))
    model.graph.node.append(helper.make_node("ReduceSum", ["told"], ["summed"], keepdims=0))
    logits = next(node for node in model.graph.node if "logits" in node.output)
    logits.output[0] = "plain"
    model.graph.node.append(helper.make_node("Add", ["plain", "summed"], ["logits"]))
    cut = GraphCutter(model, CONFIG.layers, CONFIG.hidden).cut(LayerRange(1, 2))
    assert cut.graph.input[0].name == "hidden_in"
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT64, ["N"])
    del cut.graph.output[:]
    cut.graph.output.append(lengths)
    sweep(cut.graph)
    kept = {name for node in cut.graph.node for name in node.input}
    for value in [value for value in cut.graph.input if value.name not in kept]:
        cut.graph.input.remove(value)
    (tmp_path / "lengths.onnx").write_bytes(cut.SerializeToString())
    session = open_session(tmp_path / "lengths.onnx")
    hidden = np.zeros((3, 5, CONFIG.hidden), np.float32)
    assert session.run(["lengths"], {"hidden_in": hidden})[0].tolist() == [3, 5]
