"""A decoder as an ONNX graph of ONNX Runtime's fused operators.

Per layer: RMS norm fused with the residual sum, one product for query, key and value,
GroupQueryAttention with rotation inside, the output product, norm and sum again, one product for
gate and up, SiLU, the down product. The vocabulary product runs only on the rows that the caller
asks logits of.

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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from agent.models.architecture import DecoderConfig, WeightSource, query_key_value
from agent.models.blocks import BlockWeight, FloatArray, Matrix, stack_rows
from agent.models.tensors import MICROSOFT, GraphBuilder, Precision, TensorFile

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers `first` up to, not including, `end`."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Numerics:
    """How products are computed on CPU.

    Attributes:
        accuracy_level: of MatMulNBits; 4 rounds activations to int8 blocks, 0 does not. CUDA has
            no such choice, and the float16 graph always has 0.
        dense_8bit: 8-bit weights as floating-point matrices.
    """

    accuracy_level: int
    dense_8bit: bool


#: int8 activations: llama.cpp's accuracy, and the fast path of CPUs.
INT8_ACTIVATIONS = Numerics(accuracy_level=4, dense_8bit=False)
#: float32 throughout.
EXACT = Numerics(accuracy_level=0, dense_8bit=True)


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
        self._weights = weights
        self._graph = builder
        self._layers = layers
        self._numerics = numerics
        self._block_sums: dict[tuple[str, int], str] = {}
        names = set(weights.names())
        self._tied = "output.weight" not in names
        self._rotary_factors = "rope_freqs.weight" in names

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
        self._rotary_tables()
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
            else value("hidden_in", precision.onnx_type, ["B", "S", self._config.hidden])
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
            else value("hidden_out", precision.onnx_type, ["B", "S", self._config.hidden])
        )
        return [last, *self._cache("present", precision)]

    def _cache(self, side: str, precision: Precision) -> list[onnx.ValueInfoProto]:
        shape = ["B", self._config.kv_heads, "M", self._config.head_dim]
        return [
            helper.make_tensor_value_info(f"{side}.{layer}.{part}", precision.onnx_type, shape)
            for layer in range(self._layers.first, self._layers.end)
            for part in "kv"
        ]

    def _rotary_tables(self) -> None:
        """Cosines and sines `[max_positions, head_dim / 2]`.

        Source: Su et al., "RoFormer" (arXiv:2104.09864), section 3.4.
        """
        config = self._config
        exponent = -np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
        frequency = config.rotary_base**exponent / config.rotary_scale
        if self._rotary_factors:
            frequency = frequency / self._weights.vector("rope_freqs.weight")
        angle = np.arange(config.max_positions, dtype=np.float64)[:, None] * frequency[None]
        self._graph.floats("rotary.cos", np.cos(angle).astype(np.float32))
        self._graph.floats("rotary.sin", np.sin(angle).astype(np.float32))

    def _embedding(self) -> str:
        table = self._weights.matrix("token_embd.weight")
        if not isinstance(table, BlockWeight):
            self._graph.floats("embedding.table", table)
            return self._graph.node("Gather", ["embedding.table", "input_ids"], "embedding")
        packed = table.packed().reshape(table.rows, -1)
        plain = self._graph.node(
            "GatherBlockQuantized",
            [
                self._graph.quantised("embedding.q", packed),
                "input_ids",
                self._graph.floats("embedding.scale", table.scale),
            ],
            "embedding.plain" if table.minimum is not None else "embedding",
            MICROSOFT,
            bits=table.bits,
            block_size=table.block_size,
            gather_axis=0,
            quantize_axis=1,
        )
        return plain if table.minimum is None else self._affine_embedding(plain, table)

    def _affine_embedding(self, plain: str, table: BlockWeight) -> str:
        """Add each block's correction to the gathered rows, which hold none."""
        graph = self._graph
        correction = table.correction()
        if correction is None:
            return plain
        graph.floats("embedding.correction", correction)
        rows = graph.node("Gather", ["embedding.correction", "input_ids"], "embedding.rows")
        last = graph.integers("axis.last", [-1])
        rows = graph.node("Unsqueeze", [rows, last], "embedding.rows.wide")
        apart = graph.integers("embedding.apart", [0, 0, -1, table.block_size])
        blocks = graph.node("Reshape", [plain, apart], "embedding.blocks")
        total = graph.node("Add", [blocks, rows], "embedding.total")
        return graph.node(
            "Reshape",
            [total, graph.integers("embedding.shape", [0, 0, table.columns])],
            "embedding",
        )

    def _layer(self, layer: int, branch: str | None, hidden: str) -> tuple[str, str]:
        """One layer; takes and gives the two addends of the residual stream."""
        source, tag = f"blk.{layer}.", f"layer.{layer}."
        norm = self._weights.vector(f"{source}attn_norm.weight")
        x, hidden = self._norm(branch, hidden, norm, f"{tag}attention_norm")
        attention = self._attention(x, layer)
        output = self._weights.matrix(f"{source}attn_output.weight")
        attention = self._linear(attention, output, f"{tag}output")
        norm = self._weights.vector(f"{source}ffn_norm.weight")
        x, hidden = self._norm(attention, hidden, norm, f"{tag}ffn_norm")
        gate, up = self._gate_and_up(x, source, tag)
        gate = self._graph.node("QuickGelu", [gate], f"{tag}silu", MICROSOFT, alpha=1.0)
        x = self._graph.node("Mul", [gate, up], f"{tag}gated")
        down = self._weights.matrix(f"{source}ffn_down.weight")
        return self._linear(x, down, f"{tag}down"), hidden

    def _norm(
        self, branch: str | None, hidden: str, weight: FloatArray, name: str
    ) -> tuple[str, str]:
        """RMS norm of `branch + hidden`; gives the norm and the sum.

        Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467).
        """
        graph, epsilon = self._graph, self._config.epsilon
        graph.floats(f"{name}.weight", weight)
        if branch is None and self.is_first:
            normed = graph.node(
                "SimplifiedLayerNormalization",
                [hidden, f"{name}.weight"],
                name,
                axis=-1,
                epsilon=epsilon,
                stash_type=1,
            )
            return normed, hidden
        if branch is None:
            # the kernel of the unsplit graph, so that stages are bit-equal to the whole
            branch = graph.node("Sub", [hidden, hidden], f"{name}.zero")
        graph.node(
            "SkipSimplifiedLayerNormalization",
            [branch, hidden, f"{name}.weight"],
            [name, "", "", f"{name}.sum"],
            MICROSOFT,
            epsilon=epsilon,
        )
        return name, f"{name}.sum"

    def _attention(self, x: str, layer: int) -> str:
        config, tag = self._config, f"layer.{layer}."
        parts = query_key_value(config, self._weights, f"blk.{layer}.")
        packed = stack_rows(parts)
        if packed is not None:
            projected = [self._linear(x, packed, f"{tag}qkv"), "", ""]
        else:
            projected = [
                self._linear(x, part, f"{tag}{name}")
                for part, name in zip(parts, ("query", "key", "value"), strict=True)
            ]
        cache = [f"past.{layer}.k", f"past.{layer}.v", "seqlens_k", "total_sequence_length"]
        return self._graph.node(
            "GroupQueryAttention",
            [*projected, *cache, "rotary.cos", "rotary.sin"],
            [f"{tag}attention", f"present.{layer}.k", f"present.{layer}.v"],
            MICROSOFT,
            num_heads=config.heads,
            kv_num_heads=config.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=float(config.head_dim**-0.5),
        )

    def _gate_and_up(self, x: str, source: str, tag: str) -> tuple[str, str]:
        parts = [self._weights.matrix(f"{source}ffn_{part}.weight") for part in ("gate", "up")]
        packed = stack_rows(parts)
        if packed is None:
            gate, up = (
                self._linear(x, part, f"{tag}{name}")
                for part, name in zip(parts, ("gate", "up"), strict=True)
            )
            return gate, up
        both = self._linear(x, packed, f"{tag}gate_up")
        sizes = self._graph.integers("ffn.sizes", [self._config.feed_forward] * 2)
        self._graph.node("Split", [both, sizes], [f"{tag}gate", f"{tag}up"], axis=-1)
        return f"{tag}gate", f"{tag}up"

    def _linear(self, x: str, weight: Matrix, name: str, same_bytes_as: str | None = None) -> str:
        """`x @ weight.T`."""
        graph = self._graph
        if isinstance(weight, BlockWeight) and weight.bits == 8 and self._numerics.dense_8bit:
            weight = weight.dequantize()
        if not isinstance(weight, BlockWeight):
            graph.floats(f"{name}.weight", np.ascontiguousarray(weight.T))
            return graph.node("MatMul", [x, f"{name}.weight"], name)
        correction = weight.correction()
        product = graph.node(
            "MatMulNBits",
            [
                x,
                graph.quantised(f"{name}.q", weight.packed(), same_bytes_as),
                graph.floats(f"{name}.scale", weight.scale),
            ],
            name if correction is None else f"{name}.plain",
            MICROSOFT,
            K=weight.columns,
            N=weight.rows,
            bits=weight.bits,
            block_size=weight.block_size,
            accuracy_level={
                Precision.FLOAT32: self._numerics.accuracy_level,
                Precision.FLOAT16: 0,
            },
        )
        if correction is None:
            return product
        graph.floats(f"{name}.correction", np.ascontiguousarray(correction.T))
        sums = self._block_sum(x, weight)
        extra = graph.node("MatMul", [sums, f"{name}.correction"], f"{name}.extra")
        return graph.node("Add", [product, extra], name)

    def _block_sum(self, x: str, weight: BlockWeight) -> str:
        """Sums of `x` over each block of columns, computed once per `x`."""
        graph, size = self._graph, weight.block_size
        if (x, size) not in self._block_sums:
            lead = [0] if x == "head.rows" else [0, 0]
            shape = graph.integers(f"blocks.{len(lead)}.{size}", [*lead, -1, size])
            apart = graph.node("Reshape", [x, shape], f"{x}.blocks.{size}")
            last = graph.integers("axis.last", [-1])
            self._block_sums[x, size] = graph.node(
                "ReduceSum", [apart, last], f"{x}.sums.{size}", keepdims=0
            )
        return self._block_sums[x, size]

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
        if shares and not isinstance(weight, BlockWeight):
            raw = graph.node("Gemm", [x, "embedding.table"], "head.logits", transB=1)
        else:
            raw = self._linear(x, weight, "head.logits", "embedding.q" if shares else None)
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
    tensors = TensorFile(folder / "model.onnx.data")
    try:
        builder = GraphBuilder(tensors, tuple(files))
        chosen = layers or LayerRange(0, config.layers)
        decoder = DecoderGraph(config, weights, builder, chosen, numerics)
        decoder.build(progress)
        for precision, name in files.items():
            builder.save(
                folder / name, precision, decoder.inputs(precision), decoder.outputs(precision)
            )
    finally:
        tensors.close()
    return [value.name for value in decoder.inputs(next(iter(files)))]
