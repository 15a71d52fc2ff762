"""The graph builder against a forward pass in numpy, on the toy decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.models.architecture import DecoderConfig, WeightSource
from agent.models.blocks import FORMATS
from agent.models.folder import Signature
from agent.models.graph import EXACT, INT8_ACTIVATIONS, LayerRange, Numerics, write_graphs
from agent.models.selftest import open_session, prompt_logits
from agent.models.toy import CONFIG, ToyWeights
from tests.harness.graph_logits import FILES, FLOAT_ACTIVATIONS, write_both_graphs
from tests.harness.reference import Floats, ReferenceModel, divergence
from tests.harness.toy_variants import WIDE, VariedWeights, reference_of

PROMPT = list(b"Rivers shape the cities on them.")


def built(
    folder: Path, weights: WeightSource, numerics: Numerics, config: DecoderConfig = CONFIG
) -> tuple[Any, Signature]:
    figures = write_both_graphs(folder, config, weights, numerics)
    return open_session(folder / "model.onnx"), figures


def toy_reference(tokens: list[int], kind: type[ReferenceModel] = ReferenceModel) -> Floats:
    toy = ToyWeights()
    dense = {
        name: toy.vector(name) if "norm" in name else toy.matrix(name).dequantize()
        for name in toy.names()
    }
    return reference_of(CONFIG, dense, kind).logits(tokens)


def test_toy_logits_equal_the_reference(tmp_path: Path) -> None:
    session, figures = built(tmp_path, ToyWeights(), EXACT)
    got = prompt_logits(session, figures, PROMPT)
    np.testing.assert_allclose(got, toy_reference(PROMPT), rtol=0, atol=2e-4)


class Int8Reference(ReferenceModel):
    """Rounds the activations of every product to int8, in blocks of 32, as accuracy level 4 does.

    The correction of affine weights is computed from activations that were not rounded.
    """

    def _linear(self, x: Floats, name: str) -> Floats:
        weight = ToyWeights().matrix(f"{name}.weight")
        blocks = x.reshape(len(x), -1, 32)
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        rounded = np.round(blocks / scale) * scale
        result: Floats = rounded.reshape(x.shape) @ weight.dequantize().T
        correction = weight.correction()
        if correction is not None:
            result += (blocks - rounded).sum(axis=-1) @ correction.T
        return result


def test_int8_graph_differs_from_float32_by_its_rounding_and_nothing_else(tmp_path: Path) -> None:
    session, figures = built(tmp_path, ToyWeights(), INT8_ACTIVATIONS)
    got = prompt_logits(session, figures, PROMPT)
    float32 = toy_reference(PROMPT)
    int8 = toy_reference(PROMPT, Int8Reference)
    assert divergence(int8, got) < divergence(float32, got) / 4
    assert np.abs(got - int8).mean() < np.abs(got - float32).mean() / 2


def test_float16_graph_is_near_the_reference(tmp_path: Path) -> None:
    _, figures = built(tmp_path, ToyWeights(), INT8_ACTIVATIONS)
    got = prompt_logits(open_session(tmp_path / "model.fp16.onnx"), figures, PROMPT)
    assert divergence(toy_reference(PROMPT), got) < 1e-4


@pytest.mark.parametrize("numerics", [EXACT, FLOAT_ACTIVATIONS])
@pytest.mark.parametrize("kind", [*FORMATS, None])
def test_every_format_gives_the_reference_logits(
    tmp_path: Path, kind: str | None, numerics: Numerics
) -> None:
    weights = VariedWeights(lambda name: kind)
    session, figures = built(tmp_path, weights, numerics, WIDE)
    expected = reference_of(WIDE, weights.dense_weights()).logits(PROMPT)
    got = prompt_logits(session, figures, PROMPT)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)


def test_mixed_formats_and_an_untied_head(tmp_path: Path) -> None:
    kinds = {"attn_q": "Q4_K", "attn_v": "Q6_K", "ffn_up": "Q5_0", "ffn_down": None}

    def choose(name: str) -> str | None:
        return next((kind for part, kind in kinds.items() if part in name), "Q4_0")

    weights = VariedWeights(choose, untied=True)
    session, figures = built(tmp_path, weights, EXACT, WIDE)
    expected = reference_of(WIDE, weights.dense_weights()).logits(PROMPT)
    got = prompt_logits(session, figures, PROMPT)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)


def cache_of(config: DecoderConfig, lanes: int, room: int) -> dict[str, Floats]:
    shape = (lanes, config.kv_heads, room, config.head_dim)
    return {
        f"past.{layer}.{part}": np.zeros(shape, np.float32)
        for layer in range(config.layers)
        for part in "kv"
    }


def run(session: Any, first: str, x: Any, lengths: list[int], cache: dict[str, Floats]) -> Any:
    """One run over a cache, which is replaced by what the run gives; the first output."""
    feeds: dict[str, Any] = {
        first: x,
        "seqlens_k": np.array(lengths, np.int32) - 1,
        "total_sequence_length": np.array(max(lengths), np.int32),
        **cache,
    }
    outputs = [output.name for output in session.get_outputs()]
    if "logits" in outputs:
        feeds["logits_idx"] = np.arange(x.shape[0] * x.shape[1])
    result = session.run(outputs, feeds)
    for name, value in zip(outputs[1:], result[1:], strict=True):
        cache[name.replace("present", "past")] = value
    return result[0]


def test_chunks_then_steps_of_two_lanes_equal_the_reference(tmp_path: Path) -> None:
    session, _ = built(tmp_path, ToyWeights(), EXACT)
    texts = [list(b"A first lane, and longer"), list(b"the second")]
    lanes = []
    for tokens in texts:
        lane = cache_of(CONFIG, 1, 64)
        head, tail = tokens[:4], tokens[4:-2]
        run(session, "input_ids", np.array([head]), [len(head)], lane)
        run(session, "input_ids", np.array([tail]), [len(tokens) - 2], lane)
        lanes.append(lane)
    slab = {name: np.concatenate([lane[name] for lane in lanes]) for name in lanes[0]}
    for back in (2, 1):
        x = np.array([[tokens[-back]] for tokens in texts])
        got = run(session, "input_ids", x, [len(tokens) - back + 1 for tokens in texts], slab)
        expected = [toy_reference(tokens)[-back] for tokens in texts]
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)


def test_two_stages_equal_the_whole_bit_for_bit(tmp_path: Path) -> None:
    session, figures = built(tmp_path, ToyWeights(), INT8_ACTIVATIONS)
    whole = prompt_logits(session, figures, PROMPT)
    x: Any = np.array([PROMPT])
    for stage, name in ((LayerRange(0, 1), "input_ids"), (LayerRange(1, 2), "hidden_in")):
        folder = tmp_path / name
        folder.mkdir()
        write_graphs(folder, CONFIG, ToyWeights(), FILES, layers=stage)
        cache = {
            key: value
            for key, value in cache_of(CONFIG, 1, 64).items()
            if key.startswith(f"past.{stage.first}.")
        }
        x = run(open_session(folder / "model.onnx"), name, x, [len(PROMPT)], cache)
    np.testing.assert_array_equal(x, whole)


def test_both_graphs_share_the_quantised_bytes(tmp_path: Path) -> None:
    import onnx

    write_graphs(tmp_path, CONFIG, ToyWeights(), FILES)
    places = []
    for name in FILES.values():
        model = onnx.load(tmp_path / name, load_external_data=False)
        places.append(
            {
                tensor.name: {entry.key: entry.value for entry in tensor.external_data}
                for tensor in model.graph.initializer
                if tensor.name.endswith(".q")
            }
        )
    assert places[0] == places[1]
    assert places[0]["embedding.q"]["offset"] == places[0]["head.logits.q"]["offset"]
