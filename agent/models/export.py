"""Writes a model folder once more with the graph signature that onnxruntime-genai calls.

The weights are the folder's own: the data file is linked, or copied where the file system can not.
Only the rim of the graph differs, between its inputs and outputs and the layers:

    attention_mask  int64   [B, T]         ones up to each row's last token, T of the longest
    logits          float32 [B, 1, vocab]  after the last position

replace `seqlens_k`, `total_sequence_length`, `logits_idx` and the logits of rows. As
GroupQueryAttention does, the graph takes rows that are padded on the right or not at all; logits
are the last position's, so prompts of a batch must be equally long.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from agent.models.folder import (
    DECODER,
    ENCODER,
    GENAI_CONFIG,
    GRAPH,
    GRAPH_FLOAT16,
    RECORD,
    ModelFolder,
)
from agent.models.graph_values import GraphValues
from agent.models.writer import link_file, replacing_folder, write_json
from bus.errors import Invalid, ModelIncomplete

#: What GroupQueryAttention is told, which the mask holds too.
_LENGTHS = ("seqlens_k", "total_sequence_length")
#: Architectures that onnxruntime-genai calls otherwise.
_GENAI_TYPES = {"gemma3": "gemma3_text"}
_HEARS = "a transcriber; it writes what it hears"


def export_genai(folder: ModelFolder, target: Path) -> Path:
    """Write the float32 graph of `folder` into `target` for onnxruntime-genai.

    Args:
        folder: a whole model, not a stage of one.
        target: a folder that is not there or empty.

    Returns:
        `target`.

    Raises:
        Invalid: there is something in `target`, or the folder is of a stage or no decoder, or has
            no float32 graph.
        ModelIncomplete: its graph is not as this version writes it.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Invalid(f"{target} is there already; choose a new folder or remove it", param="genai")
    if folder.kind != DECODER:
        what = "an encoder; it makes embeddings, not text" if folder.kind == ENCODER else _HEARS
        raise Invalid(
            f"{folder.name} is {what}, and onnxruntime-genai runs models that make text; name one "
            "of those",
            param="model",
        )
    if folder.signature.first_layer or not {*_LENGTHS, "logits_idx"} <= {*folder.signature.inputs}:
        raise Invalid(
            f"model {folder.name} has not all of a model's layers; export the whole model",
            param="model",
        )
    if not folder.runs_on_cpu:
        raise Invalid(
            f"model {folder.name} has a float16 graph only and the float32 one is written; import "
            "an int4 or float32 graph of its source with --variant, and export that",
            param="model",
        )
    with replacing_folder(target) as partial:
        for name in sorted({*folder.files} - {GRAPH, GRAPH_FLOAT16, GENAI_CONFIG, RECORD}):
            link_file(folder.path / name, partial / name)
        (partial / GRAPH).write_bytes(_graph(folder).SerializeToString())
        write_json(partial / GENAI_CONFIG, _config(folder))
    return target


def _config(folder: ModelFolder) -> dict[str, Any]:
    """The folder's configuration with the mask among the inputs."""
    config: dict[str, Any] = json.loads((folder.path / GENAI_CONFIG).read_text("utf-8"))
    model = config["model"]
    model["type"] = _GENAI_TYPES.get(model["type"], model["type"])
    decoder = model["decoder"]
    decoder["inputs"]["attention_mask"] = "attention_mask"
    decoder["session_options"] = {"log_id": "onnxruntime-genai", "provider_options": []}
    # A folder that was imported from Optimum has none.
    search = config.setdefault("search", {"max_length": folder.signature.max_positions})
    search["past_present_share_buffer"] = True
    return config


def _graph(folder: ModelFolder) -> onnx.ModelProto:
    """The folder's graph with genai's rim; the weights stay where they are."""
    model = onnx.load(folder.graph, load_external_data=False)
    graph = model.graph
    _take_mask(graph)
    _take_last_row(graph, folder)
    return model


def _take_mask(graph: onnx.GraphProto) -> None:
    """Compute what GroupQueryAttention is told from `attention_mask`."""
    for value in [value for value in graph.input if value.name in _LENGTHS]:
        graph.input.remove(value)
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["B", "T"])
    graph.input.insert(1, mask)
    _add_integers(graph, "mask.axis", [1])
    _add_integers(graph, "mask.one", [1])
    _add_integers(graph, "mask.width", 1)
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "mask.axis"], ["mask.tokens"], keepdims=0),
        helper.make_node("Sub", ["mask.tokens", "mask.one"], ["mask.last"]),
        helper.make_node("Cast", ["mask.last"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["mask.shape"]),
        helper.make_node("Gather", ["mask.shape", "mask.width"], ["mask.total"], axis=0),
        helper.make_node("Cast", ["mask.total"], ["total_sequence_length"], to=TensorProto.INT32),
    ]
    for place, node in enumerate(nodes):
        graph.node.insert(place, node)


def _take_last_row(graph: onnx.GraphProto, folder: ModelFolder) -> None:
    """Give the last position's logits instead of those of the rows in `logits_idx`."""
    gather = next((node for node in graph.node if "logits_idx" in node.input), None)
    flat = next(
        (node for node in graph.node if gather is not None and gather.input[0] in node.output), None
    )
    if gather is None or flat is None or (gather.op_type, flat.op_type) != ("Gather", "Reshape"):
        raise ModelIncomplete(
            f"the graph of model {folder.name} is not as this version makes it; make it again with "
            f"`{folder.import_command}`",
            param="model",
        )
    _add_integers(graph, "head.last", -1)
    source = _unflattened(GraphValues(graph), flat.input[0])
    last = helper.make_node("Gather", [source, "head.last"], list(gather.output), axis=1)
    graph.node.insert(list(graph.node).index(gather), last)
    graph.node.remove(gather)
    graph.node.remove(flat)
    rows = next(node for node in graph.node if "logits" in node.output)
    rows.output[0] = "logits.rows"
    _add_integers(graph, "head.axis", [1])
    graph.node.append(helper.make_node("Unsqueeze", ["logits.rows", "head.axis"], ["logits"]))
    graph.input.remove(next(value for value in graph.input if value.name == "logits_idx"))
    place = next(n for n, value in enumerate(graph.output) if value.name == "logits")
    shape = ["B", 1, folder.signature.vocab]
    graph.output[place].CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape))


def _unflattened(values: GraphValues, name: str) -> str:
    """The value `[B, S, hidden]` of which an imported graph made rows, where it did."""
    maker = values.makers.get(name)
    if maker is None or maker.op_type != "Reshape":
        return name
    shape = values.integers(maker.input[1])
    return maker.input[0] if shape is not None and len(shape) == 2 else name


def _add_integers(graph: onnx.GraphProto, name: str, values: list[int] | int) -> None:
    shape = [] if isinstance(values, int) else [len(values)]
    flat = [values] if isinstance(values, int) else values
    graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, shape, flat))
