"""Imports an encoder's folder of safetensors, as Hugging Face and sentence-transformers have it."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agent.models.assemble import Progress, no_progress
from agent.models.encoder_config import (
    MODEL_TYPE,
    WEIGHTS,
    EncoderConfig,
    is_encoder_source,
    read_encoder_config,
)
from agent.models.encoder_graph import INPUTS, check_encoder_shapes, write_encoder_graph
from agent.models.folder import (
    CONFIG,
    ENCODER,
    GRAPH,
    TOKENIZER,
    TOKENIZER_CONFIG,
    EncoderFigures,
    ModelFolder,
    Signature,
    file_sha256,
)
from agent.models.safetensors_file import SafetensorsFile
from agent.models.selftest import open_session
from agent.models.sentence_vectors import make_test
from agent.models.writer import check_name, replacing_folder, write_record
from bus.errors import Invalid

_TEST_TEXT = "The capital of France is Paris."
#: Taken over as they are, where they are.
_KEPT = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, "special_tokens_map.json")


def import_encoder(source: Path, target: Path, *, progress: Progress = no_progress) -> ModelFolder:
    """Make a model folder from an encoder's, without torch and without loss.

    Args:
        source: with `config.json` (of model_type bert), `model.safetensors` and `tokenizer.json`;
            sentence-transformers' files beside them say how its vectors are pooled.
        target: the folder to make; its name becomes the model's.
        progress: told what is done.

    Raises:
        Invalid: a file or model that can not be imported, with what is unusual about it.
        ModelIncomplete: the graph that was written does not work.
    """
    check_name(target.name)
    if not is_encoder_source(source):
        raise Invalid(
            f"folder {source} can not be imported: it has no {CONFIG} with a {WEIGHTS} beside it, "
            "as encoders have; decoders are imported as GGUF files",
            param="file",
        )
    progress("read", 0, 1)
    config = read_encoder_config(source)
    weights = SafetensorsFile(source / WEIGHTS)
    prefix = check_encoder_shapes(config, {n: t.shape for n, t in weights.tensors.items()})
    prompt = sample_ids(source, config)
    origin = {
        "kind": "safetensors",
        "file": source.resolve().name,
        "sha256": file_sha256(source / WEIGHTS),
    }
    progress("read", 1, 1)
    with replacing_folder(target) as partial:
        write_encoder_graph(
            partial,
            GRAPH,
            config,
            weights,
            prefix=prefix,
            progress=lambda done, total: progress("layers", done, total),
        )
        for name in _KEPT:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        progress("self-test", 0, 1)
        test = make_test(open_session(partial / GRAPH), prompt)
        progress("self-test", 1, 1)
        record = {"name": target.name, "source": origin, **_record(config, weights)}
        write_record(partial, {**record, "self_test": asdict(test)})
    return ModelFolder.open(target)


def _record(config: EncoderConfig, weights: SafetensorsFile) -> dict[str, Any]:
    figures = EncoderFigures(config.pooling, config.normalize, config.trained_tokens)
    return {
        "kind": ENCODER,
        "architecture": MODEL_TYPE,
        "quantization": dict(Counter(t.dtype for t in weights.tensors.values())),
        "numerics": {},
        "signature": asdict(_signature(config)),
        "encoder": asdict(figures),
        "eos_ids": [],
        "bos_id": None,
        "add_bos": False,
    }


def _signature(config: EncoderConfig) -> Signature:
    """As a decoder has it; nothing is kept of a token, so there are no heads of keys and values."""
    return Signature(
        first_layer=0,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=0,
        head_dim=config.head_dim,
        vocab=config.vocab,
        max_positions=config.max_positions,
        inputs=INPUTS,
    )


def sample_ids(source: Path, config: EncoderConfig) -> list[int]:
    """Token ids of a short text, by the folder's own tokenizer, which is tried out with it.

    Raises:
        Invalid: no tokenizer, or one of another model.
    """
    file = source / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # its errors share no narrower base
        raise Invalid(
            f"{file} can not be read ({error}); a folder needs the {TOKENIZER} of fast tokenizers",
            param=TOKENIZER,
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if tokenizer.get_vocab_size(with_added_tokens=True) > config.vocab:
        raise Invalid(
            f"{file} has more tokens than the model's {config.vocab}; it is of another model",
            param=TOKENIZER,
        )
    return list(tokenizer.encode(_TEST_TEXT).ids)[: config.max_positions]
