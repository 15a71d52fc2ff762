"""Which bytes of a decoder's graph belong to which layer, from the graph file alone.

A tensor belongs to the layer that it or a node that reads it is named after. Of the others, those
that attention reads are of every layer (the tables of rotations), those behind the last attention
of the head, and those before the first of the embedding.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import TensorProto

from agent.models.folder import GRAPH_FLOAT16, ModelFolder
from agent.models.onnx_file import read_onnx, tensor_bytes
from bus.errors import Invalid

#: How exporters and our own importer name what is of a layer.
_LAYER = re.compile(r"(?:^|[./_])(?:layers?|blk|h)[./_](\d+)(?:[./_]|\Z)")
_ATTENTION = "GroupQueryAttention"
_PAGE = 4096

#: A place in a data file: its name, offset and length.
Span = tuple[str, int, int]
#: Numbers of layers, and what is of none.
_EMBEDDING, _HEAD, _EVERY = -1, -2, -3


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """Bytes of a whole decoder's parts; `shared` are counted in `embedding` and in `head`."""

    layers: tuple[int, ...]
    embedding: int
    head: int
    shared: int
    every: int

    @classmethod
    def of(cls, folder: ModelFolder) -> GraphSizes:
        """Look at all graphs that a folder has.

        Raises:
            Invalid: a graph does not tell its layers apart.
            ModelIncomplete: a graph can not be read.
        """
        spans: dict[int, set[Span]] = defaultdict(set)
        graphs = [folder.graph] if folder.runs_on_cpu else []
        if folder.graph_float16 is not None:
            graphs.append(folder.path / GRAPH_FLOAT16)
        for path in graphs:
            _Reading(path, folder.signature.layers, spans).read()
        layers = tuple(_total(spans[layer]) for layer in range(folder.signature.layers))
        if 0 in layers:
            raise _unnamed(graphs[0], layers.index(0))
        return cls(
            layers=layers,
            embedding=_total(spans[_EMBEDDING]),
            head=_total(spans[_HEAD]),
            shared=_total(spans[_EMBEDDING] & spans[_HEAD]),
            every=_total(spans[_EVERY]),
        )


def _total(spans: set[Span]) -> int:
    return sum(-(-length // _PAGE) * _PAGE for _, _, length in spans)


def _unnamed(path: Path, layer: int) -> Invalid:
    return Invalid(
        f"{path} does not tell which weights are of layer {layer}; plan from the model's GGUF file",
        param="model",
    )


@dataclass(slots=True)
class _Reading:
    """One graph on its way into `spans`, by part."""

    path: Path
    layers: int
    spans: dict[int, set[Span]]
    #: Values that depend on an attention.
    behind: set[str] = field(default_factory=set)

    def read(self) -> None:
        model = read_onnx(self.path).model
        readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            if node.op_type == _ATTENTION or self.behind.intersection(node.input):
                self.behind.update(node.output)
            for name in node.input:
                readers[name].append(node)
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            span = self._span(tensor)
            for part in self._parts(tensor.name, readers[tensor.name]):
                self.spans[part].add(span)

    def _span(self, tensor: TensorProto) -> Span:
        place = {entry.key: entry.value for entry in tensor.external_data}
        length = tensor_bytes(self.path, tensor)
        return place["location"], int(place.get("offset", "0")), length

    def _parts(self, name: str, readers: list[onnx.NodeProto]) -> set[int]:
        if (layer := self._layer(name)) is not None:
            return {layer}
        # a table of rotations that none of these layers needs has no reader
        return {self._part(node) for node in readers} or {_EVERY}

    def _part(self, reader: onnx.NodeProto) -> int:
        if reader.op_type == _ATTENTION:
            return _EVERY
        if (layer := self._layer(reader.name)) is not None:
            return layer
        return _HEAD if self.behind.intersection(reader.output) else _EMBEDDING

    def _layer(self, name: str) -> int | None:
        found = _LAYER.search(name)
        if found is None:
            return None
        layer = int(found[1])
        return layer if layer < self.layers else None
