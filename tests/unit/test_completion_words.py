"""Tests of completion in bash: a completed name is never executed or expanded.

The names come from the output of commands, such as sinfo. bash expands the words of a completion. A name may
therefore contain nothing that bash would expand.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_energy.cli import completion
from slurm_energy.cli.completion_values import _COMMANDS, _source

_PROGRAMS = ("sacctmgr", "sinfo", "squeue", "getent", "senergy", "sed")
_HOSTILE = (
    "$(touch MARK)",
    "`touch${IFS}MARK`",
    "$(touch${IFS}MARK)",
    "a;b",
    "~root",
    "{a,b}",
    "'",
    '"',
    "\\",
)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Return a folder with stand-ins for the programs from which shell completion gets its words.

    Most of the printed names contain something that a shell would expand. One name is harmless.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    words = [word.replace("MARK", str(tmp_path / "mark")) for word in _HOSTILE]
    (tmp_path / "words").write_text("\n".join([*words, "nice-name_1.x", ""]))
    for name in _PROGRAMS:
        program = folder / name
        program.write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/words\n")
        program.chmod(0o755)
    return folder


@pytest.mark.parametrize("plain", sorted(_COMMANDS))
@pytest.mark.parametrize("suffix", ["", ","])
def test_names_are_never_executed(tools: Path, tmp_path: Path, plain: str, suffix: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    source = _source(f"{plain}{suffix}")
    script = f"{completion._BASH_LIST}\n{completion._bash(source)}\n{source.name} nice"
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert not (tmp_path / "mark").exists()
    assert done.stdout.split() == ["nice-name_1.x"]
