"""Every family in every format, against a forward pass in numpy that reads the same GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.models.folder import Signature
from agent.models.gguf_file import GgufFile
from agent.models.graph import EXACT, INT8_ACTIVATIONS, Numerics
from agent.models.selftest import open_session, prompt_logits
from tests.harness.gguf_models import FAMILIES, SmallModel, write_model
from tests.harness.graph_logits import FLOAT_ACTIVATIONS, write_both_graphs
from tests.harness.reference import Floats, ReferenceModel, divergence

PROMPT = list(b"Rivers shape the cities on them.")
FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")

#: As `Q4_K_M` files mix them: query, key and value, and gate and up, of different types.
MIXED = {
    "token_embd": "Q6_K",
    "attn_q": "Q4_K",
    "attn_k": "Q5_0",
    "attn_v": "Q6_K",
    "ffn_gate": "Q5_1",
    "ffn_down": "Q8_0",
    "output": "F16",
}


def mixed(name: str) -> str:
    return next((kind for part, kind in MIXED.items() if part in name), "Q4_0")


def build(
    folder: Path, model: SmallModel, numerics: Numerics = FLOAT_ACTIVATIONS
) -> tuple[Signature, ReferenceModel]:
    """Write file and graphs; gives the figures of the graphs, and the reference."""
    file = write_model(folder / "m.gguf", model)
    weights = GgufFile(file)
    figures = write_both_graphs(folder, weights.config, weights, numerics)
    return figures, ReferenceModel.from_gguf(file)


def check_both_graphs(folder: Path, model: SmallModel, numerics: Numerics) -> Floats:
    """Float32 to rounding, float16 by divergence; gives the reference's logits."""
    figures, reference = build(folder, model, numerics)
    expected = reference.logits(PROMPT)
    got = prompt_logits(open_session(folder / "model.onnx"), figures, PROMPT)
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-4)
    half = prompt_logits(open_session(folder / "model.fp16.onnx"), figures, PROMPT)
    assert divergence(expected, half) < 2e-5
    return expected


def small(family: str, **more: Any) -> SmallModel:
    """Gemma has enough layers that one is global."""
    return SmallModel(family=family, layers=6 if family == "gemma3" else 2, **more)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_in_every_format(tmp_path: Path, family: str, kind: str) -> None:
    model = small(family, choose=lambda name: kind, biases="qkv" if family == "qwen2" else "")
    check_both_graphs(tmp_path, model, FLOAT_ACTIVATIONS)


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_formats_mixed_within_one_product(tmp_path: Path, family: str, untied: bool) -> None:
    biases = "qkv" if family == "qwen2" else ""
    model = small(family, choose=mixed, untied=untied, biases=biases)
    check_both_graphs(tmp_path, model, EXACT)


@pytest.mark.parametrize("biases", ["", "v", "qk"])
def test_biases_that_only_some_have(tmp_path: Path, biases: str) -> None:
    check_both_graphs(tmp_path, small("qwen2", biases=biases), EXACT)


def test_heads_of_another_length_than_hidden_over_heads(tmp_path: Path) -> None:
    model = small("qwen3", heads=2, kv_heads=1, head_dim=256, hidden=128)
    check_both_graphs(tmp_path, model, EXACT)


def test_linear_scaling_and_yarn(tmp_path: Path) -> None:
    plain = check_both_graphs(tmp_path, small("qwen3"), EXACT)
    for kind, more in (
        ("linear", {"rope.scaling.factor": 4.0}),
        ("yarn", {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}),
    ):
        model = small("qwen3", more={"rope.scaling.type": kind, **more})
        scaled = check_both_graphs(tmp_path, model, EXACT)
        assert np.abs(scaled - plain).max() > 0.1


def test_linear_scaling_leaves_local_layers_alone(tmp_path: Path) -> None:
    more = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    check_both_graphs(tmp_path, small("gemma3", more=more), EXACT)


def feed(
    session: Any, figures: Signature, tokens: Sequence[int], at: int, cache: dict[str, Floats]
) -> Floats:
    """Run tokens that begin at position `at` over the cache, which is replaced; all logits."""
    end = at + len(tokens)
    feeds: dict[str, Any] = {
        "input_ids": np.array([tokens], np.int64),
        "seqlens_k": np.array([end - 1], np.int32),
        "total_sequence_length": np.array(end, np.int32),
        "logits_idx": np.arange(len(tokens)),
        **cache,
    }
    outputs = [output.name for output in session.get_outputs()]
    result = session.run(outputs, feeds)
    for name, value in zip(outputs[1:], result[1:], strict=True):
        cache[name.replace("present", "past")] = value
    logits: Floats = result[0]
    return logits


@pytest.mark.parametrize("cuts", [[5, 20, 27, 28, 29, 30, 31, 32], [1, 2, 3, 31, 32], [9, 17, 32]])
def test_windows_hold_over_chunks_and_steps(tmp_path: Path, cuts: list[int]) -> None:
    """A window of 8 over 32 tokens, however they come."""
    figures, reference = build(tmp_path, small("gemma3", window=8), EXACT)
    session = open_session(tmp_path / "model.onnx")
    shape = (1, figures.kv_heads, 64, figures.head_dim)
    cache = {name: np.zeros(shape, np.float32) for name in figures.inputs if "past" in name}
    got, at = [], 0
    for cut in cuts:
        got.append(feed(session, figures, PROMPT[at:cut], at, cache))
        at = cut
    np.testing.assert_allclose(np.concatenate(got), reference.logits(PROMPT), rtol=0, atol=3e-4)


def test_a_window_changes_what_is_seen(tmp_path: Path) -> None:
    narrow = check_both_graphs(tmp_path, small("gemma3", window=8), EXACT)
    wide = check_both_graphs(tmp_path, small("gemma3", window=9), EXACT)
    np.testing.assert_array_equal(narrow[:8], wide[:8])
    assert np.abs(narrow[8:] - wide[8:]).max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_activations_are_near(tmp_path: Path, family: str) -> None:
    """On weights of no meaning the distributions are wide; real ones are measured elsewhere."""
    figures, reference = build(tmp_path, small(family, choose=mixed), INT8_ACTIVATIONS)
    got = prompt_logits(open_session(tmp_path / "model.onnx"), figures, PROMPT)
    assert divergence(reference.logits(PROMPT), got) < 5e-3
