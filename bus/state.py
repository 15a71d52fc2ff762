"""The state folder: where everything of one installation lives at run time.

    $SUPERFLUID_STATE, else ~/.local/state/superfluid
      run/      sockets, locks, head.json          store/   the head's database
      keys/     secrets                            models/  model folders
      nodes/    one folder per agent               log/
      run.path  where the run folder really is, when run/ is too long for sockets
      up.json   how many node agents the last start had

No sockets here; the command line reads it too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bus.errors import StartError
from bus.file_lock import FileLock, LockHeld

VARIABLE = "SUPERFLUID_STATE"
#: A socket's path has at most 107 bytes (unix(7)). This leaves 28 for names of children's pipes
#: such as `text-1-ffffffff.ff-out.sock`; supervisord's `supervisor.sock.<pid>` is shorter.
MAX_RUN_PATH_BYTES = 78
HEAD_FILE = "head.json"
_RUN_RECORD = "run.path"
#: These hold what others must not reach; model folders and logs are the user's to open up.
_PRIVATE = ("keys", "store")
_OPEN = ("models", "log", "nodes")


def private_folder(folder: Path) -> Path:
    """Make `folder` when it is missing, and see that only its owner can enter it.

    Raises:
        StartError: it belongs to another user, others can enter it, or it can not be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat(follow_symlinks=False)
    except OSError as error:
        raise _unusable(folder, error) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StartError(
            f"{folder} is no folder of this user (user id {os.geteuid()}); choose a state folder "
            f"of your own ({VARIABLE})"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise StartError(f"others can enter the folder {folder}; run: chmod 700 {folder}")
    return folder


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths of one state folder, made when missing.

    Attributes:
        path: absolute.
        run: `run/`, or the folder that stands in for it.
    """

    path: Path
    run: Path

    @classmethod
    def resolve(
        cls, path: Path | str | None = None, environment: Mapping[str, str] = os.environ
    ) -> Self:
        """The state folder that was named, with its subfolders.

        Args:
            path: as an option named it; None leaves it to the environment, then the default.

        Raises:
            StartError: a folder can not be made, is another user's, or open to others.
        """
        root = _root(path, environment)
        if not _is_folder(root):
            private_folder(root)
        found = cls(root, _make_run_folder(root, environment))
        found.prepare()
        return found

    @classmethod
    def find(
        cls, path: Path | str | None = None, environment: Mapping[str, str] = os.environ
    ) -> Self:
        """As `resolve`, but makes and checks nothing: for who only looks.

        Raises:
            StartError: this user can not look there.
        """
        root = _root(path, environment)
        own = root / "run"
        if not _is_too_long(own):
            return cls(root, own)
        return cls(root, _recorded(root) or _stand_in(root, environment))

    def prepare(self) -> None:
        """Make the subfolders that are missing; `resolve` did so already.

        Raises:
            StartError: as `resolve`.
        """
        for name in _PRIVATE:
            private_folder(self.path / name)
        for name in _OPEN:
            try:
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise _unusable(self.path / name, error) from error

    def remove_stand_in(self) -> None:
        """Remove a run folder that lies outside the state folder; what was in it has ended.

        One inside stays, with its locks. The caller holds what keeps others from starting.
        """
        if self.run != self.path / "run":
            shutil.rmtree(self.run, ignore_errors=True)
            (self.path / _RUN_RECORD).unlink(missing_ok=True)

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    def lock(self, name: str) -> FileLock:
        """Hold `run/<name>.lock`, as the only process of this kind here.

        Raises:
            StartError: another process holds it; names its process id.
        """
        try:
            return FileLock(self.run / f"{name}.lock")
        except LockHeld as error:
            holder = "another process" if error.pid is None else f"process {error.pid}"
            raise StartError(
                f"{name} already runs in {self.path} as {holder}; stop it with `sfctl down`, or "
                f"use another state folder ({VARIABLE})"
            ) from error

    def write_head(self, addresses: Mapping[str, str]) -> None:
        """Let others find the running head.

        Args:
            addresses: each door's address as bound, as in `{"api": "ipc:///..."}`.
        """
        write_atomically(
            self.run / HEAD_FILE, json.dumps({"pid": os.getpid(), **addresses}, indent=1) + "\n"
        )

    def read_head(self) -> dict[str, Any] | None:
        """What the last head wrote: `pid` and its addresses; None when there is none.

        It may be dead: connecting tells.

        Raises:
            StartError: the file can not be read.
        """
        file = self.run / HEAD_FILE
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise StartError(
                f"this user may not read {file}; run this as the user that runs the head"
            ) from error
        except (OSError, ValueError) as error:
            raise StartError(f"can not read {file}: {error}; start the head again") from error
        if not isinstance(found, dict):
            raise StartError(f"{file} holds no addresses; start the head again")
        return found

    def remove_head(self) -> None:
        """The head ends: nobody is to look for it any more."""
        (self.run / HEAD_FILE).unlink(missing_ok=True)


def host_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for locks that this user's processes share on a machine, whatever their state.

    Raises:
        StartError: it is another user's, open to others, or can not be made.
    """
    user = os.geteuid()
    # A service has no XDG_RUNTIME_DIR where a login has one; both find the usual folder.
    named = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    base = named if os.access(named, os.W_OK | os.X_OK) else "/tmp"
    return private_folder(Path(base) / f"superfluid-{user}")


def write_atomically(file: Path, text: str) -> None:
    """Write a file (0600) that a reader sees either as it was or as it will be."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _root(path: Path | str | None, environment: Mapping[str, str]) -> Path:
    named = path or environment.get(VARIABLE) or "~/.local/state/superfluid"
    return Path(named).expanduser().absolute()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(folder: Path, error: OSError) -> StartError:
    return StartError(
        f"can not make the folder {folder}: {error.strerror}; choose another state folder "
        f"({VARIABLE})"
    )


def _is_too_long(run: Path) -> bool:
    return len(os.fsencode(run)) > MAX_RUN_PATH_BYTES


def _make_run_folder(root: Path, environment: Mapping[str, str]) -> Path:
    own = root / "run"
    if not _is_too_long(own):
        return private_folder(own)
    recorded = _recorded(root)
    if recorded is not None:
        try:
            return private_folder(recorded)
        except StartError:
            pass  # It is gone, and can not be made again: a runtime folder ends with the login.
    stand_in = private_folder(_stand_in(root, environment))
    write_atomically(root / _RUN_RECORD, f"{stand_in}\n")
    return stand_in


def _recorded(root: Path) -> Path | None:
    """Where the run folder is: recorded, as XDG_RUNTIME_DIR differs for a service and a login."""
    try:
        return Path((root / _RUN_RECORD).read_text().rstrip("\n"))
    except OSError:
        return None


def _stand_in(root: Path, environment: Mapping[str, str]) -> Path:
    # The name follows from the path, so that processes that start together make the same one.
    digest = hashlib.blake2b(os.fsencode(root), digest_size=6).hexdigest()
    base = environment.get("XDG_RUNTIME_DIR") or "/tmp"
    return Path(base) / f"superfluid-{os.geteuid()}-{digest}"
