"""A Whisper of CTranslate2 files, imported: its logits, its folder, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.models.examine import examine
from agent.models.export import export_genai
from agent.models.folder import AUDIO_GRAPH, ModelFolder
from agent.models.selftest import open_session
from agent.models.transcriber_selftest import (
    check_transcriber,
    empty_past,
    hear,
    prompt_tokens,
    write,
)
from agent.models.whisper_importer import import_whisper
from bus.errors import Invalid, ModelIncomplete
from tests.harness.small_whisper import (
    HEADS,
    LAYERS,
    MANY,
    MELS,
    control_tokens,
    model_bytes,
    small_variables,
    small_weights,
    variable,
    write_small_whisper,
)
from tests.harness.whisper_reference import ReferenceWhisper

VOCAB = 256 + 9 + 1501
TOKENS = (257, 264, 72, 105, 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    base = tmp_path_factory.mktemp("whisper")
    return import_whisper(write_small_whisper(base / "source"), base / "small")


def sessions(folder: ModelFolder) -> tuple[Any, Any]:
    return open_session(folder.path / AUDIO_GRAPH), open_session(folder.graph)


def logits_of(folder: ModelFolder, mel: Any, tokens: tuple[int, ...]) -> Any:
    audio, text = sessions(folder)
    heard, past = hear(audio, mel), dict[str, Any](empty_past(folder.signature))
    rows = []
    for position, token in enumerate(tokens):
        row, past = write(text, {**heard, **past}, token, position)
        rows.append(row)
    return np.array(rows)


def sample_mel() -> Any:
    return np.random.default_rng(3).normal(0, 0.6, (MELS, 3000)).astype(np.float32)


def test_logits_are_those_of_the_reference(folder: ModelFolder) -> None:
    mel = sample_mel()
    reference = ReferenceWhisper(small_weights(VOCAB), LAYERS, HEADS)
    known = reference.logits(reference.heard(mel), TOKENS)
    found = logits_of(folder, mel, TOKENS)
    assert np.abs(found - known).max() < 1e-3
    assert np.abs(known).max() > 1


@pytest.mark.parametrize(("kind", "most"), [("float32", 1e-3), ("int16", 0.05), ("int8", 0.3)])
def test_all_types_of_weights_mean_the_same(tmp_path: Path, kind: str, most: float) -> None:
    source = write_small_whisper(tmp_path / "source", kind=kind)
    imported = import_whisper(source, tmp_path / "small")
    mel = sample_mel()
    reference = ReferenceWhisper(small_weights(VOCAB), LAYERS, HEADS)
    known = reference.logits(reference.heard(mel), TOKENS[:2])
    assert np.abs(logits_of(imported, mel, TOKENS[:2]) - known).max() < most
    assert imported.quantization[kind] > 10


def test_the_folder_says_what_it_is(folder: ModelFolder) -> None:
    opened = ModelFolder.open(folder.path, verify=True)
    assert (opened.kind, opened.architecture, opened.encoder) == ("transcriber", "whisper", None)
    figures = opened.transcriber
    assert figures is not None
    assert (figures.begin, figures.end, figures.no_speech) == (257, 256, 263)
    assert (figures.no_timestamps, figures.first_timestamp) == (264, 265)
    assert figures.suppressed == (1, 257, 262, 263)
    assert figures.suppressed_first == (32, 256)
    assert (figures.languages, figures.multilingual) == ({"en": -1}, False)
    assert prompt_tokens(figures, "en") == (257,)
    assert opened.signature.vocab == VOCAB
    assert opened.kv_bytes_per_token() == 0
    found = examine(folder.path)
    assert (found["usable"], found["languages"]) == (True, ["en"])


def test_a_model_of_many_languages_begins_with_one_and_the_task(tmp_path: Path) -> None:
    source = write_small_whisper(tmp_path / "source", languages=("en", "de", "yue"))
    folder = import_whisper(source, tmp_path / "small")
    figures, controls = folder.transcriber, control_tokens(("en", "de", "yue"))
    assert figures is not None
    assert figures.multilingual
    assert folder.signature.vocab == MANY
    assert figures.languages == {code: controls[f"<|{code}|>"] for code in ("en", "de", "yue")}
    assert prompt_tokens(figures, "de") == tuple(
        controls[f"<|{name}|>"] for name in ("startoftranscript", "de", "transcribe")
    )


def test_the_self_test_finds_other_weights(folder: ModelFolder) -> None:
    audio, text = sessions(folder)
    check_transcriber(audio, text, folder)
    off = tuple(value + 0.5 for value in folder.self_test.vector)
    wrong = replace(folder, self_test=replace(folder.self_test, vector=off))
    with pytest.raises(ModelIncomplete, match=r"its logits are off by 0\.5"):
        check_transcriber(audio, text, wrong)


def changed(source: Path, **variables: bytes | None) -> None:
    found = small_variables(VOCAB)
    for name, value in variables.items():
        key = name.replace("__", "/")
        found.pop(key, None)
        if value is not None:
            found[key] = value
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    (source / "model.bin").write_bytes(model_bytes(found, aliases))


def one(name: str, value: int) -> bytes:
    return variable(name, np.array(value, np.int8))


def wrong_shape(source: Path) -> None:
    name = "encoder/layer_norm/beta"
    changed(source, encoder__layer_norm__beta=variable(name, np.zeros(9, np.float32)))


def set_config(source: Path, **values: Any) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | values))


def other_kind(source: Path) -> None:
    content = model_bytes(small_variables(VOCAB), specification="TransformerSpec")
    (source / "model.bin").write_bytes(content)


def no_token(source: Path) -> None:
    file = source / "tokenizer.json"
    file.write_text(file.read_text().replace("<|notimestamps|>", "<|none|>"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (other_kind, "TransformerSpec revision 3 can not be imported"),
        (lambda s: changed(s, encoder__conv1__bias=None), "no variable encoder/conv1/bias"),
        (wrong_shape, r"encoder/layer_norm/beta is of shape \[9\] where the others say \[8\]"),
        (
            lambda s: changed(s, decoder__activation=one("decoder/activation", 1)),
            "a model with decoder/activation 1 can not be imported; 3 can",
        ),
        (
            lambda s: changed(s, decoder__rotary=one("decoder/rotary", 1)),
            "a model with a variable decoder/rotary can not be imported",
        ),
        (
            lambda s: changed(
                s, encoder__num_heads=variable("encoder/num_heads", np.array(3, "i2"))
            ),
            "figures that no Whisper has",
        ),
        (lambda s: (s / "model.bin").write_bytes(b"no"), "cut short"),
        (lambda s: (s / "tokenizer.json").unlink(), "tokenizer.json can not be read"),
        (no_token, "has no token <|notimestamps|>"),
        (lambda s: set_config(s, suppress_ids=[99999]), "no usable suppress_ids"),
        (lambda s: set_config(s, suppress_ids="all"), "no usable suppress_ids"),
        (lambda s: (s / "config.json").write_text("[]"), "is no JSON object"),
        (lambda s: (s / "config.json").write_text("{"), "config.json can not be read"),
    ],
)
def test_what_can_not_be_imported_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    source = write_small_whisper(tmp_path / "source")
    assert examine(source)["usable"]
    spoil(source)
    with pytest.raises(Invalid, match=says.replace("|", r"\|")):
        import_whisper(source, tmp_path / "models" / "small")
    assert not (tmp_path / "models" / "small").exists()
    (reason, *_) = examine(source)["reasons"]
    assert says.replace("\\", "") in reason


def test_a_transcriber_is_not_exported_as_a_model_of_text(
    folder: ModelFolder, tmp_path: Path
) -> None:
    with pytest.raises(Invalid, match="small is a transcriber; it writes what it hears"):
        export_genai(folder, tmp_path / "out")
