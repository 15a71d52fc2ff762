"""Folders of stages: split off a whole model's folder, or made alone of its source."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.models.encoder_importer import import_encoder
from agent.models.examine import describe_folder, examine
from agent.models.export import export_genai
from agent.models.folder import GRAPH_DATA, RECORD, ModelFolder
from agent.models.foreign import import_foreign
from agent.models.graph import EXACT, INT8_ACTIVATIONS, Numerics
from agent.models.importer import import_gguf, import_gguf_stage
from agent.models.selftest import check, noise, open_session
from agent.models.split import split_model
from agent.models.stages import even_stages, listed_stages
from bus.errors import Invalid, ModelIncomplete
from bus.text.tokenizer_files import folder_text_digest
from tests.harness.foreign_folders import Head, OptimumGraph, write_optimum
from tests.harness.gguf_models import FAMILIES, SmallModel, write_model
from tests.harness.models import toy_model_folder
from tests.harness.small_encoder import write_small_encoder
from tests.harness.stage_run import StageRun

ROOM = 64


def split(folder: ModelFolder, models: Path, stages: int | str) -> list[ModelFolder]:
    layers = folder.signature.layers
    chosen = (
        even_stages(layers, stages) if isinstance(stages, int) else listed_stages(layers, stages)
    )
    return split_model(folder, models, chosen)


def check_same_logits(whole: ModelFolder, stages: list[ModelFolder], vocab: int = 256) -> None:
    """Chunks of two lanes, then steps of both, which hold different numbers of tokens."""
    runs = [StageRun(folders, lanes=2, room=ROOM) for folders in ([whole], stages)]
    texts = [[(7 * n + 3) % vocab for n in range(21)], [(5 * n + 11) % vocab for n in range(9)]]
    for lane, ids in enumerate(texts):
        for start, end in ((0, 5), (5, len(ids))):
            expected, got = (run.prefill(lane, ids[start:end], start) for run in runs)
            np.testing.assert_array_equal(expected, got)
    for step in range(1, 5):
        lengths = [len(ids) + step for ids in texts]
        expected, got = (run.decode([step, 40 + step], lengths) for run in runs)
        np.testing.assert_array_equal(expected, got)


@pytest.fixture(scope="module")
def toy_stages(tmp_path_factory: pytest.TempPathFactory) -> list[ModelFolder]:
    return split(toy_model_folder(), tmp_path_factory.mktemp("models"), 2)


def test_stages_of_the_toy_give_its_logits(toy_stages: list[ModelFolder]) -> None:
    assert [folder.path.name for folder in toy_stages] == ["toy.1of2", "toy.2of2"]
    check_same_logits(toy_model_folder(), toy_stages)


def small(tmp_path: Path, family: str = "llama", layers: int = 4, untied: bool = False) -> Path:
    model = SmallModel(
        family=family,
        layers=layers,
        choose=lambda name: "Q8_0" if "attn_v" in name or "embd" in name else "Q4_K",
        biases="qkv" if family == "qwen2" else "",
        untied=untied,
    )
    return write_model(tmp_path / "small.gguf", model)


@pytest.mark.parametrize("numerics", [INT8_ACTIVATIONS, EXACT])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_split_and_imports_of_its_stages_are_equal_byte_for_byte(
    tmp_path: Path, family: str, numerics: Numerics
) -> None:
    file, ranges = small(tmp_path, family), "0-0,1-2,3-3"
    whole = import_gguf(file, tmp_path / "models" / "small", numerics=numerics)
    stages = split(whole, tmp_path / "models", ranges)
    check_same_logits(whole, stages)
    for place, stage in enumerate(stages, 1):
        alone = import_gguf_stage(
            file,
            tmp_path / "alone",
            "small",
            place=f"{place}/3",
            layers=ranges,
            numerics=numerics,
        )
        assert alone.path.name == stage.path.name == f"small.{place}of3"
        for name in (*stage.files, RECORD):
            assert (alone.path / name).read_bytes() == (stage.path / name).read_bytes()
        assert {*alone.files} == {*stage.files}


def test_an_untied_head_goes_to_the_last_stage_only(tmp_path: Path) -> None:
    whole = import_gguf(small(tmp_path, untied=True), tmp_path / "small")
    stages = split(whole, tmp_path, 2)
    check_same_logits(whole, stages)
    sizes = [(folder.path / GRAPH_DATA).stat().st_size for folder in (*stages, whole)]
    # both have cosines and sines, 256 positions of half a head of 64 in float32 and float16
    assert sizes[0] + sizes[1] - sizes[2] == pytest.approx(2 * 256 * 32 * (4 + 2), abs=4096)


def test_the_record_says_which_part_of_what_it_is(toy_stages: list[ModelFolder]) -> None:
    whole = toy_model_folder()
    first, last = toy_stages
    assert first.stage is not None
    assert last.stage is not None
    assert first.stage.whole == last.stage.whole
    assert (first.stage.model, first.stage.index, first.stage.stages) == ("toy", 0, 2)
    assert (last.stage.first, last.stage.end, last.stage.layers) == (1, 2, 2)
    assert first.signature.inputs == (
        *("input_ids", "seqlens_k", "total_sequence_length", "past.0.k", "past.0.v"),
    )
    assert last.signature.inputs == (
        *("hidden_in", "seqlens_k", "total_sequence_length", "logits_idx"),
        *("past.1.k", "past.1.v"),
    )
    assert (last.signature.first_layer, last.signature.layers) == (1, 1)
    assert last.kv_bytes_per_token() * 2 == whole.kv_bytes_per_token()
    for stage in toy_stages:
        assert stage.kind == "decoder"
        assert (stage.source, stage.eos_ids) == (whole.source, whole.eos_ids)
        texts = {*whole.files} - {"model.onnx", "model.fp16.onnx", GRAPH_DATA}
        assert {*stage.files} >= texts
        for name in texts:
            assert (stage.path / name).read_bytes() == (whole.path / name).read_bytes()
        assert folder_text_digest(stage.path) == folder_text_digest(whole.path) != 0


def test_whole_names_the_source_and_not_the_ranges(tmp_path: Path) -> None:
    whole = import_gguf(small(tmp_path), tmp_path / "a")
    two, uneven = split(whole, tmp_path, 2), split(whole, tmp_path / "b", "0-0,1-3")
    exact = import_gguf_stage(small(tmp_path), tmp_path, "e", place="1/2", numerics=EXACT)
    (tmp_path / "c").mkdir()
    other = import_gguf_stage(small(tmp_path / "c", layers=5), tmp_path, "o", place="1/2")
    names = [folder.stage.whole for folder in (*two, *uneven, exact, other) if folder.stage]
    assert len(names) == 6
    assert len({*names[:4]}) == 1
    assert len({*names}) == 3


def test_stages_can_be_looked_at(toy_stages: list[ModelFolder]) -> None:
    found = examine(toy_stages[1].path, verify=True)
    assert found["usable"] is True
    assert found["stage"] == "2/2 of toy, layers 1-1 of 2"
    assert found["layers"] == 1
    shown = describe_folder(toy_stages[0])
    assert shown["stage"] == "1/2 of toy, layers 0-0 of 2"
    assert "stage" not in describe_folder(toy_model_folder())


# --- self-tests ---------------------------------------------------------------------------------


def test_self_tests_hold_with_the_kernels_that_serve(toy_stages: list[ModelFolder]) -> None:
    for folder in toy_stages:
        assert folder.graph_float16 is not None
        check(open_session(folder.graph), folder)
        check(open_session(folder.graph_float16), folder)


@pytest.mark.parametrize("place", [0, 1])
def test_other_weights_fail_the_self_test(
    tmp_path: Path, toy_stages: list[ModelFolder], place: int
) -> None:
    path = shutil.copytree(toy_stages[place].path, tmp_path / "toy")
    data = bytearray((path / GRAPH_DATA).read_bytes())
    # behind the tables of rotations: integers of products, which stay integers
    data[-16384:] = bytes(reversed(data[-16384:]))
    (path / GRAPH_DATA).write_bytes(data)
    with pytest.raises(ModelIncomplete, match=r"fails its self-test: .*`sfctl model split toy"):
        check(open_session(path / "model.onnx"), replace(toy_stages[place], path=path))


def test_noise_is_the_same_everywhere() -> None:
    """Values that were once drawn: records of stages are compared with what comes of them."""
    state = noise([7, 300], 4)
    assert state.shape == (1, 2, 4)
    assert state[0, 0].tolist() == [
        *(0.03127385675907135, 0.09930343925952911),
        *(0.06892141699790955, -0.0686982125043869),
    ]
    assert state[0, 1, 3] == np.float32(-0.06205372512340546)
    assert np.abs(noise(list(range(64)), 64)).max() <= 0.125


# --- what can not be split ----------------------------------------------------------------------


def test_a_stage_is_not_split_again(tmp_path: Path, toy_stages: list[ModelFolder]) -> None:
    with pytest.raises(Invalid, match=r"is a stage itself .*; split the whole model"):
        split_model(toy_stages[0], tmp_path, even_stages(2, 2))


def test_an_encoder_is_not_split(tmp_path: Path) -> None:
    encoder = import_encoder(write_small_encoder(tmp_path / "a"), tmp_path / "small")
    with pytest.raises(Invalid, match="is of kind encoder and only models that make text"):
        split(encoder, tmp_path, 2)


def test_a_stage_is_not_exported(tmp_path: Path, toy_stages: list[ModelFolder]) -> None:
    for stage in toy_stages:
        with pytest.raises(Invalid, match="export the whole model"):
            export_genai(stage, tmp_path / "out")


def test_nothing_is_left_when_stages_do_not_give_what_the_whole_gives(tmp_path: Path) -> None:
    toy = toy_model_folder()
    wrong = replace(toy.self_test, next_token=(toy.self_test.next_token + 1) % 256)
    with pytest.raises(ModelIncomplete, match="the stages of toy give token"):
        split(replace(toy, self_test=wrong), tmp_path / "models", 2)
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"end": 3}, "superfluid.json is damaged"),
        ({"first": 0, "end": 2}, "stage and signature have other layers"),
        ({"whole": ""}, "superfluid.json is damaged"),
    ],
)
def test_a_record_that_contradicts_itself_is_damage(
    tmp_path: Path, toy_stages: list[ModelFolder], change: dict[str, object], says: str
) -> None:
    path = shutil.copytree(toy_stages[1].path, tmp_path / "toy.2of2")
    record = json.loads((path / RECORD).read_text())
    record["stage"] |= change
    (path / RECORD).write_text(json.dumps(record))
    with pytest.raises(ModelIncomplete, match=says):
        ModelFolder.open(path)


def test_the_remedy_makes_the_stage_again(tmp_path: Path) -> None:
    stage = import_gguf_stage(small(tmp_path), tmp_path, "mine", layers="0-2")
    (stage.path / "tokenizer.json").unlink()
    with pytest.raises(ModelIncomplete) as caught:
        ModelFolder.open(stage.path)
    remedy = "`sfctl model import small.gguf --stage 1/2 --layers 0-2 --name mine`"
    assert remedy in caught.value.message


# --- graphs of other programs -------------------------------------------------------------------


@pytest.mark.parametrize("rotary_inside", [True, False])
@pytest.mark.parametrize("head", ["plain", "capped", "computed"])
def test_imported_graphs_are_split(tmp_path: Path, rotary_inside: bool, head: Head) -> None:
    graph = OptimumGraph(rotary_inside=rotary_inside, head=head).model()
    whole = import_foreign(write_optimum(tmp_path / "source", graph), tmp_path / "other")
    stages = split(whole, tmp_path, 2)
    check_same_logits(whole, stages)
    again = split(whole, tmp_path / "again", 2)
    assert [stage.digest for stage in again] == [stage.digest for stage in stages]


def test_a_float16_graph_alone_is_split(tmp_path: Path) -> None:
    source = write_optimum(
        tmp_path / "source", OptimumGraph(float16=True).model(), name="model_fp16"
    )
    stages = split(import_foreign(source, tmp_path / "half"), tmp_path, 2)
    assert [stage.runs_on_cpu for stage in stages] == [False, False]
    for stage in stages:
        assert stage.graph_float16 is not None
        check(open_session(stage.graph_float16), stage)


def test_stages_of_other_programs_models_are_told_apart(tmp_path: Path) -> None:
    """Of graphs that are equal but for weights in files beside them."""
    graph = OptimumGraph().model()
    one = import_foreign(write_optimum(tmp_path / "s", graph), tmp_path / "one")
    wholes = [stage.stage.whole for stage in split(one, tmp_path, 2) if stage.stage]
    files = {**one.files, GRAPH_DATA: replace(one.files[GRAPH_DATA], sha256="0")}
    changed = replace(one, files=files)
    wholes += [each.stage.whole for each in split(changed, tmp_path / "b", 2) if each.stage]
    assert wholes[0] == wholes[1] != wholes[2] == wholes[3]
