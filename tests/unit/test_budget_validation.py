"""Tests of the checks of power budgets in a configuration.

The checks cover the scope of a budget, its limit, the files that it names, and the necessary settings of
Slurm. Each fault is reported with its key and line.
"""

from __future__ import annotations

from pathlib import Path

import budget_answers
import fake_controller
import pytest

from slurm_energy.cli.main import main
from slurm_energy.config.findings import Finding, Severity
from slurm_energy.errors import UnavailableError
from slurm_energy.validation import DaemonRole, check_file
from slurm_energy.validation.host import Host, SlurmConf

pytestmark = pytest.mark.slow
SLURM = {
    "clustername": ["cluster"],
    "nodename": ["DEFAULT CPUs=4", "n[1-4] CPUs=64", "g1 Gres=gpu:4"],
    "partitionname": ["cpu Nodes=n[1-4] Default=YES", "gpu Nodes=g1", "all Nodes=ALL"],
    "licenses": ["matlab:3,watts:5000"],
    "jobsubmitplugins": ["lua"],
    "schedulerparameters": ["bf_continue,bf_licenses"],
}
SITE = "[[budgets]]\nname = 'site'\ncluster = true\n"
ENFORCED = "[budget]\nmode = 'enforce'\n"


def findings(tmp_path: Path, text: str, slurm: dict[str, list[str]] = SLURM) -> list[Finding]:
    """Return the findings about budgets in a configuration."""
    path = tmp_path / "energy.toml"
    path.write_text(text.replace("HERE", str(tmp_path)))
    path.chmod(0o644)
    checked = check_file(
        path, None, Host(frozenset({"head"}), SlurmConf(Path("/slurm.conf"), settings=slurm))
    )
    return [found for found in checked.findings if found.key.strip("[").startswith("budget")]


def lines(tmp_path: Path, text: str, slurm: dict[str, list[str]] = SLURM) -> list[str]:
    """Return severity, line, key and text of each finding about budgets."""
    return [
        f"{found.severity} {found.line} {found.key}: {found.why}" for found in findings(tmp_path, text, slurm)
    ]


def test_valid_budgets_have_no_findings(tmp_path: Path) -> None:
    calendar = tmp_path / "calendar.csv"
    calendar.write_text("time,watts\n2001-01-01,3000\n2100-01-01,4000\n")
    calendar.chmod(0o644)
    text = f"""{ENFORCED}timezone = 'Europe/Berlin'
node_reserve_watts = {{ "n[1-4]" = 100, g1 = 300 }}
{SITE}schedule = [{{watts = 4000}}, {{from = "08:00", watts = 3000}}]
[[budgets]]
name = "row"
nodes = "n[1-2]"
signal = "HERE/limit"
fallback_watts = 500
[[budgets]]
name = "gpu"
partition = "gpu"
calendar = "HERE/calendar.csv"
"""
    assert lines(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[budgets]]\ncluster = true\nwatts = 5\n", "error 1 budgets.name: is missing"),
        ("[[budgets]]\nname = 'a'\nwatts = 5\n", "error 1 [budgets]: does not say what the budget covers"),
        ("[[budgets]]\nname = 'a'\ncluster = false\nwatts = 5\n", "error 3 budgets.cluster: false covers"),
        (SITE + "user = 'root'\nwatts = 5\n", "error 4 budgets.user: 'cluster' and 'user' both say"),
        (SITE, "error 1 [budgets]: has no limit"),
        (SITE + "watts = 5\nsignal = '/x'\n", "error 5 budgets.signal: 'watts' and 'signal' both give"),
        (SITE + "signal = '/x'\n", "error 1 budgets.fallback_watts: is missing: it applies while"),
        (SITE + "watts = 5\nmax_age_s = 9\n", "warning 5 budgets.max_age_s: has no effect without signal"),
        (
            SITE + "signal = '/x'\nfallback_watts = 9\nmax_age_s = 2\n",
            "error 6 budgets.max_age_s: 2 s is shorter than signal_interval_s",
        ),
        (SITE + "watts = 5\n", "warning 1 [budgets]: has no effect: budget.mode is 'off'"),
        ("[budget]\nmode = 'enforce'\n", "warning 2 budget.mode: 'enforce' has no effect"),
        ("[budget]\nlease_s = 2\n", "error 2 budget.lease_s: 2 s end before 3 polls or a control period"),
        ("[budget]\npoll_s = 8\n", "error 2 budget.poll_s: 8 s is longer than budget.period_s"),
        ("[budget]\nnode_reserve_watts = { 'n[1-' = 5 }\n", "error 2 budget.node_reserve_watts: node list"),
        (SITE + "watts = 5\n" + SITE.replace("site", "SITE"), "error 6 budgets[2].name: another budget"),
        (
            "[[budgets]]\nname = 'a'\nnodes = 'n[1-'\nwatts = 5\n",
            "error 3 budgets.nodes: 'n[1-' is not a node list",
        ),
        (
            "[[budgets]]\nname = 'a'\nnodes = 'n[1-9]'\nwatts = 5\n",
            "warning 3 budgets.nodes: node 'n5' is",
        ),
        (
            "[[budgets]]\nname = 'a'\npartition = 'gpus'\nwatts = 5\n",
            "warning 3 budgets.partition: partition 'gpus' is not in /slurm.conf",
        ),
        (
            "[[budgets]]\nname = 'a'\nuser = 'no-such-user'\nwatts = 5\n",
            "warning 3 budgets.user: this host does not know user 'no-such-user'",
        ),
        (
            SITE.replace("site", "a-b") + "watts = 5\n" + SITE.replace("site", "A_b"),
            "error 6 budgets[2].name: another budget has the name 'a-b'",
        ),
        (SITE + "calendar = '/nowhere/x.csv'\n", "warning 4 budgets.calendar: /nowhere/x.csv does not exist"),
        (
            SITE + "watts = 5\n[[budgets]]\nname = 'b'\npartition = 'cpu'\nwatts = 6\n",
            "warning 8 budgets[2].watts: 6 W never limits: the cluster has 5 W",
        ),
        (
            SITE + "watts = 5\n[[budgets]]\nname = 'b'\ncluster = true\nwatts = 6\n",
            "warning 7 budgets[2].cluster: covers the same as budget 'site'",
        ),
    ],
)
def test_a_fault_names_its_key_and_line(tmp_path: Path, text: str, expected: str) -> None:
    assert [line for line in lines(tmp_path, text) if line.startswith(expected)]


@pytest.mark.parametrize(
    ("limit", "key"),
    [
        ("watts = 699", "watts"),
        ("schedule = [{watts = 9000}, {from = '12:00', watts = 699}]", "schedule"),
        ("calendar = 'HERE/calendar.csv'", "calendar"),
        ("signal = '/x'\nfallback_watts = 699", "fallback_watts"),
    ],
)
def test_a_limit_below_the_power_of_idle_nodes_is_refused_with_the_required_power(
    tmp_path: Path, limit: str, key: str
) -> None:
    calendar = tmp_path / "calendar.csv"
    calendar.write_text("time,watts\n2001-01-01,9000\n2100-01-01,699\n")
    calendar.chmod(0o644)
    text = "[budget]\nnode_reserve_watts = { 'n[1-4]' = 100, g1 = 300 }\n" + SITE + limit
    found = [finding for finding in findings(tmp_path, text) if finding.key == f"budgets.{key}"]
    assert [(finding.severity, finding.why) for finding in found] == [
        (Severity.ERROR, "699 W is below the 700 W that its nodes need beside processors and GPUs")
    ]
    assert found[0].todo.startswith("write 700 or more")
    calendar.write_text(calendar.read_text().replace("699", "700"))
    assert [line for line in lines(tmp_path, text.replace("699", "700")) if "below" in line] == []


def test_the_required_power_counts_the_nodes_under_the_budget(tmp_path: Path) -> None:
    reserve = (
        "[budget]\nnode_reserve_watts = { 'n[1-4]' = 100, g1 = 300 }\n[[budgets]]\nname = 'a'\nwatts = 9\n"
    )
    for scope, watts in (
        ("partition = 'gpu'", 300),
        ("nodes = 'n[1-2],g1'", 500),
        ("partition = 'all'", 700),
    ):
        (line,) = (e for e in lines(tmp_path, reserve + scope) if "below" in e)
        assert f"below the {watts} W" in line
    assert not [e for e in lines(tmp_path, reserve + "account = 'a'") if "below" in e]


def test_a_limit_below_the_idle_power_that_senergyctld_reports_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "energy.toml"
    path.write_text("[budget]\nmode = 'observe'\n" + SITE + "watts = 59e3\n")
    path.chmod(0o644)
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=cluster\nSlurmctldHost=elsewhere\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    fake = fake_controller.install(monkeypatch, {"/v1/budget": dict(budget_answers.status())})
    assert main(["config", "check", str(path)]) == 3
    line = "error: budgets.watts: 59000 W is below the 60000 W that it draws without any job"
    assert f"{path}:6: {line}" in capsys.readouterr().out
    path.write_text(path.read_text().replace("59e3", "60e3"))
    assert main(["config", "check", str(path)]) == 0
    path.write_text(path.read_text().replace("60e3", "59e3").replace("cluster = true", "qos = 'a'"))
    assert main(["config", "check", str(path)]) == 0
    assert len(fake.asked) == 3
    fake_controller.install(monkeypatch, {"/v1/budget": UnavailableError("controller", "refused")})
    assert main(["config", "check", str(path)]) == 0


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        (b"time,watts\n5,-1\n", 0o644, "HERE/calendar.csv: line 2: '-1' is not a limit"),
        (b"\xff", 0o644, "HERE/calendar.csv: is not UTF-8"),
        (b"time,watts\n5,5\n", 0o666, "HERE/calendar.csv: owner uid"),
    ],
)
def test_a_faulty_calendar_is_an_error(tmp_path: Path, content: bytes, mode: int, expected: str) -> None:
    (tmp_path / "calendar.csv").write_bytes(content)
    (tmp_path / "calendar.csv").chmod(mode)
    (line,) = (e for e in lines(tmp_path, SITE + "calendar = 'HERE/calendar.csv'\n") if "calendar" in e)
    assert line.startswith("error 4 budgets.calendar: " + expected.replace("HERE", str(tmp_path)))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("2100-01-01T00:00Z,5000", "gives no limit before its first row, 2"),
        ("2001-01-01T00:00Z,5000", "its last row, 200"),
        ("2001-01-01T00:00Z,5000\n2001-01-02T00:00Z,", ""),
    ],
)
def test_a_calendar_that_has_not_begun_or_has_ended_is_a_warning(
    tmp_path: Path, rows: str, expected: str
) -> None:
    (tmp_path / "calendar.csv").write_text(f"time,watts\n{rows}\n")
    (tmp_path / "calendar.csv").chmod(0o644)
    text = lines(tmp_path, SITE + "calendar = 'HERE/calendar.csv'\n")
    warnings = [line for line in text if line.startswith("warning 4 budgets.calendar: ")]
    assert [expected in line for line in warnings] == [True] * bool(expected)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("licenses", ["matlab:3"], "budget.admission: Licenses in /slurm.conf has no 'watts'"),
        ("licenses", ["watts:x"], "budget.admission: Licenses in /slurm.conf has no 'watts'"),
        ("licenses", ["watts:400"], "budget.license: Licenses=watts:400 in /slurm.conf is lower than"),
        (
            "jobsubmitplugins",
            ["all_partitions"],
            "budget.admission: JobSubmitPlugins in /slurm.conf has",
        ),
        (
            "schedulerparameters",
            ["defer"],
            "budget.admission: SchedulerParameters in /slurm.conf has",
        ),
        ("schedulertype", ["sched/builtin"], "budget.admission: sched/builtin in /slurm.conf does not plan"),
    ],
)
def test_slurm_must_support_the_admission(
    tmp_path: Path, setting: str, value: list[str], expected: str
) -> None:
    text = ENFORCED + SITE + "watts = 900\n"
    assert lines(tmp_path, text) == []
    (line,) = lines(tmp_path, text, {**SLURM, setting: value})
    assert line.startswith("warning") and expected in line
    assert lines(tmp_path, text.replace("\n", "\nadmission = 'off'\n", 1), {**SLURM, setting: value}) == []


def test_the_controller_does_not_start_without_a_calendar(tmp_path: Path) -> None:
    path = tmp_path / "energy.toml"
    path.write_text(f"{SITE}calendar = '{tmp_path}/none.csv'\n")
    path.chmod(0o644)
    host = Host(frozenset({"head"}), SlurmConf(Path("/slurm.conf"), settings=SLURM))
    found = [f for f in check_file(path, DaemonRole.CONTROLLER, host).errors if f.key == "budgets.calendar"]
    assert [finding.why for finding in found] == [f"{tmp_path}/none.csv: No such file or directory"]
    assert check_file(path, DaemonRole.NODE, host).findings == ()
