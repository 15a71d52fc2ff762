"""Models that make vectors of texts: what a request for what they do not make is told."""

from __future__ import annotations

import json
from pathlib import Path

from bus.errors import Invalid
from bus.text.model_files import RECORD

DECODER = "decoder"
ENCODER = "encoder"


def folder_kind(folder: Path) -> str:
    """What a model folder's record says: `decoder` or `encoder`; without a record, decoder."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return DECODER
    found = record.get("kind", DECODER) if isinstance(record, dict) else DECODER
    return ENCODER if found == ENCODER else DECODER


def makes_no_text(model: str) -> Invalid:
    """The error of a request for text of an encoder."""
    return Invalid(
        f"{model} is an encoder: it makes embeddings, not text; ask a model that makes text, or "
        f"get its vectors: sfctl embed {model} FILE, client.embed({model!r}, texts)",
        param="model",
    )


def makes_no_vectors(model: str, kind: str) -> Invalid:
    """The error of a request for vectors of a model that is none of that kind."""
    return Invalid(
        f"{model} is a model of kind {kind} and makes no embeddings; ask an encoder: those of kind "
        "encoder in sfctl model ls --fleet",
        param="model",
    )
