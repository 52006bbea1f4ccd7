"""Tests of the validation of configuration files.

Faults in a file are reported by `config check` and by the daemons.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporary_directories import open_to_others

from slurm_energy.cli.main import main
from slurm_energy.config.budget_tables import BudgetTable
from slurm_energy.config.findings import InvalidConfigError, Severity
from slurm_energy.config.loader import suggest_name
from slurm_energy.config.policy_tables import EdpEntry, SitePolicy
from slurm_energy.config.schema import SECTIONS
from slurm_energy.config.schema_document import example_file, toml
from slurm_energy.validation import DaemonRole, check_file, load_for_daemon
from slurm_energy.validation.checker import CHECKS
from slurm_energy.validation.host import Host, SlurmConf

pytestmark = pytest.mark.slow

SLURM_CONF = """
ClusterName=Sirius
SlurmctldHost=head(10.0.0.1)
SlurmUser=root
NodeName=n[1-4] CPUs=64
PartitionName=DEFAULT MaxTime=1-0
PartitionName=gpu Nodes=n[1-2] Default=YES
PartitionName=cpu Nodes=n[3-4]
PrioritySiteFactorPlugin=site_factor/energy
PrioritySiteFactorParameters=table=/run/senergyctld/priority.table,queue=/elsewhere/queue.table
"""
NAMED = '[cluster]\nname = "sirius"\n'
TWO_CONTROLLERS = "[cluster]\ncontroller_url = ['http://head:6828', 'http://head2:6828']\n"

WRONG_THRICE = """
[agent]
sampling_hz = 0
foo = 1
[defaults]
policy = "nothing"
[controller]
database = "HERE/a.db"
"""

WRONG = {
    # Values of single keys
    "unknown section": ("[agnet]\n", "error", "agnet", "did you mean 'agent'"),
    "unknown key": ("[agent]\nsampling_hs = 1\n", "error", "sampling_hs", "did you mean 'sampling_hz'"),
    "unknown key in capitals": (
        "[agent]\nSamplingHz = 1\n",
        "error",
        "SamplingHz",
        "did you mean 'sampling_hz'",
    ),
    "number as text": ("[agent]\nsampling_hz = '1'\n", "error", "agent.sampling_hz", "finite number"),
    "sampling too fast": ("[agent]\nsampling_hz = 1000\n", "error", "agent.sampling_hz", "0.1 to 50"),
    "sampling never": ("[agent]\nsampling_hz = 0\n", "error", "agent.sampling_hz", "0.1 to 50"),
    "interval of 0": ("[priority]\ninterval_s = 0\n", "error", "priority.interval_s", "1 to 3600"),
    "negative interval": (
        "[controller]\nenrich_interval_s = -5\n",
        "error",
        "enrich_interval_s",
        "1 to 3600",
    ),
    "bounds swapped": ("[bounds]\ncap_watts = [900, 100]\n", "error", "bounds.cap_watts", "low <= high"),
    "policy name": ('[policies."Night Shift"]\n', "error", "Night Shift", "a policy name is"),
    "relative path": ("[controller]\ndatabase = 'a.db'\n", "error", "controller.database", "absolute path"),
    "not TOML": ("[agent\n", "error", "", "not TOML"),
    "policy twice": ("[policies.a]\n[policies.a]\n", "error", "", "not TOML"),
    "metrics of jobs without a token": (
        "[metrics]\nagent_listen = '127.0.0.1:9628'\njobs = true\n",
        *("warning", "metrics.jobs", "every user of the host"),
    ),
    "listen without port": ("[controller]\nlisten = '10.0.0.1'\n", "error", "controller.listen", "HOST:PORT"),
    "listen nonsense": ("[controller]\nlisten = 'nonsense'\n", "error", "controller.listen", "HOST:PORT"),
    "listen on a blank": ("[controller]\nlisten = ' :6828'\n", "error", "controller.listen", "HOST:PORT"),
    "listen beyond ports": ("[controller]\nlisten = '0.0.0.0:68280'\n", "error", "listen", "1 to 65535"),
    "listen on a bare IPv6": ("[controller]\nlisten = '::1:6828'\n", "error", "listen", "HOST:PORT"),
    "URL of another scheme": (
        "[cluster]\ncontroller_url = 'ftp://x'\n",
        "error",
        "controller_url",
        "http://HOST",
    ),
    "URL with https": (
        "[cluster]\ncontroller_url = 'https://x:1'\n",
        "error",
        "controller_url",
        "http://HOST",
    ),
    "URL with a path": (
        "[cluster]\ncontroller_url = 'http://x:1/v1'\n",
        "error",
        "controller_url",
        "http://",
    ),
    "URL without a host": (
        "[cluster]\ncontroller_url = 'http://:6828'\n",
        "error",
        "controller_url",
        "http://",
    ),
    "cluster name empty": ("[cluster]\nname = ''\n", "error", "cluster.name", "1 to 40 characters"),
    "cluster name with blanks": ("[cluster]\nname = 'my cluster'\n", "error", "cluster.name", "characters"),
    "governor": ("[policies.a]\ngovernor = 'slow'\n", "error", "policies.a.governor", "one of performance"),
    "epp": ("[policies.a]\nepp = 'eco'\n", "error", "policies.a.epp", "one of default"),
    "socket too long": (f"[agent]\nsocket = '/run/{'a' * 98}'\n", "error", "agent.socket", "102 bytes"),
    "munge socket too long": (f"[cluster]\nmunge_socket = '/{'m' * 107}'\n", "error", "munge_socket", "107"),
    "user with a blank": ("[policies.a]\nusers = ['a b']\n", "error", "policies.a.users", "user names"),
    "empty operator": ("[controller]\noperators = ['']\n", "error", "controller.operators", "user names"),
    "node power source": ("[node_power]\nsource = 'guess'\n", "error", "node_power.source", "must be one of"),
    "priority mode": ("[priority]\nmode = 'on'\n", "error", "priority.mode", "must be one of"),
    "BMC beyond ports": ("[node_power]\nbmc = 'ipmi://{node}:99999'\n", "error", "bmc", "a port from 1"),
    "product without a word": ("[[edp]]\ngpu = '---'\ngpu_cap_watts = 9\n", "error", "edp.gpu", "a letter"),
    "description of two lines": (
        '[policies.a]\nbase = "edp"\ndescription = "a\\nb"\n',
        *("error", "policies.a.description", "one line"),
    ),
    "path with a NUL": ('[agent]\nstate_dir = "/a\\u0000b"\n', "error", "agent.state_dir", "absolute path"),
    "nested too deeply": (f"[agent]\nx = {'[' * 9000}{']' * 9000}\n", "error", "", "not TOML"),
    "no URL": ("[cluster]\ncontroller_url = []\n", "error", "controller_url", "one URL, or a list"),
    "a number in a list of URLs": (
        "[cluster]\ncontroller_url = ['http://a', 1]\n",
        *("error", "controller_url", "a string or a list of strings"),
    ),
    "a controller twice": (
        "[cluster]\ncontroller_url = ['http://a:6828', 'http://a']\n",
        *("error", "controller_url", "must not name a controller twice"),
    ),
    # Keys that contradict each other
    "SQLite for two controllers": (
        f"[controller]\nlisten = '0.0.0.0:6828'\n{TWO_CONTROLLERS}",
        *("error", "controller.database", "only one of the 2 controllers can open"),
    ),
    "each controller its own server": (
        f"[controller]\nlisten = '0.0.0.0:6828'\ndatabase = 'postgresql://s@localhost/s'\n{TWO_CONTROLLERS}",
        *("warning", "controller.database", "must use the same one"),
    ),
    "none of the controllers is this host": (
        "[controller]\nlisten = '0.0.0.0:6828'\ndatabase = 'postgresql://s@db.invalid/s'\n"
        "[cluster]\ncontroller_url = ['http://a.invalid:6828', 'http://b.invalid:6828']\n",
        *("warning", "cluster.controller_url", "name this host in the list"),
    ),
    "local listen, remote URL": (
        "[controller]\nlisten = '127.0.0.1:6828'\n[cluster]\ncontroller_url = 'http://head:6828'\n",
        *("error", "controller.listen", "reachable on the controller only"),
    ),
    "default listen, remote URL": (
        "[cluster]\ncontroller_url = 'http://head:6828'\n",
        *("error", "controller.listen", "reachable on the controller only"),
    ),
    "remote listen, local URL": (
        "[controller]\nlisten = '0.0.0.0:6828'\n",
        *("warning", "cluster.controller_url", "each node's own address"),
    ),
    "two ports": (
        "[controller]\nlisten = '0.0.0.0:6829'\n[cluster]\ncontroller_url = 'http://head:6828'\n",
        *("error", "controller.listen", "port 6829"),
    ),
    "base": ("[policies.a]\nbase = 'cpa'\n", "error", "policies.a.base", "did you mean 'cap'"),
    "default policy": ("[defaults]\npolicy = 'EDP'\n", "error", "defaults.policy", "did you mean 'edp'"),
    "default of a partition": (
        "[defaults]\npartition = { gpu = 'ebp' }\n",
        *("error", "defaults.partition.gpu", "did you mean 'edp'"),
    ),
    "default needs a cap": ("[defaults]\npolicy = 'cap'\n", "error", "defaults.policy", "needs a cap"),
    "a user's default needs a cap": (
        "[defaults.user]\nroot = 'night'\n[policies.night]\nbase = 'cap'\n",
        *("error", "defaults.user.root", "needs a cap"),
    ),
    "default for others": (
        "[defaults]\npolicy = 'night'\n[policies.night]\nbase = 'edp'\nusers = ['root']\n",
        *("warning", "defaults.policy", "is for root alone"),
    ),
    "cap outside the bounds": (
        "[policies.a]\nbase = 'cap'\ncap_watts = 50\n",
        *("warning", "policies.a.cap_watts", "outside bounds.cap_watts"),
    ),
    "monitor with values": (
        "[policies.monitor]\ncap_watts = 500\n",
        *("error", "policies.monitor.cap_watts", "no effect"),
    ),
    "policy that does nothing": ("[policies.quiet]\n", "warning", "policies.quiet", "changes nothing"),
    "model that no flag takes": (
        "[[edp]]\nmodel = 'a b'\ngpu_cap_watts = 200\n",
        *("error", "edp.model", "at most 64 characters"),
    ),
    "slowdown outside the bounds": (
        "[bounds]\nslowdown_percent = [0, 4]\n",
        *("warning", "tuning.slowdown_limit_percent", "outside bounds.slowdown_percent"),
    ),
    "tuning mode": ("[tuning]\nmode = 'yes'\n", "error", "tuning.mode", "must be one of off, advise, on"),
    "tuning mode of a partition": (
        "[tuning.partition]\ngpu = 'yes'\n",
        *("error", "tuning.partition", "'gpu' must be one of off, advise, on"),
    ),
    "objective without tuning": (
        "[tuning]\nmode = 'off'\n[defaults]\npolicy = 'energy'\n",
        *("warning", "defaults.policy", "tuning.mode is off"),
    ),
    "objective of a partition without tuning": (
        "[tuning]\nmode = 'off'\npartition.b = 'on'\n[defaults.partition]\na = 'edp'\nb = 'edp'\n",
        *("warning", "defaults.partition.a", "tuning.mode is off"),
    ),
    "edp sets nothing": ("[[edp]]\ngpu = 'A100'\n", "error", "edp", "sets nothing"),
    "edp twice": (
        "[[edp]]\ngpu='A100'\ngpu_cap_watts=300\n[[edp]]\ngpu='a100'\ngpu_cap_watts=200\n",
        *("warning", "edp[2]", "never used"),
    ),
    "policy file too long": (
        f"[policies.a]\nusers = [{', '.join(repr(f'user-of-twenty-chars{i}') for i in range(4000))}]\n",
        *("error", "policies", "65280 bytes"),
    ),
    "BMC without account": ("[node_power]\nbmc = 'https://{node}-bmc'\n", "error", "bmc", "needs an account"),
    "BMC without host": ("[node_power]\nbmc = 'https://'\n", "error", "node_power.bmc", "names no host"),
    "one BMC for all": ("[node_power]\nbmc = 'https://bmc'\n", "warning", "node_power.bmc", "every node"),
    "BMC of another kind": (
        "[node_power]\nbmc = 'ipmi://{node}-bmc'\nsource = 'redfish'\n",
        *("error", "node_power.bmc", "source 'redfish'"),
    ),
    "BMC account alone": ("[node_power]\nbmc_user = 'a'\n", "warning", "bmc_user", "no effect"),
    "priority policy": ("[priority]\npolicy = 'blnd'\n", "error", "priority.policy", "did you mean blend"),
    "priority policy file": (
        "[priority]\npolicy_file = '/nowhere/policy.py'\n",
        *("error", "priority.policy_file", "No such file"),
    ),
    "weight of no policy": ("[priority]\nweights = { edpp = 1 }\n", "error", "priority.weights", "'edpp'"),
    "negative weight": ("[priority.weights]\nedp = -1\n", "error", "priority.weights.edp", "negative"),
    "weights of another policy": (
        "[priority]\npolicy = 'blend'\nweights = { qos = 1 }\n",
        *("warning", "priority.weights.qos", "does not use it"),
    ),
    "preempt without effect": (
        "[priority]\npolicy = 'sjf'\npreempt = true\n",
        *("warning", "priority.preempt", "does not preempt"),
    ),
    "plugin without a table": (
        "[priority]\nmode = 'plugin'\ntable = ''\n",
        *("error", "priority.table", "absolute path"),
    ),
    "stale before the next": (
        "[priority]\nmode = 'plugin'\ninterval_s = 120\n",
        *("error", "priority.stale_s", "every 120 s"),
    ),
    "selection delay too short": (
        "[priority]\nshape_selection_delay_s = 3\n",
        "warning",
        "priority.shape_selection_delay_s",
        "before the ranking",
    ),
    "two tables in one file": (
        "[priority]\ntable = '/run/senergyctld/queue/queue.table'\n",
        *("error", "priority.queue_table", "priority.table too"),
    ),
    "no agent may deliver": (
        "[controller]\nagent_users = []\n",
        "error",
        "controller.agent_users",
        "is empty",
    ),
    # Mismatches with host and Slurm
    "foreign cluster name": ("[cluster]\nname = 'vega'\n", "error", "cluster.name", "ClusterName in"),
    "cluster name in capitals": ("[cluster]\nname = 'Sirius'\n", "error", "cluster.name", 'name = "sirius"'),
    "unknown partition": ("[priority]\npartitions = ['gpus']\n", "warning", "priority.partitions", "'gpu'"),
    "unknown partition of a default": (
        "[defaults.partition]\nGPU = 'edp'\n",
        *("warning", "defaults.partition.GPU", "did you mean 'gpu'"),
    ),
    "unknown operator": (
        "[controller]\noperators = ['nobody-here']\n",
        *("warning", "controller.operators", "does not know user 'nobody-here'"),
    ),
    "unknown user of a policy": (
        "[policies.a]\nusers = ['nobody-here']\n",
        *("warning", "policies.a.users", "does not know user"),
    ),
    "unknown user of a default": (
        "[defaults.user]\nnobody-here = 'edp'\n",
        *("warning", "defaults.user.nobody-here", "does not know user"),
    ),
    "unknown user of senergyctld": (
        "[cluster]\nname = 'sirius'\ncontroller_users = ['nobody-here']\n",
        *("warning", "cluster.controller_users", "does not know user"),
    ),
    "unknown group of operators": (
        "[controller]\noperators = ['%nobody-here']\n",
        *("warning", "controller.operators", "does not know group"),
    ),
    "queue table elsewhere": (
        "[priority]\nmode = 'plugin'\n",
        *("warning", "priority.queue_table", "queue=/elsewhere/queue.table"),
    ),
    "database directory": (
        "[controller]\ndatabase = '/nowhere/senergy/a.db'\n",
        *("error", "controller.database", "/nowhere/senergy does not exist"),
    ),
    "policy file directory": (
        "[controller]\npolicy_file = '/nowhere/senergy/policies'\n",
        *("error", "controller.policy_file", "/nowhere does not exist"),
    ),
    "database is a directory": (
        "[controller]\ndatabase = '/etc'\n",
        "error",
        "controller.database",
        "directory",
    ),
    "policy file is a directory": (
        "[controller]\npolicy_file = '/etc'\n",
        *("error", "controller.policy_file", "is a directory"),
    ),
    "socket is a directory": ("[agent]\nsocket = '/etc'\n", "error", "agent.socket", "is a directory"),
    "socket is the state": (
        "[agent]\nsocket = '/run/one'\nstate_dir = '/run/one'\n",
        *("error", "agent.socket", "is a directory"),
    ),
    "templates in a file": (
        "[templates]\nfolder = '/etc/passwd'\n",
        *("warning", "templates.folder", "is not a directory"),
    ),
    "templates nowhere": (
        "[templates]\nfolder = '/nowhere/templates'\n",
        *("warning", "templates.folder", "does not exist"),
    ),
    "templates where all may write": (
        "[templates]\nfolder = 'OPEN'\n",
        *("warning", "templates.folder", "other users could exchange files in"),
    ),
    "database where all may write": (
        "[controller]\ndatabase = 'OPEN/a.db'\n",
        *("error", "controller.database", "other users could exchange files in"),
    ),
    "policy file where all may write": (
        "[controller]\npolicy_file = 'OPEN/policies'\n",
        *("error", "controller.policy_file", "other users could exchange files in"),
    ),
    "state where all may write": (
        "[agent]\nstate_dir = 'OPEN'\n",
        *("error", "agent.state_dir", "other users could exchange files in"),
    ),
    "password that all may read": (
        "[node_power]\nbmc = 'https://{node}'\nbmc_user = 'a'\nbmc_password_file = 'SECRET'\n",
        *("error", "node_power.bmc_password_file", "mode 0644"),
    ),
}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up a host that is the controller of cluster sirius, and return a directory for files."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(SLURM_CONF)
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setattr("slurm_energy.validation.host.socket.gethostname", lambda: "head.example.org")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o644)
    return tmp_path


def written(folder: Path, text: str, name: str = "energy.toml") -> Path:
    text = text.replace("OPEN", str(folder / "open")).replace("SECRET", str(folder / "secret"))
    path = folder / name
    path.write_text(text if "[cluster]" in text else text + NAMED)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("name", WRONG)
def test_wrong_configurations_are_reported(name: str, host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, severity, key, words = WRONG[name]
    path = written(host, text)
    code = main(["config", "check", str(path)])
    out = capsys.readouterr().out
    found = [line for line in out.splitlines() if words in line and key in line]
    assert found, out
    assert found[0].startswith(f"{path}:") and f": {severity}: " in found[0]
    assert code == (3 if severity == "error" else 0) or "error" in out
    assert main(["config", "check", "--strict", str(path)]) == 3


def test_the_list_is_as_long_as_promised() -> None:
    assert len(WRONG) >= 29


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[controller]\nlisten = '0.0.0.0:6828'\n[cluster]\nname='sirius'\ncontroller_url = 'http://head:6828'\n",
        "[controller]\nlisten = '[::]:6828'\n[cluster]\nname='sirius'\ncontroller_url = 'http://[fd00::1]'\n",
        "[defaults]\npolicy='edp'\npartition={gpu='night'}\n[policies.night]\nbase='cap'\ncap_watts=300\n",
        "[[edp]]\ngpu='A100'\ngpu_cap_watts=300\n[[edp]]\ngpu='A100'\nmodel='vit'\ngpu_cap_watts=200\n",
        "[priority]\npolicy='zeus'\nmode='shadow'\npartitions=['gpu', 'cpu']\nshape_selection_delay_s=20\n",
        "[priority]\nweights={edp=1.0, fair=0.5}\n",
        "[policies.cap]\ngpu_cap_watts=200\n[defaults]\npolicy='cap'\n",
    ],
)
def test_right_configurations_are_accepted(text: str, host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(host, text)
    assert main(["config", "check", "--strict", str(path)]) == 0, capsys.readouterr().out


def test_everything_is_reported_at_once_by_line(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(
        host,
        "[priority]\npolicy='x'\n[agent]\nsampling_hz=0\nsocket='a'\nfoo=1\n[defaults]\npolicy='cap'\n"
        "[controller]\nlisten='x'\noperators=['nobody-here']\n",
    )
    assert main(["config", "check", str(path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    errors = [int(line.split(":")[1]) for line in lines if ": error: " in line]
    assert errors == [2, 4, 5, 6, 8, 10]
    assert lines[-1] == f"{path}: 6 errors, 1 warning"
    assert main(["config", "check", "--json", str(path)]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["errors"], report["warnings"], len(report["findings"])) == (6, 1, 8)
    assert report["findings"][0] == {
        "severity": "error",
        "file": str(path),
        "line": 2,
        "key": "priority.policy",
        "why": "policy 'x' is not known",
        "todo": report["findings"][0]["todo"],
    }


@pytest.mark.parametrize("setting", ["gpu_cap_watts = 0.25", "gpu_cap = 250"])
def test_a_faulty_edp_entry_is_one_finding(
    setting: str, host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`senergy config check` reports an invalid value in a table `[[edp]]` as one error.

    If the invalid value is the only value of the table, the command does not report in addition that the
    table sets nothing.
    """
    path = written(host, f"[[edp]]\ngpu = 'A100'\n{setting}\n")
    assert main(["config", "check", str(path)]) == 3
    out = capsys.readouterr().out
    assert "1 error" in out and "sets nothing" not in out


def test_a_file_that_others_can_write_is_an_error(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(host, "[agent]\nsampling_hz = 99\n")
    path.chmod(0o666)
    assert main(["config", "check", str(path)]) == 3
    out = capsys.readouterr().out
    assert f"{path}: error: owner uid" in out and "mode 0666" in out and "sampling_hz" in out


def test_code_that_an_untrusted_file_names_is_not_run(host: Path) -> None:
    policy, mark = host / "policy.py", host / "was-run"
    policy.write_text(f"open({str(mark)!r}, 'w')\n")
    policy.chmod(0o644)
    path = written(host, f"[priority]\npolicy_file = '{policy}'\n")
    path.chmod(0o666)
    checked = check_file(path)
    assert not mark.exists()
    assert [f.severity for f in checked.findings if f.key == "priority.policy"] == [Severity.UNCHECKED]
    path.chmod(0o644)
    check_file(path)
    assert mark.exists()


def test_what_a_host_cannot_know_is_said(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        host,
        "[cluster]\nname='vega'\ncontroller_url='http://head:6828'\n[controller]\nlisten='0.0.0.0:6828'\n"
        "database='/nowhere/a.db'\n",
    )
    monkeypatch.setenv("SLURM_CONF", str(host / "missing.conf"))
    monkeypatch.setattr("slurm_energy.validation.host.socket.gethostname", lambda: "n1")
    assert main(["config", "check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "not checked: cluster.name: " in out and "missing.conf: No such file" in out
    assert "not checked: controller.database: this host is not the controller 'head'" in out


def test_without_a_file_the_defaults_are_checked(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_energy.config.loader.DEFAULT_PATH", host / "none.toml")
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no configuration file, built-in defaults: ok"


def test_the_example_passes_on_its_own_cluster(host: Path) -> None:
    path = host / "energy.toml"
    path.write_text(example_file().replace('#name = "cluster"', 'name = "sirius"'))
    path.chmod(0o644)
    assert check_file(path).errors == []


class TestDaemons:
    """Both daemons validate the configuration, each with its own checks."""

    def test_a_daemon_raises_all_errors_and_logs_warnings(
        self, host: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = logging.getLogger("test")
        path = written(host, "[defaults]\npolicy='cap'\n[[edp]]\ngpu='A100'\n")
        with pytest.raises(InvalidConfigError) as caught:
            load_for_daemon(path, DaemonRole.NODE, log)
        assert len(caught.value.lines) == 2
        assert "(1 more: senergy config check)" in str(caught.value)
        path = written(host, "[[edp]]\ngpu='A'\ngpu_cap_watts=9\n[[edp]]\ngpu='A'\ngpu_cap_watts=8\n")
        assert len(load_for_daemon(path, DaemonRole.NODE, log).edp) == 2
        assert "never used" in caplog.text

    def test_an_agent_does_not_refuse_what_concerns_the_controller(self, host: Path) -> None:
        log = logging.getLogger("test")
        path = written(host, "[controller]\ndatabase='/nowhere/a.db'\n[priority]\npolicy='x'\n")
        load_for_daemon(path, DaemonRole.NODE, log)
        with pytest.raises(InvalidConfigError):
            load_for_daemon(path, DaemonRole.CONTROLLER, log)

    def test_a_directory_that_is_not_there_yet_is_exit_code_4(self, host: Path) -> None:
        path = written(host, "[controller]\ndatabase='/nowhere/a.db'\n")
        with pytest.raises(InvalidConfigError) as caught:
            load_for_daemon(path, DaemonRole.CONTROLLER, logging.getLogger("test"))
        assert caught.value.exit_code == 4

    def test_a_controller_whose_responses_nobody_believes_says_so(
        self, host: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        text = f"[cluster]\nname='sirius'\ncontroller_users=['{os.geteuid() + 1}']\n"
        text += f"[controller]\ndatabase='{host}/a.db'\npolicy_file='{host}/policies'\n"
        load_for_daemon(written(host, text), DaemonRole.CONTROLLER, logging.getLogger("test"))
        assert "agents will reject its responses" in caplog.text
        caplog.clear()
        text = text.replace(f"['{os.geteuid() + 1}']", f"['{os.geteuid()}']")
        load_for_daemon(written(host, text), DaemonRole.CONTROLLER, logging.getLogger("test"))
        assert "no agent" not in caplog.text

    @pytest.mark.parametrize("module", ["slurm_energy.agent.main", "slurm_energy.controller.main"])
    def test_each_error_is_a_line_of_its_own(self, module: str, host: Path) -> None:
        path = written(host, WRONG_THRICE.replace("HERE", str(host)))
        command = [sys.executable, "-m", module, "--config", str(path), "--check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 3
        lines = [line for line in done.stderr.splitlines() if ": error: " in line]
        assert len(lines) == 3 and all(str(path) in line for line in lines)

    def test_every_check_concerns_a_daemon(self) -> None:
        assert all(roles for _, roles in CHECKS)


def test_slurm_conf_is_read_as_slurm_reads_it(tmp_path: Path) -> None:
    from slurm_energy.slurm import conf_files

    conf = tmp_path / "slurm.conf"
    conf.write_text(SLURM_CONF)
    slurm = SlurmConf(conf, settings=conf_files.read_settings(conf))
    assert slurm.partitions == {"gpu", "cpu"}
    assert slurm.controllers == {"head"}
    host = Host(frozenset({"head"}), slurm)
    assert host.is_called("HEAD.example.org.") and not host.is_called("head2")
    assert SlurmConf().missing == "no slurm.conf on this host"


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("EDP", "did you mean 'edp'?"),
        ("monitr", "did you mean 'monitor'?"),
        ("xyz", "known: edp, cap, monitor"),
    ],
)
def test_the_nearest_name_is_found_whatever_its_case(word: str, advice: str) -> None:
    assert suggest_name(word, ["edp", "cap", "monitor"]) == advice


def test_findings_are_data(host: Path) -> None:
    path = written(host, "[agent]\nsampling_hz=0\n")
    (finding,) = check_file(path).errors
    assert dataclasses.replace(finding, line=None).location == str(path)
    assert finding.location == f"{path}:2"
    assert os.linesep not in finding.text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_may_check_on_behalf_of_a_service_that_owns_its_directories(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    for name in ("run", "lib"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, nobody, -1)
    tmp_path.chmod(0o755)
    path = tmp_path / "energy.toml"
    path.write_text(f"[controller]\npolicy_file = '{tmp_path}/run/p'\ndatabase = '{tmp_path}/lib/db'\n")
    slurm = SlurmConf(Path("/slurm.conf"), settings={"slurmuser": ["nobody"], "clustername": ["cluster"]})
    checked = check_file(path, DaemonRole.CONTROLLER, Host(frozenset({"h"}), slurm))
    assert [finding.text for finding in (*checked.errors, *checked.warnings)] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_secrets_of_metrics_must_be_readable_by_senergyctld(tmp_path: Path) -> None:
    path, token = tmp_path / "energy.toml", tmp_path / "token"
    token.touch(0o600)
    for listen, owner, slurm_user, faults in (
        ("controller_listen", "root", "nobody", 1),
        ("controller_listen", "nobody", "nobody", 0),
        ("controller_listen", "root", "root", 0),
        ("agent_listen", "root", "nobody", 0),
    ):
        shutil.chown(token, owner)
        path.write_text(f"[metrics]\n{listen} = '127.0.0.1:9629'\ntoken_file = '{token}'\n")
        settings = {"slurmuser": [slurm_user], "clustername": ["cluster"], "slurmctldhost": ["h"]}
        host = Host(frozenset({"h"}), SlurmConf(Path("/slurm.conf"), settings=settings))
        found = [one for one in check_file(path, None, host).warnings if one.key == "metrics.token_file"]
        assert len(found) == faults, (listen, owner, slurm_user)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_unprivileged_user_is_told_what_was_not_checked(host: Path) -> None:
    closed = host / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0o700)
    path = written(
        host,
        f"[controller]\ndatabase = '{closed}/inner/a.db'\npolicy_file = '{closed}/inner/b/policies'\n"
        f"[agent]\nstate_dir = '{closed}/inner'\nsocket = '{closed}/inner/agent.sock'\n"
        f"[node_power]\nbmc = 'https://{{node}}'\nbmc_user = 'a'\nbmc_password_file = '{closed}/secret'\n",
    )
    report, done = os.pipe()
    child = os.fork()
    if child == 0:  # a child process, as the test must keep its own privileges
        try:
            open_to_others(host)
            os.setgid(65534)
            os.setuid(65534)
            findings = check_file(path).findings
            os.write(done, json.dumps([finding.to_json() for finding in findings]).encode())
        finally:
            os._exit(0)
    os.close(done)
    with os.fdopen(report, "rb") as stream:
        findings = json.loads(stream.read() or b"[]")
    os.waitpid(child, 0)
    unchecked = {found["key"] for found in findings if found["severity"] == "not checked"}
    keys = {"controller.database", "controller.policy_file", "agent.state_dir", "agent.socket"}
    assert unchecked == {*keys, "node_power.bmc_password_file"}
    assert all("Permission denied" in found["why"] for found in findings if found["key"] in unchecked)


VALUES = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "x",
                "edp",
                "cap",
                "monitor",
                "http://a:1",
                "https://{node}",
                "ipmi://",
                "0.0.0.0:0",
                "[::]:1",
            ),
            *("/", "/tmp", "/nowhere/a/b", "plugin", "kairos", "ipmi", "\x00", "a" * 300, "\u00e9", "root"),
        ]
    ),
    st.integers(-(10**400), 10**400),
    st.floats(allow_nan=True),
    st.booleans(),
    st.lists(st.sampled_from(["root", "", "gpu", 1, "a b"]), max_size=3),
    st.dictionaries(
        st.sampled_from(["edp", "gpu", "root", "a b"]), st.sampled_from(["edp", 1.0, -1, ""]), max_size=3
    ),
)
KEYS = [(f"[{name}]", field.name) for name, cls in SECTIONS.items() for field in dataclasses.fields(cls)]
KEYS += [("[policies.a]", field.name) for field in dataclasses.fields(SitePolicy)]
KEYS += [("[[edp]]", field.name) for field in dataclasses.fields(EdpEntry)]
KEYS += [("[[budgets]]", field.name) for field in dataclasses.fields(BudgetTable)]


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_values_give_findings_and_no_traceback(
    values: dict[tuple[str, str], object], known: bool
) -> None:
    sections: dict[str, list[str]] = {}
    for (section, key), value in values.items():
        sections.setdefault(section, []).append(f"{key} = {toml(value)}")
    text = "\n".join(line for section, keys in sections.items() for line in (section, *keys))
    lines = {"clustername": ["x"], "partitionname": ["gpu"]} if known else {}
    host = Host(frozenset({"localhost"}), SlurmConf(Path("/etc/slurm.conf"), settings=lines))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "energy.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        for role in (None, *DaemonRole):
            for finding in check_file(path, role, host).findings:
                assert "\n" not in finding.text and finding.why


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "huge", "binary", "missing"])
def test_what_is_no_configuration_file_is_one_error(kind: str, host: Path) -> None:
    path = host / "odd.toml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**34)
        path.chmod(0o666)
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
        path.chmod(0o644)
    command = [sys.executable, "-m", "slurm_energy.cli.main", "config", "check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"senergy: error: {path}: ") and done.stderr.count("\n") == 1
