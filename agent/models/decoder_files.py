"""What is written the same way for every decoder, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from agent.models.folder import Signature
from agent.models.stages import Stage, StageChoice, whole_digest


def genai_decoder(signature: Signature, graph: str) -> dict[str, Any]:
    """A graph of our signature, under the names that onnxruntime-genai gave its parts.

    Args:
        signature: the graph's.
        graph: its file name.

    Returns:
        `model.decoder` of a `genai_config.json`.
    """
    return {
        "filename": graph,
        "head_size": signature.head_dim,
        "hidden_size": signature.hidden,
        "num_attention_heads": signature.heads,
        "num_hidden_layers": signature.layers,
        "num_key_value_heads": signature.kv_heads,
        "inputs": {
            "input_ids": "input_ids",
            "past_key_names": "past.%d.k",
            "past_value_names": "past.%d.v",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.k",
            "present_value_names": "present.%d.v",
        },
    }


def kv_record(signature: Signature) -> dict[str, int]:
    """`kv_bytes_per_token` of a record, by precision."""
    return {
        "float32": signature.kv_bytes_per_token(),
        "float16": signature.kv_bytes_per_token(float16=True),
    }


def stage_of(
    choice: StageChoice,
    model: str,
    *,
    source: Mapping[str, str],
    architecture: str,
    numerics: Mapping[str, int],
    whole: Signature,
    content: str = "",
) -> Stage:
    """What the folder of a stage says of itself; the rest are the whole model's fields.

    Args:
        choice: which of its stages.
        model: the whole model's name.
        whole: its figures.
        content: digest of its folder, where the source does not name all weights.
    """
    figures = asdict(whole)
    del figures["inputs"]
    facts = {**figures, **numerics, "architecture": architecture}
    return Stage(
        model=model,
        whole=whole_digest(source, facts, content),
        index=choice.index,
        stages=choice.stages,
        first=choice.layers.first,
        end=choice.layers.end,
        layers=whole.layers,
    )


def stage_signature(whole: Signature, choice: StageChoice, inputs: Sequence[str]) -> Signature:
    """The figures of a stage's graph."""
    part = choice.layers
    return replace(
        whole, first_layer=part.first, layers=part.end - part.first, inputs=tuple(inputs)
    )
