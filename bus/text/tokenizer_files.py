"""The files that a model's texts go by, as a head fetches them from a node; never weights.

tokenizer.json, tokenizer_config.json and the chat template go as they are; templates that are files
of their own go inside the configuration, so that no name of a file comes from elsewhere. Of the
other files only those facts go that bus/text/model_files.py reads: which ids begin and end a text,
and the kind of model. A folder with these files reads as the model's own does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bus.errors import ModelIncomplete, TokenizerUnavailable
from bus.messages.text import MAX_ENDS
from bus.text.model_files import (
    CHAT_TEMPLATE,
    DEFAULT_TEMPLATE,
    RECORD,
    TEMPLATE_FOLDERS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    is_id,
    named_templates,
)

MIB = 1024 * 1024
#: Most bytes of a file whose facts are read.
_MAX_FACTS_SOURCE = 16 * MIB
#: Of facts, which are few.
_MAX_FACTS = 64 * 1024
#: Kinds of models have short names.
_MAX_KIND = 32
#: Every file that may go, and its most bytes.
LIMITS: Mapping[str, int] = {
    TOKENIZER: 64 * MIB,
    TOKENIZER_CONFIG: 16 * MIB,
    CHAT_TEMPLATE: 4 * MIB,
    RECORD: _MAX_FACTS,
    "genai_config.json": _MAX_FACTS,
    "generation_config.json": _MAX_FACTS,
    "config.json": _MAX_FACTS,
}


def read_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The files of a model folder that go, by name.

    Raises:
        ModelIncomplete: there is no tokenizer, or a file that can not be read.
        TokenizerUnavailable: one is over its limit.
    """
    found = {}
    for name, limit in LIMITS.items():
        data = _read(folder / name, _MAX_FACTS_SOURCE if name in _FACTS else limit)
        if data is not None:
            found[name] = facts_of(name, data)
    if TOKENIZER not in found:
        raise ModelIncomplete(
            f"model folder {folder} has no {TOKENIZER}; import the model again", param="model"
        )
    if any((folder / name).is_dir() for name in TEMPLATE_FOLDERS):
        found[TOKENIZER_CONFIG] = _with_templates(folder, found.get(TOKENIZER_CONFIG, b"{}"))
    return found


def facts_of(name: str, data: bytes) -> bytes:
    """What goes of a file: all of it, or its facts.

    Raises:
        ModelIncomplete: a file of facts is no JSON object.
    """
    choose = _FACTS.get(name)
    if choose is None:
        return data
    return json.dumps(choose(_object(name, data)), sort_keys=True, separators=(",", ":")).encode()


def text_digest(files: Mapping[str, bytes]) -> int:
    """Names the files: equal for models whose texts are made and read alike; at least 1."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {hashlib.sha256(files[name]).hexdigest()}\n".encode())
    return max(1, int.from_bytes(digest.digest()[:8], "little"))


def folder_text_digest(folder: Path) -> int:
    """The digest of a model folder's files; 0 where they do not go.

    Raises:
        ModelIncomplete: as `read_tokenizer_files`.
    """
    try:
        return text_digest(read_tokenizer_files(folder))
    except TokenizerUnavailable:
        return 0


def _with_templates(folder: Path, data: bytes) -> bytes:
    """A configuration with all templates of its folder."""
    config = _object(TOKENIZER_CONFIG, data)
    listed = config.get("chat_template")
    if isinstance(listed, str):
        listed = [{"name": DEFAULT_TEMPLATE, "template": listed}]
    first = [
        each
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict) and each.get("name") == DEFAULT_TEMPLATE
    ]
    named = named_templates(folder, config)
    config["chat_template"] = first + [
        {"name": name, "template": text} for name, text in named.items()
    ]
    made = json.dumps(config, sort_keys=True).encode()
    return _within(folder / TOKENIZER_CONFIG, made, LIMITS[TOKENIZER_CONFIG])


def _object(name: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ModelIncomplete(f"model file {name} is no JSON object; import the model again")
    return found


def _read(file: Path, limit: int) -> bytes | None:
    try:
        with file.open("rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelIncomplete(
            f"model file {file} can not be read ({error}); import the model again"
        ) from error
    return _within(file, data, limit)


def _within(file: Path, data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise TokenizerUnavailable(
            f"{file.name} of model {file.parent.name} has more than {limit} bytes, which no head "
            "takes; import the model on the head's machine"
        )
    return data


def _record_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if isinstance(kind := found.get("kind"), str) and len(kind) <= _MAX_KIND:
        facts["kind"] = kind
    if (ends := _ids(found.get("eos_ids"))) is not None:
        facts["eos_ids"] = ends
    if is_id(found.get("bos_id")):
        facts["bos_id"] = found["bos_id"]
    if isinstance(found.get("add_bos"), bool):
        facts["add_bos"] = found["add_bos"]
    return facts


def _end_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    ends = _ids(found.get("eos_token_id"))
    return {} if ends is None else {"eos_token_id": ends}


def _genai_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    model = found.get("model")
    return {"model": _end_facts(model)} if isinstance(model, dict) else {}


def _ids(value: object) -> list[int] | None:
    """End-of-sequence ids, one or a list; None where there are none."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if is_id(each)][:MAX_ENDS] or None


_FACTS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    RECORD: _record_facts,
    "genai_config.json": _genai_facts,
    "generation_config.json": _end_facts,
    "config.json": _end_facts,
}
