"""The attention of a layer: projections, norms of heads, rotation, and the cache.

GroupQueryAttention rotates, attends and keeps the cache; with a window it masks what lies further
back. Norms of heads are nodes of their own: the operator's inputs for them work on CUDA only, and
ONNX Runtime puts these nodes into it there.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agent.models.architecture import (
    DecoderConfig,
    WeightSource,
    query_key_value,
    query_key_value_biases,
)
from agent.models.blocks import stack_rows
from agent.models.products import Products
from agent.models.tensors import MICROSOFT, GraphBuilder

_PARTS = ("query", "key", "value")


class AttentionGraph:
    """Adds the attention of any layer to a graph."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: WeightSource,
        builder: GraphBuilder,
        products: Products,
    ) -> None:
        self._config = config
        self._weights = weights
        self._graph = builder
        self._products = products

    def rotary_tables(self, layers: Iterable[int]) -> None:
        """Add the cosines and sines that layers share, `[max_positions, head_dim / 2]`."""
        config = self._config
        factors = None
        if "rope_freqs.weight" in set(self._weights.names()):
            factors = self._weights.vector("rope_freqs.weight")
        kinds = [("rotary", config.rotary, factors)]
        if config.local_rotary is not None:
            kinds.append(("rotary.local", config.local_rotary, None))
        read = {self._tables(layer) for layer in layers}
        for name, rotary, its_factors in (kind for kind in kinds if kind[0] in read):
            cosines, sines = rotary.tables(config.head_dim, config.max_positions, its_factors)
            self._graph.floats(f"{name}.cos", cosines)
            self._graph.floats(f"{name}.sin", sines)

    def _tables(self, layer: int) -> str:
        """Which tables a layer rotates by."""
        own = self._config.local_rotary is not None and self._config.is_local(layer)
        return "rotary.local" if own else "rotary"

    def layer(self, x: str, layer: int) -> str:
        """Attention of a layer over `x`, `[B, S, heads * head_dim]`, before its output product."""
        config, tag = self._config, f"layer.{layer}."
        rotary = self._tables(layer)
        cache = [f"past.{layer}.k", f"past.{layer}.v", "seqlens_k", "total_sequence_length"]
        window = {"local_window_size": config.window} if config.is_local(layer) else {}
        return self._graph.node(
            "GroupQueryAttention",
            [*self._projected(x, layer), *cache, f"{rotary}.cos", f"{rotary}.sin"],
            [f"{tag}attention", f"present.{layer}.k", f"present.{layer}.v"],
            MICROSOFT,
            num_heads=config.heads,
            kv_num_heads=config.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=config.score_scale,
            **window,
        )

    def _projected(self, x: str, layer: int) -> list[str]:
        """Query, key and value; or all in one and two empty names."""
        config, tag = self._config, f"layer.{layer}."
        parts = query_key_value(config, self._weights, f"blk.{layer}.")
        biases = query_key_value_biases(config, self._weights, f"blk.{layer}.")
        packed = stack_rows(parts)
        if packed is None:
            projected = [
                self._products.linear(
                    x, part, f"{tag}{name}", bias=None if biases is None else biases[place]
                )
                for place, (part, name) in enumerate(zip(parts, _PARTS, strict=True))
            ]
        else:
            bias = None if biases is None else np.concatenate(biases)
            together = self._products.linear(x, packed, f"{tag}qkv", bias=bias)
            if not config.architecture.head_norms:
                return [together, "", ""]
            projected = self._apart(together, tag)
        if config.architecture.head_norms:
            projected[0] = self._head_norm(projected[0], layer, "q", config.heads)
            projected[1] = self._head_norm(projected[1], layer, "k", config.kv_heads)
        return projected

    def _apart(self, together: str, tag: str) -> list[str]:
        config = self._config
        heads = (config.heads, config.kv_heads, config.kv_heads)
        sizes = self._graph.integers("qkv.sizes", [count * config.head_dim for count in heads])
        names = [f"{tag}{name}" for name in _PARTS]
        self._graph.node("Split", [together, sizes], names, axis=-1)
        return names

    def _head_norm(self, x: str, layer: int, part: str, heads: int) -> str:
        """RMS norm of each head by itself."""
        graph, config, name = self._graph, self._config, f"layer.{layer}.{part}_norm"
        weight = self._weights.vector(f"blk.{layer}.attn_{part}_norm.weight")
        apart = graph.integers(f"{part}.heads", [0, 0, heads, config.head_dim])
        together = graph.integers(f"{part}.width", [0, 0, heads * config.head_dim])
        x = graph.node("Reshape", [x, apart], f"{name}.heads")
        x = graph.node(
            "SimplifiedLayerNormalization",
            [x, graph.floats(f"{name}.weight", weight)],
            f"{name}.normed",
            axis=-1,
            epsilon=config.epsilon,
            stash_type=1,
        )
        return graph.node("Reshape", [x, together], name)
