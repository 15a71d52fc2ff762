"""What the text side needs of a model folder: its tokenizer, its special ids, its template.

Two layouts are read: onnxruntime-genai's (ours with a `superfluid.json` beside it) and Hugging
Face's. Where several files name end-of-sequence ids, all of them count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from bus.errors import ModelIncomplete, NotFound
from bus.ids import U32_MAX

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
#: Folders that may hold further templates, each as NAME.jinja.
TEMPLATE_FOLDERS = ("additional_chat_templates", "chat_templates")
MAX_NAMED_TEMPLATES = 32
DEFAULT_TEMPLATE = "default"
#: Ours first: where it says something of BOS, the others do not count.
RECORD = "superfluid.json"
#: Files that may name end-of-sequence ids, and under which key they hold them.
_EOS_SOURCES = (
    (RECORD, None, "eos_ids"),
    ("genai_config.json", "model", "eos_token_id"),
    ("generation_config.json", None, "eos_token_id"),
    ("config.json", None, "eos_token_id"),
)
#: Special tokens that templates know by name.
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The text files of a model folder, read.

    Attributes:
        name: for messages.
        tokenizer: text of tokenizer.json.
        named_tokens: bos_token, eos_token, ... to their text.
        eos_ids: every id that a file names as an end, but not the named `eos_token`.
        bos_id: begin-of-sequence id as our record has it.
        add_bos: whether text is preceded by it; None when no file says so.
        template: the chat template's source.
        named_templates: sources of further ones, by name, such as `tool_use`.
    """

    name: str
    folder: Path
    tokenizer: str
    named_tokens: Mapping[str, str]
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool | None
    template: str | None
    named_templates: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_template(self) -> bool:
        """Whether there is any chat template."""
        return self.template is not None or bool(self.named_templates)


def read_model_files(folder: Path) -> ModelFiles:
    """Read a folder's text files.

    Raises:
        NotFound: there is no such folder.
        ModelIncomplete: it has no tokenizer, or a file that is none.
    """
    if not folder.is_dir():
        raise NotFound(
            f"there is no model folder {folder}; import the model on this machine", param="model"
        )
    try:
        tokenizer = (folder / TOKENIZER).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelIncomplete(
            f"model folder {folder} can not be used: {TOKENIZER} can not be read ({error}); "
            "import the model again"
        ) from error
    record = _object(folder / RECORD)
    config = _object(folder / TOKENIZER_CONFIG)
    add_bos = record.get("add_bos", config.get("add_bos_token"))
    return ModelFiles(
        name=str(record.get("name", folder.name)),
        folder=folder,
        tokenizer=tokenizer,
        named_tokens=dict(_named_tokens(config)),
        eos_ids=tuple(sorted({token for _, token in _eos_ids(folder)})),
        bos_id=record.get("bos_id") if is_id(record.get("bos_id")) else None,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        template=_template(folder / CHAT_TEMPLATE, config),
        named_templates=named_templates(folder, config),
    )


def _object(file: Path) -> dict[str, Any]:
    """A JSON object; an empty one when the file is not there."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelIncomplete(
            f"model file {file} can not be read ({error}); import the model again"
        ) from error
    if not isinstance(found, dict):
        raise ModelIncomplete(f"model file {file} is no JSON object; import the model again")
    return found


def _named_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in NAMED_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        # With half a character in it it can stand in no text.
        if isinstance(text, str) and text.encode("utf-8", "replace").decode() == text:
            yield name, text


def eos_ids_by_file(folder: Path) -> dict[str, tuple[int, ...]]:
    """End-of-sequence ids that each file of a model folder names; those that name none are not in.

    Raises:
        ModelIncomplete: a file can not be read.
    """
    found: dict[str, list[int]] = {}
    for name, token in _eos_ids(folder):
        found.setdefault(name, []).append(token)
    return {name: tuple(ids) for name, ids in found.items()}


def template_file(folder: Path) -> str | None:
    """Which file of a model folder holds the chat template; None when it has none.

    Raises:
        ModelIncomplete: a file can not be read.
    """
    if (folder / CHAT_TEMPLATE).is_file():
        return CHAT_TEMPLATE
    config = _object(folder / TOKENIZER_CONFIG)
    if _template(folder / CHAT_TEMPLATE, config) or named_templates(folder, config):
        return TOKENIZER_CONFIG
    return None


def _eos_ids(folder: Path) -> Iterator[tuple[str, int]]:
    """A file's name and an id that it names."""
    for name, part, key in _EOS_SOURCES:
        values: Any = _object(folder / name)
        if part is not None:
            values = values.get(part) or {}
        ids = values.get(key) if isinstance(values, dict) else None
        for token in ids if isinstance(ids, list) else [ids]:
            if is_id(token):
                yield name, token


def is_id(value: object) -> TypeGuard[int]:
    """Whether a value of a file can be a token's id."""
    return type(value) is int and 0 <= value <= U32_MAX


def _template(file: Path, config: Mapping[str, Any]) -> str | None:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelIncomplete(
            f"model file {file} can not be read ({error}); import the model again"
        ) from error
    found = config.get("chat_template")
    if isinstance(found, list):
        found = _listed(found).get(DEFAULT_TEMPLATE)
    return found if isinstance(found, str) else None


def named_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates beside the default one: listed in the configuration, or files of their own.

    Raises:
        ModelIncomplete: one can not be read.
    """
    listed = config.get("chat_template")
    found = _listed(listed) if isinstance(listed, list) else {}
    for name in TEMPLATE_FOLDERS:
        for file in sorted((folder / name).glob("*.jinja"))[:MAX_NAMED_TEMPLATES]:
            text = _template(file, {})
            if text is not None:
                found[file.stem] = text
    found.pop(DEFAULT_TEMPLATE, None)
    return dict(list(found.items())[:MAX_NAMED_TEMPLATES])


def _listed(items: list[Any]) -> dict[str, str]:
    pairs = ((item.get("name"), item.get("template")) for item in items if type(item) is dict)
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
