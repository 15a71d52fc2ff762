"""The JSON-Schema test suite, out of the source archive of the `jsonschema` package.

It is downloaded with pip once and kept beside the test models; where the index can not be reached,
what needs it is skipped with pip's reason, and fails in CI.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.models import cache_folder

REQUIREMENT = "jsonschema==4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
#: Of random schemas also those whose suites are not taken.
ALL_DRAFTS = {
    **DRAFTS,
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft6": "http://json-schema.org/draft-06/schema#",
}


class SuiteMissing(Exception):
    """The archive can not be had; says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One schema of the suite with its instances.

    Attributes:
        name: file and description.
        source: the schema's text, with its dialect.
        instances: values and whether each is valid.
        asserts_format: whether the suite counts `format` here.
    """

    name: str
    draft: str
    source: str
    instances: tuple[tuple[Any, bool], ...]
    asserts_format: bool


def cases() -> list[Case]:
    """Every schema of the suite's two drafts, optional ones too.

    Raises:
        SuiteMissing: the archive can not be downloaded.
    """
    found: list[Case] = []
    with tarfile.open(_archive()) as archive:
        for member in archive:
            parts = Path(member.name).parts
            if parts[1:3] == ("json", "tests") and len(parts) > 4 and parts[3] in DRAFTS:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    found += _cases_of(parts[3], "/".join(parts[3:]), json.load(file))
    return sorted(found, key=lambda case: case.name)


def _cases_of(draft: str, file: str, groups: list[dict[str, Any]]) -> Iterator[Case]:
    for group in groups:
        schema = group["schema"]
        if isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": DRAFTS[draft], **schema}
        yield Case(
            name=f"{file}: {group['description']}",
            draft=draft,
            source=json.dumps(schema),
            instances=tuple((test["data"], test["valid"]) for test in group["tests"]),
            asserts_format="/optional/format" in f"/{file}",
        )


def _archive() -> Path:
    target = cache_folder() / f"{REQUIREMENT.replace('==', '-')}.tar.gz"
    if not (target.is_file() and _is_right(target)):
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            _download(Path(folder)).replace(target)
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    command += ["--no-binary", ":all:", "--no-deps", "--dest", str(folder), REQUIREMENT]
    # pip takes the build tools of the archive from the index, too, where the flag does not hold.
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    files = list(folder.glob("*.tar.gz"))
    if ended.returncode or len(files) != 1 or not _is_right(files[0]):
        last = (ended.stderr.strip() or "the archive is not the recorded one").splitlines()[-1]
        raise SuiteMissing(f"{REQUIREMENT}: its source can not be downloaded: {last}")
    return files[0]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PIP_NO_BINARY"}


def _is_right(file: Path) -> bool:
    return hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
