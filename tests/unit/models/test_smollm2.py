"""SmolLM2 as imported, against a float32 forward pass of the same file.

With int8 activations logits differ by 0.18 to 0.26 on average and distributions by 2.4e-3 to 5.3e-3
nats; llama.cpp, which rounds activations too, was measured at 0.15 to 0.30 and 2.8e-3 to 4.6e-3.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tokenizers import Tokenizer

from agent.models.selftest import check, open_session
from tests.harness.graph_logits import graph_logits
from tests.harness.models import smollm2_exact_folder, smollm2_folder, smollm2_gguf
from tests.harness.reference import Floats, ReferenceModel, divergence

pytestmark = pytest.mark.model

TEXTS = (
    "The capital of France is Paris, and the capital of Germany is Berlin. Rivers shape cities:",
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n-1) + fib(n-2)",
    "<|im_start|>user\nWhat are three primary colours?<|im_end|>\n<|im_start|>assistant\n",
)


@cache
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(smollm2_folder().tokenizer))
    return [list(tokenizer.encode(text).ids) for text in TEXTS]


@cache
def reference() -> ReferenceModel:
    return ReferenceModel.from_gguf(smollm2_gguf())


@cache
def reference_logits() -> Floats:
    return np.concatenate([reference().logits(prompt) for prompt in prompts()])


def test_int8_activations_are_within_the_known_figures() -> None:
    expected, got = reference_logits(), graph_logits(smollm2_folder(), prompts())
    assert np.abs(got - expected).mean() <= 0.25
    assert divergence(expected, got) <= 5.3e-3


def test_exact_graph_equals_the_reference() -> None:
    got = graph_logits(smollm2_exact_folder(), prompts())
    np.testing.assert_allclose(got, reference_logits(), rtol=0, atol=1e-3)


def test_float16_graph_is_within_the_known_figures() -> None:
    got = graph_logits(smollm2_folder(), prompts(), float16=True)
    assert divergence(reference_logits(), got) <= 5e-5


def test_reference_answers_the_self_test_alike() -> None:
    folder = smollm2_folder()
    check(open_session(folder.graph), folder)
    expected = reference().logits(folder.self_test.prompt)
    assert int(expected[-1].argmax()) == folder.self_test.next_token


def test_record_says_what_the_model_is() -> None:
    folder = smollm2_folder()
    assert folder.kv_bytes_per_token() == 46_080
    assert folder.kv_bytes_per_token(float16=True) == 23_040
    assert folder.eos_ids == (0, 2)
    assert (folder.bos_id, folder.add_bos) == (1, False)
    assert folder.quantization == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert folder.signature.max_positions == 8192
    assert folder.chat_template is not None
    assert "<|im_start|>" in folder.chat_template.read_text("utf-8")
