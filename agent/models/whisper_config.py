"""A Whisper's figures, from the variables of its CTranslate2 file and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer

from agent.models.ct2_file import Ct2File
from agent.models.folder import CONFIG, TOKENIZER
from agent.models.transcriber_figures import TIMESTAMP_S, WINDOW_S, TranscriberFigures
from bus.errors import Invalid

WEIGHTS = "model.bin"
SPECIFICATION = "WhisperSpec"
REVISION = 3
ARCHITECTURE = "whisper"
#: Far above every Whisper: the largest has 1,280 values, 32 layers, 20 heads and 128 mels.
_MOST_LAYERS, _MOST_HIDDEN, _MOST_MELS, _MOST_POSITIONS = 128, 8192, 512, 1 << 16
_MAX_CONFIG_BYTES = 1 << 20
#: The number of GELU by the error function.
_GELU = 3
#: Settings that change what is computed, and the only value that graphs have.
_ONLY = {
    "decoder/activation": _GELU,
    "decoder/alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
}
#: Variables that nothing is computed with here.
_UNUSED = ("decoder/alignment_heads", "decoder/alignment_layer")
#: The smallest vocabulary of a model of many languages; those of English have one token less.
_MULTILINGUAL_VOCAB = 51865
_ONLY_LANGUAGE = "en"

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    """A Whisper's figures.

    Attributes:
        audio_layers, text_layers: of the encoder, of the decoder.
        audio_positions: rows of the encoder's position table.
        text_positions: rows of the decoder's: no token may stand behind it.
        own_projection: whether logits are made by a matrix of their own, not by the embeddings.
    """

    mels: int
    hidden: int
    heads: int
    feed_forward: int
    audio_layers: int
    text_layers: int
    audio_positions: int
    text_positions: int
    vocab: int
    own_projection: bool

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.hidden // self.heads

    @property
    def multilingual(self) -> bool:
        """Whether it transcribes other languages than English."""
        return self.vocab >= _MULTILINGUAL_VOCAB


def is_whisper_source(folder: Path) -> bool:
    """Whether a folder looks like one that `import_whisper` takes: CTranslate2's files."""
    return folder.is_dir() and (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file()


def read_whisper_config(file: Ct2File) -> WhisperConfig:
    """Read the figures and compare all variables with them.

    Raises:
        Invalid: another kind of model, a figure without sense, a variable that is missing, of
            another shape or unknown.
    """
    if (file.specification, file.revision) != (SPECIFICATION, REVISION):
        raise Invalid(
            f"a CTranslate2 model of {file.specification[:60]} revision {file.revision} can not be "
            f"imported; {SPECIFICATION} revision {REVISION} can",
            param="file",
        )
    for name, only in _ONLY.items():
        if file.integer(name) != only:
            raise Invalid(
                f"a model with {name} {file.integer(name)} can not be imported; {only} can",
                param=name,
            )
    config = _figures(file)
    _check_variables(file, config)
    return config


def _figures(file: Ct2File) -> WhisperConfig:
    hidden, mels, _ = _rank(file, "encoder/conv1/weight", 3)
    vocab, _ = _rank(file, "decoder/embeddings/weight", 2)
    heads = {file.integer(f"{side}/num_heads") for side in ("encoder", "decoder")}
    audio_layers, text_layers = (_layers(file, side) for side in ("encoder", "decoder"))
    (feed_forward,) = _rank(file, "encoder/layer_0/ffn/linear_0/bias", 1)
    audio_positions, _ = _rank(file, "encoder/position_encodings/encodings", 2)
    text_positions, _ = _rank(file, "decoder/position_encodings/encodings", 2)
    projection = "decoder/projection/weight"
    config = WhisperConfig(
        mels=mels,
        hidden=hidden,
        heads=max(heads),
        feed_forward=feed_forward,
        audio_layers=audio_layers,
        text_layers=text_layers,
        audio_positions=audio_positions,
        text_positions=text_positions,
        vocab=vocab,
        own_projection=file.resolve(projection) != "decoder/embeddings/weight",
    )
    sizes = (hidden, mels, feed_forward, audio_positions, text_positions, vocab)
    beyond = (
        min(sizes) < 1
        or len(heads) != 1
        or not 1 <= config.heads <= hidden
        or hidden % config.heads
        or hidden > _MOST_HIDDEN
        or mels > _MOST_MELS
        or max(audio_positions, text_positions) > _MOST_POSITIONS
    )
    if beyond:
        raise Invalid(
            f"{file.path} has figures that no Whisper has ({config}); download it again",
            param="file",
        )
    if audio_positions != round(WINDOW_S / TIMESTAMP_S):
        raise Invalid(
            f"a model with {audio_positions} audio positions can not be imported; windows of "
            f"{WINDOW_S:g} s have {round(WINDOW_S / TIMESTAMP_S)}",
            param="encoder/position_encodings/encodings",
        )
    return config


def _rank(file: Ct2File, name: str, rank: int) -> tuple[int, ...]:
    shape = file.shape(name)
    if len(shape) != rank:
        raise Invalid(
            f"variable {name} is of shape {list(shape)}; download the model again", param=name
        )
    return shape


def _layers(file: Ct2File, side: str) -> int:
    numbers = {
        name.split("/")[1]
        for name in file.variables
        if name.startswith(f"{side}/layer_") and not name.startswith(f"{side}/layer_norm/")
    }
    for count in range(min(len(numbers), _MOST_LAYERS) + 1):
        if f"layer_{count}" not in numbers:
            break
    if count == 0 or len(numbers) != count:
        raise Invalid(
            f"{file.path} has no layers of its {side} in a row from 0; download it again",
            param="file",
        )
    return count


def expected_shapes(config: WhisperConfig) -> Shapes:
    """The variables that the graphs are made of, and their shapes."""
    hidden = config.hidden
    shapes: Shapes = {
        "encoder/conv1/weight": (hidden, config.mels, 3),
        "encoder/conv1/bias": (hidden,),
        "encoder/conv2/weight": (hidden, hidden, 3),
        "encoder/conv2/bias": (hidden,),
        "encoder/position_encodings/encodings": (config.audio_positions, hidden),
        "decoder/position_encodings/encodings": (config.text_positions, hidden),
        "decoder/embeddings/weight": (config.vocab, hidden),
    }
    if config.own_projection:
        shapes["decoder/projection/weight"] = (config.vocab, hidden)
    for side, layers in (("encoder", config.audio_layers), ("decoder", config.text_layers)):
        shapes |= _norm(f"{side}/layer_norm", hidden)
        for layer in range(layers):
            shapes |= _layer_shapes(config, f"{side}/layer_{layer}", cross=side == "decoder")
    return shapes


def _layer_shapes(config: WhisperConfig, tag: str, *, cross: bool) -> Shapes:
    hidden, wide = config.hidden, config.feed_forward
    products = {
        "self_attention/linear_0": (3 * hidden, hidden),
        "self_attention/linear_1": (hidden, hidden),
        "ffn/linear_0": (wide, hidden),
        "ffn/linear_1": (hidden, wide),
    }
    if cross:
        products |= {
            "attention/linear_0": (hidden, hidden),
            "attention/linear_1": (2 * hidden, hidden),
            "attention/linear_2": (hidden, hidden),
        }
    shapes: Shapes = {}
    for name, shape in products.items():
        shapes[f"{tag}/{name}/weight"] = shape
        shapes[f"{tag}/{name}/bias"] = shape[:1]
    for part in ("self_attention", "ffn", *(["attention"] if cross else [])):
        shapes |= _norm(f"{tag}/{part}/layer_norm", hidden)
    return shapes


def _norm(name: str, hidden: int) -> Shapes:
    return {f"{name}/gamma": (hidden,), f"{name}/beta": (hidden,)}


def _check_variables(file: Ct2File, config: WhisperConfig) -> None:
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if file.shape(name) != shape:
            raise Invalid(
                f"variable {name} is of shape {list(file.shape(name))} where the others say "
                f"{list(shape)}; download the model again",
                param=name,
            )
    settings = {*_ONLY, *_UNUSED, "encoder/num_heads", "decoder/num_heads"}
    scales = {f"{name}_scale" for name in expected}
    unknown = sorted({*file.variables} - {*expected} - settings - scales)
    if unknown:
        raise Invalid(
            f"a model with a variable {unknown[0]} can not be imported: it computes what the "
            "graphs do not",
            param="file",
        )


def read_transcriber_figures(folder: Path, config: WhisperConfig) -> TranscriberFigures:
    """The tokens that decoding needs, from the folder's tokenizer and its `config.json`.

    Raises:
        Invalid: a file that is none, or a tokenizer or list of another model.
    """
    file = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # its errors share no narrower base
        raise Invalid(
            f"{file} can not be read ({error}); a folder needs the {TOKENIZER} of fast tokenizers",
            param=TOKENIZER,
        ) from error

    def token(*texts: str) -> int:
        for text in texts:
            found = tokenizer.token_to_id(f"<|{text}|>")
            if found is not None:
                return int(found)
        _refuse_tokenizer(file, f"has no token <|{texts[0]}|>")

    no_timestamps = token("notimestamps")
    first = no_timestamps + 1
    if first + round(WINDOW_S / TIMESTAMP_S) + 1 != config.vocab:
        _refuse_tokenizer(file, f"has no 1,501 timestamps within the model's {config.vocab} tokens")
    lists = _read_lists(folder / CONFIG, config.vocab)
    languages = _languages(tokenizer, lists["lang_ids"]) if config.multilingual else {}
    if config.multilingual and not languages:
        raise Invalid(f"{folder / CONFIG} names no language of the model", param="lang_ids")
    return TranscriberFigures(
        mels=config.mels,
        audio_positions=config.audio_positions,
        begin=token("startoftranscript"),
        end=token("endoftext"),
        transcribe=token("transcribe") if config.multilingual else -1,
        no_speech=token("nospeech", "nocaptions"),
        no_timestamps=no_timestamps,
        first_timestamp=first,
        suppressed=lists["suppress_ids"],
        suppressed_first=lists["suppress_ids_begin"],
        languages=languages or {_ONLY_LANGUAGE: -1},
    )


def _languages(tokenizer: Any, ids: tuple[int, ...]) -> dict[str, int]:
    texts = {token: tokenizer.id_to_token(token) or "" for token in ids}
    return {
        text[2:-2]: token
        for token, text in texts.items()
        if text.startswith("<|") and text.endswith("|>")
    }


def _refuse_tokenizer(file: Path, fact: str) -> NoReturn:
    raise Invalid(f"{file} {fact}; it is of another model", param=TOKENIZER)


def _read_lists(file: Path, vocab: int) -> Mapping[str, tuple[int, ...]]:
    """The lists of token ids of CTranslate2's `config.json`."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_CONFIG_BYTES + 1)
        if len(raw) > _MAX_CONFIG_BYTES:
            raise ValueError(f"more than {_MAX_CONFIG_BYTES} bytes")
        found = json.loads(raw.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Invalid(
            f"{file} can not be read ({error}); download it again", param=CONFIG
        ) from error
    if not isinstance(found, dict):
        raise Invalid(f"{file} is no JSON object; download it again", param=CONFIG)
    keys = ("suppress_ids", "suppress_ids_begin", "lang_ids")
    return {key: _tokens(file, key, found.get(key, []), vocab) for key in keys}


def _tokens(file: Path, key: str, value: Any, vocab: int) -> tuple[int, ...]:
    usable = isinstance(value, list) and len(value) <= vocab
    if not usable or not all(type(token) is int and 0 <= token < vocab for token in value):
        raise Invalid(f"{file} has no usable {key}: a list of tokens below {vocab}", param=key)
    return tuple(value)
