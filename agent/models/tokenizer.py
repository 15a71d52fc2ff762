"""`tokenizer.json` and its companions from the metadata of a GGUF file.

Two kinds exist. `gpt2` is byte-level BPE; the file names how text is cut before merging (`pre`),
and only the cuts of `PRE_TOKENIZERS` are known, because a wrong cut gives other ids in silence.
`llama` is SentencePiece BPE: the file has scores instead of merges, and merging greedily by score
equals merging by rank, where the pairs that make a token rank by that token's score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from bus.errors import Invalid

#: `tokenizer.ggml.token_type` values.
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

#: Texts of control tokens that end a turn or a document in some family.
END_TEXTS = frozenset(
    (
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|EOT|>",
        "<end_of_turn>",
        "<EOT>",
        "<eos>",
        "</s>",
    )
)

_SPACE = "\u2581"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class VocabularySource:
    """What metadata says of a tokenizer.

    Attributes:
        tokens: text of each id.
        kinds: token type of each id.
        bos_id: begin-of-sequence id, if any.
        add_bos: whether plain text is preceded by it.
        eos_ids: every id that ends a sequence.
        chat_template: Jinja source, if the file has one.
    """

    kind: str
    pre: str
    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    pad_id: int | None
    add_bos: bool
    add_space: bool
    eos_ids: tuple[int, ...]
    chat_template: str | None

    def text(self, token: int | None) -> str | None:
        """Text of an id."""
        return None if token is None else self.tokens[token]


def read_vocabulary(metadata: Mapping[str, Any]) -> VocabularySource:
    """Collect a file's tokenizer.

    Raises:
        Invalid: the file has none.
    """

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    if not get("tokens") or not get("token_type"):
        raise Invalid(
            "the file has no tokenizer; use one that was made for llama.cpp", param="file"
        )
    kind, pre = str(get("model")), str(get("pre", "default"))
    adds = kind == "llama" or pre in _LLAMA_3
    return VocabularySource(
        kind=kind,
        pre=pre,
        tokens=get("tokens"),
        kinds=get("token_type"),
        merges=get("merges", []),
        scores=get("scores", []),
        bos_id=get("bos_token_id"),
        eos_id=get("eos_token_id"),
        unknown_id=get("unknown_token_id"),
        pad_id=get("padding_token_id"),
        add_bos=bool(get("add_bos_token", adds)) and get("bos_token_id") is not None,
        add_space=bool(get("add_space_prefix", kind == "llama")),
        eos_ids=_end_ids(get, get("tokens"), get("token_type")),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _end_ids(
    get: Callable[[str], Any], tokens: Sequence[str], kinds: Sequence[int]
) -> tuple[int, ...]:
    named = {get(f"{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
    known = {
        index
        for index, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL and text in END_TEXTS
    }
    return tuple(sorted(named | known))


def _gpt2_cut() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits_cut() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_cut()])


def _words_cut(digits: str) -> pre_tokenizers.PreTokenizer:
    """Words with the mark before them, runs of digits as `digits` says, other marks, spaces."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS % digits), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")

#: `tokenizer.ggml.pre` to how text is cut before merging.
PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2_cut,
    "smollm": _single_digits_cut,
    "qwen2": lambda: _words_cut(""),
    **{name: lambda: _words_cut("{1,3}") for name in _LLAMA_3},
}


def build_tokenizer(source: VocabularySource) -> Tokenizer:
    """Make the tokenizer; takes about a second for 50,000 entries.

    Raises:
        Invalid: a kind or a cut that is not known here.
    """
    if source.kind == "gpt2":
        tokenizer = _byte_level(source)
    elif source.kind == "llama":
        tokenizer = _sentence_piece(source)
    else:
        raise Invalid(f"tokenizer kind {source.kind!r} can not be imported", param="tokenizer")
    _add_tokens(tokenizer, source)
    bos = source.text(source.bos_id)
    if source.add_bos and bos is not None and source.bos_id is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, source.bos_id)]
        )
    return tokenizer


def _byte_level(source: VocabularySource) -> Tokenizer:
    if source.pre not in PRE_TOKENIZERS:
        raise Invalid(
            f"tokenizer cut {source.pre!r} is not known here and another would give wrong ids; "
            f"known: {', '.join(PRE_TOKENIZERS)}",
            param="tokenizer.ggml.pre",
        )
    left_right = [merge.split(" ", 1) for merge in source.merges]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(source.tokens)},
            merges=[(left, right) for left, right in left_right],
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=source.pre in _LLAMA_3,
        )
    )
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[source.pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(source: VocabularySource) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(source.tokens)},
            merges=_merges_by_score(source),
            fuse_unk=True,
            byte_fallback=True,
            unk_token=source.text(source.unknown_id),
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if source.add_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        back.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _merges_by_score(source: VocabularySource) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, best score first, then lowest ids."""
    vocab = {text: index for index, text in enumerate(source.tokens)}
    ranked = []
    for text, index in vocab.items():
        if source.kinds[index] != NORMAL:
            continue
        for cut in range(1, len(text)):
            left, right = vocab.get(text[:cut]), vocab.get(text[cut:])
            if left is not None and right is not None:
                ranked.append((-source.scores[index], left, right, text[:cut], text[cut:]))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_tokens(tokenizer: Tokenizer, source: VocabularySource) -> None:
    """Mark control tokens as special, and both kinds as found before merging."""
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(text, special=special, normalized=False)
            for text, its_kind in zip(source.tokens, source.kinds, strict=True)
            if its_kind == kind
        ]
        if special:
            tokenizer.add_special_tokens(added)
        else:
            tokenizer.add_tokens(added)


def tokenizer_config(source: VocabularySource, max_positions: int) -> dict[str, Any]:
    """What `tokenizer_config.json` holds, under the names that other programs read."""
    named = {
        "bos_token": source.text(source.bos_id),
        "eos_token": source.text(source.eos_id),
        "unk_token": source.text(source.unknown_id),
        "pad_token": source.text(source.pad_id),
        "chat_template": source.chat_template,
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "add_bos_token": source.add_bos,
        "clean_up_tokenization_spaces": False,
        **{key: value for key, value in named.items() if value is not None},
    }
