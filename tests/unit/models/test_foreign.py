"""Folders of onnxruntime-genai and Optimum become model folders that give the same logits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from agent.models.export import export_genai
from agent.models.folder import GRAPH_DATA, ModelFolder
from agent.models.foreign import describe_foreign, import_foreign, prepare
from agent.models.selftest import check, open_session, prompt_logits
from agent.worker.model_runner import ModelRunner
from bus.errors import ModelIncomplete
from bus.text.model_files import read_model_files
from tests.harness.foreign_folders import (
    EOS_IN_GENERATION_CONFIG,
    WINDOW,
    Head,
    OptimumGraph,
    OptimumSession,
    write_genai,
    write_optimum,
)
from tests.harness.models import smollm2_folder, toy_model_folder

PROMPT = [72, 101, 108, 108, 111, 44, 32, 119, 111]


def runner(folder: ModelFolder, lanes: int = 2) -> ModelRunner:
    return ModelRunner(folder, device="cpu", lanes=lanes, kv_bytes=1 << 20, threads=1)


def same_logits(one: ModelFolder, other: ModelFolder, prompt: list[int]) -> None:
    first = prompt_logits(open_session(one.graph), one.signature, prompt)
    second = prompt_logits(open_session(other.graph), other.signature, prompt)
    np.testing.assert_array_equal(first, second)


def test_a_folder_exported_and_imported_again_gives_the_same_bits(tmp_path: Path) -> None:
    toy = toy_model_folder()
    back = import_foreign(export_genai(toy, tmp_path / "genai"), tmp_path / "back")
    same_logits(toy, back, PROMPT)
    assert back.signature == toy.signature
    assert (back.eos_ids, back.bos_id, back.add_bos) == (toy.eos_ids, toy.bos_id, toy.add_bos)
    assert back.self_test == toy.self_test
    assert back.numerics == {"accuracy_level": 4}
    assert back.source["kind"] == "onnxruntime-genai"
    assert back.chat_template is not None
    assert toy.chat_template is not None
    assert back.chat_template.read_bytes() == toy.chat_template.read_bytes()


def test_a_folder_with_the_names_of_the_model_builder(tmp_path: Path) -> None:
    source = write_genai(tmp_path / "source", OptimumGraph(head="last").model())
    folder = import_foreign(source, tmp_path / "model")
    expected = OptimumSession(source / "model.onnx")
    model = runner(folder)
    chunk = expected.run(PROMPT)
    np.testing.assert_allclose(model.prefill_chunk(0, PROMPT, 0)[0], chunk[-1], atol=1e-5)
    step = expected.run([90])
    np.testing.assert_allclose(model.decode([90], [10])[0], step[-1], atol=1e-5)
    # genai_config.json's and <|im_end|> of tokenizer_config.json
    assert folder.eos_ids == (256, 258)
    assert folder.bos_id == 259
    assert folder.signature.max_positions == 64
    assert (folder.path / GRAPH_DATA).stat().st_ino == (source / GRAPH_DATA).stat().st_ino


def test_steps_of_several_lanes_give_the_same_bits(tmp_path: Path) -> None:
    toy = toy_model_folder()
    back = import_foreign(export_genai(toy, tmp_path / "genai"), tmp_path / "back")
    results = []
    for folder in (toy, back):
        model = runner(folder)
        rows = [
            model.prefill_chunk(0, PROMPT, 0).copy(),
            model.prefill_chunk(1, PROMPT[:4], 0).copy(),
            model.decode([33, 34], [len(PROMPT) + 1, 5]).copy(),
            model.prefill_chunk(1, PROMPT[4:], 5).copy(),
        ]
        results.append(np.concatenate(rows))
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.model
def test_a_real_model_exported_and_imported_again_gives_the_same_bits(tmp_path: Path) -> None:
    folder = smollm2_folder()
    back = import_foreign(export_genai(folder, tmp_path / "genai"), tmp_path / "back")
    same_logits(folder, back, list(folder.self_test.prompt))
    assert back.signature == folder.signature
    assert back.eos_ids == folder.eos_ids
    assert back.self_test == folder.self_test


@pytest.mark.parametrize("rotary_inside", [True, False])
@pytest.mark.parametrize("head", ["plain", "capped", "reshaped", "computed", "last", "keep"])
def test_an_optimum_folder_gives_the_logits_of_its_own_graph(
    tmp_path: Path, rotary_inside: bool, head: Head
) -> None:
    graph = OptimumGraph(rotary_inside=rotary_inside, head=head).model()
    source = write_optimum(tmp_path / "source", graph)
    folder = import_foreign(source, tmp_path / "model")
    expected = OptimumSession(source / "onnx" / "model_q4.onnx")
    model = runner(folder)
    other = runner(folder)
    chunk = expected.run(PROMPT)
    np.testing.assert_allclose(model.prefill_chunk(1, PROMPT, 0)[0], chunk[-1], atol=1e-5)
    all_rows = prompt_logits(open_session(folder.graph), folder.signature, PROMPT)
    np.testing.assert_allclose(all_rows[-len(chunk) :], chunk, atol=1e-5)
    # a step, beside a lane of another length
    model.prefill_chunk(0, PROMPT[:2], 0)
    step = expected.run([90])
    np.testing.assert_allclose(model.decode([35, 90], [3, 10])[1], step[-1], atol=1e-5)
    more = expected.run(PROMPT[:5])
    np.testing.assert_allclose(model.prefill_chunk(1, PROMPT[:5], 10)[0], more[-1], atol=1e-5)
    # cut otherwise
    other.prefill_chunk(0, PROMPT[:4], 0)
    np.testing.assert_allclose(other.prefill_chunk(0, PROMPT[4:], 4)[0], chunk[-1], atol=1e-5)


@pytest.mark.parametrize("head", ["plain", "capped", "reshaped", "last", "keep"])
def test_the_vocabulary_product_runs_on_the_rows_asked_for(tmp_path: Path, head: Head) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph(head=head).model())
    folder = import_foreign(source, tmp_path / "model")
    nodes = list(onnx.load(folder.graph, load_external_data=False).graph.node)
    taken = next(place for place, node in enumerate(nodes) if "logits_idx" in node.input)
    product = next(place for place, node in enumerate(nodes) if "lm_head" in node.input)
    assert taken < product


def test_where_no_such_place_is_found_rows_are_taken_of_all_logits(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph(head="computed").model())
    assert "computed for all and then taken" in describe_foreign(prepare(source))["notes"][0]


def test_what_the_folder_says_of_an_optimum_model(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model(), external=True)
    folder = import_foreign(source, tmp_path / "model")
    assert ModelFolder.open(folder.path, verify=True) == folder
    # config.json, generation_config.json, and <|im_end|> of tokenizer_config.json
    assert folder.eos_ids == (256, EOS_IN_GENERATION_CONFIG, 258)
    # the rotary tables are shorter than the configuration's window
    assert folder.signature.max_positions == WINDOW
    assert folder.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 4
    assert folder.source["kind"] == "optimum"
    assert folder.source["graph"] == "onnx/model_q4.onnx"
    assert folder.architecture == "llama"


def test_weights_beside_the_graph_are_linked(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model(), external=True)
    folder = import_foreign(source, tmp_path / "model")
    old, new = source / "onnx" / "model_q4.onnx_data", folder.path / GRAPH_DATA
    assert old.stat().st_ino == new.stat().st_ino


def test_constants_whose_values_lie_beside_the_graph_are_found_again(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model(), external=True)
    file = source / "onnx" / "model_q4.onnx"
    graph = onnx.load(file, load_external_data=False)
    table = next(tensor for tensor in graph.graph.initializer if tensor.name == "cos")
    value = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=table)
    constant = onnx.NodeProto(op_type="Constant", output=["cos"], attribute=[value])
    graph.graph.initializer.remove(table)
    graph.graph.node.insert(0, constant)
    file.write_bytes(graph.SerializeToString())
    import_foreign(source, tmp_path / "model")


def test_weights_inside_the_graph_are_moved_out(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model())
    folder = import_foreign(source, tmp_path / "model")
    assert folder.graph.stat().st_size < 10_000
    assert (folder.path / GRAPH_DATA).stat().st_size > 100_000


def test_check_says_what_would_happen_and_writes_nothing(tmp_path: Path) -> None:
    graph = OptimumGraph(rotary_inside=False).model()
    source = write_optimum(tmp_path / "source", graph, external=True)
    before = sorted(tmp_path.rglob("*"))
    found = describe_foreign(prepare(source))
    assert sorted(tmp_path.rglob("*")) == before
    assert (found["kind"], found["graph"], found["device"]) == (
        "optimum",
        "onnx/model_q4.onnx",
        "cpu",
    )
    assert found["eos_ids"] == [256, EOS_IN_GENERATION_CONFIG, 258]
    assert "positions are computed from lengths" in found["notes"][0]


def test_int4_is_chosen_before_the_plain_graph_and_float16_last(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model(), name="model")
    assert describe_foreign(prepare(source))["graph"] == "onnx/model.onnx"
    plain = (source / "onnx" / "model.onnx").read_bytes()
    for name in ("model_q4f16", "model_fp16", "model_quantized"):
        (source / "onnx" / f"{name}.onnx").write_bytes(plain)
    assert describe_foreign(prepare(source))["graph"] == "onnx/model.onnx"
    (source / "onnx" / "model_q4.onnx").write_bytes(plain)
    found = describe_foreign(prepare(source))
    assert found["graph"] == "onnx/model_q4.onnx"
    assert found["variants"] == ["model", "fp16", "q4", "q4f16", "quantized"]
    for given in ("fp16", "model_fp16", "model_fp16.onnx"):
        assert describe_foreign(prepare(source, given))["graph"] == "onnx/model_fp16.onnx"


def test_float16_is_for_gpus(tmp_path: Path) -> None:
    graph = OptimumGraph(float16=True).model()
    source = write_optimum(tmp_path / "source", graph, name="model_fp16")
    found = describe_foreign(prepare(source))
    assert found["device"] == "cuda"
    assert any("served on CUDA only" in note for note in found["notes"])
    folder = import_foreign(source, tmp_path / "model")
    assert not folder.runs_on_cpu
    assert folder.graph_float16 is not None
    session = open_session(folder.graph_float16)
    given = prompt_logits(session, folder.signature, PROMPT)
    expected = OptimumSession(source / "onnx" / "model_fp16.onnx").run(PROMPT)
    np.testing.assert_allclose(given, expected, atol=0.02)


def test_names_of_ours_inside_a_graph_are_no_trouble(tmp_path: Path) -> None:
    graph = OptimumGraph().model()
    renamed: dict[str, Any] = {"embed.x": "past.0.k", "final.normed": "logits_idx"}
    for node in graph.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = renamed.get(name, name)
    source = write_optimum(tmp_path / "source", graph)
    folder = import_foreign(source, tmp_path / "model")
    given = prompt_logits(open_session(folder.graph), folder.signature, PROMPT)
    expected = OptimumSession(source / "onnx" / "model_q4.onnx").run(PROMPT)
    np.testing.assert_allclose(given, expected, atol=1e-5)


def test_a_failed_self_test_names_the_folder_that_was_imported(tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "source", OptimumGraph().model())
    folder = import_foreign(source, tmp_path / "model")
    session = open_session(folder.graph)
    least = int(prompt_logits(session, folder.signature, folder.self_test.prompt)[-1].argmin())
    wrong = replace(folder, self_test=replace(folder.self_test, next_token=least))
    with pytest.raises(ModelIncomplete, match="`sfctl model import source --name model`"):
        check(session, wrong)


def test_genai_settings_are_kept(tmp_path: Path) -> None:
    source = export_genai(toy_model_folder(), tmp_path / "genai")
    config = json.loads((source / "genai_config.json").read_text())
    config["search"]["top_k"] = 40
    (source / "genai_config.json").write_text(json.dumps(config))
    folder = import_foreign(source, tmp_path / "model")
    made = json.loads((folder.path / "genai_config.json").read_text())
    assert made["search"]["top_k"] == 40
    assert made["model"]["decoder"]["inputs"]["past_key_names"] == "past.%d.k"
    assert "attention_mask" not in made["model"]["decoder"]["inputs"]


def test_templates_by_name_come_along(tmp_path: Path) -> None:
    source = export_genai(toy_model_folder(), tmp_path / "genai")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    folder = import_foreign(source, tmp_path / "model")
    files = read_model_files(folder.path)
    assert dict(files.named_templates) == {"tool_use": "for tools"}
    assert files.template == read_model_files(source).template
