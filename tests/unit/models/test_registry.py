"""The list of a machine's models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.models.folder import ModelFolder
from agent.models.registry import Unusable, find_model, list_models
from bus.errors import ModelIncomplete, NotFound
from tests.harness.models import toy_model_folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    shutil.copytree(toy_model_folder().path, tmp_path / "whole")
    shutil.copytree(toy_model_folder().path, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").unlink()
    (tmp_path / ".whole.1.partial").mkdir()
    (tmp_path / "note.txt").write_text("no model")
    return tmp_path


def test_every_folder_is_listed_with_a_model_or_a_reason(models: Path) -> None:
    found = list_models(models)
    assert list(found) == ["broken", "whole"]
    assert isinstance(found["whole"], ModelFolder)
    broken = found["broken"]
    assert isinstance(broken, Unusable)
    assert "tokenizer.json is missing" in broken.reason


def test_models_that_do_not_exist_are_none(tmp_path: Path) -> None:
    assert list_models(tmp_path / "absent") == {}


def test_finding_says_what_is_wrong(models: Path) -> None:
    assert find_model(models, "whole").path == models / "whole"
    with pytest.raises(NotFound, match=r"no model 'other'.*\(there: broken, whole\)"):
        find_model(models, "other")
    with pytest.raises(NotFound, match="make it with `sfctl model import smollm2`"):
        find_model(models, "smollm2")
    with pytest.raises(ModelIncomplete, match=r"tokenizer\.json is missing"):
        find_model(models, "broken")
