"""Model folders as Optimum and onnx-community lay them out, built node by node.

The graphs are written by hand and share no code with the importer: two layers of attention and a
product, float weights, the cache under Optimum's names, `attention_mask` and `position_ids`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from agent.models.selftest import open_session
from tests.harness.models import toy_model_folder

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCAB, WINDOW = 2, 4, 2, 16, 64, 260, 128
EOS_IN_GENERATION_CONFIG = 257

Head = Literal["plain", "capped", "reshaped", "computed", "last", "keep"]


@dataclass
class OptimumGraph:
    """A decoder as an exporter might write it.

    Attributes:
        rotary_inside: GroupQueryAttention rotates; else RotaryEmbedding nodes do, by positions.
        head: how the logits are made: one product; capped by a tanh; by Gemm between reshapes of
            fixed lengths; through a shape that is computed; of the last position; with
            `num_logits_to_keep`.
        float16: weights, cache and logits.
    """

    rotary_inside: bool = True
    head: Head = "plain"
    float16: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    more_inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def model(self) -> onnx.ModelProto:
        """The whole graph."""
        self._lengths()
        self._rotary_tables()
        x = self.node("Gather", [self._matrix("embed", VOCAB, HIDDEN, 0.3), "input_ids"], "embed.x")
        for layer in range(LAYERS):
            x = self._layer(x, layer)
        self._head(self._norm(x, "final"))
        return self._wrapped()

    def node(self, kind: str, inputs: list[str], output: str, domain: str = "", **more: Any) -> str:
        """Add a node with one output."""
        made = helper.make_node(kind, inputs, [output], name=f"/{output}", domain=domain, **more)
        self.nodes.append(made)
        return output

    def integers(self, name: str, values: list[int] | int) -> str:
        """Add a constant."""
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    @property
    def dtype(self) -> Any:
        """Of weights and cache."""
        return np.float16 if self.float16 else np.float32

    def _matrix(self, name: str, rows: int, columns: int, spread: float) -> str:
        rng = np.random.default_rng(sum(name.encode()))
        values = rng.normal(0, spread, (rows, columns)).astype(self.dtype)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def _lengths(self) -> None:
        """`seqlens_k` and the total, made from the mask."""
        self.node(
            "ReduceSum", ["attention_mask", self.integers("one", [1])], "mask.sum", keepdims=0
        )
        self.node("Sub", ["mask.sum", "one"], "mask.less")
        self.node("Cast", ["mask.less"], "seqlens_k", to=TensorProto.INT32)
        self.node("Shape", ["attention_mask"], "mask.shape")
        self.node("Gather", ["mask.shape", self.integers("at", 1)], "mask.total", axis=0)
        self.node("Cast", ["mask.total"], "total", to=TensorProto.INT32)

    def _rotary_tables(self) -> None:
        turns = 10_000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = np.outer(np.arange(WINDOW), turns)
        for name, values in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            self.weights.append(numpy_helper.from_array(values.astype(self.dtype), name))

    def _norm(self, x: str, name: str) -> str:
        weight = np.linspace(0.8, 1.2, HIDDEN).astype(self.dtype)
        self.weights.append(numpy_helper.from_array(weight, f"{name}.norm"))
        return self.node(
            "SimplifiedLayerNormalization",
            [x, f"{name}.norm"],
            f"{name}.normed",
            axis=-1,
            epsilon=1e-5,
            stash_type=1,
        )

    def _layer(self, x: str, layer: int) -> str:
        tag = f"model.layers.{layer}"
        normed = self._norm(x, tag)
        widths = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        parts = {
            part: self.node(
                "MatMul",
                [normed, self._matrix(f"{tag}.{part}.w", HIDDEN, width, 0.2)],
                f"{tag}.{part}",
            )
            for part, width in widths.items()
        }
        if not self.rotary_inside:
            for part in "qk":
                parts[part] = self._rotated(parts[part])
        past = [f"past_key_values.{layer}.{side}" for side in ("key", "value")]
        tables = ["cos", "sin"] if self.rotary_inside else []
        present = [f"present.{layer}.{side}" for side in ("key", "value")]
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*parts.values(), *past, "seqlens_k", "total", *tables],
                [f"{tag}.attention", *present],
                name=f"/{tag}/attn",
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
                do_rotary=int(self.rotary_inside),
            )
        )
        output = self._matrix(f"{tag}.o.w", HEADS * HEAD_DIM, HIDDEN, 0.2)
        output = self.node("MatMul", [f"{tag}.attention", output], f"{tag}.o")
        return self.node("Add", [x, output], f"{tag}.out")

    def _rotated(self, x: str) -> str:
        return self.node(
            "RotaryEmbedding",
            [x, "position_ids", "cos", "sin"],
            f"{x}.rotated",
            "com.microsoft",
            num_heads=0,
        )

    def _head(self, x: str) -> None:
        table = self._matrix("lm_head", HIDDEN, VOCAB, 0.3)
        if self.head == "last":
            x = self.node("Gather", [x, self.integers("minus", -1)], "last.flat", axis=1)
            x = self.node("Unsqueeze", [x, "one"], "last")
        if self.head == "keep":
            scalar = helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, [])
            self.more_inputs.append(scalar)
            self.node("Neg", ["num_logits_to_keep"], "keep.start")
            self.node("Reshape", ["keep.start", self.integers("flat", [1])], "keep.from")
            ends = self.integers("keep.end", [2**62])
            x = self.node("Slice", [x, "keep.from", ends, "one"], "kept")
        if self.head == "capped":
            self.weights.append(numpy_helper.from_array(np.array(5, self.dtype), "cap"))
            x = self.node("MatMul", [x, table], "raw")
            x = self.node("Div", [x, "cap"], "scaled")
            x = self.node("Tanh", [x], "bent")
            self.node("Mul", [x, "cap"], "logits")
        elif self.head == "reshaped":
            x = self.node("Reshape", [x, self.integers("wide", [-1, HIDDEN])], "rows")
            x = self.node("Gemm", [x, table], "raw")
            self.node("Reshape", [x, self.integers("back", [1, -1, VOCAB])], "logits")
        elif self.head == "computed":
            self.node("Shape", ["input_ids"], "ids.shape")
            self.node("Concat", ["ids.shape", self.integers("width", [VOCAB])], "to", axis=0)
            x = self.node("Reshape", [x, self.integers("wide", [-1, HIDDEN])], "rows")
            x = self.node("MatMul", [x, table], "raw")
            self.node("Reshape", [x, "to"], "logits")
        else:
            self.node("MatMul", [x, table], "logits")

    def _wrapped(self) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        kind = TensorProto.FLOAT16 if self.float16 else TensorProto.FLOAT
        sides = [f"{layer}.{side}" for layer in range(LAYERS) for side in ("key", "value")]
        length = 1 if self.head == "last" else "sequence_length"
        graph = helper.make_graph(
            self.nodes,
            "main_graph",
            [
                value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
                value("attention_mask", TensorProto.INT64, ["batch_size", "total_length"]),
                value("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
                *self.more_inputs,
                *(
                    value(
                        f"past_key_values.{side}", kind, ["batch_size", KV_HEADS, "past", HEAD_DIM]
                    )
                    for side in sides
                ),
            ],
            [
                value("logits", kind, ["batch_size", length, VOCAB]),
                *(
                    value(f"present.{side}", kind, ["batch_size", KV_HEADS, "total", HEAD_DIM])
                    for side in sides
                ),
            ],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def config() -> dict[str, Any]:
    """Its `config.json`."""
    return {
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "eos_token_id": 256,
    }


def write_optimum(
    path: Path, model: onnx.ModelProto, *, external: bool = False, name: str = "model_q4"
) -> Path:
    """Lay a folder out around a graph; with `external` its weights lie beside it."""
    (path / "onnx").mkdir(parents=True)
    toy = toy_model_folder().path
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(toy / file, path / file)
    (path / "config.json").write_text(json.dumps(config()))
    ids = {"eos_token_id": [EOS_IN_GENERATION_CONFIG]}
    (path / "generation_config.json").write_text(json.dumps(ids))
    onnx.save_model(
        model,
        str(path / "onnx" / f"{name}.onnx"),
        save_as_external_data=external,
        location=f"{name}.onnx_data",
        size_threshold=64,
    )
    return path


def write_genai(path: Path, model: onnx.ModelProto) -> Path:
    """Lay a folder out as onnxruntime-genai's model builder does, with its names."""
    path.mkdir(parents=True)
    toy = toy_model_folder().path
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(toy / file, path / file)
    decoder = {
        "filename": "model.onnx",
        "head_size": HEAD_DIM,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    figures = {"type": "llama", "vocab_size": VOCAB, "context_length": 64, "bos_token_id": 259}
    ends = {"eos_token_id": 256, "pad_token_id": 256}
    whole = {"model": {**figures, **ends, "decoder": decoder}, "search": {"max_length": 64}}
    (path / "genai_config.json").write_text(json.dumps(whole))
    onnx.save_model(
        model,
        str(path / "model.onnx"),
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=64,
    )
    return path


class OptimumSession:
    """Runs such a graph as Optimum's programs do: the cache grows, the mask is all ones."""

    def __init__(self, graph: Path) -> None:
        self._session = open_session(graph)
        self._float = np.float32
        half = any("float16" in value.type for value in self._session.get_inputs())
        shape = (1, KV_HEADS, 0, HEAD_DIM)
        self._past = {
            value.name: np.zeros(shape, np.float16 if half else np.float32)
            for value in self._session.get_inputs()
            if value.name.startswith("past_key_values.")
        }
        self._tokens = 0

    def run(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """Logits after each of some further tokens, `[len(ids), vocab]`, or after the last one."""
        first, self._tokens = self._tokens, self._tokens + len(ids)
        feeds: dict[str, Any] = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self._tokens), np.int64),
            "position_ids": np.arange(first, self._tokens, dtype=np.int64)[None],
            "num_logits_to_keep": np.array(0, np.int64),
            **self._past,
        }
        known = {value.name for value in self._session.get_inputs()}
        names = [value.name for value in self._session.get_outputs()]
        given = self._session.run(None, {k: v for k, v in feeds.items() if k in known})
        results = dict(zip(names, given, strict=True))
        self._past = {
            name: results[name.replace("past_key_values", "present")] for name in self._past
        }
        return np.asarray(results["logits"][0], np.float32)
