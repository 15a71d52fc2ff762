"""A Whisper as two ONNX graphs: one hears a window, the other writes, a token a run.

The audio graph, once a window; it makes keys and values of what was heard for each text layer:

    mel                    float32 [batch, mels, 2 * positions]
    cross.{i}.k, .v        float32 [batch, heads, positions, head_dim]

The text graph; nothing is masked, since a run has one token and its past is all it may see:

    input_ids              int64   [batch, 1]
    position               int64   [1]
    past.{i}.k, .v         float32 [batch, heads, past, head_dim]
    cross.{i}.k, .v        as above
    logits                 float32 [batch, vocab]
    present.{i}.k, .v      float32 [batch, heads, past + 1, head_dim]

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv
2212.04356): pre-norm layers, GELU by the error function, two convolutions before the first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from agent.models.folder import AUDIO_GRAPH, GRAPH
from agent.models.tensors import MICROSOFT, FloatTensors, GraphBuilder, Precision, TensorFile
from agent.models.whisper_config import WhisperConfig

Progress = Callable[[int, int], None]

_EPSILON = 1e-5
_FLOAT = int(TensorProto.FLOAT)


def write_whisper_graphs(
    folder: Path,
    config: WhisperConfig,
    weights: FloatTensors,
    *,
    progress: Progress = lambda done, total: None,
) -> list[str]:
    """Write both float32 graphs, each with a data file of its own.

    Args:
        folder: where to; it exists.
        weights: of the shapes of `expected_shapes`.
        progress: told layers done and in all.

    Returns:
        The names of the text graph's inputs.
    """
    total = config.audio_layers + config.text_layers
    with _builder(folder / AUDIO_GRAPH) as graph:
        audio = AudioGraph(config, weights, graph)
        audio.build(lambda done: progress(done, total))
        inputs, outputs = audio.values()
        graph.save(folder / AUDIO_GRAPH, Precision.FLOAT32, inputs, outputs, title="audio")
    with _builder(folder / GRAPH) as graph:
        text = TextGraph(config, weights, graph)
        text.build(lambda done: progress(config.audio_layers + done, total))
        inputs, outputs = text.values()
        graph.save(folder / GRAPH, Precision.FLOAT32, inputs, outputs, title="text")
    return [value.name for value in inputs]


@contextmanager
def _builder(graph: Path) -> Iterator[GraphBuilder]:
    tensors = TensorFile(graph.with_name(f"{graph.name}.data"))
    try:
        yield GraphBuilder(tensors, (Precision.FLOAT32,))
    finally:
        tensors.close()


Values = tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]


def _value(name: str, shape: list[int | str], kind: int = _FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _heard(config: WhisperConfig) -> list[onnx.ValueInfoProto]:
    shape: list[int | str] = ["batch", config.heads, config.audio_positions, config.head_dim]
    return [_value(f"cross.{i}.{part}", shape) for i in range(config.text_layers) for part in "kv"]


class _Blocks:
    """Nodes that both graphs have."""

    def __init__(self, config: WhisperConfig, weights: FloatTensors, graph: GraphBuilder) -> None:
        self._config = config
        self._weights = weights
        self._graph = graph

    def _linear(self, x: str, name: str, part: slice | None = None, to: str = "") -> str:
        """A product with its bias; `part` takes some of the rows that it makes."""
        rows = part or slice(None)
        to = to or name
        weight = self._graph.floats(f"{to}.w", self._weights.floats(f"{name}/weight")[rows].T)
        bias = self._graph.floats(f"{to}.b", self._weights.floats(f"{name}/bias")[rows])
        self._graph.node("MatMul", [x, weight], f"{to}.product")
        return self._graph.node("Add", [f"{to}.product", bias], to)

    def _norm(self, x: str, name: str) -> str:
        gamma = self._graph.floats(f"{name}.gamma", self._weights.floats(f"{name}/gamma"))
        beta = self._graph.floats(f"{name}.beta", self._weights.floats(f"{name}/beta"))
        return self._graph.node(
            "LayerNormalization", [x, gamma, beta], name, axis=-1, epsilon=_EPSILON
        )

    def _feed_forward(self, x: str, tag: str) -> str:
        wide = self._linear(self._norm(x, f"{tag}/ffn/layer_norm"), f"{tag}/ffn/linear_0")
        bent = self._graph.node("Gelu", [wide], f"{tag}/ffn/gelu")
        narrow = self._linear(bent, f"{tag}/ffn/linear_1")
        return self._graph.node("Add", [x, narrow], f"{tag}/ffn/sum")

    def _split(self, x: str, tag: str) -> list[str]:
        """Queries, keys and values of one product."""
        names = [f"{tag}/{part}" for part in ("q", "k", "v")]
        self._graph.node("Split", [x], names, axis=-1, num_outputs=3)
        return names

    def _heads(self, x: str, to: str) -> str:
        """`[batch, length, hidden]` to `[batch, heads, length, head_dim]`."""
        shape = self._graph.integers("heads", [0, 0, self._config.heads, self._config.head_dim])
        apart = self._graph.node("Reshape", [x, shape], f"{to}.apart")
        return self._graph.node("Transpose", [apart], to, perm=[0, 2, 1, 3])


class AudioGraph(_Blocks):
    """The encoder, and the keys and values that the decoder's cross-attention needs of it."""

    def build(self, done: Callable[[int], None]) -> None:
        """Add all nodes; `done` is told layers."""
        x = self._positions(self._convolved())
        for layer in range(self._config.audio_layers):
            x = self._layer(x, f"encoder/layer_{layer}")
            done(layer + 1)
        heard = self._norm(x, "encoder/layer_norm")
        hidden = self._config.hidden
        for layer in range(self._config.text_layers):
            name = f"decoder/layer_{layer}/attention/linear_1"
            for part, rows in (("k", slice(0, hidden)), ("v", slice(hidden, None))):
                made = self._linear(heard, name, rows, f"cross.{layer}.{part}.flat")
                self._heads(made, f"cross.{layer}.{part}")

    def values(self) -> Values:
        """The graph's inputs and outputs."""
        frames = 2 * self._config.audio_positions
        return [_value("mel", ["batch", self._config.mels, frames])], _heard(self._config)

    def _convolved(self) -> str:
        graph, x = self._graph, "mel"
        for name, stride in (("encoder/conv1", 1), ("encoder/conv2", 2)):
            weight = graph.floats(f"{name}.w", self._weights.floats(f"{name}/weight"))
            bias = graph.floats(f"{name}.b", self._weights.floats(f"{name}/bias"))
            inputs = [x, weight, bias]
            graph.node("Conv", inputs, name, kernel_shape=[3], strides=[stride], pads=[1, 1])
            x = graph.node("Gelu", [name], f"{name}.gelu")
        return graph.node("Transpose", [x], "encoder/heard", perm=[0, 2, 1])

    def _positions(self, x: str) -> str:
        table = self._weights.floats("encoder/position_encodings/encodings")
        self._graph.floats("encoder/positions", table)
        return self._graph.node("Add", [x, "encoder/positions"], "encoder/placed")

    def _layer(self, x: str, tag: str) -> str:
        graph, part = self._graph, f"{tag}/self_attention"
        product = self._linear(self._norm(x, f"{part}/layer_norm"), f"{part}/linear_0")
        names = self._split(product, part)
        heads = self._config.heads
        graph.node("MultiHeadAttention", names, f"{part}/heard", MICROSOFT, num_heads=heads)
        x = graph.node("Add", [x, self._linear(f"{part}/heard", f"{part}/linear_1")], f"{part}/sum")
        return self._feed_forward(x, tag)


class TextGraph(_Blocks):
    """The decoder, one token a run."""

    def build(self, done: Callable[[int], None]) -> None:
        """Add all nodes; `done` is told layers."""
        x = self._embedding()
        for layer in range(self._config.text_layers):
            x = self._layer(x, layer)
            done(layer + 1)
        x = self._norm(x, "decoder/layer_norm")
        graph = self._graph
        flat = graph.integers("flat", [-1, self._config.hidden])
        rows = graph.node("Reshape", [x, flat], "rows")
        table = "embeddings"
        if self._config.own_projection:
            table = graph.floats("projection", self._weights.floats("decoder/projection/weight"))
        graph.node("Gemm", [rows, table], "logits", transB=1)

    def values(self) -> Values:
        """The graph's inputs and outputs."""
        config = self._config
        past = self._cache("past", "past")
        inputs = [
            _value("input_ids", ["batch", 1], int(TensorProto.INT64)),
            _value("position", [1], int(TensorProto.INT64)),
            *past,
            *_heard(config),
        ]
        return inputs, [_value("logits", ["batch", config.vocab]), *self._cache("present", "next")]

    def _cache(self, side: str, length: str) -> list[onnx.ValueInfoProto]:
        shape: list[int | str] = ["batch", self._config.heads, length, self._config.head_dim]
        layers = range(self._config.text_layers)
        return [_value(f"{side}.{i}.{part}", shape) for i in layers for part in "kv"]

    def _embedding(self) -> str:
        graph, weights = self._graph, self._weights
        graph.floats("embeddings", weights.floats("decoder/embeddings/weight"))
        graph.floats("positions", weights.floats("decoder/position_encodings/encodings"))
        graph.node("Gather", ["embeddings", "input_ids"], "word")
        graph.node("Gather", ["positions", "position"], "place")
        return graph.node("Add", ["word", "place"], "placed")

    def _layer(self, x: str, layer: int) -> str:
        graph, tag = self._graph, f"decoder/layer_{layer}"
        own = f"{tag}/self_attention"
        product = self._linear(self._norm(x, f"{own}/layer_norm"), f"{own}/linear_0")
        query, *made = self._split(product, own)
        for part, new in zip("kv", made, strict=True):
            heads = self._heads(new, f"{new}.heads")
            graph.node("Concat", [f"past.{layer}.{part}", heads], f"present.{layer}.{part}", axis=2)
        attended = self._attend(query, f"present.{layer}", own)
        x = graph.node("Add", [x, self._linear(attended, f"{own}/linear_1")], f"{own}/sum")
        heard = f"{tag}/attention"
        query = self._linear(self._norm(x, f"{heard}/layer_norm"), f"{heard}/linear_0")
        attended = self._attend(query, f"cross.{layer}", heard)
        x = graph.node("Add", [x, self._linear(attended, f"{heard}/linear_2")], f"{heard}/sum")
        return self._feed_forward(x, tag)

    def _attend(self, query: str, keys: str, tag: str) -> str:
        """Attention of one token to all keys, `[batch, 1, hidden]`."""
        graph = self._graph
        scale = np.array(self._config.head_dim**-0.5, np.float32)
        factor = graph.floats(f"{tag}/scale", scale)
        asked = graph.node("Mul", [self._heads(query, f"{tag}/asked"), factor], f"{tag}/scaled")
        turned = graph.node("Transpose", [f"{keys}.k"], f"{tag}/turned", perm=[0, 1, 3, 2])
        scores = graph.node("MatMul", [asked, turned], f"{tag}/scores")
        shares = graph.node("Softmax", [scores], f"{tag}/shares", axis=-1)
        mixed = graph.node("MatMul", [shares, f"{keys}.v"], f"{tag}/mixed")
        rows = graph.node("Transpose", [mixed], f"{tag}/rows", perm=[0, 2, 1, 3])
        joined = graph.integers("joined", [0, 0, self._config.hidden])
        return graph.node("Reshape", [rows, joined], f"{tag}/joined")
