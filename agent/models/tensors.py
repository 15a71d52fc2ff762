"""The external data file of a model folder, and a graph builder that writes it.

One walk makes two graphs. They differ in the type of their floating-point tensors: float32 for CPU,
float16 for CUDA. Quantised bytes and integers are written once and both graphs point at them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from agent.models.blocks import ByteArray, FloatArray
from agent.models.graph_values import order_weights

#: Domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
#: Tensors start on a page, so that they can be mapped.
ALIGNMENT = 4096
#: Smaller tensors stay in the graph file.
INLINE_BYTES = 1024
_COPIED_BYTES = 1 << 20
OPSET = 21
IR_VERSION = 10


class FloatTensors(Protocol):
    """Named float32 tensors, such as a file of weights has."""

    def floats(self, name: str) -> FloatArray: ...


class Precision(Enum):
    """Type of a graph's floating-point tensors."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"

    @property
    def onnx_type(self) -> int:
        """The element type in ONNX."""
        return int(TensorProto.FLOAT if self is Precision.FLOAT32 else TensorProto.FLOAT16)


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the data file, in bytes."""

    offset: int
    length: int


class TensorFile:
    """Writes tensors one after another, each on its own page. Owns the open file."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file = path.open("wb")
        self._end = 0

    def put(self, array: npt.NDArray[Any]) -> Span:
        """Append a tensor's bytes."""
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        self._file.seek(start)
        self._file.write(np.ascontiguousarray(array).data)
        self._end = start + array.nbytes
        return Span(start, array.nbytes)

    def copy(self, source: BinaryIO, span: Span) -> Span:
        """Append a stretch of another file, a piece at a time."""
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        self._file.seek(start)
        source.seek(span.offset)
        left = span.length
        while left:
            piece = source.read(min(left, _COPIED_BYTES))
            if not piece:
                raise OSError(errno.EIO, "the file ended while it was copied", source.name)
            self._file.write(piece)
            left -= len(piece)
        self._end = start + span.length
        return Span(start, span.length)

    def point(self, tensor: TensorProto, span: Span) -> None:
        """Have a tensor without values find them in this file."""
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (
            ("location", self.name),
            ("offset", str(span.offset)),
            ("length", str(span.length)),
        ):
            tensor.external_data.add(key=key, value=value)

    def close(self) -> None:
        """Make the file durable and close it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class GraphBuilder:
    """Nodes and tensors of a graph in one or two precisions.

    Every method that adds something returns the name of what it added. Names are unique.
    """

    def __init__(self, file: TensorFile, precisions: Sequence[Precision]) -> None:
        self.precisions = tuple(precisions)
        self._file = file
        self._nodes: dict[Precision, list[onnx.NodeProto]] = {p: [] for p in precisions}
        self._tensors: dict[Precision, list[TensorProto]] = {p: [] for p in precisions}
        self._spans: dict[str, Span] = {}
        self._integers: set[str] = set()

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | str,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Add an operator; gives the name of its first output.

        An attribute that is a mapping from precision has its own value in each graph.
        """
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        for precision, nodes in self._nodes.items():
            values = {
                key: value[precision] if isinstance(value, Mapping) else value
                for key, value in attributes.items()
            }
            label = f"{names[0]}.{kind}"
            nodes.append(
                helper.make_node(kind, list(inputs), names, name=label, domain=domain, **values)
            )
        return names[0]

    def integers(self, name: str, values: Sequence[int] | int) -> str:
        """Add a small int64 tensor (a scalar for a plain int); the same name again is no error."""
        if name not in self._integers:
            self._add(name, np.array(values, np.int64), TensorProto.INT64, self.precisions)
            self._integers.add(name)
        return name

    def quantised(self, name: str, array: ByteArray, same_bytes_as: str | None = None) -> str:
        """Add packed integers, or a second view of the bytes of another tensor."""
        shared = self._spans.get(same_bytes_as or "")
        span = self._add(name, array, TensorProto.UINT8, self.precisions, shared)
        if span is not None:
            self._spans[name] = span
        return name

    def floats(self, name: str, array: FloatArray, *, wide: bool = False) -> str:
        """Add a floating-point tensor, once in each precision; a wide one is float32 in all."""
        if wide:
            cast = np.ascontiguousarray(array, np.float32)
            self._add(name, cast, TensorProto.FLOAT, self.precisions)
            return name
        for precision in self.precisions:
            cast = np.ascontiguousarray(array, dtype=precision.value)
            self._add(name, cast, precision.onnx_type, (precision,))
        return name

    def _add(
        self,
        name: str,
        array: npt.NDArray[Any],
        kind: int,
        precisions: Sequence[Precision],
        span: Span | None = None,
    ) -> Span | None:
        """Add a tensor to the graphs of `precisions`; gives its place if it has one."""
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
        if array.nbytes <= INLINE_BYTES:
            tensor.raw_data = array.tobytes()
        else:
            span = span or self._file.put(array)
            self._file.point(tensor, span)
        for precision in precisions:
            self._tensors[precision].append(tensor)
        return span

    def save(
        self,
        path: Path,
        precision: Precision,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        *,
        title: str = "decoder",
        by_use: bool = False,
    ) -> None:
        """Write the graph of one precision, durably.

        Args:
            title: its name in the file.
            by_use: weights are listed as nodes first read them, else as they were added.
        """
        graph = helper.make_graph(
            self._nodes[precision],
            title,
            list(inputs),
            list(outputs),
            self._tensors[precision],
        )
        model = helper.make_model(
            graph,
            producer_name="superfluid",
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
            ir_version=IR_VERSION,
        )
        if by_use:
            order_weights(model.graph)
        with path.open("wb") as file:
            file.write(model.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
