"""Rows of the token embedding."""

from __future__ import annotations

from agent.models.blocks import BlockWeight, FloatArray, Matrix
from agent.models.tensors import MICROSOFT, GraphBuilder


class EmbeddingGraph:
    """Adds the look-up of `input_ids` to a graph.

    Args:
        builder: of the graph.
        wide: whether rows are float32 in the float16 graph too.
    """

    def __init__(self, builder: GraphBuilder, *, wide: bool) -> None:
        self._graph = builder
        self._wide = wide

    def rows(self, table: Matrix) -> str:
        """Rows `[B, S, hidden]` of a table `[vocab, hidden]`, named `embedding`."""
        if not isinstance(table, BlockWeight):
            self._floats("embedding.table", table)
            return self._graph.node("Gather", ["embedding.table", "input_ids"], "embedding")
        correction = table.correction()
        if correction is None:
            return self._blocks(table, "embedding")
        plain = self._blocks(table, "embedding.plain")
        return self._corrected(plain, table, correction)

    def _floats(self, name: str, array: FloatArray) -> str:
        return self._graph.floats(name, array, wide=self._wide)

    def _blocks(self, table: BlockWeight, output: str) -> str:
        packed = table.packed().reshape(table.rows, -1)
        return self._graph.node(
            "GatherBlockQuantized",
            [
                self._graph.quantised("embedding.q", packed),
                "input_ids",
                self._floats("embedding.scale", table.scale),
            ],
            output,
            MICROSOFT,
            bits=table.bits,
            block_size=table.block_size,
            gather_axis=0,
            quantize_axis=1,
        )

    def _corrected(self, plain: str, table: BlockWeight, correction: FloatArray) -> str:
        """Add each block's correction to the gathered rows, which hold none."""
        graph = self._graph
        self._floats("embedding.correction", correction)
        rows = graph.node("Gather", ["embedding.correction", "input_ids"], "embedding.rows")
        last = graph.integers("axis.last", [-1])
        rows = graph.node("Unsqueeze", [rows, last], "embedding.rows.wide")
        apart = graph.integers("embedding.apart", [0, 0, -1, table.block_size])
        blocks = graph.node("Reshape", [plain, apart], "embedding.blocks")
        total = graph.node("Add", [blocks, rows], "embedding.total")
        whole = graph.integers("embedding.shape", [0, 0, table.columns])
        return graph.node("Reshape", [total, whole], "embedding")
