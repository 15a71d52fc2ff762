"""`tokenizer.json` and its companions from the metadata of a GGUF file.

Source: the tokenizers that llama.cpp publishes with the ids it expects; docs/tokenizers.md has the
kinds and what was compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from agent.models.tokenizer_kinds import BUILDERS
from agent.models.vocabulary_check import check_vocabulary
from agent.models.vocabulary_source import CONTROL, USER_DEFINED, VocabularySource
from bus.text.model_files import DEFAULT_TEMPLATE

#: Control tokens that keep the white space after them where others of their vocabulary do not.
_KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")


def build_tokenizer(source: VocabularySource) -> Tokenizer:
    """Make the tokenizer; takes about a second for 50,000 entries.

    Raises:
        Invalid: a kind or a cut that is not known here.
    """
    check_vocabulary(source)
    tokenizer = BUILDERS[source.kind](source)
    _add_tokens(tokenizer, source)
    _add_ends(tokenizer, source)
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, source: VocabularySource) -> None:
    """Mark control tokens as special, and both kinds as found before merging."""
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(
                text,
                special=special,
                normalized=False,
                rstrip=special and source.strips_after and text not in _KEEPS_SPACES,
            )
            for text, its_kind in zip(source.tokens, source.kinds, strict=True)
            if its_kind == kind
        ]
        if special:
            tokenizer.add_special_tokens(added)
        else:
            tokenizer.add_tokens(added)


def _add_ends(tokenizer: Tokenizer, source: VocabularySource) -> None:
    """Have a text that is encoded whole begin and end as the file says."""
    before = [source.bos_id] if source.add_bos and source.bos_id is not None else []
    after = [source.last_id] if source.last_id is not None else []
    if not before and not after:
        return
    names = _template_names({token: source.tokens[token] for token in (*before, *after)})
    begin, end = [names[token] for token in before], [names[token] for token in after]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *(f"{name}:1" for name in begin), "$B:1"]
        + [f"{name}:1" for name in end],
        special_tokens=[
            {"id": name, "ids": [token], "tokens": [source.tokens[token]]}
            for token, name in names.items()
        ],
    )


def _template_names(texts: Mapping[int, str]) -> Mapping[int, str]:
    """What a template calls tokens: their texts, but `$` and `:` have a meaning there."""
    if all(text and not set("$:") & set(text) for text in texts.values()):
        return texts
    return {token: f"token {token}" for token in texts}


def tokenizer_config(source: VocabularySource, max_positions: int) -> dict[str, Any]:
    """What `tokenizer_config.json` holds, under the names that other programs read."""
    named = {
        "bos_token": source.text(source.bos_id),
        "eos_token": source.text(source.eos_id),
        "unk_token": source.text(source.unknown_id),
        "pad_token": source.text(source.pad_id),
        "chat_template": _templates(source),
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "add_bos_token": source.add_bos,
        "clean_up_tokenization_spaces": False,
        **{key: value for key, value in named.items() if value is not None},
    }


def _templates(source: VocabularySource) -> str | list[dict[str, str]] | None:
    """One template as text, several as the list that other programs read."""
    if not source.named_templates:
        return source.chat_template
    default = {} if source.chat_template is None else {DEFAULT_TEMPLATE: source.chat_template}
    templates = {**source.named_templates, **default}
    return [{"name": name, "template": text} for name, text in templates.items()]
