"""Block formats against gguf's own dequantizer."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from agent.models.blocks import FORMATS, BlockWeight, decode_blocks, stack_rows, take_rows
from tests.harness.toy_variants import random_blocks

ROWS, COLUMNS = 6, 512


def decoded(kind: str, seed: int = 0) -> BlockWeight:
    return decode_blocks(kind, random_blocks(kind, ROWS, COLUMNS, seed), ROWS)


@pytest.mark.parametrize("kind", FORMATS)
def test_values_equal_those_of_gguf_bit_for_bit(kind: str) -> None:
    raw = random_blocks(kind, ROWS, COLUMNS, seed=1)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(decode_blocks(kind, raw, ROWS).dequantize(), expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_split_product_is_the_product_with_the_dequantized_matrix(kind: str) -> None:
    raw = random_blocks(kind, ROWS, COLUMNS, seed=2)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    weight = decode_blocks(kind, raw, ROWS)
    x = np.random.default_rng(3).normal(size=(4, COLUMNS))
    centred = weight.q.astype(np.float64) - (1 << (weight.bits - 1))
    plain = (centred * weight.scale[..., None]).reshape(ROWS, COLUMNS)
    got = x @ plain.T
    correction = weight.correction()
    if correction is not None:
        got += x.reshape(4, -1, weight.block_size).sum(-1) @ correction.T
    np.testing.assert_allclose(got, x @ expected.T, rtol=0, atol=1e-5)


def test_packed_integers_hold_the_even_column_in_the_low_nibble() -> None:
    q = np.zeros((1, 1, 32), np.uint8)
    q[0, 0, :4] = [1, 2, 3, 15]
    weight = BlockWeight(q, np.ones((1, 1), np.float32), None, 4)
    assert weight.packed()[0, 0, :2].tolist() == [0x21, 0xF3]
    assert weight.packed().shape == (1, 1, 16)


def test_hand_made_q4_1_block() -> None:
    scale, minimum = np.array([0.5], "<f2"), np.array([-2.0], "<f2")
    nibbles = np.arange(16, dtype=np.uint8) | (np.uint8(15) << 4)
    raw = np.concatenate([scale.view(np.uint8), minimum.view(np.uint8), nibbles])
    values = decode_blocks("Q4_1", raw, 1).dequantize()[0]
    assert values[:16].tolist() == [0.5 * i - 2.0 for i in range(16)]
    assert values[16:].tolist() == [5.5] * 16


def test_matrices_of_one_layout_are_stacked_and_others_are_not() -> None:
    first, second, other = decoded("Q4_1", 1), decoded("Q4_1", 2), decoded("Q8_0")
    stacked = stack_rows([first, second])
    assert isinstance(stacked, BlockWeight)
    expected = np.concatenate([first.dequantize(), second.dequantize()])
    np.testing.assert_array_equal(stacked.dequantize(), expected)
    assert stack_rows([first, other]) is None
    assert stack_rows([first, first.dequantize()]) is None
    dense = stack_rows([first.dequantize(), second.dequantize()])
    np.testing.assert_array_equal(dense, expected)


def test_taking_rows_reorders_values() -> None:
    weight = decoded("Q5_1")
    index = np.array([3, 0, 5])
    taken = take_rows(weight, index)
    assert isinstance(taken, BlockWeight)
    np.testing.assert_array_equal(taken.dequantize(), weight.dequantize()[index])
