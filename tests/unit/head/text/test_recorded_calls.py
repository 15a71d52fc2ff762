"""Recorded outputs of nine model families come out as they have to, in pieces and at once."""

from __future__ import annotations

import os
import random

import pytest

from tests.toolcalls.judge import in_pieces, miss, split
from tests.toolcalls.wheel import Output, WheelMissing, outputs

#: They come out otherwise on purpose; docs/toolcalls.md says why.
OTHERWISE = {
    "gpt-oss/llamacpp-builtin-python-recipient",
    "kimi/k2i-vllm-noise-between-markers",
}


@pytest.fixture(scope="module")
def recorded() -> list[Output]:
    try:
        return outputs()
    except WheelMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def test_recorded_outputs(recorded: list[Output]) -> None:
    assert len(recorded) == 469
    wrong = {output.name for output in recorded if miss(output, split(output, [output.raw]))}
    assert wrong == OTHERWISE


def test_recorded_outputs_in_pieces(recorded: list[Output]) -> None:
    rng = random.Random(5)
    for output in recorded:
        whole = split(output, [output.raw])
        assert split(output, list(output.raw)) == whole, output.name
        assert split(output, in_pieces(output.raw, rng)) == whole, output.name


def test_a_call_of_what_is_no_tool_of_the_request_is_text(recorded: list[Output]) -> None:
    (output,) = (output for output in recorded if output.name.endswith("builtin-python-recipient"))
    given = split(output, [output.raw])
    assert not given.calls
    assert given.text + given.reasoning != ""
    assert given.text.endswith('to=python <|constrain|>code<|message|>print("hello")')
