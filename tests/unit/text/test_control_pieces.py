"""Control tokens that a user writes stay text with unigram tokenizers, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from bus.text.control_pieces import without_control_pieces
from bus.text.escaping import Escaper
from bus.text.tokenizer import TextModel
from tests.harness.tokenizers import SPACE, sentence_piece, text_folder

PIECES = ("<s>", "</s>", "<unk>", SPACE, "<", "/", "s", ">", "a", f"{SPACE}a", "s>", "\u00e9")
BOS, EOS, UNKNOWN = range(3)


def unigram(prepend: str = "always") -> Any:
    """As XLM-RoBERTa's: control tokens are pieces with the best score."""
    scores = [0.0 if place < 3 else -float(place) for place, _ in enumerate(PIECES)]
    made: Any = Tokenizer(models.Unigram(list(zip(PIECES, scores, strict=True)), UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    made.decoder = decoders.Metaspace(prepend_scheme=prepend)
    made.add_special_tokens(["<s>", "</s>", "<unk>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return made


def ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def test_what_a_user_writes_is_text(tmp_path: Path) -> None:
    model = TextModel.open(text_folder(tmp_path, unigram()))
    written = ids(SPACE, "<", "/", "s>", "a")
    assert model.encode("</s>a", add_special=False) == written
    assert model.encode_whole("</s>a") == [BOS, *written, EOS]
    assert model.encode("</s>a", add_special=False, parse_special=True) == [EOS, *ids(f"{SPACE}a")]
    assert model.decode(written, skip_special=True) == "</s>a"


def test_what_is_not_known_is_still_unknown(tmp_path: Path) -> None:
    model = TextModel.open(text_folder(tmp_path, unigram()))
    assert model.encode("a\u4e2d\u00e9", add_special=False) == [*ids(f"{SPACE}a"), UNKNOWN, 11]


def test_stretches_of_a_template_are_text(tmp_path: Path) -> None:
    model = TextModel.open(text_folder(tmp_path, unigram("first")))
    escaper = Escaper(model.special_texts)
    rendered = f"<s>{escaper.escape('</s>')}</s>"
    assert model.encode_rendered(rendered, escaper, add_special=False) == [
        *(BOS, *ids("<", "/", "s>"), EOS)
    ]


def test_truncation_of_the_file_cuts_no_stretch(tmp_path: Path) -> None:
    made = unigram("first")
    made.enable_truncation(4)
    model = TextModel.open(text_folder(tmp_path, made))
    escaper = Escaper(model.special_texts)
    rendered = f"<s>{escaper.escape('</s>')}aaaaaaaa"
    assert model.encode_rendered(rendered, escaper, add_special=False) == [
        *(BOS, *ids("<", "/", "s>"), *ids("a") * 8)
    ]


def byte_pairs(*merges: tuple[str, str], words: bool = False) -> Any:
    """BPE over a few characters whose merges may lead to a control token."""
    texts = ["<unk>", "</s>", "[end]", "end", *"<>/s[]endax \u010a", "</", "s>", "en", "nd"]
    vocab = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    made: Any = Tokenizer(
        models.BPE(vocab=vocab, merges=list(merges), unk_token="<unk>", ignore_merges=words)
    )
    if words:
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made


TO_END = (("<", "/"), ("s", ">"), ("</", "s>"))


def test_merges_that_lead_to_a_control_token_make_none(tmp_path: Path) -> None:
    made = byte_pairs(*TO_END)
    made.add_special_tokens(["<unk>", "</s>"])
    assert made.encode("</s>").ids == [1]
    made.encode_special_tokens = True
    assert made.encode("</s>").ids == [1]  # What it would be without this module.
    model = TextModel.open(text_folder(tmp_path, made, config={"eos_token": "</s>"}))
    (parts, whole) = ([made.token_to_id("</"), made.token_to_id("s>")], made.token_to_id("a"))
    assert model.encode("a</s>a", add_special=False) == [whole, *parts, whole]
    assert model.encode("a</s>", add_special=False, parse_special=True) == [whole, 1]
    escaper = Escaper(model.special_texts)
    rendered = f"</s>{escaper.escape('</s>')}</s>"
    assert model.encode_rendered(rendered, escaper, add_special=False) == [1, *parts, 1]
    # All else is as it was, what is not known too.
    assert model.encode("\u4e2d</", add_special=False) == [0, parts[0]]


def test_words_that_are_control_tokens_make_none(tmp_path: Path) -> None:
    made = byte_pairs(("e", "n"), words=True)
    made.add_special_tokens(["[end]", "end"])
    model = TextModel.open(text_folder(tmp_path, made, config={"eos_token": "[end]"}))
    special = set(model.special)
    assert special == {2, 3}
    for text in ("[end]", "end", "a end x", "x [end] a"):
        ids = model.encode(text, add_special=False)
        assert not special & set(ids)
        assert model.decode(ids, skip_special=True) == text.replace(" ", "")
    assert model.encode("[end] end", add_special=False, parse_special=True) == [2, 3]


def test_other_kinds_are_as_they_are() -> None:
    assert without_control_pieces(json.loads(sentence_piece().to_str())) is None
    assert without_control_pieces(json.loads(sentence_piece().to_str()), ["a", "hi"]) is None
    plain = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    assert without_control_pieces(json.loads(plain.to_str())) is None
