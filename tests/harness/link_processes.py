"""A head and agents as processes with a small toy model, and their state folder."""

from __future__ import annotations

import os
from pathlib import Path

from bus.keys import load_or_create_static_key, new_token
from bus.secret_files import create_secret_file
from bus.state import StateFolder
from tests.harness.logged_process import LoggedProcess
from tests.harness.models import toy_model_folder

TOKEN = "keys/fleet.token"


def make_state(folder: Path) -> Path:
    """A state folder with a head's key, its token, and the toy model."""
    folder.mkdir(mode=0o700)
    key = load_or_create_static_key(folder / "keys" / "head.key")
    create_secret_file(folder / TOKEN, new_token(key.public))
    (folder / "models").mkdir()
    (folder / "models" / "toy").symlink_to(toy_model_folder().path)
    return folder


def other_machine(folder: Path, first: Path) -> Path:
    """The state folder of an agent elsewhere, with the first one's token and models."""
    folder.mkdir(mode=0o700)
    create_secret_file(folder / TOKEN, (first / TOKEN).read_text().strip())
    (folder / "models").symlink_to(first / "models")
    return folder


def head_process(state: Path, *arguments: str, **settings: str) -> LoggedProcess:
    bind = () if "--bind" in arguments else ("--bind", "tcp://127.0.0.1:0")
    return LoggedProcess("head", state, *bind, *arguments, **settings)


def agent_process(state: Path, *arguments: str, **settings: str) -> LoggedProcess:
    small = ("--lanes", "2", "--kv-bytes", str(4 << 20), "--threads", "1")
    return LoggedProcess("agent", state, *small, *arguments, **settings)


def memory_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def address(state: Path) -> str:
    """Where the head of a state folder takes clients."""
    return f"ipc://{StateFolder.find(state).run}/api.sock"
