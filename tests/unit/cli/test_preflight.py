"""What `up` finds before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.config import load_config
from bus.errors import ConfigInvalid, TokenRefused
from bus.state import StateFolder
from head.cli import preflight
from head.cli.keys import make_token
from head.config import HeadConfig


def _state(path: Path) -> StateFolder:
    return StateFolder.resolve(path)


@pytest.mark.parametrize("name", ["50%", 'a"b'])
def test_a_path_that_supervisord_would_misread(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigInvalid, match="--state DIR"):
        preflight.check_paths(_state(tmp_path / name))


def test_an_ordinary_path_is_fine(tmp_path: Path) -> None:
    preflight.check_paths(_state(tmp_path / "a b"))
    preflight.check_open_files()


def test_a_missing_token_names_the_command(tmp_path: Path) -> None:
    state = _state(tmp_path)
    with pytest.raises(TokenRefused, match="sfctl token new"):
        preflight.check_token(state, HeadConfig(), "sfctl token new")
    with pytest.raises(TokenRefused, match="copy the head's token file"):
        preflight.check_token(state, None, "sfctl token new")
    make_token(state.keys)
    preflight.check_token(state, HeadConfig(), "sfctl token new")


def test_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    state = _state(tmp_path)
    (state.path / "head.toml").write_text("[queue]\nlimits = 3\n")
    with pytest.raises(ConfigInvalid, match=r"queue\.limit"):
        preflight.head_config(state, {})


def test_the_shipped_head_toml_is_every_default() -> None:
    shipped = Path(__file__).parents[3] / "conf" / "head.toml"
    assert load_config(HeadConfig, shipped, {}, {}) == HeadConfig()
