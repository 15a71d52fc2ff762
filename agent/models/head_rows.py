"""Has a graph compute the vocabulary product only on the rows that are asked for.

The product is the last one before the logits. What it comes from is looked for from the logits
backwards: the nearest value that everything passes and that has a product behind it. Rows are
taken there, and the nodes behind it stay as they are; a graph in which no such value is found
computes all logits, and rows are taken of those.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto, helper

from agent.models.graph_values import GraphValues, attribute

_FLAT_PRODUCTS = frozenset(("Gemm", "GemmFastGelu"))
_PRODUCTS = _FLAT_PRODUCTS | frozenset(
    (
        "MatMul",
        "MatMulNBits",
        "MatMulBnb4",
        "MatMulFpQ4",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "FusedMatMul",
        "QLinearMatMul",
        "DynamicQuantizeMatMul",
    )
)
#: Operators that do to each row what they do to it, however many dimensions come before it.
_ROWWISE = (_PRODUCTS - _FLAT_PRODUCTS) | frozenset(
    ("Cast", "Identity", "Tanh", "Add", "Sub", "Mul", "Div", "DynamicQuantizeLinear")
)
#: Nodes to look at before giving up.
_FAR = 64


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where rows are taken.

    Attributes:
        value: `[B, S, hidden]`.
        behind: the nodes from it to the logits.
        feeds: the name that those nodes read: `value`, or what a selection of rows gave.
        flat: whether they expect `[rows, hidden]`.
    """

    value: str
    behind: list[NodeProto]
    feeds: str
    flat: bool


def take_rows(values: GraphValues, logits: str, *, hidden: int, vocab: int) -> bool:
    """Make `logits` `[R, vocab]` float32 of the rows in `logits_idx`.

    Args:
        values: of the graph, whose outputs no longer hold `logits`.
        logits: name of the value that is the logits of all positions, or of the last one.
        hidden: width of the values that the product takes.
        vocab: width of the logits.

    Returns:
        Whether the product runs on those rows only.
    """
    graph = values.graph
    while (maker := values.makers.get(logits)) and maker.op_type in ("Unsqueeze", "Identity"):
        logits = maker.input[0]
    cut = _find(values, logits)
    if cut is None:
        last = _add(graph, "Reshape", [logits, _integers(graph, "rows.vocab", [-1, vocab])], "all")
        _finish(graph, _add(graph, "Gather", [last, "logits_idx"], "rows", axis=0))
        return False
    rows = _cut_off(values, cut, hidden)
    taken = [node for node in values.graph.node if cut.feeds in node.input and node in cut.behind]
    plain = all(_is_rowwise(values, node) for node in cut.behind)
    if not plain and not cut.flat:
        rows = _add_before(
            graph, taken[0], "Unsqueeze", [rows, _integers(graph, "rows.one", [0])], "batch"
        )
    for node in taken:
        for place, name in enumerate(node.input):
            if name == cut.feeds:
                node.input[place] = rows
    if not plain:
        shape = _integers(graph, "rows.vocab", [-1, vocab])
        logits = _add(graph, "Reshape", [logits, shape], "rows")
    _finish(graph, logits)
    return True


def _find(values: GraphValues, logits: str) -> _Cut | None:
    for value, passed in values.narrowing(logits):
        if len(passed) > _FAR:
            return None
        if any(node.op_type in _PRODUCTS for node in passed):
            return _before_selection(values, _Cut(value, list(passed), value, _is_flat(passed)))
    return None


def _is_flat(passed: list[NodeProto]) -> bool:
    """Whether the product is of a kind that takes two dimensions only."""
    product = next(node for node in reversed(passed) if node.op_type in _PRODUCTS)
    return product.op_type in _FLAT_PRODUCTS


def _before_selection(values: GraphValues, cut: _Cut) -> _Cut:
    """The value of all positions, where the graph takes the last ones itself."""
    value, behind, found = cut.value, list(cut.behind), cut
    while maker := values.makers.get(value):
        if maker.op_type == "Gather" and attribute(maker, "axis", 0) == 1:
            shape = values.shape(maker.input[1])
            if shape is None:
                break
            found = _Cut(maker.input[0], list(behind), value, cut.flat or shape == ())
        elif maker.op_type == "Slice" and set(maker.input[1:]) <= values.constant:
            found = _Cut(maker.input[0], list(behind), value, cut.flat)
        elif maker.op_type not in ("Unsqueeze", "Cast", "Identity"):
            break
        behind.append(maker)
        value = maker.input[0]
    return found


def _is_rowwise(values: GraphValues, node: NodeProto) -> bool:
    """Whether a node gives `[R, n]` for `[R, m]` as it gives `[B, S, n]` for `[B, S, m]`."""
    if node.op_type not in _ROWWISE:
        return False
    shapes = [values.shape(name) for name in node.input if name in values.constant and name]
    if node.op_type in _PRODUCTS:
        return True
    return all(shape is not None and len(shape) <= 1 for shape in shapes)


def _cut_off(values: GraphValues, cut: _Cut, hidden: int) -> str:
    """Add the nodes that take rows of `cut.value`; gives their name, `[R, hidden]`."""
    graph = values.graph
    first = next(node for node in graph.node if node in cut.behind and cut.feeds in node.input)
    shape = _integers(graph, "rows.hidden", [-1, hidden])
    flat = _add_before(graph, first, "Reshape", [cut.value, shape], "all")
    return _add_before(graph, first, "Gather", [flat, "logits_idx"], "taken", axis=0)


def _finish(graph: onnx.GraphProto, logits: str) -> None:
    """Give the rows the name and the type that an engine binds."""
    _add(graph, "Cast", [logits], "", to=TensorProto.FLOAT)


def _add(graph: onnx.GraphProto, kind: str, inputs: list[str], name: str, **values: int) -> str:
    label = f"superfluid.{name or 'logits'}"
    output = label if name else "logits"
    graph.node.append(helper.make_node(kind, inputs, [output], name=f"{label}.{kind}", **values))
    return output


def _add_before(
    graph: onnx.GraphProto,
    node: NodeProto,
    kind: str,
    inputs: list[str],
    name: str,
    **values: int,
) -> str:
    output = _add(graph, kind, inputs, name, **values)
    made = graph.node.pop()
    graph.node.insert(list(graph.node).index(node), made)
    return output


def _integers(graph: onnx.GraphProto, name: str, numbers: list[int]) -> str:
    name = f"superfluid.{name}"
    graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers))
    return name
