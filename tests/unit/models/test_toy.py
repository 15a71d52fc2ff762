"""The toy model is the same everywhere and lively enough to test with."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from agent.models.selftest import check, open_session, prompt_logits
from agent.models.toy import ToyWeights, _mix
from bus.errors import ModelIncomplete
from tests.harness.models import toy_model_folder

PROMPTS = ("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", "Once upon", "1 2 3 4 5")


def test_mix_is_splitmix64() -> None:
    # the first outputs of the published generator with seed 0
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert _mix(np.arange(3, dtype=np.uint64)).tolist() == expected


def test_self_test_holds_in_both_precisions_and_fails_for_another_token() -> None:
    folder = toy_model_folder()
    assert folder.graph_float16 is not None
    check(open_session(folder.graph), folder)
    check(open_session(folder.graph_float16), folder)
    wrong = replace(folder.self_test, next_token=(folder.self_test.next_token + 1) % 256)
    with pytest.raises(ModelIncomplete, match="fails its self-test"):
        check(open_session(folder.graph), replace(folder, self_test=wrong))


@pytest.mark.parametrize("text", PROMPTS)
def test_greedy_text_is_printable_varied_and_endless(text: str) -> None:
    from tokenizers import Tokenizer

    folder = toy_model_folder()
    session = open_session(folder.graph)
    tokens = list(Tokenizer.from_file(str(folder.tokenizer)).encode(text).ids)
    start = len(tokens)
    for _ in range(120):
        tokens.append(int(prompt_logits(session, folder.signature, tokens)[-1].argmax()))
    made = tokens[start:]
    assert all(32 <= token < 127 for token in made)
    assert len(set(made)) >= 30
    repeats = sum(first == second for first, second in pairwise(made))
    assert repeats < 30


def test_weights_do_not_change() -> None:
    weights = ToyWeights()
    digest = hashlib.sha256()
    for name in sorted(weights.names()):
        value = weights.vector(name) if "norm" in name else weights.matrix(name).dequantize()
        digest.update(value.tobytes())
    assert digest.hexdigest()[:16] == "d08dc43e65da02c9"
