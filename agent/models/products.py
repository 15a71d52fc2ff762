"""Products with weight matrices, as the operators that ONNX Runtime is fast at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.models.blocks import BlockWeight, FloatArray, Matrix
from agent.models.tensors import MICROSOFT, GraphBuilder, Precision


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


class Products:
    """Adds products to a graph; what several of them need of one input is added once."""

    def __init__(self, builder: GraphBuilder, numerics: Numerics) -> None:
        self._graph = builder
        self._numerics = numerics
        self._block_sums: dict[tuple[str, int], str] = {}

    def linear(
        self,
        x: str,
        weight: Matrix,
        name: str,
        *,
        bias: FloatArray | None = None,
        same_bytes_as: str | None = None,
        rank: int = 3,
    ) -> str:
        """`x @ weight.T + bias`.

        Args:
            x: a node of `rank` dimensions, the last of them `weight.columns` long.
            weight: `[rows, columns]`.
            name: of the result.
            bias: `[rows]`.
            same_bytes_as: a quantised tensor that already holds the weight's integers.
            rank: how many dimensions `x` has.
        """
        if bias is None:
            return self._product(x, weight, name, same_bytes_as, rank)
        product = self._product(x, weight, f"{name}.product", same_bytes_as, rank)
        return self._graph.node("Add", [product, self._graph.floats(f"{name}.bias", bias)], name)

    def _product(
        self, x: str, weight: Matrix, name: str, same_bytes_as: str | None, rank: int
    ) -> str:
        graph = self._graph
        if isinstance(weight, BlockWeight) and weight.bits == 8 and self._numerics.dense_8bit:
            weight = weight.dequantize()
        if not isinstance(weight, BlockWeight):
            graph.floats(f"{name}.weight", np.ascontiguousarray(weight.T))
            return graph.node("MatMul", [x, f"{name}.weight"], name)
        correction = weight.correction()
        if correction is None:
            return self._blocks(x, weight, name, same_bytes_as)
        product = self._blocks(x, weight, name, same_bytes_as, f"{name}.plain")
        graph.floats(f"{name}.correction", np.ascontiguousarray(correction.T))
        sums = self._block_sum(x, weight, rank)
        extra = graph.node("MatMul", [sums, f"{name}.correction"], f"{name}.extra")
        return graph.node("Add", [product, extra], name)

    def _blocks(
        self,
        x: str,
        weight: BlockWeight,
        name: str,
        same_bytes_as: str | None,
        output: str | None = None,
    ) -> str:
        """The product with the integers and scales of a weight, without a minimum."""
        graph = self._graph
        return graph.node(
            "MatMulNBits",
            [
                x,
                graph.quantised(f"{name}.q", weight.packed(), same_bytes_as),
                graph.floats(f"{name}.scale", weight.scale),
            ],
            output or name,
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

    def _block_sum(self, x: str, weight: BlockWeight, rank: int) -> str:
        """Sums of `x` over each block of columns, computed once per `x`."""
        graph, size = self._graph, weight.block_size
        if (x, size) not in self._block_sums:
            lead = [0] * (rank - 1)
            shape = graph.integers(f"blocks.{len(lead)}.{size}", [*lead, -1, size])
            apart = graph.node("Reshape", [x, shape], f"{x}.blocks.{size}")
            last = graph.integers("axis.last", [-1])
            self._block_sums[x, size] = graph.node(
                "ReduceSum", [apart, last], f"{x}.sums.{size}", keepdims=0
            )
        return self._block_sums[x, size]
