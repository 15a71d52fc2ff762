"""Graphs as written and as imported, run with `onnxruntime`: what references are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.models.architecture import DecoderConfig, WeightSource
from agent.models.folder import ModelFolder, Signature
from agent.models.graph import Numerics, write_graphs
from agent.models.selftest import open_session, prompt_logits
from agent.models.tensors import Precision
from tests.harness.reference import Floats

FILES = {Precision.FLOAT32: "model.onnx", Precision.FLOAT16: "model.fp16.onnx"}
#: 8-bit products in blocks too, activations in float32.
FLOAT_ACTIVATIONS = Numerics(accuracy_level=0, dense_8bit=False)


def graph_logits(
    folder: ModelFolder, prompts: Sequence[list[int]], *, float16: bool = False
) -> Floats:
    """Logits of each prompt's tokens, one prompt after the other."""
    graph = folder.graph_float16 if float16 else folder.graph
    assert graph is not None
    session = open_session(graph)
    return np.concatenate([prompt_logits(session, folder.signature, prompt) for prompt in prompts])


def write_both_graphs(
    folder: Path, config: DecoderConfig, weights: WeightSource, numerics: Numerics
) -> Signature:
    """Write `FILES` of a whole decoder; gives their figures."""
    inputs = write_graphs(folder, config, weights, FILES, numerics=numerics)
    return Signature(
        first_layer=0,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        max_positions=config.max_positions,
        inputs=tuple(inputs),
    )
