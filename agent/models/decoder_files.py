"""What is written the same way for every decoder, wherever it came from."""

from __future__ import annotations

from typing import Any

from agent.models.folder import Signature


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
