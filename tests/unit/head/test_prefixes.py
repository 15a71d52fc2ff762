"""What nodes are believed to hold: chains, what is learnt, what corrects it, and its bounds."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.worker.prefix_cache import BLOCK_TOKENS as WORKER_BLOCK_TOKENS
from agent.worker.prefix_cache import reusable_blocks as worker_reusable_blocks
from bus.ids import ModelName, NodeIdentity, WorkerIncarnation, pack_ids
from head.prefixes import (
    BLOCK_TOKENS,
    HASH_BYTES,
    PrefixBeliefs,
    chain_seed,
    prompt_chain,
    reusable_blocks,
)

A, B, C = NodeIdentity("a"), NodeIdentity("b"), NodeIdentity("c")
TOY, OTHER = ModelName("toy"), ModelName("other")
ONE, TWO = WorkerIncarnation(1), WorkerIncarnation(2)
SEED = chain_seed(TOY)


def chain(*blocks: int) -> list[bytes]:
    """Of a prompt whose blocks are each one token, repeated."""
    return prompt_chain(SEED, pack_ids([token for token in blocks for _ in range(BLOCK_TOKENS)]))


def hold(beliefs: PrefixBeliefs, node: NodeIdentity, *blocks: int) -> None:
    beliefs.placed(node, TOY, ONE, chain(*blocks), len(blocks))


# --- chains -----------------------------------------------------------------------------------


def test_blocks_are_those_of_the_workers_prefix_caches() -> None:
    assert BLOCK_TOKENS == WORKER_BLOCK_TOKENS
    for tokens in (0, 1, 63, 64, 65, 66, 67, 128, 129, 130, 1000):
        assert reusable_blocks(tokens) == worker_reusable_blocks(tokens)


def test_a_hash_is_keyed_blake2b_of_the_one_before_and_the_block() -> None:
    ids = list(range(130))
    packed = pack_ids(ids)
    first = hashlib.blake2b(bytes(8) + packed[:256], digest_size=8, key=SEED).digest()
    second = hashlib.blake2b(first + packed[256:512], digest_size=8, key=SEED).digest()
    assert prompt_chain(SEED, packed) == [first, second]
    assert HASH_BYTES == 8


def test_a_chain_goes_on_from_what_is_known_of_it() -> None:
    packed = pack_ids(range(64 * 9 + 5))
    whole = prompt_chain(SEED, packed)
    assert len(whole) == 9
    assert prompt_chain(SEED, packed, whole[:4]) == whole
    assert prompt_chain(SEED, packed[: 4 * 63]) == []


def test_models_and_files_have_chains_of_their_own() -> None:
    packed = pack_ids(range(64))
    seeds = [SEED, chain_seed(OTHER), chain_seed(TOY, [b"x"]), chain_seed(TOY, [b"y"])]
    seeds.append(chain_seed(TOY, [b"x", b"y"]))
    assert len({prompt_chain(seed, packed)[0] for seed in seeds}) == 5


# --- what is learnt ---------------------------------------------------------------------------


def test_a_node_holds_what_it_was_given_as_far_as_prompts_agree() -> None:
    beliefs = PrefixBeliefs()
    hold(beliefs, A, 1, 2, 3)
    hold(beliefs, B, 1, 2, 9)
    hold(beliefs, C, 5)
    assert beliefs.cached(TOY, chain(1, 2, 3, 4)) == {A: 192, B: 128}
    assert beliefs.cached(TOY, chain(1, 2)) == {A: 128, B: 128}
    assert beliefs.cached(TOY, chain(5, 6)) == {C: 64}
    assert beliefs.cached(TOY, chain(7)) == {}
    assert beliefs.cached(TOY, []) == {}


def test_what_was_computed_after_a_prompt_is_held_too() -> None:
    beliefs = PrefixBeliefs()
    hold(beliefs, A, 1)
    beliefs.grew(A, TOY, ONE, chain(1, 2, 3))
    assert beliefs.cached(TOY, chain(1, 2, 3)) == {A: 192}
    beliefs.grew(A, TOY, TWO, chain(1, 2, 3, 4))
    beliefs.grew(B, TOY, ONE, chain(1, 2, 3, 4))
    assert beliefs.cached(TOY, chain(1, 2, 3, 4)) == {A: 192}, "of workers that are not there"


def test_another_worker_begins_with_nothing() -> None:
    beliefs = PrefixBeliefs()
    hold(beliefs, A, 1, 2)
    beliefs.placed(A, TOY, TWO, chain(9), 1)
    assert beliefs.cached(TOY, chain(1, 2)) == {}
    assert beliefs.cached(TOY, chain(9)) == {A: 64}
    beliefs.forget(A, TOY)
    assert beliefs.cached(TOY, chain(9)) == {}
    assert len(beliefs) == 0
    beliefs.forget(A, TOY)
    beliefs.check_integrity()


# --- what corrects it -------------------------------------------------------------------------


def ended(beliefs: PrefixBeliefs, node: NodeIdentity, cached: int, *blocks: int) -> int:
    """A request with this prompt, whose worker says it had `cached`; gives what was believed."""
    believed = beliefs.placed(node, TOY, ONE, chain(*blocks), len(blocks))
    beliefs.finished(node, TOY, ONE, believed, cached)
    beliefs.check_integrity()
    return believed.tokens


def test_a_worker_that_had_less_dropped_what_it_used_before_too() -> None:
    beliefs = PrefixBeliefs()
    hold(beliefs, A, 1)
    hold(beliefs, A, 2, 3)
    hold(beliefs, A, 4)
    # Of 2, 3 it had the first block only: so what is older than that is gone, and 4 is not.
    assert ended(beliefs, A, 64, 2, 3) == 128
    assert set(beliefs.cached(TOY, chain(1))) == set()
    assert set(beliefs.cached(TOY, chain(2, 3))) == {A}, "it was computed again"
    assert set(beliefs.cached(TOY, chain(4))) == {A}


def test_a_worker_that_had_what_was_believed_loses_nothing() -> None:
    beliefs = PrefixBeliefs()
    hold(beliefs, A, 1)
    hold(beliefs, A, 2, 3)
    assert ended(beliefs, A, 128, 2, 3, 4) == 128
    assert beliefs.cached(TOY, chain(1)) == {A: 64}
    assert ended(beliefs, A, 500, 2, 3, 4) == 192
    assert beliefs.cached(TOY, chain(2, 3, 4)) == {A: 192}


def test_trust_falls_by_a_quarter_with_each_prefix_that_was_not_there_and_comes_back() -> None:
    beliefs = PrefixBeliefs()
    hold(beliefs, A, 1, 2, 3, 4)
    assert ended(beliefs, A, 0, 1, 2, 3, 4) == 256
    assert beliefs.cached(TOY, chain(1, 2, 3, 4)) == {A: 192}
    assert ended(beliefs, A, 128, 1, 2, 3, 4) == 256
    # 0.75 * 0.75 + 0.25 * 0.5 = 0.6875
    assert beliefs.cached(TOY, chain(1, 2, 3, 4)) == {A: 176}
    for _ in range(20):
        ended(beliefs, A, 256, 1, 2, 3, 4)
    assert beliefs.cached(TOY, chain(1, 2, 3, 4)) == {A: 256}


def test_a_word_of_a_former_worker_changes_nothing() -> None:
    beliefs = PrefixBeliefs()
    hold(beliefs, A, 1)
    believed = beliefs.placed(A, TOY, ONE, chain(1), 1)
    beliefs.placed(A, TOY, TWO, chain(1), 1)
    beliefs.finished(A, TOY, ONE, believed, 0)
    assert beliefs.cached(TOY, chain(1)) == {A: 64}


# --- bounds -----------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first_and_ends_before_beginnings() -> None:
    beliefs = PrefixBeliefs(max_held=5)
    hold(beliefs, A, 1, 2, 3)
    hold(beliefs, A, 1, 8, 9)
    assert beliefs.cached(TOY, chain(1, 2, 3)) == {A: 192}
    hold(beliefs, A, 7)
    assert beliefs.cached(TOY, chain(1, 2, 3)) == {A: 128}
    assert beliefs.cached(TOY, chain(1, 8, 9)) == {A: 192}


def test_a_prompt_longer_than_the_bound_keeps_its_beginning() -> None:
    beliefs = PrefixBeliefs(max_held=3)
    hold(beliefs, A, 1, 2, 3, 4, 5)
    assert beliefs.cached(TOY, chain(1, 2, 3, 4, 5)) == {A: 192}
    beliefs.check_integrity()


def test_workers_share_what_may_be_kept_in_all() -> None:
    beliefs = PrefixBeliefs(max_blocks=8, max_held=8)
    hold(beliefs, A, 1, 2, 3, 4, 5, 6, 7, 8)
    hold(beliefs, B, 1, 2, 3, 4, 5, 6, 7, 8)
    beliefs.check_integrity()
    assert beliefs.cached(TOY, chain(1, 2, 3, 4, 5, 6, 7, 8)) == {A: 256, B: 256}
    hold(beliefs, C, 1)
    beliefs.check_integrity()
    assert len(beliefs) == 5


@pytest.mark.parametrize("max_held", [4, 100])
@given(data=st.data())
def test_it_is_as_a_plain_list_of_prompts_by_use_would_be(
    max_held: int, data: st.DataObject
) -> None:
    """Against a model that keeps whole prompts: never more, and equal while nothing is dropped."""
    beliefs = PrefixBeliefs(max_held=max_held)
    prompts: OrderedDict[tuple[NodeIdentity, tuple[int, ...]], None] = OrderedDict()
    steps = st.tuples(
        st.sampled_from([A, B]),
        st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple),
        st.sampled_from(["hold", "end", "forget"]),
    )
    for node, blocks, what in data.draw(st.lists(steps, max_size=12)):
        if what == "forget":
            beliefs.forget(node, TOY)
            for key in [key for key in prompts if key[0] == node]:
                del prompts[key]
        else:
            believed = beliefs.placed(node, TOY, ONE, chain(*blocks), len(blocks))
            prompts[node, blocks] = None
            if what == "end":
                beliefs.finished(node, TOY, ONE, believed, believed.tokens)
        beliefs.check_integrity()
    asked = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple))
    expected: dict[NodeIdentity, int] = {}
    for node, blocks in prompts:
        common = 0
        while common < min(len(blocks), len(asked)) and blocks[common] == asked[common]:
            common += 1
        if common:
            expected[node] = max(expected.get(node, 0), common * BLOCK_TOKENS)
    found = beliefs.cached(TOY, chain(*asked))
    if max_held == 100:
        assert found == expected
    else:
        assert all(found[node] <= expected[node] for node in found)
