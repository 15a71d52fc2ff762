"""The state folder: where it is, who may enter, the stand-in for long paths, locks, head.json."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.errors import StartError
from bus.state import MAX_RUN_PATH_BYTES, StateFolder, host_folder, write_atomically


def test_option_beats_environment_beats_default(tmp_path: Path) -> None:
    environment = {"SUPERFLUID_STATE": str(tmp_path / "env"), "HOME": str(tmp_path)}
    assert StateFolder.resolve(tmp_path / "option", environment).path == tmp_path / "option"
    assert StateFolder.resolve(None, environment).path == tmp_path / "env"


def test_the_default_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SUPERFLUID_STATE", raising=False)
    assert StateFolder.resolve().path == tmp_path / ".local/state/superfluid"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder of a short path, wherever the tests' own are."""
    with tempfile.TemporaryDirectory(prefix="sf-", dir="/tmp") as name:
        yield Path(name)


def test_all_folders_are_made_for_their_owner_alone(short: Path) -> None:
    state = StateFolder.resolve(short / "s")
    assert state.run == short / "s" / "run"
    for folder in (
        state.path,
        state.run,
        state.keys,
        state.store,
        state.models,
        state.log,
        state.nodes,
    ):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert StateFolder.resolve(short / "s") == state


def test_open_secrets_are_refused_with_the_remedy(tmp_path: Path) -> None:
    state = StateFolder.resolve(tmp_path)
    state.keys.chmod(0o755)
    with pytest.raises(StartError, match=f"chmod 700 {state.keys}"):
        StateFolder.resolve(tmp_path)
    state.keys.chmod(0o700)
    state.models.chmod(0o755)
    StateFolder.resolve(tmp_path)


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "keys").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="no folder of this user"):
        StateFolder.resolve(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="can not make the folder"):
        StateFolder.resolve(tmp_path / "file" / "state")


def _of_length(base: Path, run_bytes: int) -> Path:
    """A state folder whose run folder has a path of so many bytes."""
    missing = run_bytes - len(os.fsencode(base)) - len("//run")
    assert missing > 0
    return base / ("x" * missing)


def test_a_short_run_folder_stays_and_a_longer_one_gets_a_stand_in(short: Path) -> None:
    assert len(os.fsencode(short)) < MAX_RUN_PATH_BYTES - 10
    environment = {"XDG_RUNTIME_DIR": str(short / "x")}
    fits = StateFolder.resolve(_of_length(short, MAX_RUN_PATH_BYTES), environment)
    assert fits.run == fits.path / "run"
    root = _of_length(short, MAX_RUN_PATH_BYTES + 1)
    state = StateFolder.resolve(root, environment)
    assert state.run.parent == short / "x"
    assert stat.S_IMODE(state.run.stat().st_mode) == 0o700
    assert (root / "run.path").read_text() == f"{state.run}\n"
    # Another login's environment finds the same one.
    assert StateFolder.resolve(root, {"XDG_RUNTIME_DIR": str(short / "y")}) == state


def test_a_stand_in_that_is_gone_is_made_again_where_it_can_be(short: Path) -> None:
    root = _of_length(short, 90)
    first = StateFolder.resolve(root, {"XDG_RUNTIME_DIR": str(short / "x")})
    first.run.rmdir()
    (short / "x").rmdir()
    (short / "x").touch()
    second = StateFolder.resolve(root, {"XDG_RUNTIME_DIR": str(short / "y")})
    assert second.run.parent == short / "y"
    assert StateFolder.resolve(root, {}) == second


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    state = StateFolder.resolve(tmp_path)
    code = (
        "import sys; from bus.state import StateFolder\n"
        "lock = StateFolder.resolve(sys.argv[1]).lock('head'); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StartError, match=f"head already runs in .* as process {holder.pid}"):
        state.lock("head")
    state.lock("other").close()
    holder.kill()
    holder.communicate()
    with state.lock("head"), pytest.raises(StartError, match=f"process {os.getpid()}"):
        state.lock("head")


def test_head_json_round_trips(tmp_path: Path) -> None:
    state = StateFolder.resolve(tmp_path)
    assert state.read_head() is None
    state.write_head({"api": "ipc:///x/api.sock", "fleet": "tcp://0.0.0.0:8454"})
    assert state.read_head() == {
        "pid": os.getpid(),
        "api": "ipc:///x/api.sock",
        "fleet": "tcp://0.0.0.0:8454",
    }
    assert stat.S_IMODE((state.run / "head.json").stat().st_mode) == 0o600
    assert os.listdir(state.run) == ["head.json"]
    state.remove_head()
    state.remove_head()
    assert state.read_head() is None


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_damaged_head_json_says_what_to_do(tmp_path: Path, text: str) -> None:
    state = StateFolder.resolve(tmp_path)
    (state.run / "head.json").write_text(text)
    with pytest.raises(StartError, match="start the head again"):
        state.read_head()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_atomically(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "\ud800")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_looking_makes_nothing(short: Path) -> None:
    """`status`, `model ls` and `doctor` on a machine without superfluid left a state folder."""
    environment = {"XDG_RUNTIME_DIR": str(short / "x")}
    for root in (short / "s", _of_length(short, 90)):
        found = StateFolder.find(root, environment)
        assert not root.exists()
        assert found.read_head() is None
        assert StateFolder.resolve(root, environment) == found
        assert StateFolder.find(root, {"XDG_RUNTIME_DIR": str(short / "y")}) == found
    assert not (short / "y").exists()


def test_a_stand_in_is_removed_with_what_is_in_it(short: Path) -> None:
    root = _of_length(short, 90)
    state = StateFolder.resolve(root, {"XDG_RUNTIME_DIR": str(short / "x")})
    state.lock("head").close()
    state.remove_stand_in()
    assert not state.run.exists()
    assert not (root / "run.path").exists()
    inside = StateFolder.resolve(short / "s")
    inside.lock("head").close()
    inside.remove_stand_in()
    assert (inside.run / "head.lock").exists()


@pytest.mark.parametrize("path", ["/proc/nope", "/dev/null/s", "/sys/nope"])
def test_where_no_folder_can_be_is_one_sentence(path: str) -> None:
    with pytest.raises(StartError, match=r"can not make .*; choose another state folder"):
        StateFolder.resolve(path)


def test_the_machines_folder_is_one_for_all_state_folders(short: Path) -> None:
    found = host_folder({"XDG_RUNTIME_DIR": str(short)})
    assert found == short / f"superfluid-{os.geteuid()}"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    found.chmod(0o755)
    with pytest.raises(StartError, match="chmod 700"):
        host_folder({"XDG_RUNTIME_DIR": str(short)})
