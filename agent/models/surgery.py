"""Rewrites a graph that others made into the signature of `agent.models.graph`.

Such graphs take `attention_mask`, `position_ids` and a cache under names of their own, and give
logits of all positions. Their GroupQueryAttention nodes already do what an engine here needs: they
write into the cache's memory and are told how much of it counts. So the lengths are handed to them
directly, positions that the graph wants elsewhere are computed from the lengths, the cache gets
our names, and what only served the mask is swept out. No weight is touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto, helper

from agent.models.foreign_files import Figures
from agent.models.graph_values import GraphValues, attribute, check_plain, rename, sweep
from agent.models.head_rows import take_rows
from bus.errors import Invalid, ModelIncomplete

_ATTENTION = "GroupQueryAttention"
#: Places among that operator's inputs.
_PAST_KEY, _PAST_VALUE, _LENGTHS, _TOTAL, _COSINES = 3, 4, 5, 6, 7
#: Inputs that say how many rows of logits to give, 0 for all.
_KEEP = ("num_logits_to_keep", "logits_to_keep")
_POSITIONS = "position_ids"
_OURS = re.compile(
    r"(seqlens_k|total_sequence_length|logits_idx|logits|(past|present)\.\d+\.[kv]|superfluid\..*)\Z"
)
#: The first that has axes as inputs, as the nodes that are added do.
_LEAST_OPSET = 13
_OTHER_ATTENTION = ("MultiHeadAttention", "Attention", "PagedAttention", "SparseAttention")
_REMEDY = (
    "take a folder that onnxruntime-genai's model builder made or one of onnx-community's, or "
    "import the model's GGUF file"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A graph in our signature, and what was found on the way.

    Attributes:
        inputs: names of its inputs.
        float16: whether the cache, and so the whole graph, is float16.
        window: tokens that its rotary tables are long enough for, if it has any.
        head_cut: whether the vocabulary product runs on the rows asked for only.
        changes: for people.
    """

    inputs: tuple[str, ...]
    float16: bool
    window: int
    head_cut: bool
    changes: tuple[str, ...]


def rewrite(model: onnx.ModelProto, figures: Figures, *, logits: str = "logits") -> Rewritten:
    """Rewrite `model` in place.

    Args:
        figures: checked against the graph.
        logits: name of the output with the logits.

    Raises:
        Invalid: a graph that can not be served; says why and what can.
        ModelIncomplete: graph and configuration are not of one model.
    """
    return _Surgery(model, figures, logits).operate()


class _Surgery:
    """One graph being rewritten."""

    def __init__(self, model: onnx.ModelProto, figures: Figures, logits: str) -> None:
        self._model = model
        self._graph = model.graph
        self._figures = figures
        self._given = {value.name: value for value in self._graph.input}
        weights = {tensor.name for tensor in self._graph.initializer}
        for name in weights & set(self._given):
            del self._given[name]
        self._logits = next((o.name for o in self._graph.output if o.name == logits), None)
        self._changes: list[str] = []

    def operate(self) -> Rewritten:
        """All of it, in order."""
        self._check_operators()
        layers = self._layers()
        float16 = self._cache_type(layers)
        self._rename(layers)
        self._feed_lengths(layers)
        head_cut = self._take_rows()
        self._rim(layers, float16)
        sweep(self._graph)
        check_plain(self._graph.node)
        self._feed_others()
        return Rewritten(
            inputs=tuple(value.name for value in self._graph.input),
            float16=float16,
            window=self._window(),
            head_cut=head_cut,
            changes=tuple(self._changes),
        )

    def _check_operators(self) -> None:
        opset = max((o.version for o in self._model.opset_import if not o.domain), default=0)
        if opset < _LEAST_OPSET:
            raise Invalid(
                f"its graph is of opset {opset} and {_LEAST_OPSET} is the least that can be "
                f"imported; {_REMEDY}",
                param="model",
            )
        if "logits_idx" in self._given:
            raise Invalid(
                "its graph is one that this program made, without the superfluid.json beside it; "
                "import its source again",
                param="model",
            )
        if self._logits is None:
            outputs = ", ".join(value.name for value in self._graph.output[:3])
            raise Invalid(
                f"its graph gives no logits (it gives {outputs}); {_REMEDY}", param="model"
            )
        if not any(node.op_type == _ATTENTION for node in self._graph.node):
            kinds = {node.op_type for node in self._graph.node} & {*_OTHER_ATTENTION}
            has = f" but {', '.join(sorted(kinds))}" if kinds else ""
            raise Invalid(
                f"its graph has no {_ATTENTION}{has}: its cache grows by a copy with every token, "
                f"and many requests can not share one in place; {_REMEDY}",
                param="model",
            )

    def _layers(self) -> list[NodeProto]:
        """The attention nodes by layer, each with its own cache in and out."""
        outputs = {value.name for value in self._graph.output}
        by_number: dict[int, NodeProto] = {}
        for node in self._graph.node:
            if node.op_type != _ATTENTION:
                continue
            inputs = [*node.input, *[""] * 12]
            cache = [*inputs[_PAST_KEY : _PAST_VALUE + 1], *node.output[1:3]]
            direct = set(cache[:2]) <= set(self._given) and set(cache[2:]) <= outputs
            if len(cache) != 4 or not direct:
                raise Invalid(
                    f"an attention of its graph ({node.name[:60]}) does not take its cache from an "
                    f"input and give it to an output, so it can not be kept in place; {_REMEDY}",
                    param="model",
                )
            if inputs[10]:
                raise Invalid(
                    f"an attention of its graph ({node.name[:60]}) takes a bias made of the mask, "
                    f"which is not known here; {_REMEDY}",
                    param="model",
                )
            numbers = re.findall(r"\d+", cache[0])
            by_number[int(numbers[-1]) if numbers else len(by_number)] = node
        self._check_figures(list(by_number.values()))
        return [by_number[number] for number in sorted(by_number)]

    def _check_figures(self, nodes: list[NodeProto]) -> None:
        figures = self._figures
        found = {"layers": (len(nodes), figures.layers)}
        for node in nodes:
            found |= {
                "heads": (attribute(node, "num_heads", 0), figures.heads),
                "heads of keys": (attribute(node, "kv_num_heads", 0), figures.kv_heads),
            }
            for name in node.input[_PAST_KEY : _PAST_VALUE + 1]:
                shape = _dims(self._given[name])
                if len(shape) == 4:
                    found["heads in the cache"] = (shape[1] or figures.kv_heads, figures.kv_heads)
                    found["head's width"] = (shape[3] or figures.head_dim, figures.head_dim)
            self._compare(found)
        shape = _dims(next(o for o in self._graph.output if o.name == self._logits))
        if shape and shape[-1]:
            self._compare({"vocabulary": (shape[-1], figures.vocab)})

    def _compare(self, found: dict[str, tuple[int, int]]) -> None:
        for what, (here, said) in found.items():
            if here != said:
                raise ModelIncomplete(
                    f"its configuration says {said} for the {what} and its graph has {here}; they "
                    "are not of one model: download the folder again",
                    param="model",
                )

    def _cache_type(self, layers: list[NodeProto]) -> bool:
        """Whether the cache is float16; nothing but that and float32 is served."""
        names = [name for node in layers for name in node.input[_PAST_KEY : _PAST_VALUE + 1]]
        kinds = {self._given[name].type.tensor_type.elem_type for name in names}
        if kinds not in ({TensorProto.FLOAT}, {TensorProto.FLOAT16}):
            known = {str(TensorProto.DataType.Name(kind)).lower() for kind in kinds}
            raise Invalid(
                f"its graph keeps its cache as {' and '.join(sorted(known))}, and float32 and "
                "float16 are served; take another variant",
                param="model",
            )
        return kinds == {TensorProto.FLOAT16}

    def _rename(self, layers: list[NodeProto]) -> None:
        """Give the cache our names, and whatever else has one of ours another."""
        names = {}
        for layer, node in enumerate(layers):
            for part, past, present in zip("kv", node.input[3:5], node.output[1:3], strict=True):
                names[past] = f"past.{layer}.{part}"
                names[present] = f"present.{layer}.{part}"

        def new_name(name: str) -> str:
            own = f"imported.{name}" if _OURS.match(name) else name
            return names.get(name, own)

        rename(self._graph, new_name)
        self._given = {new_name(name): value for name, value in self._given.items()}
        self._logits = new_name(self._logits or "")
        self._changes.append(f"the cache of {len(layers)} layers is named past.N.k and past.N.v")

    def _feed_lengths(self, layers: list[NodeProto]) -> None:
        for node in layers:
            node.input[_LENGTHS] = "seqlens_k"
            node.input[_TOTAL] = "total_sequence_length"
        self._changes.append("attention is told lengths and no mask")

    def _take_rows(self) -> bool:
        for name in set(_KEEP) & set(self._given):
            shape = [1] * len(_dims(self._given[name]))
            kind = self._given[name].type.tensor_type.elem_type
            self._graph.initializer.append(helper.make_tensor(name, kind, shape, [0]))
        del self._graph.output[:]
        cut = take_rows(
            GraphValues(self._graph),
            self._logits or "",
            hidden=self._figures.hidden,
            vocab=self._figures.vocab,
        )
        where = "computed for the rows asked for" if cut else "computed for all and then taken"
        self._changes.append(f"logits are {where}")
        return cut

    def _rim(self, layers: list[NodeProto], float16: bool) -> None:
        """Our inputs and outputs; the source's are looked at once more in `_feed_others`."""
        figures, value = self._figures, helper.make_tensor_value_info
        kind = TensorProto.FLOAT16 if float16 else TensorProto.FLOAT
        shape = ["B", figures.kv_heads, "M", figures.head_dim]
        names = [f"{layer}.{part}" for layer in range(len(layers)) for part in "kv"]
        ids = self._given.get("input_ids")
        if ids is None:
            raise Invalid(f"its graph does not take input_ids; {_REMEDY}", param="model")
        if ids.type.tensor_type.elem_type == TensorProto.INT32:
            self._narrow_ids()
        del self._graph.input[:]
        self._graph.input.extend(
            [
                value("input_ids", TensorProto.INT64, ["B", "S"]),
                value("seqlens_k", TensorProto.INT32, ["B"]),
                value("total_sequence_length", TensorProto.INT32, []),
                value("logits_idx", TensorProto.INT64, ["R"]),
                *(value(f"past.{name}", kind, shape) for name in names),
            ]
        )
        self._graph.output.extend(
            [
                value("logits", TensorProto.FLOAT, ["R", figures.vocab]),
                *(value(f"present.{name}", kind, shape) for name in names),
            ]
        )

    def _narrow_ids(self) -> None:
        for node in self._graph.node:
            for place, name in enumerate(node.input):
                if name == "input_ids":
                    node.input[place] = "superfluid.ids"
        self._put_first(
            [helper.make_node("Cast", ["input_ids"], ["superfluid.ids"], to=TensorProto.INT32)]
        )

    def _feed_others(self) -> None:
        """Compute what the swept graph still wants of the source's inputs, or refuse it."""
        values = GraphValues(self._graph)
        ours = {value.name for value in self._graph.input}
        wanted = {name for node in self._graph.node for name in node.input if name}
        missing = wanted - ours - {*values.makers} - {*values.weights}
        for name in missing - {_POSITIONS}:
            reader = values.readers(name)[0]
            raise Invalid(
                f"its graph needs {name[:60]} for its {reader.op_type} ({reader.name[:60]}), which "
                f"can not be made from lengths; {_REMEDY}",
                param="model",
            )
        for name in (name for name in ours if name.startswith("past.")):
            if any(node.op_type != _ATTENTION for node in values.readers(name)):
                raise Invalid(
                    f"its graph looks at its cache outside of {_ATTENTION}; {_REMEDY}",
                    param="model",
                )
        if _POSITIONS in missing:
            self._feed_positions()

    def _feed_positions(self) -> None:
        """Positions `[B, S]`: a row's tokens after the run, less the run's, counted up."""
        given = self._given[_POSITIONS]
        kind = given.type.tensor_type.elem_type
        if len(_dims(given)) != 2:
            raise Invalid(
                f"its graph wants positions of {len(_dims(given))} dimensions, as models of images "
                f"do, which are not served; {_REMEDY}",
                param="model",
            )
        for name, number, shape in (("zero", 0, []), ("one", 1, []), ("ones", 1, [1])):
            self._constant(f"positions.{name}", number, shape)
        at = "superfluid.positions"
        steps: list[tuple[str, list[str], str, dict[str, int]]] = [
            ("Shape", ["input_ids"], f"{at}.shape", {}),
            ("Gather", [f"{at}.shape", f"{at}.one"], f"{at}.length", {"axis": 0}),
            ("Range", [f"{at}.zero", f"{at}.length", f"{at}.one"], f"{at}.count", {}),
            ("Cast", ["seqlens_k"], f"{at}.last", {"to": TensorProto.INT64}),
            ("Add", [f"{at}.last", f"{at}.ones"], f"{at}.tokens", {}),
            ("Sub", [f"{at}.tokens", f"{at}.length"], f"{at}.past", {}),
            ("Unsqueeze", [f"{at}.past", f"{at}.ones"], f"{at}.rows", {}),
            ("Add", [f"{at}.rows", f"{at}.count"], f"{at}.all", {}),
            ("Cast", [f"{at}.all"], _POSITIONS, {"to": kind}),
        ]
        self._put_first(
            [
                helper.make_node(op, inputs, [output], name=f"{output}.{op}", **values)
                for op, inputs, output, values in steps
            ]
        )
        self._changes.append("positions are computed from lengths")

    def _constant(self, name: str, number: int, shape: list[int]) -> None:
        self._graph.initializer.append(
            helper.make_tensor(f"superfluid.{name}", TensorProto.INT64, shape, [number])
        )

    def _put_first(self, nodes: Iterable[NodeProto]) -> None:
        for place, node in enumerate(nodes):
            self._graph.node.insert(place, node)

    def _window(self) -> int:
        """Tokens that the configuration and every rotary table allow."""
        values = GraphValues(self._graph)
        lengths = [self._figures.window]
        for node in self._graph.node:
            if node.op_type == _ATTENTION and attribute(node, "do_rotary", 0):
                tables = node.input[_COSINES : _COSINES + 2]
            elif node.op_type == "RotaryEmbedding" and node.domain:
                tables = node.input[2:4]
            else:
                continue
            lengths.extend(shape[0] for name in tables if (shape := values.shape(name)))
        return min(lengths)


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    """A value's lengths, 0 for those with a name."""
    return [int(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
