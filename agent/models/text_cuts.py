"""How text is cut into words before byte-level BPE merges within each.

A GGUF file names its cut (`tokenizer.ggml.pre`). A wrong one gives other ids in silence, so only
those stand here whose ids were compared with published ones, or with what llama.cpp makes of such
a cut with another vocabulary (docs/tokenizers.md says which). A cut is one or more regular
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
#: Spaces at the end; looked for only where a run begins, or a long one would take a square of time.
_LAST_SPACES = r"(?<!\s)\s+$"
#: Letters that have a case, but for those that the first list of them lacked.
_CASED = (
    "\\s?[[\\p{Lu}\\p{Ll}\\p{Lt}]&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2f"
    "\ua790-\ua7ff\uab30-\uab6f\U00010570-\U000105bf\U00010d50-\U00010d8f"
    "\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001dfff]]+"
)

#: Parts of words by case, as o200k and Tekken have them: small letters after great ones.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#: Words after at most one mark, marks with the line ends after them, spaces.
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: All but spaces and the marks that end a sentence in some language.
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

_SINGLE_DIGITS = Cut((r"\p{N}", _GPT2))
_PLAIN = Cut((_GPT2,))
_LLAMA3 = Cut((_WORDS % "{1,3}",), whole_words=True, add_bos=True)
_QWEN2 = Cut((_WORDS % "",))
_O200K = Cut((_CASED_WORDS % (_SHORT, _SHORT, "{1,3}"),))

#: `tokenizer.ggml.pre` to its cut.
CUTS: Mapping[str, Cut] = {
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "a.x-4.0", "mellum", "exaone4"),
            *("trillion", "granite-docling"),
        ),
        _PLAIN,
    ),
    **dict.fromkeys(
        (
            *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
            "mellum2",
        ),
        _SINGLE_DIGITS,
    ),
    **dict.fromkeys(
        (
            *("qwen2", "deepseek-r1-qwen", "stablelm2", "kormo", "f2llmv2", "megrez", "hunyuan"),
            *("solar-open", "grok-2"),
        ),
        _QWEN2,
    ),
    "qwen35": Cut((_MARKED_WORDS,)),
    **dict.fromkeys(
        (
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0"),
            "lfm2",
        ),
        _LLAMA3,
    ),
    **dict.fromkeys(
        ("smaug-bpe", "dbrx", "chatglm-bpe"), replace(_LLAMA3, whole_words=False, add_bos=False)
    ),
    **dict.fromkeys(("glm4", "glm5"), replace(_LLAMA3, add_bos=False)),
    "minicpm5": Cut((r"\p{N}{1,3}", _WORDS % "+"), whole_words=True),
    "seed-coder": Cut((_WORDS.replace(r"]+[\r\n]*", "]+") % "",)),
    "tekken": Cut((_CASED_WORDS % ("", "", ""),), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _O200K),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"),
        Cut((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)),
    ),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), Cut((_BLOOM,))),
    "viking": Cut((_BLOOM, r"\p{N}")),
    "falcon": Cut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Cut((r"[\r\n]", _CASED, _MARKS, _LAST_SPACES, _EAST_ASIA, r"\p{N}+")),
    "deepseek-coder": Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIA, r"\p{N}")),
}
