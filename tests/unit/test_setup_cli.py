"""Tests of the command line of `senergy setup`.

The tests check dry runs, JSON output, and questions when no terminal is there to answer them.
"""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_energy.cli import doctor, main, setup
from slurm_energy.cli.setup_dialogue import TerminalDialogue
from slurm_energy.config import Config
from slurm_energy.errors import UsageError
from slurm_energy.setup import slurm_state
from slurm_energy.setup.dialogue import SetupOutcome
from slurm_energy.setup.journal import SetupEntry
from slurm_energy.setup.plan import DATABASE_DIRECTORY, Role, SetupPlan
from slurm_energy.setup.power_saving_lines import power_saving_lines
from slurm_energy.setup.removal import FileReversal
from slurm_energy.setup.site import SlurmSite
from slurm_energy.setup.site_file import SiteFile
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.power_saving_settings import parse_power_saving_settings

REPOSITORY = Path(__file__).parents[2]
SITE = Path(__file__).parents[1] / "setup_sites/plain/etc/slurm"


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Return options of `senergy setup` for the test configuration `plain` of Slurm.

    The files of slurm-energy are in a temporary directory. slurmctld does not answer, which the real scontrol
    reports only after ten seconds.
    """
    monkeypatch.setattr(slurm_state, "running_settings", lambda site: None)
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


def test_lines_that_power_saving_needs_are_named(options, tmp_path, capsys):
    (tmp_path / "energy.toml").write_text('[power_saving]\nmode = "observe"\n')
    assert main.main(["setup", "controller", "--dry-run", "--json", *options]) == 0
    lines = [line for line in json.loads(capsys.readouterr().out)["by_hand"] if "cluster.name" not in line]
    named = [line.removeprefix("slurm.conf: add ").partition("=")[0] for line in lines]
    assert named[:-1] == [
        *("SuspendProgram", "ResumeProgram", "SuspendTime", "SuspendTimeout", "ResumeTimeout"),
        *("PrologSlurmctld", "power_save_interval"),
    ]
    assert "restart slurmctld" in named[-1]


def test_lines_of_the_page_on_power_saving_are_complete(tmp_path):
    page = (REPOSITORY / "docs" / "power-saving.md").read_text()
    block = page.partition("SuspendProgram=")[2].partition("```")[0]
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=c1\nSuspendProgram={block}")
    settings = conf_files.read_settings(conf)
    site = SlurmSite(conf, settings, False, False, None, frozenset())
    assert power_saving_lines(site, tmp_path) == []
    shown = parse_power_saving_settings(_as_shown(settings))
    assert shown.problems() == [] and shown.advice() == []


def _as_shown(settings):
    """Return settings of slurm.conf as text in the format of `scontrol show config`."""
    units = {"SuspendTime": " sec", "SuspendTimeout": " sec", "ResumeTimeout": " sec"}
    names = ("SuspendProgram", "ResumeProgram", "SlurmctldParameters", "PrologSlurmctld", *units)
    return "".join(f"{name} = {settings[name.lower()][-1]}{units.get(name, '')}\n" for name in names)


def test_a_password_is_refused_on_the_command_line(options, tmp_path, capsys):
    url = "--database=postgresql://senergy:s3cret@db/senergy"
    assert main.main(["setup", "controller", "--dry-run", url, *options]) == 2
    error = capsys.readouterr().err
    assert "--database: contains a password" in error and "s3cret" not in error
    assert not (tmp_path / "energy.toml").exists()


def test_without_a_terminal_yes_is_needed(options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main.main(["setup", "node", *options]) == 2
    assert "--yes" in capsys.readouterr().err


def test_missing_plugins_are_one_line(options, tmp_path, capsys):
    (tmp_path / "lib/energy.so").unlink()
    assert main.main(["setup", "login", "--dry-run", *options]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize("plugin", ["energy.so", "energy_hooks.so"])
def test_plugins_for_another_series_are_refused(plugin, options, tmp_path, capsys):
    slurmctld = tmp_path / "slurm/sbin/slurmctld"
    slurmctld.parent.mkdir(parents=True)
    slurmctld.write_text("#!/bin/sh\necho slurm 24.05.3\n")
    slurmctld.chmod(0o755)
    source = tmp_path / "plugin.c"
    source.write_text("const unsigned int plugin_version = 0x160500;\n")
    command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "lib" / plugin, source]
    subprocess.run(command, check=True, timeout=60)
    assert main.main(["setup", "node", "--dry-run", f"--slurm-prefix={tmp_path}/slurm", *options]) == 4
    assert f"{plugin}: was built for Slurm 22.05.0, installed is 24.05.3" in capsys.readouterr().err


def test_answers(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n\nno\n"))
    dialogue = TerminalDialogue(agree=False)
    assert [dialogue.confirm("?") for _ in range(3)] == [True, False, False]
    with pytest.raises(UsageError, match="--yes"):
        dialogue.confirm("?")


@pytest.mark.parametrize("declined", [False, True])
def test_the_next_step_follows_only_if_no_change_was_declined(declined, capsys):
    args = Namespace(json=False, no_doctor=True)
    setup._finish(args, SetupPlan(Role.CONTROLLER), SetupOutcome(declined=declined), None)
    assert ("next: senergy setup node" in capsys.readouterr().out) is not declined


@pytest.mark.parametrize("listens", [False, True])
def test_a_node_does_not_wait_for_a_controller_that_is_not_set_up(listens, tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(doctor, "run", lambda args: calls.append((args.cluster, args.wait)))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        config = tmp_path / "energy.toml"
        port = server.getsockname()[1]
        config.write_text(f'[cluster]\ncontroller_url = "http://127.0.0.1:{port}"\n')
        setup._doctor(Namespace(config=config), SimpleNamespace(node_names=["n1"]))
    assert calls == [(False, None), (True, doctor.DEFAULT_WAIT_S if listens else None)]
    text = "next: senergy setup controller on the host of slurmctld, then this command again"
    assert (text in capsys.readouterr().out) is not listens


def test_the_question_for_the_database_names_its_default(monkeypatch, tmp_path):
    questions = []
    dialogue = SimpleNamespace(ask=lambda question, default: questions.append(question) or default)
    args = Namespace(config=tmp_path / "energy.toml", database=None, yes=False, dry_run=False, contain=False)
    assert setup._options(args, Role.CONTROLLER, None, dialogue).values == {}
    default = f"{DATABASE_DIRECTORY}/senergy.db"
    assert questions == [f"Database (file, postgresql:// or mariadb:// URL) [{default}]:"]
    assert str(Config().controller.database) == default


def test_a_dry_run_of_undo_says_what_it_would_do(capsys):
    entry = SetupEntry(1, "file", "/etc/a")
    file = SiteFile(Path("/etc/a"), b"a\n")
    dialogue = TerminalDialogue(agree=False)
    for reversal in (
        FileReversal(entry, file, None),
        FileReversal(entry, file, b"b\n"),
        FileReversal(entry, file, b"a\n", "stays", keep=True),
    ):
        dialogue.show_planned_reversal(reversal)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["would remove /etc/a", "", "would restore /etc/a"]
    assert "+b" in lines and lines[-1] == "/etc/a stays"
