"""Models that make vectors of texts: what a request for text of one is told."""

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
        f"{model} is an encoder; it makes embeddings, not text; ask a model that makes text "
        "(embeddings reach the API in a later version)",
        param="model",
    )
