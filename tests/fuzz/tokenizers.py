"""Fuzz targets for tokenizers that nodes give, and for texts that are cut and kept."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import msgpack

from bus.errors import ModelIncomplete, TokenizerUnavailable
from bus.messages.link_jobs import MAX_PART_BYTES
from bus.text.encodings import Encodings
from bus.text.escaping import Escaper
from bus.text.model_files import ModelFiles
from bus.text.tokenizer import TextModel
from bus.text.tokenizer_export import TokenizerIntake, export_parts
from bus.text.tokenizer_files import LIMITS, facts_of, text_digest
from tests.fuzz.decoders import Case, Wrong
from tests.fuzz.generate import change_bytes, random_bytes
from tests.harness.tokenizers import sentence_piece

_FACTS = [
    b'{"eos_ids": [1, 2], "bos_id": 1, "add_bos": true, "kind": "encoder"}',
    b'{"model": {"eos_token_id": [1, 2]}, "eos_token_id": 7}',
    b'{"eos_token_id": {"a": [[[[]]]]}, "bos_id": 1e400, "kind": null}',
]
_NAMES = (*LIMITS, "kept.json", "../tokenizer.json", "/etc/passwd", "", "model.onnx")


def export_case(rng: random.Random) -> None:
    """Parts of an export that may be changed anywhere: the files that were named, or a refusal."""
    files = {"tokenizer.json": random_bytes(rng), "chat_template.jinja": random_bytes(rng)}
    expected = text_digest(files)
    parts = list(export_parts(files))
    if rng.random() < 0.4:
        sizes = [
            {"name": rng.choice(_NAMES), "size": rng.choice((0, 1, 9, 1 << 30, -1, "x"))}
            for _ in range(rng.randrange(9))
        ]
        parts[0] = msgpack.packb({"files": sizes})
    for _ in range(rng.randrange(3)):
        place = rng.randrange(len(parts))
        parts[place] = change_bytes(rng, parts[place])[:MAX_PART_BYTES]
    if rng.random() < 0.2:
        parts.insert(rng.randrange(len(parts) + 1), random_bytes(rng))
    intake = TokenizerIntake(expected)
    try:
        for part in parts:
            intake.take(part)
        found = intake.finish()
    except TokenizerUnavailable:
        return
    if found != files:
        raise Wrong(f"files {sorted(found)} came of others")


def facts_case(rng: random.Random) -> None:
    """Facts of a file that may be anything: a JSON object that is its own facts."""
    name = rng.choice(["superfluid.json", "genai_config.json", "config.json"])
    data = change_bytes(rng, rng.choice(_FACTS)) if rng.random() < 0.8 else random_bytes(rng)
    try:
        facts = facts_of(name, data)
    except ModelIncomplete:
        return
    if facts_of(name, facts) != facts or not isinstance(json.loads(facts), dict):
        raise Wrong(f"{facts!r} are no facts")


def _model(encodings: Encodings | None) -> TextModel:
    return TextModel(
        ModelFiles(
            name="pieces",
            folder=Path(),
            tokenizer=sentence_piece().to_str(),
            named_tokens={"bos_token": "<s>"},
            eos_ids=(2,),
            bos_id=None,
            add_bos=True,
            template=None,
        ),
        encodings,
    )


_PLAIN, _KEEPING = _model(None), _model(Encodings(2000))
_UNUSED = Escaper(_KEEPING.special_texts)


def kept_case(rng: random.Random) -> None:
    """A rendered text has the ids that the tokenizer gives the whole of it."""
    words = [
        *_PLAIN.special_texts,
        "hi",
        " ",
        "\n",
        "<",
        "|im_end|>",
        "t\u00e9",
        "\U0010fffd",
        "\0",
    ]
    text = "".join(rng.choices(words, k=rng.randrange(12)))
    expected = _PLAIN.encode(text, add_special=True, parse_special=True)
    if _KEEPING.encode_rendered(text, _UNUSED, add_special=True) != expected:
        raise Wrong(f"{text!r} has other ids by parts")


TOKENIZERS: Mapping[str, Case] = {
    "tokenizer-export": export_case,
    "tokenizer-facts": facts_case,
    "kept-encodings": kept_case,
}
