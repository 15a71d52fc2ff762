"""A vocabulary in one block: what each id adds, whatever the block says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import DecodeError
from bus.ids import pack_ids
from bus.messages.text import TEXT, Described, Description
from bus.text.detokenizer import Detokenizer
from bus.text.token_table import TokenTable


def test_tokens_are_cut_out_by_their_ends() -> None:
    table = TokenTable("ab\u00e9".encode(), pack_ids([1, 1, 2, 4]))
    assert list(table) == [b"a", b"", b"b", b"\xc3\xa9"]
    assert (table[-1], table[1:3]) == (b"\xc3\xa9", (b"", b"b"))
    assert table == (b"a", b"", b"b", b"\xc3\xa9")
    assert table != (b"a",)
    with pytest.raises(IndexError):
        table[4]


@given(st.lists(st.binary(max_size=8)))
def test_a_table_of_tokens_has_them(tokens: list[bytes]) -> None:
    table = TokenTable.of(tokens)
    assert TokenTable(*table.packed) == tokens
    assert [table.by_id[token] for token in range(len(table))] == tokens


@pytest.mark.parametrize("ends", [[], [1], [2, 4], [4, 2]])
def test_ends_that_are_none_of_the_block_are_refused(ends: list[int]) -> None:
    with pytest.raises(DecodeError, match="do not end with their 3 bytes"):
        TokenTable(b"abc", pack_ids(ends))


def test_a_token_that_ends_before_it_begins_adds_nothing() -> None:
    assert list(TokenTable(b"abc", pack_ids([9, 1, 3]))) == [b"abc", b"", b"bc"]


def test_text_of_a_table_is_that_of_a_list() -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b" the", b""]
    ids = [*"h\u00e9 ".encode(), 256, 257, 300, 0xF0, 0x9F, 65]
    expected = Detokenizer(tokens).push(ids)
    assert expected == "h\u00e9  the\ufffdA"
    assert Detokenizer(TokenTable.of(tokens)).push(ids) == expected


def test_a_description_comes_back_as_it_was() -> None:
    described = Described(
        job=7,
        vocabulary=(b"a", b"", b"bc"),
        special=(1,),
        special_texts=("<s>",),
        bos=1,
        eos=(1,),
        digest=2**64 - 1,
        has_template=True,
        kind="encoder",
        longest=2,
    )
    sent = TEXT.decode(TEXT.encode(described.packed()))
    assert isinstance(sent, Description)
    assert sent.unpacked() == described
