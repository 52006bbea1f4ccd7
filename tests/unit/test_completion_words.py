"""Words of completion that come from commands: bash expands them, so no name may contain an expansion."""

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
    """Programs that print names which a shell would expand, and one good name."""
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
