"""Kinds of models, and what a request is told for what a model of one kind does not make."""

from __future__ import annotations

import json
from pathlib import Path

from bus.errors import Invalid
from bus.text.model_files import RECORD

DECODER = "decoder"
ENCODER = "encoder"
TRANSCRIBER = "transcriber"
#: Some layers of a model that are not the last: only nodes say so, since folders are decoders'.
STAGE = "stage"
#: Kinds whose models answer no text.
NO_TEXT = frozenset({ENCODER, TRANSCRIBER, STAGE})


def folder_kind(folder: Path) -> str:
    """What a model folder's record says: one of the kinds here; without a record, decoder."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return DECODER
    found = record.get("kind", DECODER) if isinstance(record, dict) else DECODER
    return found if found in NO_TEXT else DECODER


def makes_no_text(model: str, kind: str = ENCODER) -> Invalid:
    """The error of a request for text of a model of one of `NO_TEXT`."""
    if kind == STAGE:
        return Invalid(
            f"{model} is only some layers of a model and answers no text by itself; ask the whole "
            "model, which nodes with its last layers serve: see sfctl model ls --fleet",
            param="model",
        )
    if kind == TRANSCRIBER:
        return Invalid(
            f"{model} is a transcriber: it writes what it hears and answers no text; ask a model "
            f"that makes text, or have it hear a file: sfctl transcribe {model} FILE, "
            f"client.transcribe({model!r}, file)",
            param="model",
        )
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


def hears_nothing(model: str, kind: str) -> Invalid:
    """The error of a request to transcribe of a model that is no transcriber."""
    return Invalid(
        f"{model} is a model of kind {kind} and hears no audio; ask a transcriber: those of kind "
        "transcriber in sfctl model ls --fleet",
        param="model",
    )
