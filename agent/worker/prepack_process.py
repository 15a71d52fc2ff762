"""`python -P -m agent.worker.prepack_process`: make a prepacked copy of a graph.

A process of its own, so that what the making takes is given back whole, and a crash in it leaves
the worker to load the graph as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.models import selftest
from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker.prepacked import DATA, GRAPH, RECORD, SCHEMA, describe_file
from agent.worker.sessions import SessionOptions, open_session
from bus.errors import Internal, SuperfluidError
from bus.transport.orphan import die_with_parent

#: Smaller tensors stay in the graph's file.
_EXTERNAL_BYTES = "1024"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make it; 1 with a line on stderr when it can not be made."""
    options = _parser().parse_args(arguments)
    die_with_parent(options.parent_pid, None)
    try:
        make(ModelFolder.open(options.model_folder), options.graph, options.provider, options.to)
    except SuperfluidError as error:
        print(error.message, file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's share no narrower base
        print(" ".join(str(error).split()) or repr(error), file=sys.stderr)
        return 1
    return 0


def make(folder: ModelFolder, graph: str, provider: str, to: Path) -> None:
    """Save a graph with its weights packed, see that it computes the same bits, and record it.

    Args:
        folder: of the model.
        graph: its file's name.
        provider: ONNX Runtime's name of what runs it.
        to: an empty folder.

    Raises:
        Internal: the copy computes other bits than the graph.
    """
    source = folder.path / graph
    plain = open_session(
        source,
        [provider],
        SessionOptions(
            save_to=to / GRAPH,
            config={
                "session.optimized_model_external_initializers_file_name": DATA,
                "session.optimized_model_external_initializers_min_size_in_bytes": _EXTERNAL_BYTES,
                "session.save_external_prepacked_constant_initializers": "1",
            },
        ),
    )
    mapped = open_session(to / GRAPH, [provider], SessionOptions(optimized=True))
    _compare(folder, plain, mapped)
    # Whoever may read the graph may read its copy.
    mode = source.stat().st_mode & 0o644
    files = {}
    for file in (to / GRAPH, to / DATA):
        file.chmod(mode)
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        files[file.name] = describe_file(file)
    record = to / RECORD
    record.write_text(json.dumps({"schema": SCHEMA, "files": files}) + "\n", "utf-8")
    record.chmod(mode)


def _compare(
    folder: ModelFolder,
    plain: onnxruntime.InferenceSession,
    mapped: onnxruntime.InferenceSession,
) -> None:
    """A chunk and a step through both, whose kernels differ."""
    prompt = folder.self_test.prompt
    for ids in (prompt, prompt[:1]):
        expected, found = (
            selftest.prompt_logits(session, folder.signature, ids) for session in (plain, mapped)
        )
        if not np.array_equal(expected, found):
            raise Internal("the prepacked copy computes other bits than the graph")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent.worker.prepack_process", description=__doc__)
    parser.add_argument("--model-folder", type=Path, required=True)
    parser.add_argument("--graph", required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
