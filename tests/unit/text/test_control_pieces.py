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


def test_other_kinds_are_as_they_are() -> None:
    assert without_control_pieces(json.loads(sentence_piece().to_str())) is None
    plain = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    assert without_control_pieces(json.loads(plain.to_str())) is None
