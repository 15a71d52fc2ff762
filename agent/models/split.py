"""Splits a model folder into folders of its stages.

Graphs are cut (`agent.models.graph_cut`); of the data files only the stretches that a stage's
graphs read are copied, a piece at a time, so that memory does not grow with the model. Weights stay
in their files while stages are tried, too. What comes out is what an import of the stage alone
makes. All folders appear, or none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto
from tokenizers import Tokenizer

from agent.models.assemble import Progress, no_progress
from agent.models.decoder_files import kv_record, stage_of, stage_signature
from agent.models.folder import (
    DECODER,
    GRAPH,
    GRAPH_DATA,
    GRAPH_FLOAT16,
    RECORD,
    ModelFolder,
    SelfTest,
    Signature,
)
from agent.models.graph_cut import GraphCutter
from agent.models.onnx_file import OnnxFile, all_tensors, read_onnx, tensor_bytes
from agent.models.selftest import (
    TEXTS,
    TOLERANCE,
    choose_stage,
    open_session,
    run_stage,
    stage_prompt,
)
from agent.models.stages import StageChoice
from agent.models.tensors import Span, TensorFile
from agent.models.writer import replacing_folder, write_record
from bus.errors import Invalid, ModelIncomplete

#: Kinds of sources that name all weights; a folder of another program names its graph.
_NAMED_BY_SOURCE = ("gguf", "toy")


def split_model(
    folder: ModelFolder,
    models: Path,
    choices: Sequence[StageChoice],
    *,
    progress: Progress = no_progress,
) -> list[ModelFolder]:
    """Make a folder for each stage of a model.

    Args:
        folder: a whole decoder's, opened and verified.
        models: where the folders are made, as `NAME.1of2`.
        choices: the stages.
        progress: told what is done.

    Raises:
        Invalid: no whole decoder, or its graph can not be cut there.
        ModelIncomplete: its graph is damaged, or the stages do not give what it gives.
    """
    _check_whole(folder)
    splitter = _Splitter(folder, progress)
    targets = [models / choice.folder_name(folder.path.name) for choice in choices]
    with ExitStack() as stack:
        parts = [stack.enter_context(replacing_folder(target)) for target in targets]
        splitter.write(list(zip(choices, parts, strict=True)))
        splitter.finish(list(zip(choices, parts, targets, strict=True)))
    return [ModelFolder.open(target) for target in targets]


def _check_whole(folder: ModelFolder) -> None:
    if folder.kind != DECODER:
        raise Invalid(
            f"{folder.name} is of kind {folder.kind} and only models that make text are split; "
            "serve it whole",
            param="model",
        )
    if folder.stage is not None:
        raise Invalid(
            f"{folder.name} is a stage itself ({folder.stage.describe()}); split the whole model",
            param="model",
        )


class _Splitter:
    """Owns the graphs of the whole model, without its weights."""

    def __init__(self, folder: ModelFolder, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress
        names = [name for name in (GRAPH, GRAPH_FLOAT16) if name in folder.files]
        self._files = {name: read_onnx(folder.path / name) for name in names}
        figures = folder.signature
        self._cutters = {
            name: GraphCutter(file.model, figures.layers, figures.hidden)
            for name, file in self._files.items()
        }
        #: In the order in which the whole model's data file has them.
        self._order = list(
            dict.fromkeys(
                weight.name
                for file in self._files.values()
                for weight in file.model.graph.initializer
            )
        )
        self._inputs: dict[int, list[str]] = {}

    def write(self, parts: Sequence[tuple[StageChoice, Path]]) -> None:
        """Write the graphs, the data and the texts of all stages; nothing is tried yet."""
        cuts = [
            {name: cutter.cut(choice.layers) for name, cutter in self._cutters.items()}
            for choice, _ in parts
        ]
        total = sum(len(graph.graph.initializer) for graphs in cuts for graph in graphs.values())
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            self._progress("weights", done, total)

        for (choice, path), graphs in zip(parts, cuts, strict=True):
            self._write_weights(path / GRAPH_DATA, graphs, tick)
            for name, graph in graphs.items():
                (path / name).write_bytes(graph.SerializeToString())
                self._inputs[choice.index] = [value.name for value in graph.graph.input]
            self._copy_texts(path)

    def _write_weights(
        self, target: Path, graphs: Mapping[str, onnx.ModelProto], tick: Callable[[], None]
    ) -> None:
        """Copy the stretches that graphs read, each once, and point their tensors there."""
        tensors, copied = TensorFile(target), dict[tuple[Path, Span], Span]()
        with ExitStack() as stack:
            stack.callback(tensors.close)
            sources: dict[Path, BinaryIO] = {}
            for name, tensor in self._in_order(graphs):
                if tensor.data_location == TensorProto.EXTERNAL:
                    path, span = _place(self._files[name], tensor)
                    if path not in sources:
                        sources[path] = stack.enter_context(path.open("rb"))
                    if (path, span) not in copied:
                        copied[path, span] = tensors.copy(sources[path], span)
                    tensors.point(tensor, copied[path, span])
                tick()

    def _in_order(self, graphs: Mapping[str, onnx.ModelProto]) -> Iterator[tuple[str, TensorProto]]:
        """A graph's name and a tensor of it, as they lie in the whole model's data file."""
        weights = {
            name: {weight.name: weight for weight in graph.graph.initializer}
            for name, graph in graphs.items()
        }
        for weight in self._order:
            for name, known in weights.items():
                if weight in known:
                    yield name, known[weight]
        for name, graph in graphs.items():
            for constant in islice(all_tensors(graph), len(weights[name]), None):
                yield name, constant

    def _copy_texts(self, path: Path) -> None:
        """Tokenizer, template and configurations, which every stage has."""
        data = {file.name for each in self._files.values() for file in each.data.values()}
        for name in sorted({*self._folder.files} - data - {*self._files, RECORD}):
            shutil.copyfile(self._folder.path / name, path / name)

    def finish(self, parts: Sequence[tuple[StageChoice, Path, Path]]) -> None:
        """Try all stages, one after the other, and write their records."""
        graph = GRAPH if GRAPH in self._files else GRAPH_FLOAT16
        prompt = stage_prompt(_prompts(self._folder))
        x: Any = np.array([self._folder.self_test.prompt], np.int64)
        for choice, path, target in parts:
            self._progress("self-test", choice.index, choice.stages)
            figures = stage_signature(self._folder.signature, choice, self._inputs[choice.index])
            session = open_session(path / graph, packed=False)
            test = choose_stage(session, figures, prompt)
            x = run_stage(session, figures, x)
            del session
            write_record(path, self._record(choice, target.name, figures, test))
        self._compare(x[0])
        self._progress("self-test", len(parts), len(parts))

    def _compare(self, logits: Any) -> None:
        """See that the last stage chooses the token that the whole model chose."""
        expected = self._folder.self_test.next_token
        lead = float(logits.max() - logits[expected])
        if not np.isfinite(logits).all() or lead > TOLERANCE:
            raise ModelIncomplete(
                f"the stages of {self._folder.name} give token {int(logits.argmax())} where the "
                f"whole model gives {expected}; make the model again with "
                f"`{self._folder.import_command}` and split that",
                param="model",
            )

    def _record(
        self, choice: StageChoice, name: str, figures: Signature, test: SelfTest
    ) -> dict[str, Any]:
        """The whole model's record with what a stage has of its own."""
        folder = self._folder
        record: dict[str, Any] = json.loads((folder.path / RECORD).read_text("utf-8"))
        for key in ("schema", "files"):
            del record[key]
        named = folder.source.get("kind") in _NAMED_BY_SOURCE
        stage = stage_of(
            choice,
            folder.path.name,
            source=folder.source,
            architecture=folder.architecture,
            numerics=folder.numerics,
            whole=folder.signature,
            content="" if named else folder.digest,
        )
        return record | {
            "name": name,
            "signature": asdict(figures),
            "kv_bytes_per_token": kv_record(figures),
            "self_test": asdict(test),
            "stage": asdict(stage),
        }


def _prompts(folder: ModelFolder) -> Iterator[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder.tokenizer))
    for text in TEXTS:
        yield list(tokenizer.encode(text).ids)


def _place(file: OnnxFile, tensor: TensorProto) -> tuple[Path, Span]:
    """Where the values of a tensor lie."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    length = int(place.get("length", tensor_bytes(file.path, tensor)))
    return file.data[place["location"]], Span(int(place.get("offset", "0")), length)
