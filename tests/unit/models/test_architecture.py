"""What of a GGUF file's metadata and tensors is accepted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from agent.models.architecture import ARCHITECTURES, check_shapes, layer_shapes
from agent.models.figures import MAX_POSITIONS, config_from_metadata
from agent.models.rotary import Rotary, Yarn
from agent.models.toy import CONFIG
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


def of(family: str, **more: Any) -> dict[str, Any]:
    """The same figures of another family."""
    found = {key.replace("llama.", f"{family}."): value for key, value in METADATA.items()}
    extra = {f"{family}.{key.replace('__', '.')}": value for key, value in more.items()}
    return found | {"general.architecture": family} | extra


def test_figures_are_read() -> None:
    assert config_from_metadata(METADATA, 260) == CONFIG


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' can not be imported"),
        ({"llama.rope.scaling.type": "longrope"}, "scaling 'longrope' .*none, linear and yarn"),
        ({"llama.rope.dimension_count": 16}, "part of a head"),
        ({"llama.attention.value_length": 16}, "another length than keys"),
        ({"llama.attention.key_length": 100}, "heads of 100 .* multiples of 16"),
        ({"llama.attention.key_length": 2048}, "up to 1024"),
        ({"llama.attention.head_count_kv": 3}, "4 heads over 3"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.block_count": "two"}, "no usable llama.block_count"),
        ({"llama.block_count": 0}, "no usable llama.block_count"),
        ({"llama.block_count": 2.5}, "no usable llama.block_count"),
        ({"llama.embedding_length": 1 << 60}, "no usable llama.embedding_length"),
        ({"llama.attention.layer_norm_rms_epsilon": math.nan}, "no usable .*epsilon"),
        ({"llama.rope.freq_base": math.inf}, "no usable llama.rope.freq_base"),
        ({"llama.attention.head_count": [4, 4]}, "no usable llama.attention.head_count"),
    ],
)
def test_what_the_graph_does_not_have_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        config_from_metadata(METADATA | change, 260)


def test_linear_scaling_is_read() -> None:
    change = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert config_from_metadata(METADATA | change, 260).rotary == Rotary(base=10_000.0, scale=4.0)


def test_yarn_is_read_and_keeps_the_fast_pairs() -> None:
    """Qwen2.5's figures: head 128, base 1e6, 4 times 32,768 positions."""
    yarn = Yarn(factor=4.0, original=32_768)
    change = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32_768,
    }
    assert config_from_metadata(METADATA | change, 260).rotary.yarn == yarn
    plain = Rotary(base=1e6).frequencies(128)
    stretched = Rotary(base=1e6, yarn=yarn).frequencies(128)
    # 128 ln(32768 / (2 pi 32)) / (2 ln 1e6) = 23.6 and, for one turn, 39.6
    np.testing.assert_array_equal(stretched[:24], plain[:24])
    np.testing.assert_allclose(stretched[40:], plain[40:] / 4, rtol=1e-12)
    assert yarn.magnitude == pytest.approx(1.1386294)


def test_windows_longer_than_the_tables_are_cut() -> None:
    found = config_from_metadata(METADATA | {"llama.context_length": 1 << 20}, 260)
    assert found.max_positions == MAX_POSITIONS == 262_144


def test_gemma_alternates_five_windows_and_one_whole_layer() -> None:
    config = config_from_metadata(
        of("gemma3", attention__sliding_window=512, block_count=12, attention__key_length=64), 260
    )
    assert [config.is_local(layer) for layer in range(12)] == ([True] * 5 + [False]) * 2
    assert config.window == 512
    assert config.local_rotary == Rotary(base=10_000.0)
    assert config.score_scale == 64**-0.5


def test_only_the_gemma_of_62_layers_scales_scores_by_its_width() -> None:
    config = config_from_metadata(of("gemma3", block_count=62, attention__key_length=64), 260)
    assert config.score_scale == (128 / 4) ** -0.5
    assert not any(config.is_local(layer) for layer in range(62))


SHAPES = {
    "token_embd.weight": (128, 260),
    "output_norm.weight": (128,),
    **{
        f"blk.{layer}.{part}": shape
        for layer in range(2)
        for part, shape in layer_shapes(CONFIG).items()
    },
}


def test_every_tensor_must_be_there_and_be_used() -> None:
    check_shapes(CONFIG, SHAPES)
    check_shapes(CONFIG, SHAPES | {"output.weight": (128, 260), "rope_freqs.weight": (16,)})
    less = {name: shape for name, shape in SHAPES.items() if name != "blk.1.attn_q.weight"}
    with pytest.raises(Invalid, match=r"lacks blk\.1\.attn_q\.weight"):
        check_shapes(CONFIG, less)
    with pytest.raises(Invalid, match=r"does not use here: blk\.0\.attn_q\.bias"):
        check_shapes(CONFIG, SHAPES | {"blk.0.attn_q.bias": (128,)})


def test_a_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(Invalid, match=r"ffn_up\.weight is 128 x 255 .* make it 128 x 256"):
        check_shapes(CONFIG, SHAPES | {"blk.0.ffn_up.weight": (128, 255)})


def test_a_claim_of_endless_layers_costs_nothing() -> None:
    config = config_from_metadata(METADATA | {"llama.block_count": 1 << 24}, 260)
    with pytest.raises(Invalid, match="claims 16777216 layers and has 20 tensors"):
        check_shapes(config, SHAPES)


def test_families_differ_in_what_their_layers_have() -> None:
    def parts(name: str) -> set[str]:
        config = config_from_metadata(of(name), 260)
        return set(layer_shapes(config))

    assert parts("qwen3") - parts("llama") == {"attn_q_norm.weight", "attn_k_norm.weight"}
    assert parts("gemma3") - parts("qwen3") == {
        "post_attention_norm.weight",
        "post_ffw_norm.weight",
    }
    assert set(ARCHITECTURES) == {"llama", "qwen2", "qwen3", "gemma3"}
