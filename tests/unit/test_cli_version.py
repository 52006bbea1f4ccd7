"""Tests of `senergy --version`."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import pytest

from slurm_energy import __version__
from slurm_energy.cli import version
from slurm_energy.cli.main import main
from slurm_energy.slurm import plugin_files
from slurm_energy.slurm.release import Release

PLUGIN = Path(__file__).resolve().parents[2] / "spank" / "energy.so"


@pytest.fixture(autouse=True)
def _no_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set up a host for a test: slurm.conf is in the test's directory.

    No other installation exists, and no command can be run.
    """
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setattr(version, "_LIBRARIES", (str(tmp_path / "lib"),))
    monkeypatch.setattr(plugin_files, "installed_release", lambda _: Release(24, 11, 5))
    monkeypatch.setattr("subprocess.Popen", None)  # no command is run


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["--version"]) == 0
    return capsys.readouterr().out.splitlines()


def test_one_line_per_component(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = f"Python: {platform.python_version()}"
    first = f"senergy {__version__}"
    assert lines(capsys) == [first, "SPANK plugin: not installed", "Slurm: 24.11.5", python]
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    (tmp_path / "plugstack.conf").write_text(f"optional {tmp_path}/energy.so\n")
    assert lines(capsys)[1] == f"SPANK plugin: missing or unreadable ({tmp_path}/energy.so)"
    if not PLUGIN.exists():
        pytest.skip("energy.so is not built")
    shutil.copy(PLUGIN, tmp_path / "energy.so")
    built = plugin_files.read_plugin(PLUGIN).release
    assert built is not None
    assert lines(capsys)[1] == f"SPANK plugin: for Slurm {built.series} ({tmp_path}/energy.so)"
    assert main(["-V", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "senergy": __version__,
        "spank_plugin": {
            "path": f"{tmp_path}/energy.so",
            "slurm_series": built.series,
            "in_plugstack": True,
        },
        "slurm": "24.11.5",
        "python": platform.python_version(),
    }
    (tmp_path / "plugstack.conf").unlink()
    (tmp_path / "lib").mkdir()
    shutil.copy(PLUGIN, tmp_path / "lib/energy.so")
    plugin = f"for Slurm {built.series}, not in plugstack.conf ({tmp_path}/lib/energy.so)"
    assert lines(capsys)[1] == f"SPANK plugin: {plugin}"


def test_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "acct"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
