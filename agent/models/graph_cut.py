"""Cuts a whole model's graph into that of a range of layers.

Between two layers there is one node, the *joint*, that adds what a layer gives to the residual
stream: an Add, or a SkipSimplifiedLayerNormalization that norms the sum too. Everything behind it
comes from before only through it. The stage before the joint gives the sum of its two addends as
`hidden_out`; the stage behind keeps the joint and feeds it `x - x` and `x`, `x` being `hidden_in`,
so that the same kernel computes the same bits as in the whole graph.

No weight is looked at: tensors with values in other files keep their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from agent.models.graph_values import GraphValues, order_weights
from agent.models.stages import LayerRange
from bus.errors import Invalid

_JOINTS = ("SkipSimplifiedLayerNormalization", "Add")
#: What every stage is fed beside ids or hidden states and its cache.
_LENGTHS = ("seqlens_k", "total_sequence_length")
#: Operators whose first input is not of the type of what they give.
_TYPED_BY = {"GatherBlockQuantized": 2}
#: A later stage asks the hidden state where the graph asks how many ids there are.
_IDS, _HIDDEN = "input_ids", "hidden_in"
_LENGTHS_START, _LENGTHS_END = "superfluid.lengths.start", "superfluid.lengths.end"
_REMEDY = "import the model's GGUF file, whose graph can be cut, and split that"


@dataclass(frozen=True, slots=True)
class _Joint:
    """Where a graph is cut: the place of the node, and its two addends that are computed."""

    place: int
    addends: tuple[str, str]


class GraphCutter:
    """Cuts stages out of one graph of `agent.models.graph`'s signature.

    Args:
        model: a whole model's graph; not changed.
        layers: how many it has.
        hidden: width of hidden states.
    """

    def __init__(self, model: onnx.ModelProto, layers: int, hidden: int) -> None:
        self._model = model
        self._layers = layers
        self._hidden = hidden
        self._values = GraphValues(model.graph)
        self._node_list = list(model.graph.node)
        self._given = {value.name: value for value in model.graph.input}
        self._results = {value.name: value for value in model.graph.output}
        self._joints: dict[int, _Joint] = {}

    def cut(self, part: LayerRange) -> onnx.ModelProto:
        """The graph of a range of layers.

        Raises:
            Invalid: there is no joint where it begins or ends.
        """
        opening = self._joint(part.first) if part.first else None
        closing = self._joint(part.end) if part.end < self._layers else None
        cache = [f"{layer}.{side}" for layer in range(part.first, part.end) for side in "kv"]
        results = [f"present.{name}" for name in cache]
        needed = self._behind([*results, *(closing.addends if closing else ["logits"])], opening)
        nodes = self._copies(needed, opening)
        if closing is not None:
            nodes.append(_node("Add", closing.addends, "hidden_out"))
        inputs = [*self._inputs(opening, closing), *(self._given[f"past.{n}"] for n in cache)]
        first = self._results["logits"] if closing is None else self._value("hidden_out", closing)
        return self._wrapped(nodes, inputs, [first, *(self._results[name] for name in results)])

    def _inputs(self, opening: _Joint | None, closing: _Joint | None) -> Iterator[ValueInfoProto]:
        """What comes before the cache among a stage's inputs."""
        yield self._given[_IDS] if opening is None else self._value(_HIDDEN, opening)
        for name in (*_LENGTHS, *["logits_idx"] * (closing is None)):
            yield self._given[name]

    # --- joints -----------------------------------------------------------------------------------

    def _joint(self, layer: int) -> _Joint:
        """The joint before a layer.

        Raises:
            Invalid: there is none.
        """
        if layer not in self._joints:
            self._joints[layer] = self._find_joint(layer)
        return self._joints[layer]

    def _find_joint(self, layer: int) -> _Joint:
        before, behind = (self._values.order[f"present.{n}.k"] for n in (layer - 1, layer))
        sides = [f"{n}.{side}" for n in range(layer, self._layers) for side in "kv"]
        results = [*(f"present.{side}" for side in sides), "logits"]
        allowed = {*_LENGTHS, "logits_idx", *(f"past.{side}" for side in sides)}
        for place in reversed(range(before + 1, behind)):
            joint = self._as_joint(place)
            if joint is not None and self._fed(results, joint) <= allowed:
                return joint
        raise Invalid(
            f"its graph can not be cut before layer {layer}: not everything behind comes from one "
            f"hidden state; {_REMEDY}",
            param="model",
        )

    def _as_joint(self, place: int) -> _Joint | None:
        """A node as a joint, if it adds two values that are computed."""
        node = self._node_list[place]
        if node.op_type not in _JOINTS:
            return None
        first, second = node.input[:2]
        if first == second or {first, second} & self._values.constant:
            return None
        return _Joint(place, (first, second))

    def _fed(self, results: Sequence[str], joint: _Joint) -> set[str]:
        """Inputs of the graph that results need beside the hidden state and its lengths."""
        read: set[str] = set()
        for place in self._behind(results, joint):
            node = self._node_list[place]
            if not _asks_lengths(node):
                read |= {*node.input} - {*(joint.addends if place == joint.place else ())}
        return read & self._given.keys()

    def _behind(self, results: Sequence[str], joint: _Joint | None) -> set[int]:
        """Places of the nodes that give results from what a joint is fed, the joint among them."""
        values, needed, open_values = self._values, set[int](), list(results)
        while open_values:
            place = values.order.get(open_values.pop())
            if place is None or place in needed:
                continue
            needed.add(place)
            fed = ("", *joint.addends) if joint is not None and place == joint.place else ("",)
            open_values += [name for name in self._node_list[place].input if name not in fed]
        return needed

    # --- what a stage is made of ------------------------------------------------------------------

    def _copies(self, needed: set[int], opening: _Joint | None) -> list[NodeProto]:
        """The nodes of a stage, the joint fed with the hidden state."""
        nodes: list[NodeProto] = []
        for place in sorted(needed):
            node = NodeProto()
            node.CopyFrom(self._node_list[place])
            if opening is not None and _asks_lengths(node):
                nodes += _hidden_lengths(node.output[0])
                continue
            if opening is not None and place == opening.place:
                zero = f"{node.output[0]}.zero"
                nodes.append(_node("Sub", [_HIDDEN, _HIDDEN], zero))
                node.input[0], node.input[1] = zero, _HIDDEN
            nodes.append(node)
        return nodes

    def _value(self, name: str, joint: _Joint) -> ValueInfoProto:
        """The hidden state that goes through a joint."""
        kind = self._type(joint.addends[0])
        return helper.make_tensor_value_info(name, kind, ["B", "S", self._hidden])

    def _type(self, name: str) -> int:
        """Element type of a computed value: of the nearest value before it that says one."""
        values = self._values
        while name not in values.weights and name not in self._given:
            node = values.makers[name]
            for said in node.attribute:
                if node.op_type == "Cast" and said.name == "to":
                    return int(said.i)
                if node.op_type == "Constant" and said.HasField("t"):
                    return int(said.t.data_type)
            name = node.input[_TYPED_BY.get(node.op_type, 0)]
        if name in values.weights:
            return int(values.weights[name].data_type)
        return int(self._given[name].type.tensor_type.elem_type)

    def _wrapped(
        self,
        nodes: Sequence[NodeProto],
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
    ) -> onnx.ModelProto:
        """A graph of these, with the weights that they read and all else of the whole model."""
        read = {name for node in nodes for name in node.input}
        weights = [weight for weight in self._model.graph.initializer if weight.name in read]
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.CopyFrom(helper.make_graph(nodes, model.graph.name, inputs, outputs, weights))
        if _LENGTHS_END in read:
            model.graph.initializer.extend(
                helper.make_tensor(name, TensorProto.INT64, [1], [number])
                for name, number in ((_LENGTHS_START, 0), (_LENGTHS_END, 2))
            )
        order_weights(model.graph)
        return model


def _asks_lengths(node: NodeProto) -> bool:
    """Whether a node asks how many rows and positions of ids there are."""
    return node.op_type == "Shape" and node.input[0] == _IDS and not node.attribute


def _hidden_lengths(output: str) -> list[NodeProto]:
    """The first two lengths of the hidden state, which are those of the ids."""
    shape = f"{output}.hidden"
    slicing = [shape, _LENGTHS_START, _LENGTHS_END]
    return [_node("Shape", [_HIDDEN], shape), _node("Slice", slicing, output)]


def _node(kind: str, inputs: Sequence[str], output: str) -> NodeProto:
    return helper.make_node(kind, list(inputs), [output], name=f"{output}.{kind}", domain="")
