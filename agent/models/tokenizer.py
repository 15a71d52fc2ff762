"""`tokenizer.json` and its companions from the metadata of a GGUF file.

Two kinds exist. `gpt2` is byte-level BPE; the file names how text is cut before merging (`pre`),
and only the cuts of `CUTS` are known, because a wrong one gives other ids in silence.
`llama` is SentencePiece BPE: the file has scores instead of merges, and merging greedily by score
equals merging by rank, where the pairs that make a token rank by that token's score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
)

from agent.models.text_cuts import CUTS
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

    def whole(key: str, default: int | None = None) -> int | None:
        found = get(f"{key}_token_id", default)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise _unusable(f"{key}_token_id")
        return found

    tokens, kinds = _list(get, "tokens", str), _list(get, "token_type", int)
    if not tokens or not kinds:
        raise Invalid(
            "the file has no tokenizer; use one that was made for llama.cpp", param="file"
        )
    kind, pre = str(get("model")), str(get("pre", "default"))
    scored = kind == "llama"
    template = metadata.get("tokenizer.chat_template")
    bos, eos = whole("bos", 1 if scored else None), whole("eos", 2 if scored else None)
    adds = scored or (pre in CUTS and CUTS[pre].add_bos)
    return VocabularySource(
        kind=kind,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        merges=_list(get, "merges", str),
        scores=_list(get, "scores", float),
        bos_id=bos,
        eos_id=eos,
        unknown_id=whole("unknown", 0 if scored else None),
        pad_id=whole("padding"),
        add_bos=bool(get("add_bos_token", adds)) and bos is not None,
        add_space=bool(get("add_space_prefix", scored)),
        eos_ids=_end_ids({eos, whole("eot"), whole("eom")} - {None}, tokens, kinds),
        chat_template=template if isinstance(template, str) and template else None,
    )


def _list(get: Callable[[str], Any], key: str, kind: type) -> list[Any]:
    """A list of one type of item; empty when the file has none."""
    found = get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(type(item) is kind for item in found):
        raise _unusable(key)
    return found


def _unusable(key: str) -> Invalid:
    return Invalid(
        f"the file's metadata has no usable tokenizer.ggml.{key}; download the file again",
        param=f"tokenizer.ggml.{key}",
    )


def _end_ids(
    named: set[int | None], tokens: Sequence[str], kinds: Sequence[int]
) -> tuple[int, ...]:
    known = {
        index
        for index, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == CONTROL and text in END_TEXTS
    }
    return tuple(sorted(known | {token for token in named if token is not None}))


def check_vocabulary(source: VocabularySource) -> None:
    """Refuse what `build_tokenizer` can not make, without making it.

    Raises:
        Invalid: a kind or a cut that is not known, or ids and texts that do not fit together.
    """
    if source.kind not in ("gpt2", "llama"):
        raise Invalid(
            f"tokenizer kind {source.kind[:60]!r} can not be imported; gpt2 and llama can",
            param="tokenizer",
        )
    if source.kind == "gpt2" and source.pre not in CUTS:
        raise Invalid(
            f"tokenizer cut {source.pre[:60]!r} is not known here and another would give wrong "
            f"ids; known: {', '.join(CUTS)}",
            param="tokenizer.ggml.pre",
        )
    size = len(source.tokens)
    if len(source.kinds) != size or (source.kind == "llama" and len(source.scores) != size):
        raise Invalid(
            f"the tokenizer has {size} texts, {len(source.kinds)} kinds and {len(source.scores)} "
            "scores; download the file again",
            param="tokenizer",
        )
    if len(set(source.tokens)) != size:
        raise Invalid("two tokens have one text; download the file again", param="tokenizer")
    named = (source.bos_id, source.eos_id, source.unknown_id, source.pad_id, *source.eos_ids)
    wrong = [token for token in named if token is not None and not 0 <= token < size]
    if wrong:
        raise Invalid(
            f"token {wrong[0]} is named and there are {size}; download the file again",
            param="tokenizer",
        )
    _check_merges(source)


def _check_merges(source: VocabularySource) -> None:
    """Every merge is of two tokens that make a third."""
    texts = set(source.tokens)
    for merge in source.merges:
        left, _, right = merge.partition(" ")
        if not texts.issuperset((left, right, left + right)):
            raise Invalid(
                f"the merge {merge[:60]!r} is of no tokens; download the file again",
                param="tokenizer.ggml.merges",
            )


def build_tokenizer(source: VocabularySource) -> Tokenizer:
    """Make the tokenizer; takes about a second for 50,000 entries.

    Raises:
        Invalid: a kind or a cut that is not known here.
    """
    check_vocabulary(source)
    tokenizer = _byte_level(source) if source.kind == "gpt2" else _sentence_piece(source)
    _add_tokens(tokenizer, source)
    bos = source.text(source.bos_id)
    if source.add_bos and bos is not None and source.bos_id is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, source.bos_id)]
        )
    return tokenizer


def _byte_level(source: VocabularySource) -> Tokenizer:
    cut = CUTS[source.pre]
    left_right = [merge.split(" ", 1) for merge in source.merges]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(source.tokens)},
            merges=[(left, right) for left, right in left_right],
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=cut.whole_words,
        )
    )
    tokenizer.pre_tokenizer = cut.pre_tokenizer()
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
