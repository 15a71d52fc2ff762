"""A tokenizer of each kind, without its control tokens, from what a file says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from agent.models.text_cuts import CUTS
from agent.models.vocabulary_source import CONTROL, NORMAL, VocabularySource, word_pieces

_SPACE = "\u2581"


def byte_level(source: VocabularySource) -> Tokenizer:
    """BPE over bytes (`gpt2`)."""
    cut = CUTS[source.pre]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_ids(source),
            merges=_merges(source),
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=cut.whole_words,
        )
    )
    tokenizer.pre_tokenizer = cut.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece(source: VocabularySource) -> Tokenizer:
    """SentencePiece BPE (`llama`).

    The file has scores instead of merges, and merging greedily by score equals merging by rank,
    where the pairs that make a token rank by that token's score.
    """
    return _over_characters(source, _merges_by_score(source), add_space=source.add_space)


def character_pairs(source: VocabularySource) -> Tokenizer:
    """BPE over characters with its merges in the file (`gemma4`)."""
    return _over_characters(source, _merges(source), add_space=False)


def word_piece(source: VocabularySource) -> Tokenizer:
    """WordPiece of encoders (`bert`).

    Source: Devlin et al., "BERT" (arXiv:1810.04805).
    """
    pieces = word_pieces(source)
    tokenizer = Tokenizer(
        models.WordPiece(
            vocab={text: index for index, text in enumerate(pieces)},
            unk_token="[UNK]" if source.unknown_id is None else pieces[source.unknown_id],
            max_input_chars_per_word=100,
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=source.strip_accents,
        lowercase=source.lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


BUILDERS: Mapping[str, Callable[[VocabularySource], Tokenizer]] = {
    "gpt2": byte_level,
    "llama": sentence_piece,
    "gemma4": character_pairs,
    "bert": word_piece,
}


def _ids(source: VocabularySource) -> dict[str, int]:
    return {text: index for index, text in enumerate(source.tokens)}


def _merges(source: VocabularySource) -> list[tuple[str, str]]:
    """Those of the file, but none that makes a control token: a user could write it."""
    control = {
        text for text, kind in zip(source.tokens, source.kinds, strict=True) if kind == CONTROL
    }
    pairs = (merge.split(" ", 1) for merge in source.merges)
    return [(left, right) for left, right in pairs if left + right not in control]


def _over_characters(
    source: VocabularySource, merges: list[tuple[str, str]], *, add_space: bool
) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_ids(source),
            merges=merges,
            fuse_unk=True,
            byte_fallback=True,
            unk_token=source.text(source.unknown_id),
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    back: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        back.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _merges_by_score(source: VocabularySource) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, best score first, then lowest ids."""
    vocab = _ids(source)
    ranked = []
    for text, index in vocab.items():
        if source.kinds[index] != NORMAL:
            continue
        for cut in range(1, len(text)):
            left, right = vocab.get(text[:cut]), vocab.get(text[cut:])
            if left is not None and right is not None:
                ranked.append((-source.scores[index], left, right))
    return [(source.tokens[left], source.tokens[right]) for _, left, right in sorted(ranked)]
