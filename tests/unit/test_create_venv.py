"""Tests of packaging/create-venv, which `make` runs first.

If Python or one of its packages is missing, the script says so in one line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "packaging/create-venv"


def create(directory: Path, python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [PROGRAM, directory, python]
    environment = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """Return a folder whose modules make the import of ensurepip and pip fail.

    In a fresh Debian system, python3 lacks these modules.
    """
    folder = tmp_path / "hidden"
    folder.mkdir()
    for module in ("ensurepip", "pip"):
        (folder / f"{module}.py").write_text("raise ImportError\n")
    return folder


def test_without_ensurepip_and_pip_one_line_says_what_to_install(tmp_path: Path, hidden: Path) -> None:
    done = create(tmp_path / "venv", sys.executable, PYTHONPATH=str(hidden))
    assert done.returncode == 1
    assert done.stderr == (
        f"create-venv: {sys.executable} has neither ensurepip nor pip: install one, on Debian: "
        "apt-get install python3-venv, or give PYTHON=\n"
    )
    assert not (tmp_path / "venv").exists()


def test_without_python_one_line_says_so(tmp_path: Path) -> None:
    done = create(tmp_path / "venv", "/nonexistent/python3")
    assert done.returncode == 1
    assert done.stderr.startswith("create-venv: no Python 3.11 or later found: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_ensurepip_suffices(tmp_path: Path) -> None:
    pytest.importorskip("ensurepip")
    assert create(tmp_path / "venv", sys.executable).returncode == 0
    assert (tmp_path / "venv/bin/pip").exists()
