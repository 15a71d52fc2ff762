"""Writes every file of a model folder from a decoder's figures, weights and vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.models.architecture import DecoderConfig, WeightSource
from agent.models.decoder_files import (
    genai_decoder,
    kv_record,
    stage_of,
    stage_signature,
)
from agent.models.folder import (
    CHAT_TEMPLATE,
    GENAI_CONFIG,
    GRAPH,
    GRAPH_FLOAT16,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ModelFolder,
    Signature,
)
from agent.models.graph import INT8_ACTIVATIONS, Numerics, write_graphs
from agent.models.selftest import (
    TEXTS,
    choose,
    choose_stage,
    open_session,
    stage_prompt,
)
from agent.models.stages import Stage, StageChoice
from agent.models.tensors import Precision
from agent.models.tokenizer import build_tokenizer, tokenizer_config
from agent.models.vocabulary_source import VocabularySource
from agent.models.writer import check_name, replacing_folder, write_json, write_record, write_text

#: Told of long work: the step's name, how much of it is done, how much there is.
Progress = Callable[[str, int, int], None]

GRAPH_FILES = {Precision.FLOAT32: GRAPH, Precision.FLOAT16: GRAPH_FLOAT16}


def no_progress(step: str, done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """All that a folder is made of.

    Attributes:
        origin: goes into the record's `source`.
        quantization: tensor type to number of tensors.
    """

    config: DecoderConfig
    weights: WeightSource
    vocabulary: VocabularySource
    origin: Mapping[str, str]
    quantization: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """A stage to make, and the name of the whole model."""

    model: str
    choice: StageChoice


def assemble(
    source: ModelSource,
    target: Path,
    *,
    numerics: Numerics = INT8_ACTIVATIONS,
    part: Part | None = None,
    progress: Progress = no_progress,
) -> ModelFolder:
    """Make the folder `target`, replacing what is there, and run its self-test.

    Args:
        numerics: how the CPU graph computes.
        part: which stage to make; the whole model by default.
        progress: told what is done.

    Raises:
        Invalid: the folder's name or the model can not be used.
        ModelIncomplete: the graph that was written does not work.
    """
    check_name(target.name)
    with replacing_folder(target) as partial:
        inputs = write_graphs(
            partial,
            source.config,
            source.weights,
            GRAPH_FILES,
            numerics=numerics,
            layers=None if part is None else part.choice.layers,
            progress=lambda done, total: progress("layers", done, total),
        )
        progress("tokenizer", 0, 1)
        whole = _signature(source.config, inputs)
        prompts = _write_vocabulary(partial, source, whole)
        progress("tokenizer", 1, 1)
        progress("self-test", 0, 1)
        signature = whole if part is None else stage_signature(whole, part.choice, inputs)
        if part is None:
            test = choose(open_session(partial / GRAPH), signature, prompts)
        else:
            session = open_session(partial / GRAPH, packed=False)
            test = choose_stage(session, signature, stage_prompt(prompts))
        progress("self-test", 1, 1)
        accuracy = {key: int(value) for key, value in asdict(numerics).items()}
        record = {
            "name": target.name,
            "source": dict(source.origin),
            "architecture": source.config.architecture.name,
            "quantization": dict(source.quantization),
            "numerics": accuracy,
            "signature": asdict(signature),
            "kv_bytes_per_token": kv_record(signature),
            "eos_ids": list(source.vocabulary.eos_ids),
            "bos_id": source.vocabulary.bos_id,
            "add_bos": source.vocabulary.add_bos,
            "self_test": asdict(test),
        }
        if part is not None:
            record["stage"] = asdict(_stage(source, part, accuracy, whole))
        write_record(partial, record)
    return ModelFolder.open(target)


def _stage(source: ModelSource, part: Part, accuracy: dict[str, int], whole: Signature) -> Stage:
    return stage_of(
        part.choice,
        part.model,
        source=source.origin,
        architecture=source.config.architecture.name,
        numerics=accuracy,
        whole=whole,
    )


def _signature(config: DecoderConfig, inputs: list[str]) -> Signature:
    return Signature(
        first_layer=0,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        max_positions=config.max_positions,
        inputs=tuple(inputs),
    )


def _write_vocabulary(folder: Path, source: ModelSource, signature: Signature) -> list[list[int]]:
    """Write tokenizer, template and genai's configuration; gives prompts for the self-test."""
    vocabulary, window = source.vocabulary, signature.max_positions
    tokenizer = build_tokenizer(vocabulary)
    tokenizer.save(str(folder / TOKENIZER), pretty=False)
    write_json(folder / TOKENIZER_CONFIG, tokenizer_config(vocabulary, window))
    if vocabulary.chat_template:
        write_text(folder / CHAT_TEMPLATE, vocabulary.chat_template)
    write_json(folder / GENAI_CONFIG, _genai_config(source, signature))
    return [list(tokenizer.encode(text).ids) for text in TEXTS]


def _genai_config(source: ModelSource, signature: Signature) -> dict[str, Any]:
    """The figures under the names that onnxruntime-genai gave them."""
    vocabulary, window = source.vocabulary, signature.max_positions
    return {
        "model": {
            "type": source.config.architecture.name,
            "bos_token_id": vocabulary.bos_id,
            "eos_token_id": list(vocabulary.eos_ids),
            "pad_token_id": vocabulary.pad_id,
            "context_length": window,
            "vocab_size": signature.vocab,
            "decoder": genai_decoder(signature, GRAPH),
        },
        "search": {"max_length": window, "past_present_share_buffer": True},
    }
