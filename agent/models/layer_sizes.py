"""What each part of a decoder takes, so that it can be divided over nodes.

From a model folder's graph, or from the header of a GGUF file; weights are not read, and of a GGUF
file they need not be there. Counted is what a stage's files have, the tensors of both precisions,
since that is what a node's agent counts against its memory before it loads a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.models.architecture import DecoderConfig, check_shapes
from agent.models.blocks import FORMATS
from agent.models.estimate import PROCESS_BYTES
from agent.models.figures import config_from_metadata
from agent.models.folder import DECODER, ModelFolder
from agent.models.gguf_file import all_tensors, check_types, read_parts, vocab_size
from agent.models.gguf_header import TensorInfo
from bus.errors import Invalid

#: What a worker may save of its lanes when nobody chose (`agent.config.WorkerSection`).
KV_HOST_BYTES = 512 << 20
_FLOAT, _HALF = 4, 2
#: Tensors start on a page of the data file, unless they stay in the graph (`agent.models.tensors`).
_PAGE, _INLINE = 4096, 1024
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """A whole decoder's parts, in bytes.

    Attributes:
        layers: of each layer.
        embedding_bytes: what only the first stage has.
        head_bytes: what only the last stage has: the last norm and the vocabulary product.
        shared_bytes: what a stage with both has once, where embedding and head are tied.
        every_bytes: what each stage has, whatever its layers: tables of rotations.
        kv_bytes: keys and values of one token in one layer, float32.
        overhead_bytes: what each worker takes or may take beside weights and lanes.
        hidden: values of a token between two stages.
        window: tokens, the longest there can be.
    """

    name: str
    layers: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    shared_bytes: int
    every_bytes: int
    kv_bytes: int
    hidden: int
    window: int
    overhead_bytes: int = PROCESS_BYTES + KV_HOST_BYTES


def layer_sizes(path: Path) -> LayerSizes:
    """The parts of a model folder, or of a GGUF file.

    Raises:
        NotFound: there is none at `path`.
        Invalid: it is no decoder, not a whole one, or its graph does not tell its layers apart.
        ModelIncomplete: a folder that is damaged.
    """
    if not path.is_dir():
        return gguf_sizes(path)
    folder = ModelFolder.open(path)
    if folder.kind != DECODER:
        raise Invalid(
            f"{folder.name} is an {folder.kind}; only decoders are divided into stages",
            param="model",
        )
    signature = folder.signature
    if not {"input_ids", "logits_idx"} <= {*signature.inputs}:
        raise Invalid(
            f"{folder.name} is one stage of a model; name the whole model, or its GGUF file",
            param="model",
        )
    from agent.models.graph_sizes import GraphSizes

    found = GraphSizes.of(folder)
    return LayerSizes(
        name=folder.name,
        layers=found.layers,
        embedding_bytes=found.embedding,
        head_bytes=found.head,
        shared_bytes=found.shared,
        every_bytes=found.every,
        kv_bytes=2 * signature.kv_heads * signature.head_dim * _FLOAT,
        hidden=signature.hidden,
        window=signature.max_positions,
    )


def gguf_sizes(path: Path) -> LayerSizes:
    """The parts of the model that a GGUF file would become.

    Never less than the folder has, and a few pages a layer more.

    Raises:
        NotFound: no such file.
        Invalid: no GGUF, or a model that can not be imported.
    """
    parts = read_parts(path)
    tensors = all_tensors(parts)
    config = config_from_metadata(parts[0].header.metadata, vocab_size(path, tensors))
    check_types(tensors.values())
    check_shapes(config, {name: tensor.shape for name, tensor in tensors.items()})
    table, head = tensors["token_embd.weight"], tensors.get("output.weight")
    return LayerSizes(
        name=path.stem.lower(),
        layers=_layers(config, tensors),
        embedding_bytes=_bytes(table, wide=config.architecture.wide_residual),
        head_bytes=_bytes(head or table) + _bytes(tensors["output_norm.weight"]),
        shared_bytes=0 if head is not None else _shared(table),
        every_bytes=_rotations(config),
        kv_bytes=2 * config.kv_heads * config.head_dim * _FLOAT,
        hidden=config.hidden,
        window=config.max_positions,
    )


def _layers(config: DecoderConfig, tensors: Mapping[str, TensorInfo]) -> tuple[int, ...]:
    sizes = [0] * config.layers
    for name, tensor in tensors.items():
        if found := _BLOCK.match(name):
            sizes[int(found[1])] += _bytes(tensor)
    return tuple(sizes)


def _bytes(tensor: TensorInfo, *, wide: bool = False) -> int:
    """Of the integers, and of scales and corrections or of dense values in their precisions."""
    precisions = (_FLOAT,) if wide else (_FLOAT, _HALF)
    form = FORMATS.get(tensor.type_name)
    if form is None:
        return _in_file(tensor.values * width for width in precisions)
    blocks = tensor.values // form.group
    kinds = 2 if form.affine else 1
    floats = _in_file(blocks * width for width in precisions)
    return _in_file([tensor.values * form.bits // 8]) + kinds * floats


def _in_file(sizes: Iterable[int]) -> int:
    """Of tensors as they lie in the data file."""
    return sum(size if size <= _INLINE else -(-size // _PAGE) * _PAGE for size in sizes)


def _shared(table: TensorInfo) -> int:
    """Of a tied table: integers are shared, and dense values in the wider precision."""
    form = FORMATS.get(table.type_name)
    if form is None:
        return _in_file(table.values * width for width in (_FLOAT, _HALF))
    return _in_file([table.values * form.bits // 8])


def _rotations(config: DecoderConfig) -> int:
    kinds = 1 if config.local_rotary is None else 2
    values = config.max_positions * config.head_dim // 2
    return kinds * 2 * _in_file(values * width for width in (_FLOAT, _HALF))
