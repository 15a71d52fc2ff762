"""A decoder as an ONNX graph of ONNX Runtime's fused operators.

Per layer: RMS norm fused with the residual sum, one product for query, key and value,
GroupQueryAttention with rotation inside, the output product, norm and sum again, one product for
gate and up, the activation, the down product; what a family does otherwise its row of
`ARCHITECTURES` says. The vocabulary product runs only on the rows that the caller asks logits of.

Inputs and outputs of a whole model (`R` rows of logits, `M` positions of the KV slab):

    input_ids              int64   [B, S]
    seqlens_k              int32   [B]      tokens of each row after this run, less one
    total_sequence_length  int32   []       the largest of them, not less one
    past.{i}.k, past.{i}.v float   [B, kv_heads, M, head_dim]
    logits_idx             int64   [R]      positions in the flattened [B * S]
    logits                 float32 [R, vocab]
    present.{i}.k, ...     float   [B, kv_heads, M, head_dim], bound to the memory of past

A stage (a range of layers) takes `hidden_in` instead of `input_ids` unless it is the first, and
gives `hidden_out` instead of `logits` unless it is the last.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from agent.models.architecture import Activation, DecoderConfig, WeightSource
from agent.models.attention import AttentionGraph
from agent.models.blocks import BlockWeight, FloatArray, stack_rows
from agent.models.embedding import EmbeddingGraph
from agent.models.folder import GRAPH_DATA
from agent.models.products import EXACT as EXACT
from agent.models.products import INT8_ACTIVATIONS as INT8_ACTIVATIONS
from agent.models.products import Numerics as Numerics
from agent.models.products import Products
from agent.models.stages import LayerRange as LayerRange
from agent.models.tensors import MICROSOFT, GraphBuilder, Precision, TensorFile

Progress = Callable[[int, int], None]


class DecoderGraph:
    """Builds the graph of a range of layers.

    Owns nothing but the walk: nodes and tensors go to the builder as they come, so that one
    tensor at a time is in memory.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: WeightSource,
        builder: GraphBuilder,
        layers: LayerRange,
        numerics: Numerics,
    ) -> None:
        self._config = config
        self._row = config.architecture
        self._weights = weights
        self._graph = builder
        self._layers = layers
        self._products = Products(builder, numerics)
        self._attention = AttentionGraph(config, weights, builder, self._products)
        self._tied = "output.weight" not in set(weights.names())

    @property
    def is_first(self) -> bool:
        """Whether this range embeds tokens."""
        return self._layers.first == 0

    @property
    def is_last(self) -> bool:
        """Whether this range ends in logits."""
        return self._layers.end == self._config.layers

    def build(self, progress: Progress) -> None:
        """Walk the layers. `progress(done, total)` counts layers."""
        total = self._layers.end - self._layers.first
        self._attention.rotary_tables(range(self._layers.first, self._layers.end))
        hidden = self._embedding() if self.is_first else "hidden_in"
        branch: str | None = None
        for layer in range(self._layers.first, self._layers.end):
            branch, hidden = self._layer(layer, branch, hidden)
            progress(layer + 1 - self._layers.first, total)
        if branch is None:
            raise ValueError("a range of layers has at least one layer")
        if self.is_last:
            self._head(branch, hidden)
        else:
            self._graph.node("Add", [branch, hidden], "hidden_out")

    def inputs(self, precision: Precision) -> list[onnx.ValueInfoProto]:
        """The graph's inputs, as the module's text lists them."""
        value = helper.make_tensor_value_info
        first = (
            value("input_ids", TensorProto.INT64, ["B", "S"])
            if self.is_first
            else value("hidden_in", self._hidden_type(precision), ["B", "S", self._config.hidden])
        )
        found = [
            first,
            value("seqlens_k", TensorProto.INT32, ["B"]),
            value("total_sequence_length", TensorProto.INT32, []),
        ]
        if self.is_last:
            found.append(value("logits_idx", TensorProto.INT64, ["R"]))
        return found + self._cache("past", precision)

    def outputs(self, precision: Precision) -> list[onnx.ValueInfoProto]:
        """The graph's outputs."""
        value = helper.make_tensor_value_info
        last = (
            value("logits", TensorProto.FLOAT, ["R", self._config.vocab])
            if self.is_last
            else value("hidden_out", self._hidden_type(precision), ["B", "S", self._config.hidden])
        )
        return [last, *self._cache("present", precision)]

    def _hidden_type(self, precision: Precision) -> int:
        return int(TensorProto.FLOAT) if self._row.wide_residual else precision.onnx_type

    def _cache(self, side: str, precision: Precision) -> list[onnx.ValueInfoProto]:
        shape = ["B", self._config.kv_heads, "M", self._config.head_dim]
        return [
            helper.make_tensor_value_info(f"{side}.{layer}.{part}", precision.onnx_type, shape)
            for layer in range(self._layers.first, self._layers.end)
            for part in "kv"
        ]

    def _embedding(self) -> str:
        table = self._weights.matrix("token_embd.weight")
        x = EmbeddingGraph(self._graph, wide=self._row.wide_residual).rows(table)
        if not self._row.scaled_embedding:
            return x
        root = np.array(self._config.hidden**0.5, np.float32)
        scale = self._graph.floats("embedding.length", root, wide=self._row.wide_residual)
        return self._graph.node("Mul", [x, scale], "embedding.scaled")

    def _layer(self, layer: int, branch: str | None, hidden: str) -> tuple[str, str]:
        """One layer; takes and gives the two addends of the residual stream."""
        source, tag = f"blk.{layer}.", f"layer.{layer}."
        norm = self._weights.vector(f"{source}attn_norm.weight")
        x, hidden = self._norm(branch, hidden, norm, f"{tag}attention_norm")
        attention = self._attention.layer(self._narrow(x), layer)
        output = self._weights.matrix(f"{source}attn_output.weight")
        attention = self._products.linear(attention, output, f"{tag}output")
        attention = self._branch_norm(attention, f"{source}post_attention_norm.weight")
        norm = self._weights.vector(f"{source}ffn_norm.weight")
        x, hidden = self._norm(attention, hidden, norm, f"{tag}ffn_norm")
        gate, up = self._gate_and_up(self._narrow(x), source, tag)
        x = self._graph.node("Mul", [self._activated(gate, tag), up], f"{tag}gated")
        down = self._weights.matrix(f"{source}ffn_down.weight")
        x = self._products.linear(x, down, f"{tag}down")
        return self._branch_norm(x, f"{source}post_ffw_norm.weight"), hidden

    def _activated(self, gate: str, tag: str) -> str:
        if self._row.activation is Activation.GELU_TANH:
            return self._graph.node("Gelu", [gate], f"{tag}gelu", approximate="tanh")
        return self._graph.node("QuickGelu", [gate], f"{tag}silu", MICROSOFT, alpha=1.0)

    def _narrow(self, x: str) -> str:
        """A value of the residual stream as the products take it."""
        if not self._row.wide_residual:
            return x
        types = {precision: precision.onnx_type for precision in self._graph.precisions}
        return self._graph.node("Cast", [x], f"{x}.narrow", to=types)

    def _widen(self, x: str) -> str:
        """What a product gives as the residual stream takes it."""
        if not self._row.wide_residual:
            return x
        return self._graph.node("Cast", [x], f"{x}.wide", to=TensorProto.FLOAT)

    def _branch_norm(self, x: str, source: str) -> str:
        """A branch before it is added: widened, and normed where the family does so."""
        x = self._widen(x)
        if not self._row.branch_norms:
            return x
        return self._plain_norm(x, self._weights.vector(source), f"{x}.normed")

    def _plain_norm(self, x: str, weight: FloatArray, name: str) -> str:
        """RMS norm.

        Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467).
        """
        return self._graph.node(
            "SimplifiedLayerNormalization",
            [x, self._graph.floats(f"{name}.weight", weight, wide=self._row.wide_residual)],
            name,
            axis=-1,
            epsilon=self._config.epsilon,
            stash_type=1,
        )

    def _norm(
        self, branch: str | None, hidden: str, weight: FloatArray, name: str
    ) -> tuple[str, str]:
        """RMS norm of `branch + hidden`; gives the norm and the sum."""
        graph = self._graph
        if branch is None and self.is_first:
            return self._plain_norm(hidden, weight, name), hidden
        if branch is None:
            # the kernel of the unsplit graph, so that stages are bit-equal to the whole
            branch = graph.node("Sub", [hidden, hidden], f"{name}.zero")
        graph.floats(f"{name}.weight", weight, wide=self._row.wide_residual)
        graph.node(
            "SkipSimplifiedLayerNormalization",
            [branch, hidden, f"{name}.weight"],
            [name, "", "", f"{name}.sum"],
            MICROSOFT,
            epsilon=self._config.epsilon,
        )
        return name, f"{name}.sum"

    def _gate_and_up(self, x: str, source: str, tag: str) -> tuple[str, str]:
        parts = [self._weights.matrix(f"{source}ffn_{part}.weight") for part in ("gate", "up")]
        packed = stack_rows(parts)
        if packed is None:
            gate, up = (
                self._products.linear(x, part, f"{tag}{name}")
                for part, name in zip(parts, ("gate", "up"), strict=True)
            )
            return gate, up
        both = self._products.linear(x, packed, f"{tag}gate_up")
        sizes = self._graph.integers("ffn.sizes", [self._config.feed_forward] * 2)
        self._graph.node("Split", [both, sizes], [f"{tag}gate", f"{tag}up"], axis=-1)
        return f"{tag}gate", f"{tag}up"

    def _head(self, branch: str, hidden: str) -> None:
        """The last norm, the rows asked for, and the vocabulary product."""
        graph = self._graph
        norm = self._weights.vector("output_norm.weight")
        x, _ = self._norm(branch, hidden, norm, "head.norm")
        flat = graph.integers("head.flat", [-1, self._config.hidden])
        x = graph.node("Reshape", [x, flat], "head.all")
        x = graph.node("Gather", [x, "logits_idx"], "head.rows", axis=0)
        name = "token_embd.weight" if self._tied else "output.weight"
        weight = self._weights.matrix(name)
        shares = self._tied and self.is_first
        if self._tied and not isinstance(weight, BlockWeight):
            if not shares:
                # the kernel of the unsplit graph, which multiplies with the embedding's rows
                graph.floats("embedding.table", weight, wide=self._row.wide_residual)
            raw = graph.node("Gemm", [x, "embedding.table"], "head.logits", transB=1)
        else:
            bytes_of = "embedding.q" if shares else None
            raw = self._products.linear(
                self._narrow(x), weight, "head.logits", same_bytes_as=bytes_of, rank=2
            )
        graph.node("Cast", [raw], "logits", to=TensorProto.FLOAT)


def write_graphs(
    folder: Path,
    config: DecoderConfig,
    weights: WeightSource,
    files: dict[Precision, str],
    *,
    numerics: Numerics = INT8_ACTIVATIONS,
    layers: LayerRange | None = None,
    progress: Progress = lambda done, total: None,
) -> list[str]:
    """Write the graphs and the data file that they share.

    Args:
        folder: where to; it exists.
        files: graph file name for each precision wanted.
        numerics: how CPU kernels compute.
        layers: a stage; the whole model by default.
        progress: told layers done and in all.

    Returns:
        The names of the graph's inputs.
    """
    tensors = TensorFile(folder / GRAPH_DATA)
    try:
        builder = GraphBuilder(tensors, tuple(files))
        chosen = layers or LayerRange(0, config.layers)
        decoder = DecoderGraph(config, weights, builder, chosen, numerics)
        decoder.build(progress)
        for precision, name in files.items():
            builder.save(
                folder / name,
                precision,
                decoder.inputs(precision),
                decoder.outputs(precision),
                by_use=layers is not None,
            )
    finally:
        tensors.close()
    return [value.name for value in decoder.inputs(next(iter(files)))]
