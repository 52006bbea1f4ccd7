"""`senergy setup` as a command: dry runs, JSON, and questions that nobody can answer."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from slurm_energy.cli import main
from slurm_energy.cli.setup_dialogue import TerminalDialogue
from slurm_energy.errors import UsageError

SITE = Path(__file__).parents[1] / "setup_sites/plain/etc/slurm"


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options for the site `plain` and for a library below a temporary directory."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("SLURM_CONF", "")
    library = tmp_path / "lib"
    (library / "plugstack.d").mkdir(parents=True)
    for name in ("plugstack.d/energy.conf", "energy.so", "senergy_submit.lua"):
        (library / name).write_text("x")
    return [f"--slurm-conf={SITE}/slurm.conf", f"--library={library}", f"--config={tmp_path}/energy.toml"]


def test_a_dry_run_shows_all_changes_and_makes_none(options, tmp_path, capsys):
    before = {path: path.read_bytes() for path in SITE.rglob("*") if path.is_file()}
    assert main.main(["setup", "controller", "--dry-run", *options]) == 0
    out = capsys.readouterr().out
    assert f"+++ {SITE}/slurm.conf" in out and "+PrologFlags=Alloc" in out
    assert f"+++ {SITE}/job_submit.lua" in out and f"+++ {SITE}/plugstack.conf" in out
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "energy.toml").exists()


def test_the_plan_as_json(options, capsys):
    assert main.main(["setup", "controller", "--dry-run", "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["role"] == "controller" and document["by_hand"] == []
    assert any(change["path"].endswith("/slurm.conf") for change in document["changes"])


def test_without_a_terminal_yes_is_needed(options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main.main(["setup", "node", *options]) == 2
    assert "--yes" in capsys.readouterr().err


def test_missing_plugins_are_one_line(options, tmp_path, capsys):
    (tmp_path / "lib/energy.so").unlink()
    assert main.main(["setup", "login", "--dry-run", *options]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_answers(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n\nno\n"))
    dialogue = TerminalDialogue(agree=False)
    assert [dialogue.confirm("?") for _ in range(3)] == [True, False, False]
    with pytest.raises(UsageError, match="--yes"):
        dialogue.confirm("?")
