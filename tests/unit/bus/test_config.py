"""load_config: what wins, and what each mistake is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest

from bus.config import load_config
from bus.errors import ConfigInvalid
from bus.fields import OneOf, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    lanes: Annotated[int, Range(1, 64)] = 8
    kv_bytes: int = 1 << 30
    device: Annotated[str, OneOf(frozenset({"auto", "cpu", "cuda"}))] = "auto"
    stall_limit_s: Annotated[float, Range(0, 3600)] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    heads: tuple[str, ...] = ()
    token_file: Path = Path("token")
    insecure: bool = False
    enrolment: Annotated[str, OneOf(frozenset({"", "open", "closed"}))] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    name: str = "node"
    worker: Worker = field(default_factory=Worker)
    join: Join = field(default_factory=Join)


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text)
    return path


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        load_config(Schema, write(tmp_path, text), {}, {})
    return str(caught.value).replace(str(tmp_path), "")


def test_without_anything_the_defaults_hold() -> None:
    assert load_config(Schema, None, {}, {}) == Schema()


def test_file_then_environment_then_option_win(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'name = "a"\n[worker]\nlanes = 2\nkv_bytes = 1024\nstall_limit_s = 5\n'
        '[join]\nheads = ["tcp://h:1"]\ntoken_file = "/k"\n',
    )
    env = {"SUPERFLUID_WORKER_LANES": "3", "SUPERFLUID_WORKER_KV_BYTES": "2048", "HOME": "/"}
    made = load_config(Schema, path, env, {"worker.lanes": 4, "worker.device": None})
    assert made == Schema(
        name="a",
        worker=Worker(lanes=4, kv_bytes=2048, stall_limit_s=5.0),
        join=Join(heads=("tcp://h:1",), token_file=Path("/k")),
    )


def test_every_type_is_read_from_the_environment() -> None:
    env = {
        "SUPERFLUID_NAME": "n",
        "SUPERFLUID_WORKER_STALL_LIMIT_S": "2.5",
        "SUPERFLUID_JOIN_HEADS": "tcp://a:1, tcp://b:2",
        "SUPERFLUID_JOIN_TOKEN_FILE": "/t",
        "SUPERFLUID_JOIN_INSECURE": "Yes",
    }
    assert load_config(Schema, None, env, {}) == Schema(
        name="n",
        worker=Worker(stall_limit_s=2.5),
        join=Join(heads=("tcp://a:1", "tcp://b:2"), token_file=Path("/t"), insecure=True),
    )


def test_variables_of_other_processes_are_passed_over() -> None:
    env = {"SUPERFLUID_STATE": "/s", "SUPERFLUID_API_LISTEN": "x", "SUPERFLUID_PYTHON": "p"}
    assert load_config(Schema, None, env, {}) == Schema()


def test_an_unknown_key_names_the_nearest_and_the_file(tmp_path: Path) -> None:
    assert problem(tmp_path, "[worker]\nlane = 2\n") == (
        "/agent.toml: there is no key worker.lane; the nearest is worker.lanes"
    )
    assert problem(tmp_path, "nam = 2\n") == (
        "/agent.toml: there is no key nam; the nearest is name"
    )
    assert problem(tmp_path, "[wroker]\nlanes = 2\n") == (
        "/agent.toml: there is no key wroker; the nearest is worker"
    )


def test_unknown_variables_and_options_are_errors_too() -> None:
    with pytest.raises(ConfigInvalid, match="the nearest is SUPERFLUID_WORKER_LANES"):
        load_config(Schema, None, {"SUPERFLUID_WORKER_LANE": "1"}, {})
    with pytest.raises(ConfigInvalid, match=r"option: there is no key worker\.lane;"):
        load_config(Schema, None, {}, {"worker.lane": 1})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[worker]\nlanes = "2"\n', "worker.lanes is '2'; it should be a whole number"),
        ("[worker]\nlanes = true\n", "worker.lanes is True; it should be a whole number"),
        ("[worker]\nlanes = 65\n", "worker.lanes is 65; it should be 1 to 64"),
        ("[worker]\nstall_limit_s = nan\n", "worker.stall_limit_s is nan; it should be a number"),
        (
            '[worker]\ndevice = "tpu"\n',
            "worker.device is 'tpu'; it should be one of auto, cpu, cuda",
        ),
        (
            '[join]\nenrolment = "closd"\n',
            "join.enrolment is 'closd'; it should be one of closed, open, or \"\" for the default",
        ),
        ('[join]\nheads = "x"\n', "join.heads is 'x'; it should be a list of texts"),
        ("[join]\ninsecure = 1\n", "join.insecure is 1; it should be true or false"),
        ("worker = 3\n", "worker is a section; write [worker]"),
    ],
)
def test_a_wrong_value_names_key_and_remedy(tmp_path: Path, text: str, told: str) -> None:
    assert problem(tmp_path, text) == f"/agent.toml: {told}"


def test_a_wrong_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_config(Schema, None, {"SUPERFLUID_WORKER_LANES": "many"}, {})
    assert str(caught.value) == (
        "SUPERFLUID_WORKER_LANES: worker.lanes is 'many'; it should be a whole number"
    )
    assert caught.value.exit_code == 2


def test_files_that_can_not_be_read_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="there is no configuration file"):
        load_config(Schema, tmp_path / "none.toml", {}, {})
    assert problem(tmp_path, "[worker\n").startswith("/agent.toml is no TOML: ")
