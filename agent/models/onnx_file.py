"""Reads an ONNX graph that others made, and the files its weights lie in, and trusts neither.

Weights stay where they are: nothing but the graph file is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from bus.errors import Invalid, ModelIncomplete

#: No protobuf message is larger.
LARGEST_BYTES = 2**31 - 1
_REMEDY = "download the folder again"
#: Bits of a value, where numpy has no such type or ONNX packs it.
_BITS = {
    TensorProto.FLOAT: 32,
    TensorProto.UINT8: 8,
    TensorProto.INT8: 8,
    TensorProto.UINT16: 16,
    TensorProto.INT16: 16,
    TensorProto.INT32: 32,
    TensorProto.INT64: 64,
    TensorProto.BOOL: 8,
    TensorProto.FLOAT16: 16,
    TensorProto.DOUBLE: 64,
    TensorProto.UINT32: 32,
    TensorProto.UINT64: 64,
    TensorProto.BFLOAT16: 16,
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
}


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A graph and its weights.

    Attributes:
        path: of the graph.
        model: parsed; external tensors have a place and no values.
        data: the files with the weights, by the location that tensors name.
    """

    path: Path
    model: onnx.ModelProto
    data: dict[str, Path]

    @property
    def data_bytes(self) -> int:
        """Bytes of the files with the weights."""
        return sum(path.stat().st_size for path in self.data.values())


def read_onnx(path: Path) -> OnnxFile:
    """Read a graph and check that each of its tensors has the bytes that it says.

    Raises:
        ModelIncomplete: a file is missing, cut short or damaged; names it.
        Invalid: it has something that is not read here.
    """
    model = _parse(path)
    if not all(isinstance(name, str) for name in _names(model)):
        raise _damaged(path, "it has names that are no text")
    data: dict[str, Path] = {}
    for tensor in all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            _check_external(path, tensor, data)
        elif tensor.HasField("raw_data"):
            _check_length(path, tensor, len(tensor.raw_data))
        else:
            _check_typed(path, tensor)
    if model.graph.sparse_initializer:
        raise Invalid(f"{path} has sparse weights, which can not be imported", param="model")
    return OnnxFile(path, model, data)


def all_tensors(model: onnx.ModelProto) -> Iterable[TensorProto]:
    """Weights, and constants of the graph's and the functions' nodes."""
    yield from model.graph.initializer
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t


def tensor_bytes(path: Path, tensor: TensorProto) -> int:
    """Bytes that a tensor's dimensions and type make.

    Raises:
        ModelIncomplete: the dimensions are no lengths.
    """
    bits = _BITS.get(tensor.data_type)
    if bits is None:
        if tensor.data_location == TensorProto.EXTERNAL:
            raise Invalid(
                f"{path}: tensor {_shown(tensor)} has type {tensor.data_type}, which can not be "
                "imported",
                param="model",
            )
        return 0
    if any(length < 0 for length in tensor.dims):
        raise _damaged(path, f"tensor {_shown(tensor)} has a negative length")
    return int(-(-math.prod(tensor.dims) * bits // 8))


def _names(model: onnx.ModelProto) -> Iterable[object]:
    """All that ought to be text; protobuf gives bytes where it is not."""
    graph = model.graph
    for opset in model.opset_import:
        yield opset.domain
    for value in (*graph.input, *graph.output):
        yield value.name
    for tensor in all_tensors(model):
        yield tensor.name
        for entry in tensor.external_data:
            yield entry.key
            yield entry.value
    for nodes in (graph.node, *(function.node for function in model.functions)):
        for node in nodes:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise ModelIncomplete(f"{path} is missing, or no file; {_REMEDY}", param="model")
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise _damaged(path, f"{size} bytes are more than a graph file can have")
        model = onnx.load_model_from_string(path.read_bytes())
    except (DecodeError, ValueError) as error:
        raise _damaged(path, f"it is no ONNX graph or cut short ({error})") from error
    if not model.graph.node or not model.graph.output:
        raise _damaged(path, "it holds no graph")
    return model


def _check_external(path: Path, tensor: TensorProto, data: dict[str, Path]) -> None:
    place = {entry.key: entry.value for entry in tensor.external_data}
    location = place.get("location", "")
    if location not in data:
        data[location] = _data_file(path, location)
    file, wanted = data[location], tensor_bytes(path, tensor)
    try:
        offset = int(place.get("offset", "0"))
        length = int(place.get("length", str(wanted)))
    except ValueError:
        raise _damaged(path, f"tensor {_shown(tensor)} has no usable place") from None
    _check_length(path, tensor, length)
    size = file.stat().st_size
    if offset < 0 or offset + length > size:
        raise ModelIncomplete(
            f"{file} has {size} bytes and tensor {_shown(tensor)} of {path.name} ends at "
            f"{offset + length}; {_REMEDY}",
            param="model",
        )


def _data_file(path: Path, location: str) -> Path:
    """The file of a location, which must lie beside the graph or below it."""
    parts = PurePosixPath(location).parts
    if not parts or location.startswith("/") or ".." in parts:
        raise _damaged(path, f"its weights lie outside its folder ({location[:80]!r})")
    file = path.parent / location
    if not file.is_file():
        raise ModelIncomplete(
            f"{file} is missing, which has weights of {path.name}; {_REMEDY}", param="model"
        )
    return file


def _check_length(path: Path, tensor: TensorProto, length: int) -> None:
    wanted = tensor_bytes(path, tensor)
    if wanted != length and tensor.data_type in _BITS:
        dims = "x".join(str(dim) for dim in tensor.dims[:8])
        raise _damaged(
            path, f"tensor {_shown(tensor)} ({dims}) needs {wanted} bytes and has {length}"
        )


def _check_typed(path: Path, tensor: TensorProto) -> None:
    """Values that are listed one by one, where 4-bit ones may lie two in one."""
    tensor_bytes(path, tensor)
    stored = sum(
        len(values)
        for values in (
            tensor.float_data,
            tensor.int32_data,
            tensor.int64_data,
            tensor.double_data,
            tensor.uint64_data,
            tensor.string_data,
        )
    )
    if math.prod(tensor.dims) > 2 * stored:
        raise _damaged(path, f"tensor {_shown(tensor)} has {stored} values, fewer than it says")


def _shown(tensor: TensorProto) -> str:
    return tensor.name[:80] or "without a name"


def _damaged(path: Path, fact: str) -> ModelIncomplete:
    return ModelIncomplete(f"{path} can not be used: {fact}; {_REMEDY}", param="model")
