"""What a cache of prefixes finds, keeps and drops."""

from __future__ import annotations

import pytest

from agent.worker.prefix_cache import Added, Match, PrefixCache
from bus.errors import Internal

#: Bytes of a block in these tests.
BLOCK = 100


def chain(text: str) -> list[bytes]:
    """Hashes of a prompt in which each letter is a block."""
    return [text[:stop].encode() for stop in range(1, len(text) + 1)]


def add(cache: PrefixCache, text: str, by_chunk: int | None = None) -> Added | None:
    hashes = chain(text)
    blocks = len(hashes) if by_chunk is None else by_chunk
    added = cache.add(hashes, tokens_by_chunk=blocks * 64, nbytes=BLOCK * len(hashes))
    cache.check_integrity()
    return added


def test_the_longest_saved_beginning_is_found() -> None:
    cache = PrefixCache(10_000)
    assert add(cache, "abc") == Added(1, [])
    assert add(cache, "abxy") == Added(2, [])
    assert cache.find(chain("abcd"), exact=True) == Match(1, 192, 192)
    assert cache.find(chain("abxz"), exact=True) == Match(2, 192, 192)
    assert cache.find(chain("abcd")[:2], exact=True) is not None
    assert cache.find(chain("b"), exact=True) is None
    assert cache.find([], exact=True) is None
    assert cache.nbytes == 700


def test_tokens_by_step_are_for_those_who_do_not_ask_exact() -> None:
    cache = PrefixCache(10_000)
    add(cache, "abcd", by_chunk=2)
    assert cache.find(chain("abcd"), exact=True) == Match(1, 128, 128)
    assert cache.find(chain("abcd"), exact=False) == Match(1, 256, 128)


def test_a_block_that_is_by_chunk_only_in_part_is_by_step() -> None:
    cache = PrefixCache(10_000)
    cache.add(chain("ab"), tokens_by_chunk=127, nbytes=200)
    assert cache.find(chain("ab"), exact=True) == Match(1, 64, 64)


def test_a_longer_prefix_takes_the_place_of_its_beginnings() -> None:
    cache = PrefixCache(10_000)
    add(cache, "ab")
    add(cache, "ax")
    assert add(cache, "abc") == Added(3, [1])
    assert cache.nbytes == 500
    assert cache.find(chain("ab"), exact=True) == Match(3, 128, 128)


def test_what_is_covered_is_not_kept_again() -> None:
    cache = PrefixCache(10_000)
    add(cache, "abc")
    assert add(cache, "ab") is None
    assert add(cache, "abc") is None
    assert add(cache, "abc", by_chunk=1) is None
    assert add(cache, "") is None
    assert cache.nbytes == 300


def test_a_beginning_with_more_by_chunk_is_kept_beside_the_longer_one() -> None:
    cache = PrefixCache(10_000)
    add(cache, "abcd", by_chunk=1)
    assert add(cache, "abc") == Added(2, [])
    assert cache.find(chain("abcd"), exact=True) == Match(2, 192, 192)
    assert cache.find(chain("abcd"), exact=False) == Match(1, 256, 64)
    # And a longer one by steps does not take the place of one by chunk.
    assert add(cache, "abcde", by_chunk=1) == Added(3, [1])
    assert cache.find(chain("abc"), exact=True) == Match(2, 192, 192)


def test_of_equal_lengths_the_one_with_more_by_chunk_is_found() -> None:
    for first, second in ((("abcd", 1), ("abx", 3)), (("abx", 3), ("abcd", 1))):
        cache = PrefixCache(10_000)
        add(cache, *first)
        add(cache, *second)
        match = cache.find(chain("aby"), exact=False)
        assert match is not None
        assert (match.tokens, match.by_chunk) == (128, 128)


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(300)
    for text in "abc":
        add(cache, text)
    cache.find(chain("a"), exact=True)
    assert add(cache, "b") is None  # covered, which is a use too
    assert add(cache, "d") == Added(4, [3])
    assert add(cache, "ef") == Added(5, [1, 2])
    assert cache.nbytes == 300


def test_what_can_not_fit_drops_nothing() -> None:
    cache = PrefixCache(300)
    add(cache, "ab")
    assert add(cache, "wxyz") is None
    assert cache.find(chain("ab"), exact=True) is not None
    assert PrefixCache(0).add(chain("a"), tokens_by_chunk=64, nbytes=1) is None


def test_a_lane_pushes_prefixes_out_and_never_the_reverse() -> None:
    cache = PrefixCache(300)
    add(cache, "ab")
    assert cache.can_hold(300)
    assert cache.hold(250) == Added(2, [1])
    assert cache.held_bytes == 250
    assert add(cache, "a") is None
    assert cache.hold(100) is None
    assert not cache.can_hold(51)
    assert cache.hold(50) == Added(3, [])
    assert cache.drop(2) == [2]
    assert (cache.nbytes, cache.held_bytes) == (50, 50)
    cache.check_integrity()


def test_what_is_pinned_counts_until_it_is_not_and_is_not_evicted() -> None:
    cache = PrefixCache(300)
    add(cache, "a")
    cache.pin(1)
    cache.pin(1)
    assert not cache.can_hold(201)
    assert cache.hold(201) is None
    assert add(cache, "bcd") is None
    assert cache.drop(1) == []
    assert cache.find(chain("a"), exact=True) is None
    assert cache.nbytes == 100
    assert cache.unpin(1) == []
    assert cache.unpin(1) == [1]
    assert cache.nbytes == 0
    cache.check_integrity()


def test_a_pinned_beginning_is_replaced_but_its_bytes_count_on() -> None:
    cache = PrefixCache(300)
    add(cache, "a")
    cache.pin(1)
    assert add(cache, "ab") == Added(2, [])
    assert cache.nbytes == 300
    assert cache.unpin(1) == [1]
    assert cache.nbytes == 200
    cache.check_integrity()


def test_wrong_ids_are_faults_of_the_caller() -> None:
    cache = PrefixCache(300)
    add(cache, "a")
    for wrong in (cache.drop, cache.pin, cache.unpin):
        with pytest.raises(Internal):
            wrong(7)
    with pytest.raises(Internal, match="not pinned"):
        cache.unpin(1)


def test_clearing_forgets_all_prefixes_and_no_lane() -> None:
    cache = PrefixCache(1000)
    add(cache, "a")
    add(cache, "b")
    cache.hold(10)
    assert cache.clear() == [1, 2]
    assert cache.nbytes == cache.held_bytes == 10


def test_digests_name_each_end_and_every_fourth_block_newest_first() -> None:
    cache = PrefixCache(100_000)
    add(cache, "abcdefghij")
    add(cache, "abcdX")
    assert cache.digests() == (b"abcdX", b"abcd", b"abcdefghij", b"abcdefgh")
    assert cache.digests(limit=3) == (b"abcdX", b"abcd", b"abcdefghij")
    cache.find(chain("abcdefghij"), exact=True)
    assert cache.digests(limit=1) == (b"abcdefghij",)
