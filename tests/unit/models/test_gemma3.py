"""Gemma-3-270M (base) as imported, against a float32 forward pass of the same file."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from agent.models.selftest import check, open_session
from tests.harness.graph_logits import graph_logits
from tests.harness.models import gemma3_float_folder, gemma3_folder, gemma3_gguf
from tests.harness.reference import Floats, ReferenceModel, divergence

pytestmark = pytest.mark.model

TEXTS = (
    "The capital of France is Paris, and the capital of Germany is Berlin. Rivers shape cities:",
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n-1) + fib(n-2)",
)
#: The local layers' window; the long prompt goes well past it.
WINDOW = 512
LONG = (
    "Most cities began beside a river. Water turned the mills, carried the grain and took away "
    "what nobody wanted. When the railways came, the river lost its trade; the quays became "
    "parks, and the warehouses were sold as flats with a view of what had been the workplace of "
    "thousands. "
) * 11


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(gemma3_folder().tokenizer))


@cache
def reference() -> ReferenceModel:
    return ReferenceModel.from_gguf(gemma3_gguf())


@cache
def prompts() -> list[list[int]]:
    return [list(tokenizer().encode(text).ids) for text in TEXTS]


@cache
def reference_logits() -> Floats:
    return np.concatenate([reference().logits(prompt) for prompt in prompts()])


def test_int8_activations_are_near() -> None:
    """Measured: mean difference 0.10 to 0.17, divergence 1.5e-3 to 1.7e-3."""
    expected, got = reference_logits(), graph_logits(gemma3_folder(), prompts())
    assert np.abs(got - expected).mean() <= 0.25
    assert divergence(expected, got) <= 4e-3


def test_float32_graph_equals_the_reference() -> None:
    got = graph_logits(gemma3_float_folder(), prompts())
    np.testing.assert_allclose(got, reference_logits(), rtol=0, atol=1e-3)


def test_float16_graph_is_near_though_the_residual_exceeds_float16() -> None:
    """Between the layers stand values of 104,000, and float16 ends at 65,504."""
    got = graph_logits(gemma3_folder(), prompts(), float16=True)
    assert divergence(reference_logits(), got) <= 2e-5


def test_windows_hold_on_a_prompt_that_is_longer() -> None:
    """Chunks of 128, then four steps, with float32 activations."""
    folder = gemma3_float_folder()
    session, figures = open_session(folder.graph), folder.signature
    tokens = tokenizer().encode(LONG).ids
    assert len(tokens) > WINDOW + 100
    shape = (1, figures.kv_heads, len(tokens), figures.head_dim)
    cache = {name: np.zeros(shape, np.float32) for name in figures.inputs if "past" in name}
    steps = list(range(len(tokens) - 4, len(tokens) + 1))
    got: list[Floats] = []
    at = 0
    for end in [*range(128, steps[0], 128), *steps]:
        feeds: dict[str, Any] = {
            "input_ids": np.array([tokens[at:end]], np.int64),
            "seqlens_k": np.array([end - 1], np.int32),
            "total_sequence_length": np.array(end, np.int32),
            "logits_idx": np.array([end - at - 1]),
            **cache,
        }
        outputs = [output.name for output in session.get_outputs()]
        result = session.run(outputs, feeds)
        got.append(result[0])
        for name, value in zip(outputs[1:], result[1:], strict=True):
            cache[name.replace("present", "past")] = value
        at = end
    expected = reference().logits(tokens, last=5)
    np.testing.assert_allclose(np.concatenate(got[-5:]), expected, rtol=0, atol=1e-3)


def test_record_says_what_the_model_is() -> None:
    folder = gemma3_folder()
    check(open_session(folder.graph), folder)
    assert folder.architecture == "gemma3"
    assert folder.quantization == {"F32": 109, "Q5_0": 81, "Q4_K": 27, "Q8_0": 10, "Q6_K": 9}
    assert folder.kv_bytes_per_token() == 18 * 2 * 256 * 4
    assert (folder.bos_id, folder.add_bos) == (2, True)
    assert folder.eos_ids == (1, 106)
    assert folder.signature.max_positions == 32_768
    assert folder.chat_template is None


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello world", ["<bos>", "Hello", "▁world"]),
        (" two  spaces", ["<bos>", "▁two", "  ", "spaces"]),
        ("1984\n\n", ["<bos>", "1", "9", "8", "4", "\n\n"]),
    ],
)
def test_tokens_are_those_of_gemma(text: str, pieces: list[str]) -> None:
    """Spaces join what follows, runs of them and of line ends are one, digits stand alone."""
    encoding = tokenizer().encode(text)
    assert encoding.tokens == pieces
    assert tokenizer().decode(encoding.ids) == text
