"""Chat templates of real models, out of packages that carry them, and a plain way to render one.

pip gets each package once; only its templates are kept. The reference is Jinja without a sandbox,
with what Hugging Face's documentation says that templates may use.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import pytest

from agent.models.folder import file_sha256
from tests.harness.models import cache_folder, locked


@dataclass(frozen=True, slots=True)
class TemplatePackage:
    """A package with templates.

    Attributes:
        requirement: name and version.
        sha256: of its archive.
        folder: what the path of each template in it contains.
    """

    requirement: str
    sha256: str
    folder: str

    @property
    def is_source(self) -> bool:
        """Whether only its source archive has them."""
        return self.folder.startswith("vendor/")


LLAMA_CPP = TemplatePackage(
    "llama-cpp-python==0.3.36",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    "vendor/llama.cpp/models/templates/",
)
TRL = TemplatePackage(
    "trl==1.16.0",
    "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    "trl/chat_templates/",
)
AXOLOTL = TemplatePackage(
    "axolotl==0.19.0",
    "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
    "axolotl/utils/chat_templates/templates/",
)


def templates_of(package: TemplatePackage) -> Mapping[str, str]:
    """Name to source; skips where the index can not be reached."""
    name = package.requirement.replace("==", "-")
    folder = cache_folder() / f"templates-{name}"
    with locked(f"templates-{name}"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as partial:
                whole = Path(partial) / "found"
                whole.mkdir()
                for path, content in _members(_download(package, Path(partial))):
                    if package.folder in path:
                        (whole / Path(path).name).write_bytes(content)
                whole.rename(folder)
    return {file.stem: file.read_text("utf-8") for file in sorted(folder.glob("*.jinja"))}


def reference(source: str, wall_time: datetime) -> Callable[..., str]:
    """What renders a template with variables.

    Args:
        wall_time: what it takes for now.
    """

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = wall_time.strftime
    # Only training asks what lies in these blocks.
    source = re.sub(r"(\{%-?) *generation *(-?%\})", r"\1 if true \2", source)
    source = re.sub(r"(\{%-?) *endgeneration *(-?%\})", r"\1 endif \2", source)
    return environment.from_string(source).render


def _download(package: TemplatePackage, folder: Path) -> Path:
    kind = "--no-binary=:all:" if package.is_source else "--only-binary=:all:"
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", kind, "-q"]
    pip = subprocess.run(
        [*command, "--dest", str(folder), package.requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [file for file in folder.iterdir() if file.suffix in (".gz", ".whl")]
    if pip.returncode != 0 or len(found) != 1:
        said = (pip.stderr.strip().splitlines() or ["nothing"])[-1]
        if os.environ.get("CI"):
            pytest.fail(f"{package.requirement}: pip said {said}", pytrace=False)
        pytest.skip(f"{package.requirement}: pip said {said}")
    if file_sha256(found[0]) != package.sha256:
        pytest.fail(f"{package.requirement}: another archive than was recorded", pytrace=False)
    return found[0]


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of each template of an archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in filter(_is_template, wheel.namelist()):
                yield name, wheel.read(name)
        return
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member) if _is_template(member.name) else None
            if content is not None:
                yield member.name, content.read()


def _is_template(path: str) -> bool:
    return path.endswith(".jinja")
