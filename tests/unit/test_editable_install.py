"""What an editable install (`pip install -e`, `make venv`) makes importable."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "superfluid.py")
_FOLDERS = ("bus", "agent", "head", "conf")


def run_python(program: str, *arguments: str, cwd: Path, bare: bool = False) -> str:
    """What a program prints; `bare` leaves out what is installed here, this clone among it."""
    command = [sys.executable, *(["-E", "-S"] if bare else []), "-c", program, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def test_the_module_superfluid_is_found_beside_a_clone_of_that_name(tmp_path: Path) -> None:
    clone, wheels, site = tmp_path / "superfluid", tmp_path / "wheels", tmp_path / "site"
    clone.mkdir()
    wheels.mkdir()
    for name in _FILES:
        shutil.copy(ROOT / name, clone)
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta as b; b.build_editable(sys.argv[1])"
    run_python(build, str(wheels), cwd=clone)
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    # A folder without __init__.py is a package as well, and would go before an import hook.
    find = (
        "import site, sys; from importlib.util import find_spec; "
        "site.addsitedir(sys.argv[1]); print(find_spec('superfluid').origin)"
    )
    assert run_python(find, str(site), cwd=tmp_path, bare=True) == str(clone / "superfluid.py")
