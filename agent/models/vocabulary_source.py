"""What the metadata of a GGUF file says of its tokenizer.

Kinds (`tokenizer.ggml.model`): `gpt2` is byte-level BPE, and the file names how text is cut before
merging (`pre`); `gemma4` is BPE over characters; `llama` is SentencePiece BPE, with scores instead
of merges; `bert` is WordPiece.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.models.text_cuts import CUTS
from bus.errors import Invalid
from bus.text.model_files import MAX_NAMED_TEMPLATES

#: `tokenizer.ggml.token_type` values.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

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
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",
        "<EOT>",
        "<eos>",
        "</s>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    )
)
#: Of those, what is also a tag of HTML: behind SentencePiece's own place for it, a file that calls
#: it user-defined means the tag.
_TAGS = frozenset(("</s>",))
_LAST_END_ID = 2
#: Where a vocabulary has both, `<|end|>` ends a message within a turn and not the turn.
_HARMONY_ENDS = frozenset(("<|return|>", "<|call|>"))
#: Texts of tokens that cut a document where code is to be filled in.
_FILL_TEXTS = frozenset(
    (
        *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
        *("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>"),
        *("<fim-prefix>", "<fim-middle>", "<fim-suffix>", "<fim-pad>"),
        *(
            "<\uff5cfim\u2581begin\uff5c>",
            "<\uff5cfim\u2581hole\uff5c>",
            "<\uff5cfim\u2581end\uff5c>",
        ),
    )
)
#: How control tokens are written, and ordinary words are not.
_CONTROL_FORM = re.compile(r"<.+>|\[.+\]|\|.+\|", re.DOTALL)
#: Names of ids that begin or end a sequence or a turn.
_ENDS = ("bos", "eos", "eot", "eom")
#: Named ids where the file names none, by kind, as the programs that made such files had them.
_DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "seperator": 102, "unknown": 100, "padding": 0},
}
_NAMED_TEMPLATE = "tokenizer.chat_template."
_PHI3 = ("phi-3", "phi3")


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
        named_templates: sources of further ones, by name, such as `tool_use`.
        last_id: what a text that is encoded whole ends with (`</s>`, `[SEP]`), if anything.
        strips_after: whether white space after a control token goes with it.
        lowercase: whether WordPiece makes letters small.
        strip_accents: whether it takes accents off them.
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
    last_id: int | None = None
    strips_after: bool = False
    lowercase: bool = True
    strip_accents: bool = True
    named_templates: Mapping[str, str] = field(default_factory=dict)

    def text(self, token: int | None) -> str | None:
        """Text of an id."""
        return None if token is None else self.tokens[token]


def read_vocabulary(metadata: Mapping[str, Any]) -> VocabularySource:
    """Collect a file's tokenizer.

    Raises:
        Invalid: the file has none.
    """
    get = _Getter(metadata)
    tokens, kinds = get.list("tokens", str), get.list("token_type", int)
    if not tokens or not kinds:
        raise Invalid(
            "the file has no tokenizer; use one that was made for llama.cpp", param="file"
        )
    kind = str(get("model"))
    pre = str(get("pre", "default"))
    named = _named_ids(get, kind, len(tokens))
    kinds = _true_kinds(tokens, kinds, named)
    bos, eos = named["bos"], named["eos"]
    template = metadata.get("tokenizer.chat_template")
    source = VocabularySource(
        kind=kind,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        merges=get.list("merges", str),
        scores=get.list("scores", float),
        bos_id=bos,
        eos_id=eos,
        unknown_id=named["unknown"],
        pad_id=named["padding"],
        add_bos=_adds_bos(get, kind, pre) and bos is not None,
        add_space=bool(get("add_space_prefix", kind == "llama")),
        eos_ids=_end_ids({eos, named["eot"], named["eom"]}, tokens, kinds),
        chat_template=template if isinstance(template, str) and template else None,
        named_templates=_named_templates(metadata),
        strips_after=any(text in str(metadata.get("general.name")).lower() for text in _PHI3),
    )
    if kind == "bert":
        lowercase = bool(get("normalizer.lowercase", True))
        accents = bool(get("normalizer.strip_accents", lowercase))
        return replace(
            source, lowercase=lowercase, strip_accents=accents, last_id=named["seperator"]
        )
    return replace(source, last_id=eos if get("add_eos_token", False) else None)


def _named_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {
        key.removeprefix(_NAMED_TEMPLATE): text
        for key, text in metadata.items()
        if key.startswith(_NAMED_TEMPLATE) and isinstance(text, str) and text
    }
    return dict(list(found.items())[:MAX_NAMED_TEMPLATES])


class _Getter:
    """Metadata of `tokenizer.ggml`, by type."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def __call__(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def id(self, name: str) -> int | None:
        """A named id, if the file has it."""
        key = f"{name}_token_id"
        found = self(key)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise _unusable(key)
        return found

    def list(self, key: str, kind: type) -> list[Any]:
        """A list of one type of item; empty when the file has none."""
        found = self(key)
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


def _named_ids(get: _Getter, kind: str, size: int) -> dict[str, int | None]:
    named = {
        name: get.id(name)
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding", "cls", "seperator")
    }
    if kind == "bert" and named["bos"] is None:
        named["bos"] = named["cls"]
    for name, token in _DEFAULT_IDS.get(kind, {}).items():
        if named[name] is None and token < size:
            named[name] = token
    return named


def _adds_bos(get: _Getter, kind: str, pre: str) -> bool:
    if kind in ("bert", "gemma4"):
        return True
    return bool(get("add_bos_token", kind == "llama" or (pre in CUTS and CUTS[pre].add_bos)))


def _true_kinds(
    tokens: Sequence[str], kinds: Sequence[int], named: Mapping[str, int | None]
) -> list[int]:
    """The type of each token: files call many a control token something else.

    One that is found in any text before merging (`USER_DEFINED`), or made of its letters
    (`NORMAL`), must be none that begins, ends or cuts a sequence, or a user could write it.

    Args:
        named: the ids that the file names.
    """
    special = set(named.values())
    ends = {named[name] for name in _ENDS}

    def is_control(index: int, kind: int) -> bool:
        text = tokens[index] if index < len(tokens) else ""
        is_tag = text in _TAGS and index > _LAST_END_ID
        cuts = (text in END_TEXTS and not is_tag) or text in _FILL_TEXTS
        if kind == NORMAL:
            # A wrong id may name an ordinary word; then that stays one.
            return cuts or (index in ends and _CONTROL_FORM.fullmatch(text) is not None)
        return kind == UNKNOWN or (kind == USER_DEFINED and (index in special or cuts))

    return [CONTROL if is_control(index, kind) else kind for index, kind in enumerate(kinds)]


def _end_ids(
    named: set[int | None], tokens: Sequence[str], kinds: Sequence[int]
) -> tuple[int, ...]:
    known = {
        text: index
        for index, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == CONTROL and text in END_TEXTS
    }
    if known.keys() >= _HARMONY_ENDS:
        known.pop("<|end|>", None)
    found = {*known.values(), *named}
    return tuple(sorted(token for token in found if token is not None))


def word_pieces(source: VocabularySource) -> list[str]:
    """WordPiece tokens as they were published: `##` before what goes on with a word.

    The file marks what begins one, by U+2581.
    """
    return [_word_piece(text, kind) for text, kind in zip(source.tokens, source.kinds, strict=True)]


def _word_piece(text: str, kind: int) -> str:
    if kind in (CONTROL, USER_DEFINED) or (text.startswith("[") and text.endswith("]")):
        return text
    return text[1:] if text.startswith("\u2581") and len(text) > 1 else f"##{text}"
