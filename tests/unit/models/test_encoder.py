"""An encoder of safetensors, imported: its vectors, its folder, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from agent.models.encoder_config import read_encoder_config
from agent.models.encoder_importer import import_encoder
from agent.models.folder import RECORD, EncoderFigures, ModelFolder
from agent.models.selftest import open_session
from agent.models.sentence_vectors import check_vectors, hidden_states, pool
from bus.errors import Invalid, ModelIncomplete
from bus.text.tokenizer import TextModel
from tests.harness.encoder_reference import ReferenceEncoder
from tests.harness.models import minilm_folder, minilm_source
from tests.harness.small_encoder import write_small_encoder

#: The three sentences of sentence-transformers' own documentation.
SENTENCES = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
)
#: Their cosine similarities with all-MiniLM-L6-v2, as published there.
SIMILARITIES = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
ANIMALS = ("The cat sits outside.", "A kitten is sitting in the garden.")
MARKETS = ("The stock market fell sharply today.", "Shares dropped on Wall Street this morning.")


@cache
def session() -> Any:
    return open_session(minilm_folder().graph)


@cache
def reference() -> ReferenceEncoder:
    return ReferenceEncoder(minilm_source())


@cache
def text_model() -> TextModel:
    return TextModel.open(minilm_folder().path)


def sample(tokens: int) -> list[int]:
    """A text of so many tokens: CLS, any words, SEP."""
    words = np.random.default_rng(tokens).integers(1000, 30_000, tokens - 2)
    return [101, *words.tolist(), 102]


def vectors(texts: tuple[str, ...]) -> Any:
    inputs = [text_model().encode_whole(text) for text in texts]
    return np.array([pool(s, "mean", normalize=True) for s in hidden_states(session(), inputs)])


@pytest.mark.model
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_those_of_the_reference(pooling: str, normalize: bool) -> None:
    inputs = [sample(tokens) for tokens in (3, 9, 40, 130)]
    expected = [reference().vector(ids, pooling, normalize=normalize) for ids in inputs]
    padded = hidden_states(session(), inputs)
    for ids, of_batch, known in zip(inputs, padded, expected, strict=True):
        (alone,) = hidden_states(session(), [ids])
        for states in (alone, of_batch):
            found = pool(states, pooling, normalize=normalize)
            assert np.abs(found - known).max() < 1e-4


@pytest.mark.model
def test_the_last_position_is_right_and_none_stands_behind_it() -> None:
    ids = sample(512)
    known = reference().vector(ids, "mean", normalize=True)
    (states,) = hidden_states(session(), [ids])
    assert np.abs(pool(states, "mean", normalize=True) - known).max() < 1e-4


@pytest.mark.model
def test_similarities_are_the_published_ones() -> None:
    found = vectors(SENTENCES)
    assert np.abs(found @ found.T - SIMILARITIES).max() < 1e-4


@pytest.mark.model
def test_texts_of_one_subject_are_nearer_than_those_of_another() -> None:
    found = vectors(ANIMALS + MARKETS)
    near = found @ found.T
    within = (near[0, 1], near[2, 3])
    across = near[:2, 2:]
    assert min(within) > across.max() + 0.3


@pytest.mark.model
def test_ids_are_those_of_tokenizer_json() -> None:
    tokenizer = Tokenizer.from_file(str(minilm_source() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = (
        *SENTENCES,
        "",
        "naïve Ünïcode 漢字 ok?",
        "antidisestablishmentarianism\t12,5",
        "a " * 300,
    )
    for text in texts:
        assert text_model().encode_whole(text) == tokenizer.encode(text).ids


@pytest.mark.model
def test_a_control_token_in_a_text_is_text() -> None:
    ids = text_model().encode_whole("a [SEP] b")
    assert ids[0] == 101
    assert ids.index(102) == len(ids) - 1


@pytest.mark.model
def test_the_folder_says_what_it_is() -> None:
    folder = minilm_folder()
    assert folder.kind == "encoder"
    assert folder.encoder == EncoderFigures("mean", normalize=True, trained_tokens=256)
    figures = folder.signature
    assert (figures.layers, figures.hidden, figures.max_positions) == (6, 384, 512)
    assert folder.kv_bytes_per_token() == 0
    assert (folder.path / "tokenizer.json").read_bytes() == (
        minilm_source() / "tokenizer.json"
    ).read_bytes()
    check_vectors(session(), folder)


# --- a small model, made here -----------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_small_encoder(tmp_path / "source")


def test_a_small_one_is_as_the_reference(source: Path, tmp_path: Path) -> None:
    folder = import_encoder(source, tmp_path / "small")
    opened = open_session(folder.graph)
    for ids in ([2, 5, 3], [2, 9, 8, 7, 6, 3]):
        (states,) = hidden_states(opened, [ids])
        assert np.abs(states - ReferenceEncoder(source).hidden_states(ids)).max() < 1e-5


def test_a_damaged_graph_fails_the_self_test(source: Path, tmp_path: Path) -> None:
    folder = import_encoder(source, tmp_path / "small")
    check_vectors(open_session(folder.graph), folder)
    values = tuple(value + 0.1 for value in folder.self_test.vector)
    wrong = replace(folder, self_test=replace(folder.self_test, vector=values))
    again = f"fails its self-test.* with `sfctl model import {source.name} --name small`"
    with pytest.raises(ModelIncomplete, match=again):
        check_vectors(open_session(folder.graph), wrong)


def changed(name: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | values))

    return change


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def filled(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed("config.json", model_type="roberta"), "model_type 'roberta' can not be imported"),
        (changed("config.json", hidden_act="relu"), "hidden_act 'relu'"),
        (changed("config.json", is_decoder=True), "is_decoder 'True'"),
        (changed("config.json", num_attention_heads=3), "shared out over 3 heads"),
        (changed("config.json", num_hidden_layers=3), "no tensor encoder.layer.2"),
        (changed("config.json", vocab_size=99), r"shape \[40, 16\] where the configuration says"),
        (changed("config.json", vocab_size=1 << 40), "no usable vocab_size"),
        (changed("config.json", hidden_size=True), "no usable hidden_size"),
        (changed("config.json", layer_norm_eps="x"), "no usable layer_norm_eps"),
        (filled("config.json", "["), "config.json can not be read"),
        (filled("config.json", "[1]"), "config.json is no JSON object"),
        (filled("config.json", "[" * 100_000), "config.json can not be read"),
        (changed("1_Pooling/config.json", pooling_mode_max_tokens=True), "pooling by .*max"),
        (filled("modules.json", '[{"type": "x.Dense"}]'), "module 'Dense' can not be imported"),
        (filled("modules.json", "3"), "lists no modules"),
        (gone("model.safetensors"), "as encoders have"),
        (gone("config.json"), "as encoders have"),
        (gone("tokenizer.json"), "tokenizer.json can not be read"),
        (filled("tokenizer.json", "{}"), "tokenizer.json can not be read"),
    ],
)
def test_what_can_not_be_imported_is_refused_with_its_reason(
    source: Path, tmp_path: Path, change: Callable[[Path], None], says: str
) -> None:
    change(source)
    with pytest.raises(Invalid, match=says):
        import_encoder(source, tmp_path / "made" / "small")
    assert not list((tmp_path / "made").glob("*"))


def test_a_folder_without_sentence_transformers_files_is_pooled_by_mean(source: Path) -> None:
    shutil.rmtree(source / "1_Pooling")
    for name in ("modules.json", "sentence_bert_config.json"):
        (source / name).unlink()
    config = read_encoder_config(source)
    assert (config.pooling, config.normalize, config.trained_tokens) == ("mean", True, 24)


def test_cls_pooling_is_read(source: Path) -> None:
    changed("1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)(
        source
    )
    assert read_encoder_config(source).pooling == "cls"


def test_names_with_a_prefix_are_taken(tmp_path: Path) -> None:
    plain = import_encoder(write_small_encoder(tmp_path / "a"), tmp_path / "plain")
    other = import_encoder(write_small_encoder(tmp_path / "b", "bert."), tmp_path / "other")
    assert plain.self_test == other.self_test


def test_16_bit_weights_give_the_vectors_of_their_values(tmp_path: Path) -> None:
    # The small model's weights are multiples of 1/64 below 1: exact in all three types.
    made = {
        dtype: import_encoder(
            write_small_encoder(tmp_path / f"s{dtype}", dtype=dtype), tmp_path / dtype
        )
        for dtype in ("F32", "F16", "BF16")
    }
    assert len({folder.self_test for folder in made.values()}) == 1
    assert made["BF16"].quantization == {"BF16": 37}


@pytest.mark.parametrize(
    "change",
    [
        changed(RECORD, kind="painter"),
        changed(RECORD, encoder={"pooling": "max", "normalize": True, "trained_tokens": 1}),
        changed(RECORD, encoder=None),
        gone("config.json"),
    ],
)
def test_a_damaged_folder_is_refused(
    source: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = import_encoder(source, tmp_path / "small")
    change(folder.path)
    with pytest.raises(ModelIncomplete):
        ModelFolder.open(folder.path)
