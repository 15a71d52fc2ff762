"""Who makes and who reads each value of an ONNX graph, for those who rewrite one.

Only the outermost graph is looked at: graphs with branches or loops are refused before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from bus.errors import Invalid


class GraphValues:
    """Looks values of a graph up. Call `refresh` after nodes were added or removed."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.refresh()

    def refresh(self) -> None:
        """Look at the graph again."""
        self.weights = {tensor.name: tensor for tensor in self.graph.initializer}
        self.makers: dict[str, NodeProto] = {}
        self.order: dict[str, int] = {}
        #: Values that depend on no input.
        self.constant = {*self.weights, ""}
        for place, node in enumerate(self.graph.node):
            known = all(name in self.constant for name in node.input)
            for name in node.output:
                self.makers[name] = node
                self.order[name] = place
                if known:
                    self.constant.add(name)

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes that take a value."""
        return [node for node in self.graph.node if name in node.input]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a constant; None when it is computed."""
        tensor = self._tensor(name)
        return None if tensor is None else tuple(tensor.dims)

    def integers(self, name: str) -> list[int] | None:
        """A small constant of integers, flat; None for anything else."""
        tensor = self._tensor(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        if tensor.data_type not in (TensorProto.INT64, TensorProto.INT32):
            return None
        return [int(value) for value in np.ravel(numpy_helper.to_array(tensor))[:16]]

    def _tensor(self, name: str) -> TensorProto | None:
        if name in self.weights:
            return self.weights[name]
        maker = self.makers.get(name)
        if maker is None or maker.op_type != "Constant":
            return None
        return next((a.t for a in maker.attribute if a.HasField("t")), None)

    def narrowing(self, name: str) -> Iterator[tuple[str, list[NodeProto]]]:
        """Values that all of `name` comes from, the nearest first.

        Each comes with the nodes between it and `name`: every way from the graph's inputs to `name`
        leads through it.
        """
        open_values, passed = {name}, list[NodeProto]()
        while True:
            latest = max(open_values, key=lambda value: self.order.get(value, -1))
            maker = self.makers.get(latest)
            if maker is None:
                return
            passed.append(maker)
            open_values -= set(maker.output)
            open_values |= {value for value in maker.input if value not in self.constant}
            if len(open_values) == 1:
                yield next(iter(open_values)), passed


def sweep(graph: onnx.GraphProto) -> None:
    """Remove the nodes and the weights that no output needs."""
    needed = {value.name for value in graph.output}
    for place in reversed(range(len(graph.node))):
        if needed.intersection(graph.node[place].output) - {""}:
            needed.update(graph.node[place].input)
        else:
            del graph.node[place]
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in needed:
            del graph.initializer[place]
    del graph.value_info[:]


def order_weights(graph: onnx.GraphProto) -> None:
    """Bring the weights into the order in which nodes first read them."""
    places: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            places.setdefault(name, len(places))
    graph.initializer.sort(key=lambda weight: places.get(weight.name, len(places)))


def rename(graph: onnx.GraphProto, new_name: Callable[[str], str]) -> None:
    """Give values other names, wherever they are named, and nodes whose names are theirs."""
    for node in graph.node:
        node.name = new_name(node.name)
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = new_name(name)
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new_name(value.name)


def attribute(node: NodeProto, name: str, default: int) -> int:
    """A whole number among a node's attributes."""
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def check_plain(nodes: Sequence[NodeProto]) -> None:
    """Refuse branches and loops, whose graphs would have to be rewritten too.

    Raises:
        Invalid: names the operator.
    """
    for node in nodes:
        if any(a.HasField("g") or len(a.graphs) for a in node.attribute):
            raise Invalid(
                f"its graph has an operator {node.op_type} with graphs of its own, which can not "
                "be imported; take a variant without, or import the model's GGUF file",
                param="model",
            )
