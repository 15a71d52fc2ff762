"""What opening a model folder accepts and refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.models.folder import (
    CHAT_TEMPLATE,
    GRAPH_DATA,
    GRAPH_FLOAT16,
    RECORD,
    EncoderFigures,
    FileRecord,
    ModelFolder,
)
from agent.models.sources import SOURCES
from bus.errors import ModelIncomplete, NotFound
from tests.harness.models import toy_model_folder


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy_model_folder().path, tmp_path / "toy"))


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])

    return change


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def rewritten(text: str) -> Callable[[Path], None]:
    return lambda folder: _write(folder / RECORD, text)


def unlisted(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / RECORD).read_text())
        del record["files"][name]
        _write(folder / RECORD, json.dumps(record))

    return change


def without(key: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / RECORD).read_text())
        del record[key]
        _write(folder / RECORD, json.dumps(record))

    return change


def _write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (gone("model.onnx"), "model.onnx is missing"),
        (gone("model.onnx.data"), "model.onnx.data is missing"),
        (gone("tokenizer.json"), "tokenizer.json is missing"),
        (gone(CHAT_TEMPLATE), "chat_template.jinja is missing"),
        (gone(GRAPH_FLOAT16), "model.fp16.onnx is missing"),
        (gone(RECORD), "superfluid.json is missing"),
        (cut("model.onnx.data"), "model.onnx.data has"),
        (unlisted("model.onnx"), "does not list model.onnx"),
        (without("signature"), "superfluid.json is damaged"),
        (rewritten("{"), "superfluid.json can not be read"),
        (rewritten("[" * 200_000), "superfluid.json can not be read"),
        (rewritten("[]"), "superfluid.json is no JSON object"),
        (rewritten('{"schema": 99}'), "has schema 99 and this version reads 1"),
    ],
)
def test_damage_is_named_with_its_remedy(
    toy: Path, damage: Callable[[Path], None], says: str
) -> None:
    damage(toy)
    with pytest.raises(ModelIncomplete) as caught:
        ModelFolder.open(toy)
    message = caught.value.message
    assert says in message
    assert str(toy) in message
    assert "sfctl model import FILE.gguf --name toy" in message
    assert "\n" not in message


def recorded(**source: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / RECORD).read_text())
        _write(folder / RECORD, json.dumps(record | {"source": source}))

    return change


#: The published hash of the file that `sfctl model pull smollm2` gets.
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.mark.parametrize(
    ("name", "damages", "command"),
    [
        ("smollm2", [recorded(file="x.gguf", sha256=SMOLLM2_SHA256)], "import smollm2`"),
        ("mine", [recorded(file="x.gguf", sha256=SMOLLM2_SHA256)], "import smollm2 --name mine`"),
        ("mine", [recorded(file="my x.gguf", sha256="0")], "import 'my x.gguf' --name mine`"),
        ("smollm2", [recorded(file="x.gguf", sha256="0")], "import x.gguf --name smollm2`"),
        ("smollm2", [rewritten("{")], "import smollm2`"),
        ("mine", [without("source")], "import FILE.gguf --name mine`"),
        ("mine", [rewritten('{"source": 3}')], "import FILE.gguf --name mine`"),
    ],
)
def test_the_remedy_is_the_command_that_makes_it_again(
    toy: Path, name: str, damages: list[Callable[[Path], None]], command: str
) -> None:
    folder = toy.rename(toy.with_name(name))
    for damage in [*damages, gone("tokenizer.json")]:
        damage(folder)
    with pytest.raises(ModelIncomplete) as caught:
        ModelFolder.open(folder)
    assert f"`sfctl model {command}" in caught.value.message


def test_a_missing_folder_of_a_known_model_is_pulled_again(tmp_path: Path) -> None:
    assert SOURCES["smollm2"].gguf_sha256 == SMOLLM2_SHA256
    with pytest.raises(NotFound, match="`sfctl model import smollm2`"):
        ModelFolder.open(tmp_path / "smollm2")


def test_a_changed_byte_is_found_when_hashes_are_verified(toy: Path) -> None:
    data = bytearray((toy / "model.onnx.data").read_bytes())
    data[100] ^= 1
    (toy / "model.onnx.data").write_bytes(data)
    assert ModelFolder.open(toy).name == "toy"
    with pytest.raises(ModelIncomplete, match=r"model\.onnx\.data is damaged"):
        ModelFolder.open(toy, verify=True)


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no model folder"):
        ModelFolder.open(tmp_path / "absent")


def test_a_whole_folder_opens_with_what_was_recorded(toy: Path) -> None:
    folder = ModelFolder.open(toy, verify=True)
    assert folder == ModelFolder.open(toy)
    assert folder.eos_ids == (256, 258)
    assert folder.source["kind"] == "toy"
    figures = folder.signature
    assert (figures.layers, figures.kv_heads, figures.head_dim) == (2, 2, 32)
    assert (figures.vocab, figures.max_positions) == (260, 4096)
    assert figures.inputs[:4] == (
        "input_ids",
        "seqlens_k",
        "total_sequence_length",
        "logits_idx",
    )
    assert folder.kv_bytes_per_token() == 2 * 2 * 2 * 32 * 4
    assert folder.graph_float16 == toy / GRAPH_FLOAT16
    sizes = sum(file.stat().st_size for file in toy.iterdir() if file.name != RECORD)
    assert folder.size_bytes == sizes


def test_digest_follows_content_and_not_place(toy: Path) -> None:
    assert ModelFolder.open(toy).digest == toy_model_folder().digest


def test_weights_are_named_by_their_own_files(toy: Path) -> None:
    folder = ModelFolder.open(toy)
    data = f"{GRAPH_DATA} {folder.files[GRAPH_DATA].sha256}"
    expected = hashlib.sha256(data.encode()).digest()[:8]
    assert folder.weights_digest == int.from_bytes(expected, "little")
    other = FileRecord(1, "0" * 64)
    changing = {
        name
        for name in folder.files
        if replace(folder, files={**folder.files, name: other}).weights_digest
        != folder.weights_digest
    }
    assert changing == {GRAPH_DATA}
    ways = [EncoderFigures("mean", True, 128), EncoderFigures("cls", True, 128)]
    assert len({replace(folder, encoder=way).weights_digest for way in ways}) == 2


def test_folders_are_read_without_the_import_extra(toy: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('onnx', 'gguf', 'onnxruntime', 'numpy', 'tokenizers'):\n"
        "    sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from agent.models.registry import list_models\n"
        "print(list(list_models(Path(sys.argv[1]))))\n"
    )
    command = [sys.executable, "-P", "-c", program, str(toy.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['toy']\n"


def test_a_chat_template_of_ones_own_may_take_the_place_of_the_models(tmp_path: Path) -> None:
    path = shutil.copytree(toy_model_folder().path, tmp_path / "toy")
    (path / "chat_template.jinja").write_text("mine")
    assert ModelFolder.open(path, verify=True).chat_template is not None
    (path / "chat_template.jinja").unlink()
    with pytest.raises(ModelIncomplete, match=r"chat_template\.jinja is missing"):
        ModelFolder.open(path)
