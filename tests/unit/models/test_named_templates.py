"""Chat templates by name, from a model's file to the text process."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

from agent.models.gguf_header import read_header
from agent.models.tokenizer import tokenizer_config
from agent.models.vocabulary_source import read_vocabulary
from bus.errors import ModelIncomplete
from bus.messages.text import RenderChat
from bus.text.model_files import read_model_files, template_file
from head.text.jobs import TextJobs
from tests.harness.gguf_models import SmallModel, write_model
from tests.harness.tokenizers import sentence_piece, text_folder

SHOW = "{{ messages[0].content }}{{ tools | tojson }}"


def render(folder: Path, *tools: str) -> str:
    job = RenderChat(
        job=1,
        folder=str(folder),
        messages=msgpack.packb([{"role": "user", "content": "Hi"}]),
        tools=msgpack.packb([{"name": name} for name in tools]),
    )
    return TextJobs().render_chat(job).text


def test_a_gguf_file_says_its_templates_by_name(tmp_path: Path) -> None:
    metadata = dict(read_header(write_model(tmp_path / "m.gguf", SmallModel())).metadata)
    default = metadata["tokenizer.chat_template"]
    source = read_vocabulary(metadata)
    assert (source.chat_template, source.named_templates) == (default, {})
    assert tokenizer_config(source, 8)["chat_template"] == default
    metadata |= {
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_template.rag": "",
        "tokenizer.chat_template.number": 7,
    }
    source = read_vocabulary(metadata)
    assert source.named_templates == {"tool_use": "tools"}
    config = tokenizer_config(source, 8)
    folder = text_folder(tmp_path / "m", sentence_piece(), config=config)
    files = read_model_files(folder)
    assert (files.template, dict(files.named_templates)) == (default, {"tool_use": "tools"})


def test_templates_of_a_list_and_of_files_of_their_own(tmp_path: Path) -> None:
    listed = [
        {"name": "default", "template": f"listed {SHOW}"},
        {"name": "tool_use", "template": f"listed for tools {SHOW}"},
        {"name": 7, "template": "x"},
        "x",
    ]
    folder = text_folder(tmp_path / "m", sentence_piece(), config={"chat_template": listed})
    assert render(folder).startswith("listed Hi")
    assert render(folder, "f").startswith("listed for tools Hi")
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text(f"own {SHOW}")
    (folder / "chat_template.jinja").write_text(f"own default {SHOW}")
    assert render(folder).startswith("own default Hi")
    assert render(folder, "f").startswith("own Hi")
    assert template_file(folder) == "chat_template.jinja"
    (more / "tool_use.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelIncomplete, match=r"tool_use\.jinja can not be read"):
        read_model_files(folder)


def test_a_model_with_named_templates_only_takes_chats(tmp_path: Path) -> None:
    listed = [{"name": "tool_use", "template": SHOW}]
    folder = text_folder(tmp_path / "m", sentence_piece(), config={"chat_template": listed})
    assert read_model_files(folder).has_template
    assert template_file(folder) == "tokenizer_config.json"
    assert render(folder) == "Hinull"
    shown = json.loads(render(folder, "f").removeprefix("Hi"))
    assert shown[0]["function"]["name"] == "f"
