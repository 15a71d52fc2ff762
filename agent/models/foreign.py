"""Imports a model folder that another program made, and says beforehand whether it can.

The graph is rewritten (`agent.models.surgery`); the weights become second names of the same files
where the file system allows it. Before the folder counts, the new graph must give the logits that
the old one gives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from agent.models.assemble import Progress, no_progress
from agent.models.decoder_files import genai_decoder, kv_record
from agent.models.folder import (
    CHAT_TEMPLATE,
    GENAI_CONFIG,
    GRAPH,
    GRAPH_DATA,
    GRAPH_FLOAT16,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ModelFolder,
    Signature,
    file_sha256,
)
from agent.models.foreign_files import GENAI, ForeignFolder, read_foreign, read_object
from agent.models.graph_values import attribute
from agent.models.onnx_file import OnnxFile, all_tensors, read_onnx
from agent.models.selftest import TEXTS, choose, open_session
from agent.models.source_logits import check_lanes, compare, loading, source_logits
from agent.models.surgery import Rewritten, rewrite
from agent.models.tensors import INLINE_BYTES, TensorFile
from agent.models.writer import check_name, link_file, replacing_folder, write_json, write_record
from bus.errors import ModelIncomplete
from bus.text.model_files import DEFAULT_TEMPLATE, named_templates, template_file
from bus.text.tokenizer import TextModel

#: Beside these every other text file of the source is left out.
_KEPT = (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A foreign folder, read and rewritten in memory; nothing is written yet."""

    source: ForeignFolder
    file: OnnxFile
    rewritten: Rewritten
    text: TextModel

    @property
    def signature(self) -> Signature:
        """The figures of the folder to be."""
        figures = asdict(replace(self.source.figures, window=self.rewritten.window))
        window = figures.pop("window")
        return Signature(
            first_layer=0, max_positions=window, inputs=self.rewritten.inputs, **figures
        )


def prepare(path: Path, variant: str | None = None) -> Prepared:
    """Read a folder and rewrite its graph in memory.

    Raises:
        NotFound: no such folder or variant.
        Invalid: a model that can not be served; says why and what can.
        ModelIncomplete: something of it is missing or damaged.
    """
    source = read_foreign(path, variant)
    file = read_onnx(source.graph)
    rewritten = rewrite(file.model, source.figures, logits=source.logits)
    text = TextModel.open(path)
    if len(text.vocabulary) > source.figures.vocab:
        raise ModelIncomplete(
            f"the tokenizer of {path} has {len(text.vocabulary)} tokens and its graph has logits "
            f"of {source.figures.vocab}; they are not of one model: download the folder again",
            param="model",
        )
    return Prepared(source, file, rewritten, text)


def import_foreign(
    path: Path,
    target: Path,
    *,
    variant: str | None = None,
    progress: Progress = no_progress,
) -> ModelFolder:
    """Make the model folder `target` from a folder of onnxruntime-genai or Optimum.

    Args:
        path: the folder.
        target: the folder to make; its name becomes the model's.
        variant: which of several graphs.
        progress: told what is done.

    Raises:
        NotFound: no such folder or variant.
        Invalid: a model that can not be served; says why and what can.
        ModelIncomplete: something of it is missing or damaged, or the graphs disagree.
    """
    check_name(target.name)
    progress("read", 0, 1)
    found = prepare(path, variant)
    progress("read", 1, 1)
    source = found.source
    prompts = [found.text.encode(text, add_special=False) for text in TEXTS]
    prompts = [prompt for prompt in prompts if len(prompt) > 1]
    if not prompts:
        raise ModelIncomplete(
            f"the tokenizer of {path} makes no tokens of plain text; download the folder again",
            param="model",
        )
    graph = GRAPH_FLOAT16 if found.rewritten.float16 else GRAPH
    with replacing_folder(target) as partial:
        progress("weights", 0, 1)
        _write_graph(found.file, partial, graph)
        _write_texts(found, partial, graph)
        progress("weights", 1, 1)
        progress("self-test", 0, 2)
        expected = source_logits(source, prompts[0])
        progress("self-test", 1, 2)
        with loading(source):
            session = open_session(partial / graph)
            compare(source, expected, session, found.signature, prompts[0])
            check_lanes(source, session, found.signature, prompts[0][:2])
            test = choose(session, found.signature, prompts)
        progress("self-test", 2, 2)
        write_record(partial, {**_record(found, target.name), "self_test": asdict(test)})
    return ModelFolder.open(target)


def describe_foreign(found: Prepared) -> dict[str, Any]:
    """What an import would do, for people; `notes` are sentences."""
    source, signature = found.source, found.signature
    path = source.path
    changes = "; ".join(found.rewritten.changes)
    notes = [f"import would rewrite {source.graph.relative_to(path)}: {changes}"]
    if found.rewritten.float16:
        notes.append(_ONLY_CUDA)
    elif _levels(found.file.model) & {0, 1}:
        notes.append(_SLOW)
    if template_file(path) is None:
        notes.append("it has no chat template: it completes text and does not chat")
    return {
        "kind": source.kind,
        "architecture": source.architecture,
        "graph": str(source.graph.relative_to(path)),
        "variants": list(source.variants),
        "quantization": _products(found.file.model),
        "layers": signature.layers,
        "vocab": signature.vocab,
        "window": signature.max_positions,
        "kv_bytes_per_token": signature.kv_bytes_per_token(float16=found.rewritten.float16),
        "file_bytes": source.graph.stat().st_size + found.file.data_bytes,
        "eos_ids": list(found.text.eos),
        "chat_template": template_file(path) is not None,
        "device": "cuda" if found.rewritten.float16 else "cpu",
        "notes": notes,
    }


_SLOW = (
    "its quantised products compute in float32 (accuracy level 0 or 1); a graph that was made with "
    "level 4 is faster on a CPU"
)
_ONLY_CUDA = (
    "its graph is float16, which is served on CUDA only; choose an int4 or float32 variant with "
    "--variant to serve it on a CPU"
)


def _write_graph(file: OnnxFile, folder: Path, name: str) -> None:
    """The graph with its weights beside it: linked, or written where the graph held them."""
    names = {
        location: GRAPH_DATA if place == 0 else f"{GRAPH_DATA}.{place}"
        for place, location in enumerate(file.data)
    }
    for location, path in file.data.items():
        link_file(path, folder / names[location])
    inside = GRAPH_DATA if not names else f"{GRAPH_DATA}.{len(names)}"
    tensors = TensorFile(folder / inside)
    try:
        for tensor in all_tensors(file.model):
            if tensor.data_location == TensorProto.EXTERNAL:
                _point(tensor, names)
        for tensor in file.model.graph.initializer:
            if len(tensor.raw_data) > INLINE_BYTES:
                _move_out(tensor, tensors)
    finally:
        tensors.close()
    if names and not (folder / inside).stat().st_size:
        (folder / inside).unlink()
    (folder / name).write_bytes(file.model.SerializeToString())


def _point(tensor: TensorProto, names: dict[str, str]) -> None:
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = names[entry.value]


def _move_out(tensor: TensorProto, tensors: TensorFile) -> None:
    span = tensors.put(np.frombuffer(tensor.raw_data, np.uint8))
    tensor.ClearField("raw_data")
    tensors.point(tensor, span)


def _write_texts(found: Prepared, folder: Path, graph: str) -> None:
    """The tokenizer as it is, its companions, and a configuration that fits the new graph."""
    source = found.source.path
    for name in _KEPT:
        if (source / name).is_file():
            (folder / name).write_bytes((source / name).read_bytes())
    if not (folder / TOKENIZER_CONFIG).exists():
        write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": "PreTrainedTokenizerFast"})
    template = source / "chat_template.json"
    if template_file(folder) is None and template.is_file():
        text = read_object(template).get("chat_template")
        if isinstance(text, str):
            (folder / CHAT_TEMPLATE).write_text(text, "utf-8")
    named = named_templates(source, {})
    if named:
        _list_templates(folder / TOKENIZER_CONFIG, named)
    write_json(folder / GENAI_CONFIG, _genai_config(found, graph))


def _list_templates(file: Path, named: dict[str, str]) -> None:
    """Put templates that were files of their own into the list: a model folder is flat."""
    config = read_object(file)
    listed = config.get("chat_template") or []
    if isinstance(listed, str):
        listed = [{"name": DEFAULT_TEMPLATE, "template": listed}]
    others = [one for one in listed if isinstance(one, dict) and one.get("name") not in named]
    more = [{"name": name, "template": text} for name, text in named.items()]
    write_json(file, {**config, "chat_template": [*others, *more]})


def _genai_config(found: Prepared, graph: str) -> dict[str, Any]:
    """The figures under the names that onnxruntime-genai gave them; its own file's other entries
    are kept."""
    source, figures = found.source, found.signature
    config = read_object(source.path / GENAI_CONFIG) if source.kind == GENAI else {}
    model = config.setdefault("model", {})
    model |= {
        "type": source.architecture,
        "eos_token_id": list(found.text.eos),
        "context_length": figures.max_positions,
        "vocab_size": figures.vocab,
    }
    if _bos(found) is not None:
        model["bos_token_id"] = _bos(found)
    model.setdefault("decoder", {}).update(genai_decoder(figures, graph))
    return config


def _bos(found: Prepared) -> int | None:
    return found.source.bos_id if found.text.bos is None else found.text.bos


def _record(found: Prepared, name: str) -> dict[str, Any]:
    source, signature = found.source, found.signature
    return {
        "name": name,
        "source": {
            "kind": source.kind,
            "file": source.path.name,
            "graph": str(source.graph.relative_to(source.path)),
            "sha256": file_sha256(source.graph),
        },
        "architecture": source.architecture,
        "quantization": _products(found.file.model),
        "numerics": {"accuracy_level": _accuracy(found.file.model)},
        "signature": asdict(signature),
        "kv_bytes_per_token": kv_record(signature),
        "eos_ids": list(found.text.eos),
        "bos_id": _bos(found),
        "add_bos": found.text.wants_bos,
    }


def _products(model: onnx.ModelProto) -> dict[str, int]:
    """Products by kind and width."""
    kinds = Counter(
        f"{node.op_type} {attribute(node, 'bits', 4)}-bit"
        if node.op_type in ("MatMulNBits", "GatherBlockQuantized")
        else node.op_type
        for node in model.graph.node
        if "MatMul" in node.op_type or node.op_type in ("Gemm", "GatherBlockQuantized")
    )
    return dict(sorted(kinds.items()))


def _levels(model: onnx.ModelProto) -> set[int]:
    """The accuracy levels of the quantised products."""
    return {
        attribute(node, "accuracy_level", 0)
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
    }


def _accuracy(model: onnx.ModelProto) -> int:
    """The level that all quantised products share; 0 where they differ."""
    levels = _levels(model)
    return levels.pop() if len(levels) == 1 else 0
