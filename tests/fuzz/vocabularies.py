"""A fuzz target that takes tokenizers from metadata: one that works, or a documented refusal."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.models.text_cuts import CUTS
from agent.models.tokenizer import build_tokenizer
from agent.models.vocabulary_check import check_vocabulary
from agent.models.vocabulary_source import read_vocabulary
from bus.errors import Invalid
from bus.text.detokenizer import Detokenizer
from bus.text.model_files import ModelFiles
from bus.text.tokenizer import TextModel
from bus.text.vocabulary import BYTE_OF_CHARACTER
from tests.fuzz.decoders import Case

_LETTERS = (
    *("a", "b", "c", "0", " ", "\n", "<", "|", "##", "\u2581", "\u0120"),
    *("\u00e9", "\ud55c", "\U0001f642"),
)
_CONTROL = (
    *("<s>", "</s>", "<unk>", "<|im_end|>", "<|end|>", "<eos>", ""),
    *("[CLS]", "[SEP]", "[UNK]"),
)
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def metadata(rng: random.Random) -> dict[str, Any]:
    """Of a tokenizer that is nearly one."""
    texts = dict.fromkeys("".join(rng.choices(_LETTERS, k=rng.randint(1, 3))) for _ in range(20))
    tokens = list(dict.fromkeys([*_LETTERS, *texts, *rng.sample(_CONTROL, 6)]))
    if rng.random() < 0.7:
        tokens = [token for token in tokens if token]
    kind = rng.choice(
        ("gpt2", "llama", "gemma4", "bert", *rng.choices(("t5", ""), k=rng.random() < 0.1))
    )
    if kind == "gpt2" and rng.random() < 0.95:
        tokens = list(dict.fromkeys([*tokens, *BYTE_OF_CHARACTER]))
    if rng.random() < 0.5:
        tokens += _BYTES
    if rng.random() < 0.05:
        tokens.append(tokens[0])
    size = len(tokens)
    kinds = [
        rng.choice((2, 3, 3, 4)) if token in _CONTROL else 6 if token in _BYTES else 1
        for token in tokens
    ]
    if rng.random() < 0.2:
        kinds[rng.randrange(size)] = rng.choice((1, 2, 3, 4, 5, 6, 99))
    found: dict[str, Any] = {
        "model": kind,
        "pre": rng.choice((*CUTS, "default", "a" * 100)),
        "tokens": tokens,
        "token_type": kinds[: size - (rng.random() < 0.03)],
        "merges": _merges(rng, tokens),
        "scores": [rng.choice((0.0, -rng.random(), -rng.random())) for _ in tokens],
    }
    if rng.random() < 0.05:
        found["scores"][rng.randrange(size)] = rng.choice((float("nan"), float("-inf")))
    names = ("bos", "eos", "eot", "unknown", "padding", "cls", "seperator")
    for name in rng.sample(names, rng.randint(0, 7)):
        wrong = rng.random() < 0.03
        found[f"{name}_token_id"] = rng.choice((size, -1)) if wrong else rng.randrange(size)
    for name in ("add_bos_token", "add_eos_token", "add_space_prefix", "normalizer.lowercase"):
        if rng.random() < 0.5:
            found[name] = rng.random() < 0.5
    return {
        "general.name": rng.choice(("", "Phi-3", "x")),
        **{f"tokenizer.ggml.{key}": value for key, value in found.items()},
    }


def _merges(rng: random.Random, tokens: list[str]) -> list[str]:
    known = set(tokens)
    pairs = ((token[:cut], token[cut:]) for token in tokens for cut in range(1, len(token)))
    merges = [f"{left} {right}" for left, right in pairs if left in known and right in known]
    if rng.random() < 0.1:
        merges.append(rng.choice(("a", "a zzz", " ", "")))
    rng.shuffle(merges)
    return merges


def vocabulary_case(rng: random.Random) -> None:
    """What is not refused encodes any text into ids that it has, and says what each adds."""
    try:
        source = read_vocabulary(metadata(rng))
        check_vocabulary(source)
    except Invalid:
        return
    model = TextModel(
        ModelFiles(
            name="m",
            folder=Path("m"),
            tokenizer=build_tokenizer(source).to_str(),
            named_tokens={},
            eos_ids=source.eos_ids,
            bos_id=source.bos_id,
            add_bos=source.add_bos,
            template=None,
        )
    )
    words = (
        *_LETTERS,
        *_CONTROL,
        *source.tokens,
        "\0",
        "\U0010ffff",
        "e\u0301",
        "\u3000",
        "x" * 50,
    )
    text = "".join(rng.choices(words, k=rng.randint(0, 12)))
    plain = model.encode(text, add_special=False)
    both = model.encode(text, add_special=True, parse_special=True)
    size = len(source.tokens)
    if not all(0 <= token < size for token in (*plain, *both)):
        raise AssertionError(f"an id beyond {size} for {text!r}: {plain} {both}")
    if len(model.vocabulary) != size:
        raise AssertionError(f"{size} tokens and bytes of {len(model.vocabulary)}")
    maker = Detokenizer(model.vocabulary)
    streamed = "".join(maker.push([token]) for token in plain) + maker.finish()
    if streamed != Detokenizer(model.vocabulary).push(plain):
        raise AssertionError(f"{text!r} is {streamed!r} token by token")


VOCABULARIES: Mapping[str, Case] = {"vocabulary": vocabulary_case}
