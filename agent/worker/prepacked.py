"""A graph's weights as ONNX Runtime packs them, saved once and mapped by every worker of a host.

ONNX Runtime rearranges weights when it opens a graph, into memory that each process has for
itself. It can save what it made and map it later, so that all processes share the pages, and the
system may drop them under pressure and read them again.

    MODEL/.prepacked/lock               held shared while a copy is opened, alone while it is made
    MODEL/.prepacked/KEY/record.json    written last: size, SHA-256 and stamp of the other two
    MODEL/.prepacked/KEY/model.onnx, model.onnx.data

`KEY` names all that decides how weights are packed. The copy goes with the model's folder. It
takes about twice the size of the model's data: the unpacked weights stay in it, unread.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.models.folder import ModelFolder, file_sha256
from agent.models.onnx_runtime import onnxruntime
from agent.worker.numerics import cpu_facts, hash_of
from bus.errors import Internal
from bus.log import EventLog

log = EventLog(__name__)

SCHEMA = 1
FOLDER = ".prepacked"
GRAPH = "model.onnx"
DATA = "model.onnx.data"
RECORD = "record.json"

#: A smaller model has nothing worth sharing.
MIN_MODEL_BYTES = 16 << 20
#: Of what the model takes, as much must be free on the disk: the copy, and as much again.
FREE_SPACE = 4
#: Copies that are kept: of this machine, and of one of another kind that shares the folder.
KEPT = 2
#: The making ends within this, or is given up.
MAKE_LIMIT_S = 900.0

_MODULE = "agent.worker.prepack_process"
_MAX_RECORD_BYTES = 1 << 16

Open = Callable[[Path], onnxruntime.InferenceSession]


def open_prepacked(
    folder: ModelFolder,
    graph: Path,
    provider: str,
    opened: Open,
    *,
    min_model_bytes: int = MIN_MODEL_BYTES,
) -> onnxruntime.InferenceSession | None:
    """A session over a graph's prepacked copy, which is made when there is none.

    Args:
        folder: of the model.
        graph: its file.
        provider: ONNX Runtime's name of what runs it.
        opened: opens a copy.
        min_model_bytes: of smaller models no copy is made.

    Returns:
        None where it can not be had; the log says why, and the graph itself is to be opened.
    """
    if folder.size_bytes < min_model_bytes:
        return None
    root = folder.path / FOLDER
    copy = root / prepacked_key(folder, graph, provider)
    try:
        root.mkdir(mode=0o755, exist_ok=True)
        with _locked(root / "lock") as descriptor:
            if (fault := _fault(copy)) is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if (fault := _fault(copy)) is not None:
                    _make(folder, graph, provider, copy, fault)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            session = opened(copy / GRAPH)
            with contextlib.suppress(OSError):
                os.utime(copy)
            return session
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's share no narrower base
        log.warning(
            "prepacked_not_used",
            model=folder.name,
            error=" ".join(str(error).split()),
            effect="the worker has its weights for itself",
            remedy=f"remove {root} to have it made again, or set prepack = false in [worker]",
        )
        return None


def prepacked_key(folder: ModelFolder, graph: Path, provider: str) -> str:
    """Names all that decides how weights are packed: files, runtime, provider, processor."""
    facts = [
        f"prepacked {SCHEMA}",
        f"files {folder.digest}",
        f"graph {graph.name}",
        f"onnxruntime {onnxruntime.__version__} {onnxruntime.get_build_info()}",
        f"provider {provider}",
        f"processor {cpu_facts()}",
    ]
    return hash_of(facts)


def describe_file(path: Path) -> dict[str, Any]:
    """What a record says of a file; reads it whole."""
    return {**_stamp(path), "sha256": file_sha256(path)}


def _stamp(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}


def _fault(copy: Path) -> str | None:
    """Why a copy can not be used; None when it is whole.

    Files whose stamp is the recorded one are taken as they were when their hash was; others, of a
    folder that was copied or restored, are read whole.
    """
    try:
        with (copy / RECORD).open("rb") as file:
            record = json.loads(file.read(_MAX_RECORD_BYTES))
        if record["schema"] != SCHEMA:
            return f"it has schema {record['schema']!r}"
        for name in (GRAPH, DATA):
            said, found = record["files"][name], _stamp(copy / name)
            if said["size"] != found["size"]:
                return f"{name} has {found['size']} bytes and not {said['size']}"
            same = all(said[part] == value for part, value in found.items())
            if not same and file_sha256(copy / name) != said["sha256"]:
                return f"{name} is damaged: its SHA-256 is not the recorded"
    except FileNotFoundError:
        return "there is none"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it can not be read ({error!r})"
    return None


def _make(folder: ModelFolder, graph: Path, provider: str, copy: Path, fault: str) -> None:
    """Make a copy in place of what is there. The caller holds the lock alone."""
    log.info("prepacking", model=folder.name, because=fault)
    _tidy(copy)
    needed = FREE_SPACE * folder.size_bytes
    free = shutil.disk_usage(copy.parent).free
    if free < needed:
        raise Internal(f"the disk of {copy.parent} has {free} bytes free, and {needed} are needed")
    partial = copy.parent / f".{copy.name}"
    partial.mkdir(mode=0o755)
    try:
        _run_process(folder, graph, provider, partial)
        os.replace(partial, copy)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _run_process(folder: ModelFolder, graph: Path, provider: str, partial: Path) -> None:
    arguments = {
        "--model-folder": folder.path,
        "--graph": graph.name,
        "--provider": provider,
        "--to": partial,
        "--parent-pid": os.getpid(),
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    done = subprocess.run(
        [sys.executable, "-P", "-m", _MODULE, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=MAKE_LIMIT_S,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"the process that makes it ended with {done.returncode}"
        raise Internal(why)


def _tidy(copy: Path) -> None:
    """Remove what is broken or half made, and the copies used longest ago."""
    shutil.rmtree(copy, ignore_errors=True)
    folders = [path for path in copy.parent.iterdir() if path.is_dir()]
    whole = sorted(
        (path for path in folders if not path.name.startswith(".")),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    half_made = [path for path in folders if path.name.startswith(".")]
    for path in [*half_made, *whole[KEPT - 1 :]]:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold a lock with others that open copies; gives its descriptor, to hold it alone by.

    Waits for one that makes a copy: its end, or the end of its process, gives the lock back.
    """
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)
