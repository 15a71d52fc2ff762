"""Tokenizers that the head fetched from nodes, as folders of its own.

    <tokenizer digest>-<of model and files>/     0700; its name has nothing that came over a wire
        tokenizer.json, ...                      0600
        kept.json                                written last: of which model, and each file's hash
    .new-...                                     being written; removed at the next start

A folder without kept.json, or with a file that is not as it says, is none: it is removed. Beyond
`limit` those that were used longest ago go, except those in use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bus.closing import Closing
from bus.errors import StartError, StorageFull, SuperfluidError
from bus.file_thread import FileThread
from bus.ids import ModelName
from bus.state import private_folder, write_atomically
from bus.text.tokenizer_export import TokenizerIntake
from bus.text.tokenizer_files import LIMITS

RECORD = "kept.json"
#: Folders that are kept.
LIMIT = 32
#: What stays free on the disk for everything else.
MIN_FREE_BYTES = 64 * 1024 * 1024
_NEW = ".new-"
#: Of kept.json, which names a model and at most seven files.
_MAX_RECORD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class TokenizerKey:
    """Names a model's files for texts: its name, and the digests of its node's status."""

    model: ModelName
    digest: int
    text_digest: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        of_what = hashlib.sha256(f"{self.text_digest:016x} {self.model}".encode()).hexdigest()
        return f"{self.digest:016x}-{of_what[:16]}"


#: Gets the path of a whole folder, or why there is none.
Found = Callable[[Path | SuperfluidError | None], None]


class TokenizerStore(Protocol):
    """Where fetched tokenizers are kept. What takes long ends later, by a call."""

    def kept(self) -> tuple[TokenizerKey, ...]:
        """What is kept, the last used first."""

    def settle(self) -> None:
        """Call back for all that is done."""

    def find(self, key: TokenizerKey, then: Found) -> None:
        """Check a kept folder, and give its path; None when it is not whole, and gone."""

    def write(
        self,
        key: TokenizerKey,
        intake: TokenizerIntake,
        in_use: Collection[TokenizerKey],
        then: Found,
    ) -> None:
        """Write what came; it is kept once `confirm` was called."""

    def confirm(self, key: TokenizerKey) -> None:
        """What was written is what it should be."""

    def remove(self, key: TokenizerKey) -> None:
        """It is not."""


class NoTokenizers:
    """Keeps nothing: for a head that has no folder for them."""

    def kept(self) -> tuple[TokenizerKey, ...]:
        return ()

    def settle(self) -> None:
        return

    def find(self, key: TokenizerKey, then: Found) -> None:
        then(None)

    def write(
        self,
        key: TokenizerKey,
        intake: TokenizerIntake,
        in_use: Collection[TokenizerKey],
        then: Found,
    ) -> None:
        then(StorageFull("this head has no folder for tokenizers"))

    def confirm(self, key: TokenizerKey) -> None:
        return

    def remove(self, key: TokenizerKey) -> None:
        return


NO_TOKENIZERS = NoTokenizers()


class KeptTokenizers(Closing):
    """A `TokenizerStore` on disk. One process per folder; its owner's thread calls everything.

    A thread does the work: watch `fileno`, then call `settle`.

    Args:
        path: made 0700 when missing.
        limit: how many are kept.

    Raises:
        StartError: the folder can not be used, or others can enter it.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = private_folder(path)
        self._limit = limit
        self._thread = FileThread("tokenizer-files")
        #: What is kept, the last used last.
        self._keys: list[TokenizerKey] = []
        #: What was written and not confirmed yet, with its files' hashes.
        self._written: dict[TokenizerKey, dict[str, str]] = {}
        try:
            self._take_over()
        except OSError as error:
            self.close()
            raise StartError(f"can not use the folder {path}: {error.strerror}") from error

    def fileno(self) -> int:
        """Becomes readable when `settle` has something to do."""
        return self._thread.fileno()

    def settle(self) -> None:
        """Call back for all that is done."""
        self._thread.finish()

    def close(self) -> None:
        """Finish what was begun. May be called again."""
        self._thread.close()

    def kept(self) -> tuple[TokenizerKey, ...]:
        return tuple(reversed(self._keys))

    def find(self, key: TokenizerKey, then: Found) -> None:
        folder, found = self.path / key.folder, list[bool]()

        def check() -> None:
            found.append(_is_whole(folder, key))
            if found[0]:
                # Which was used last is worth knowing; a folder that can only be read is used too.
                with contextlib.suppress(OSError):
                    os.utime(folder / RECORD)
            else:
                _remove(folder)

        def done(error: OSError | None) -> None:
            whole = error is None and found == [True]
            self._forget(key)
            if whole:
                self._keys.append(key)
            then(folder if whole else None)

        self._thread.submit(check, done)

    def write(
        self,
        key: TokenizerKey,
        intake: TokenizerIntake,
        in_use: Collection[TokenizerKey],
        then: Found,
    ) -> None:
        folder, hashes, refused = self.path / key.folder, dict[str, str](), list[SuperfluidError]()

        def write() -> None:
            try:
                files = intake.finish()
                self._check_room(sum(map(len, files.values())))
            except SuperfluidError as error:
                refused.append(error)
                return
            hashes.update({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
            _write_folder(self.path, folder, files)

        def done(error: OSError | None) -> None:
            if error is not None:
                refused.append(
                    StorageFull(f"can not keep a tokenizer in {self.path} ({error.strerror})")
                )
            self._forget(key)
            if not refused:
                self._written[key] = hashes
                self._make_room(in_use)
            then(refused[0] if refused else folder)

        self._thread.submit(write, done)

    def confirm(self, key: TokenizerKey) -> None:
        hashes = self._written.pop(key, None)
        if hashes is None:
            return
        file = self.path / key.folder / RECORD
        text = json.dumps(
            {
                "model": key.model,
                "digest": f"{key.digest:016x}",
                "text_digest": f"{key.text_digest:016x}",
                "files": hashes,
            }
        )
        self._keys.append(key)
        # What is not written is fetched again after a restart.
        self._thread.submit(lambda: write_atomically(file, text + "\n"), lambda error: None)

    def remove(self, key: TokenizerKey) -> None:
        self._forget(key)
        folder = self.path / key.folder
        self._thread.submit(lambda: _remove(folder), lambda error: None)

    def _forget(self, key: TokenizerKey) -> None:
        self._written.pop(key, None)
        if key in self._keys:
            self._keys.remove(key)

    def _make_room(self, in_use: Collection[TokenizerKey]) -> None:
        """Let those go that are too many, with the one that was just written."""
        over = len(self._keys) + len(self._written) - self._limit
        for key in [key for key in self._keys if key not in in_use][: max(over, 0)]:
            self.remove(key)

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(self.path).free
        if free - size < MIN_FREE_BYTES:
            raise StorageFull(
                f"a tokenizer of {size} bytes does not fit on the disk of {self.path}, which has "
                f"{free} bytes free; free some"
            )

    def _take_over(self) -> None:
        """Know what an earlier process left; what it left half done goes."""
        found = list[tuple[int, TokenizerKey]]()
        for folder in self.path.iterdir():
            record = _record(folder)
            if record is not None:
                found.append(((folder / RECORD).stat().st_mtime_ns, record[0]))
                continue
            # What stays where nothing can be removed is not used.
            with contextlib.suppress(OSError):
                _remove(folder)
        self._keys = [key for _, key in sorted(found, key=lambda pair: pair[0])]


def _record(folder: Path) -> tuple[TokenizerKey, dict[str, str]] | None:
    """Of which model a folder is, and its files' hashes; None where it does not say its own."""
    try:
        with (folder / RECORD).open("rb") as stream:
            found: Any = json.loads(stream.read(_MAX_RECORD_BYTES))
        key = TokenizerKey(
            ModelName(str(found["model"])), int(found["digest"], 16), int(found["text_digest"], 16)
        )
        files = {str(name): str(value) for name, value in found["files"].items()}
        is_own = key.folder == folder.name and LIMITS.keys() >= files.keys()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (key, files) if is_own else None


def _is_whole(folder: Path, key: TokenizerKey) -> bool:
    record = _record(folder)
    if record is None or record[0] != key:
        return False
    return {entry.name for entry in folder.iterdir()} == {*record[1], RECORD} and all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == value
        for name, value in record[1].items()
    )


def _write_folder(parent: Path, folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder with some files, in the place of what was there."""
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    try:
        for name, data in files.items():
            descriptor = os.open(new / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        _remove(folder)
        new.rename(folder)
    except BaseException:
        _remove(new)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
