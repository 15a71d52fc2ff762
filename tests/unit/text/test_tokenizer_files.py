"""What goes of a model folder, and that the head takes nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from bus.errors import ModelIncomplete, TokenizerUnavailable
from bus.messages.job_bodies import pack_body
from bus.messages.link_jobs import MAX_PART_BYTES
from bus.text.model_files import read_model_files
from bus.text.tokenizer import TextModel
from bus.text.tokenizer_export import FileList, FileSize, TokenizerIntake, export_parts
from bus.text.tokenizer_files import (
    LIMITS,
    facts_of,
    folder_text_digest,
    read_tokenizer_files,
    text_digest,
)
from tests.harness.models import gemma3_folder, smollm2_folder, toy_model_folder
from tests.harness.tokenizers import sentence_piece, text_folder


def _through(files: dict[str, bytes], target: Path) -> Path:
    """A folder of what came on the other side."""
    intake = TokenizerIntake(text_digest(files))
    for part in export_parts(files):
        assert len(part) <= MAX_PART_BYTES
        intake.take(part)
    target.mkdir()
    for name, data in intake.finish().items():
        (target / name).write_bytes(data)
    return target


@pytest.mark.model
@pytest.mark.parametrize("folder", [toy_model_folder, smollm2_folder, gemma3_folder])
def test_a_folder_of_what_came_reads_as_the_models_own(
    folder: Callable[[], object], tmp_path: Path
) -> None:
    own = Path(getattr(folder(), "path"))  # noqa: B009 - a folder of any kind
    files = read_tokenizer_files(own)
    assert not {name for name in files if name.startswith("model.")}
    came = _through(files, tmp_path / own.name)
    theirs, ours = read_model_files(own), read_model_files(came)
    assert replace(ours, folder=own, name=theirs.name) == theirs
    assert TextModel.open(came).digest == TextModel.open(own).digest
    assert folder_text_digest(came) == folder_text_digest(own)


def test_of_a_record_go_the_facts_of_texts_only(tmp_path: Path) -> None:
    record = {
        "name": "secret", "source": {"file": "/home/me/model.gguf"}, "kind": "encoder",
        "eos_ids": [2, 7], "bos_id": 1, "add_bos": True,
    }  # fmt: skip
    folder = text_folder(tmp_path / "m", sentence_piece(), record=record)
    (folder / "config.json").write_text('{"eos_token_id": 5, "hidden_size": 64}')
    (folder / "model.onnx").write_bytes(b"weights")
    files = read_tokenizer_files(folder)
    assert sorted(files) == [
        "config.json", "superfluid.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert json.loads(files["config.json"]) == {"eos_token_id": [5]}
    assert json.loads(files["superfluid.json"]) == {
        "kind": "encoder", "eos_ids": [2, 7], "bos_id": 1, "add_bos": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "listed",
    [None, "default one", [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]],
)
def test_templates_of_a_folder_of_their_own_come_too(tmp_path: Path, listed: object) -> None:
    config = {"eos_token": "</s>"} | ({} if listed is None else {"chat_template": listed})
    folder = text_folder(tmp_path / "m", sentence_piece(), config=config)
    for place, name in (("chat_templates", "tool_use"), ("additional_chat_templates", "odd name")):
        (folder / place).mkdir()
        (folder / place / f"{name}.jinja").write_text(f"template {name}")
    (tmp_path / "came").mkdir()
    came = read_model_files(_through(read_tokenizer_files(folder), tmp_path / "came" / "m"))
    own = read_model_files(folder)
    assert replace(came, folder=folder) == own
    assert {"tool_use", "odd name"} <= came.named_templates.keys()


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        (b'{"eos_ids": [1, -1, "x", true, 4294967296]}', {"eos_ids": [1]}),
        (b'{"bos_id": "one", "add_bos": 1, "kind": 7, "eos_ids": {}}', {}),
        (b'{"kind": "' + b"x" * 33 + b'"}', {}),
    ],
)
def test_facts_that_are_none_do_not_go(data: bytes, facts: object) -> None:
    assert json.loads(facts_of("superfluid.json", data)) == facts


def test_the_digest_tells_a_template_from_another(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "m", sentence_piece(), template="a")
    before = folder_text_digest(folder)
    (folder / "chat_template.jinja").write_text("b")
    assert 0 != folder_text_digest(folder) != before


def test_a_folder_that_no_head_takes(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "m", sentence_piece())
    with (folder / "chat_template.jinja").open("wb") as file:
        file.truncate(LIMITS["chat_template.jinja"] + 1)
    with pytest.raises(TokenizerUnavailable, match="more than 4194304 bytes"):
        read_tokenizer_files(folder)
    assert folder_text_digest(folder) == 0
    (folder / "tokenizer.json").unlink()
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelIncomplete, match=r"no tokenizer\.json"):
        read_tokenizer_files(folder)


# --- what a head refuses ----------------------------------------------------------------------


def _listed(*files: tuple[str, int]) -> bytes:
    return bytes(msgpack.packb({"files": [{"name": name, "size": size} for name, size in files]}))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (b"\xc1", "can not be read"),
        (msgpack.packb([1]), "can not be read"),
        (msgpack.packb({"files": [{"name": "tokenizer.json", "size": -1}]}), "can not be read"),
        (msgpack.packb({"files": [{"name": "tokenizer.json"}]}), "can not be read"),
        (_listed(*((f"{n}", 1) for n in range(100))), "can not be read"),
        (_listed(("tokenizer.json", 2), ("../../keys/head.key", 1)), "no part of a tokenizer"),
        (_listed(("tokenizer.json", 2), ("/etc/passwd", 1)), "no part of a tokenizer"),
        (_listed(("tokenizer.json", 2), ("kept.json", 1)), "no part of a tokenizer"),
        (_listed(("tokenizer.json", 2), ("tokenizer.json", 2)), "no part of a tokenizer"),
        (_listed(("superfluid.json", 2)), r"no tokenizer\.json"),
        (_listed(("tokenizer.json", 64 * 1024 * 1024 + 1)), "at most 67108864"),
        (_listed(("tokenizer.json", 2), ("superfluid.json", 65537)), "at most 65536"),
    ],
)
def test_a_list_that_is_none_is_refused(part: bytes, why: str) -> None:
    with pytest.raises(TokenizerUnavailable, match=why):
        TokenizerIntake(1).take(part)


def _taken(parts: Iterable[bytes], expected: int) -> dict[str, bytes]:
    intake = TokenizerIntake(expected)
    for part in parts:
        intake.take(part)
    return intake.finish()


def test_parts_without_end_are_refused_at_the_first_byte_too_many() -> None:
    intake = TokenizerIntake(1)
    intake.take(_listed(("tokenizer.json", 4)))
    intake.take(b"abc")
    with pytest.raises(TokenizerUnavailable, match="a part of it is empty"):
        intake.take(b"")
    intake.take(b"d")
    with pytest.raises(TokenizerUnavailable, match="behind the 4 bytes"):
        intake.take(b"e")


def test_what_is_not_whole_or_not_it_is_refused() -> None:
    files = {"tokenizer.json": b"{}", "superfluid.json": b'{"bos_id":1}'}
    digest = text_digest(files)
    assert _taken(export_parts(files), digest) == files
    with pytest.raises(TokenizerUnavailable, match="ended after 0 of 0 bytes"):
        TokenizerIntake(digest).finish()
    with pytest.raises(TokenizerUnavailable, match="ended after 2 of 14 bytes"):
        _taken(list(export_parts(files))[:2], digest)
    with pytest.raises(TokenizerUnavailable, match="its digest is not the one"):
        _taken(export_parts(files), digest + 1)
    broken = {"tokenizer.json": b"{}", "superfluid.json": b"[]"}
    with pytest.raises(TokenizerUnavailable, match="no JSON object"):
        _taken(export_parts(broken), text_digest(broken))


def test_facts_are_cut_down_at_the_head_too() -> None:
    """A node that sends more than the facts has another digest than it names."""
    files = {"tokenizer.json": b"{}", "superfluid.json": b'{"bos_id":1,"x":"y"}'}
    with pytest.raises(TokenizerUnavailable, match="its digest is not the one"):
        _taken(export_parts(files), text_digest(files))


def test_a_list_names_files_as_a_struct() -> None:
    sizes = (FileSize(name="tokenizer.json", size=2),)
    assert msgpack.unpackb(pack_body(FileList(files=sizes))) == {
        "files": [{"name": "tokenizer.json", "size": 2}]
    }
