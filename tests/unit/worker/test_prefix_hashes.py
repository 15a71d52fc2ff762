"""The chain of hashes that names a prompt's blocks."""

from __future__ import annotations

import hashlib
from array import array

import pytest

from agent.worker.prefix_cache import prefix_hashes, prefix_seed, reusable_blocks

SEED = prefix_seed(model="m", numerics="n", salt=b"s")


def ids(*stretches: range) -> array[int]:
    return array("I", [token for stretch in stretches for token in stretch])


def test_the_chain_is_blake2b_over_the_hash_before_and_the_ids_in_little_endian() -> None:
    prompt = ids(range(200))
    raw = b"".join(token.to_bytes(4, "little") for token in prompt)
    first = hashlib.blake2b(bytes(16) + raw[:256], digest_size=16, key=SEED).digest()
    second = hashlib.blake2b(first + raw[256:512], digest_size=16, key=SEED).digest()
    third = hashlib.blake2b(second + raw[512:768], digest_size=16, key=SEED).digest()
    assert prefix_hashes(SEED, prompt) == [first, second, third]


def test_only_full_blocks_have_a_hash() -> None:
    assert prefix_hashes(SEED, ids(range(63))) == []
    assert len(prefix_hashes(SEED, ids(range(64)))) == 1
    assert len(prefix_hashes(SEED, ids(range(127)))) == 1


def test_a_chain_can_be_continued_from_any_block() -> None:
    prompt = ids(range(400))
    whole = prefix_hashes(SEED, prompt)
    for known in range(len(whole) + 1):
        assert prefix_hashes(SEED, prompt, whole[:known]) == whole
    assert prefix_hashes(SEED, prompt[:130], whole) == whole[:2]


def test_equal_blocks_behind_different_ones_differ() -> None:
    left = prefix_hashes(SEED, ids(range(64), range(64)))
    right = prefix_hashes(SEED, ids(range(1, 65), range(64)))
    assert left[0] != right[0]
    assert left[1] != right[1]
    assert left[0] != left[1]


@pytest.mark.parametrize(
    "other",
    [
        prefix_seed(model="x", numerics="n", salt=b"s"),
        prefix_seed(model="m", numerics="x", salt=b"s"),
        prefix_seed(model="m", numerics="n", salt=b"x"),
        prefix_seed(model="m", numerics="n", salt=b"s", media=[b"x"]),
        prefix_seed(model="m", numerics="n"),
        # The same bytes in a row, cut elsewhere.
        prefix_seed(model="mn", numerics="", salt=b"s"),
        prefix_seed(model="m", numerics="ns"),
        prefix_seed(model="m", numerics="n", salt=b"", media=[b"s"]),
    ],
)
def test_other_models_numerics_salts_and_media_share_nothing(other: bytes) -> None:
    prompt = ids(range(256))
    assert not set(prefix_hashes(SEED, prompt)) & set(prefix_hashes(other, prompt))


def test_at_least_two_tokens_of_a_prompt_are_left_to_compute() -> None:
    # floor((n - 2) / 64)
    expected = {0: 0, 1: 0, 2: 0, 65: 0, 66: 1, 129: 1, 130: 2, 1000: 15, 1026: 16}
    assert {n: reusable_blocks(n) for n in expected} == expected
