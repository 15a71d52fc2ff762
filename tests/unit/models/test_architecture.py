"""What of a GGUF file's metadata and tensors is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from agent.models.architecture import check_tensors, config_from_metadata
from agent.models.toy import CONFIG, ToyWeights
from bus.errors import Invalid

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 128,
    "llama.feed_forward_length": 256,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def test_figures_are_read() -> None:
    assert config_from_metadata(METADATA, 260) == CONFIG


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' can not be imported"),
        ({"llama.rope.scaling.type": "yarn"}, "scaling 'yarn'"),
        ({"llama.rope.dimension_count": 16}, "part of a head"),
        ({"llama.block_count": "two"}, "no usable llama.block_count"),
    ],
)
def test_what_the_graph_does_not_have_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        config_from_metadata(METADATA | change, 260)


def test_linear_scaling_is_read() -> None:
    change = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert config_from_metadata(METADATA | change, 260).rotary_scale == 4.0


def test_every_tensor_must_be_there_and_be_used() -> None:
    names = set(ToyWeights().names())
    check_tensors(CONFIG, names)
    with pytest.raises(Invalid, match=r"lacks blk\.1\.attn_q\.weight"):
        check_tensors(CONFIG, names - {"blk.1.attn_q.weight"})
    with pytest.raises(Invalid, match=r"does not use here: blk\.0\.attn_q\.bias"):
        check_tensors(CONFIG, names | {"blk.0.attn_q.bias"})
