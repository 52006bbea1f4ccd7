"""Tests of packaging/install-requirements, which installs with uv or with pip."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "install-requirements"
NEEDS = "aiohttp>=3.8\nnumpy\n"
# Stands for the interpreter of a virtual environment, and notes what is installed how.
PYTHON = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
*"pip config list") cat "$here/settings" ;;
*"pip install --quiet uv") exit "$(cat "$here/uv-exists")" ;;
*) eval "file=\\${$#}"
   settings="index=${UV_DEFAULT_INDEX-} certificate=${SSL_CERT_FILE-} constraint=${UV_CONSTRAINT-}"
   { echo "$2 $settings"; cat "$file"; } >>"$here/installed"
   exit "$(cat "$here/$2-fails")" ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Return a directory that stands for a virtual environment in which all commands succeed."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    for name, text in (("settings", ""), ("uv-exists", "0"), ("uv-fails", "0"), ("pip-fails", "0")):
        (folder / name).write_text(text)
    return tmp_path / "venv"


def install(environment: Path) -> tuple[int, str]:
    """Run the script and return its exit code and the notes of the interpreter."""
    command, clean = [SCRIPT, environment], {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, input=NEEDS, text=True, env=clean, capture_output=True, check=False)
    return done.returncode, (environment / "bin/installed").read_text()


def test_uv_installs_the_requirements(environment: Path) -> None:
    assert install(environment) == (0, f"uv index= certificate= constraint=\n{NEEDS}")


def test_uv_takes_over_the_settings_of_pip(environment: Path) -> None:
    settings = "global.index-url='https://host/simple'\nglobal.constraint='/c.txt'\n"
    settings += ":env:.cert='/etc/cert file.pem'\n"
    (environment / "bin/settings").write_text(settings)
    installed = f"uv index=https://host/simple certificate=/etc/cert file.pem constraint=/c.txt\n{NEEDS}"
    assert install(environment) == (0, installed)


@pytest.mark.parametrize("setting", ["global.proxy='host:3128'", ":env:.no-index='1'", "unknown"])
def test_pip_installs_where_its_settings_say_more(environment: Path, setting: str) -> None:
    (environment / "bin/settings").write_text(f"global.timeout='9'\n{setting}\n")
    assert install(environment) == (0, f"pip index= certificate= constraint=\n{NEEDS}")


def test_pip_installs_where_uv_cannot_be_had(environment: Path) -> None:
    (environment / "bin/uv-exists").write_text("1")
    assert install(environment) == (0, f"pip index= certificate= constraint=\n{NEEDS}")


def test_pip_installs_after_a_failure_of_uv_and_decides_the_exit_code(environment: Path) -> None:
    (environment / "bin/uv-fails").write_text("2")
    (environment / "bin/pip-fails").write_text("7")
    both = f"uv index= certificate= constraint=\n{NEEDS}pip index= certificate= constraint=\n{NEEDS}"
    assert install(environment) == (7, both)
