"""How text is cut into words before byte-level BPE merges within each.

A GGUF file names its cut (`tokenizer.ggml.pre`). A wrong one gives other ids in silence, so only
those stand here whose ids were compared with published ones. A cut is one or more regular
expressions: each cuts what the one before it left, and matches and what lies between them are the
pieces.

Source: the tokenizers that the families published (`pre_tokenizer` in their tokenizer.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenizers import Regex, pre_tokenizers


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut.

    Attributes:
        patterns: in the syntax of Oniguruma.
        whole_words: a word that is a token stays one, whatever its merges.
        add_bos: text is preceded by the begin-of-sequence token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The cut, and then bytes as characters."""
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, as_bytes])


#: Words with the space before them, numbers, other marks, and spaces but the last.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
#: Words with any mark before them, runs of `%s` digits, other marks with line ends, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: The same, and marks that combine with a letter belong to its word.
_MARKED_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Chinese, Japanese and Korean, as DeepSeek's first tokenizers have them.
_EAST_ASIA = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
#: Letters that have a case, and their neighbours in Unicode's blocks.
_CASED = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"

_SINGLE_DIGITS = Cut((r"\p{N}", _GPT2))
_PLAIN = Cut((_GPT2,))
_LLAMA3 = Cut((_WORDS % "{1,3}",), whole_words=True, add_bos=True)
_QWEN2 = Cut((_WORDS % "",))

#: `tokenizer.ggml.pre` to its cut.
CUTS: Mapping[str, Cut] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), _PLAIN),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _SINGLE_DIGITS,
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN2),
    "qwen35": Cut((_MARKED_WORDS,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx"), replace(_LLAMA3, whole_words=False, add_bos=False)),
    "falcon": Cut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Cut((r"[\r\n]", _CASED, _MARKS, r"\s+$", _EAST_ASIA, r"\p{N}+")),
    "deepseek-coder": Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIA, r"\p{N}")),
}
