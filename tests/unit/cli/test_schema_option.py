"""What `--schema` takes for JSON text, and what for the name of a file."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from head.cli.sampling_options import _schema


@pytest.mark.parametrize("given", ['{"type": "string"}', '"string"', "[1]", "true", "5", "", " "])
def test_what_parses_as_json_is_json_for_the_head_to_judge(given: str) -> None:
    assert _schema(given) == given


def test_anything_else_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object"}')
    assert _schema(str(file)) == '{"type": "object"}'
    file.write_text("{")
    with pytest.raises(click.BadParameter, match="is no JSON"):
        _schema(str(file))


def test_a_folder_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="is a folder; name a file in it"):
        _schema(str(tmp_path))
