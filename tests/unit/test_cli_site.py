"""Tests of the commands `senergy policies`, `senergy status` and `senergy config`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import ForbiddenError, UnavailableError
from slurm_energy.protocol import agent_socket

NOW = 1795000000.0
POLICIES = {
    "policies": [
        {
            "name": "monitor",
            "base": "monitor",
            "description": "measure, change nothing",
            "users": [],
            "built_in": True,
        },
        {
            "name": "cap",
            "base": "cap",
            "description": "keep to --energy-cap and --energy-gpu-cap",
            "users": [],
        },
        {
            "name": "night",
            "base": "cap",
            "description": "cap with the site's values",
            "users": ["alice", "bob"],
            "settings": {
                "cap_watts": 400.0,
                "gpu_cap_watts": None,
                "max_frequency_mhz": 2100.0,
                "governor": "schedutil",
            },
        },
        {
            "name": "quiet",
            "base": "powersave",
            "description": "for nights in which somebody sleeps beside the machine room",
            "users": ["carol", "dave", "erin", "frank", "grace"],
            "settings": {"epp": "power"},
        },
    ],
    "bounds": {
        "cap_watts": [100.0, 10000.0],
        "gpu_cap_watts": [100.0, 400.5],
    },
    "defaults": {"policy": "monitor", "partition": {"gpu": "edp"}, "user": {"alice": "performance"}},
}
STATUS = {
    "version": "0.1.0",
    "cluster": "lab",
    "started": NOW - 90061,
    "uptime_s": 90061.0,
    "database": "/var/lib/senergy/senergy.db",
    "records": 1234,
    "records_without_job": 3,
    "traces": 300,
    "database_bytes": 12_345_678,
    "nodes": [
        {
            "cluster": "lab",
            "node": "n1",
            "last_record_end": NOW - 20,
            "last_received": NOW - 12,
            "spooled": None,
        },
        {
            "cluster": "lab",
            "node": "n2",
            "last_record_end": NOW - 9000,
            "last_received": NOW - 8000,
            "spooled": 7,
        },
    ],
    "enrichment": {"last_answer": NOW - 5, "last_error": None, "open_jobs": 2, "slurm_release": "22.05.8"},
}
AGENT = {
    "ok": True,
    "version": "0.1.0",
    "node": "n1",
    "jobs": [{"job_id": 12, "restart_count": 0, "policy": "edp", "phase": "running"}],
    "devices": {
        "counters": ["powercap:package-0", "powercap:dram-0", "nvml:gpu0"],
        "knobs": {"cpufreq.governor": 64, "powercap.power_limit": 1},
        "notes": ["no energy counter of the whole node"],
    },
    "spooled": 0,
    "sampling_hz": 1.0,
    "unrestored": ["cpufreq.governor[policy3]"],
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    monkeypatch.setattr(time, "time", lambda: NOW)


def agent_says(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | UnavailableError) -> None:
    def ask(path: Path, message: dict[str, Any]) -> dict[str, Any]:
        assert message == {"op": "status"}
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    monkeypatch.setattr(agent_socket, "ask_agent", ask)


def test_the_policies_match_the_golden_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/policies": POLICIES})
    assert main(["policies"]) == 0
    golden_files.compare("policies.txt", capsys.readouterr().out)
    assert main(["policies", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == POLICIES


def test_the_shipped_policies_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from slurm_energy.config import Config
    from slurm_energy.controller.policy_file import policies_answer

    answer = json.loads(json.dumps(policies_answer(Config())))
    fake_controller.install(monkeypatch, {"/v1/policies": answer})
    assert main(["policies"]) == 0
    output = capsys.readouterr().out
    for name in ("monitor", "performance", "powersave", "balanced", "cap", "edp", "ed2p", "energy"):
        assert f"\n{name} " in output
    assert "\n--energy-slowdown  0 to 100 %\n--energy-cpu-freq  100 to 10000 MHz\n" in output
    assert "objective\neverywhere: on\nslowdown of energy without --energy-slowdown: 5 %\n" in output


def test_the_status_matches_the_golden_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/status": STATUS})
    agent_says(monkeypatch, AGENT)
    assert main(["status"]) == 0
    golden_files.compare("status.txt", capsys.readouterr().out)


def test_the_status_shows_the_cost_of_sampling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/status": STATUS})
    agent_says(monkeypatch, {**AGENT, "signals": {"jobs": 10, "interval_s": 10.0, "cpu_percent": 0.031}})
    assert main(["status"]) == 0
    assert "\n  signals   10 jobs, every 10 s, 0.03 % of a core\n" in capsys.readouterr().out
    agent_says(monkeypatch, {**AGENT, "signals": {"jobs": 0, "interval_s": None, "cpu_percent": None}})
    assert main(["status"]) == 0
    assert "signals" not in capsys.readouterr().out


PRIORITY = {
    "mode": "shadow",
    "policy": "blend",
    "source": "squeue",
    "computed": None,
    "cycle_s": None,
    "pending": None,
    "ranked": None,
    "rank_correlation": None,
    "error": None,
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"mode": "off"}, "queue     not ordered by senergyctld (priority.mode is off)"),
        ({}, "queue     blend, shadow, not ranked yet"),
        (
            {
                "computed": 0,
                "cycle_s": 0.123,
                "pending": 320,
                "ranked": 312,
                "rank_correlation": {"jobs": 300, "kendall_tau": 0.412, "moved_jobs": 208},
            },
            "queue     blend, shadow, 312 of 320 pending jobs ranked 3 s ago in 0.12 s, "
            "208 of 300 would move, tau 0.41",
        ),
        (
            {"error": "squeue: timed out"},
            "queue     blend, shadow, not ranked yet, failed: squeue: timed out",
        ),
    ],
)
def test_the_status_shows_the_queue(changes: dict[str, Any], line: str) -> None:
    from slurm_energy.reports.status_text import controller_lines

    now = 1_800_000_000.0
    state = PRIORITY | changes
    if state["computed"] is not None:
        state["computed"] = now - 3
    assert f"  {line}" in controller_lines("http://c:6828", STATUS | {"priority": state}, now)


def test_the_status_shows_the_roles_of_several_controllers() -> None:
    from slurm_energy.reports.status_text import controller_lines

    active = {"name": "http://a:6828", "role": "active", "present": True, "seen_s": 1.0, "ready": True}
    active |= {"beside_slurmctld": True, "version": "0.2.0"}
    passive = active | {"name": "http://b:6828", "role": "passive", "beside_slurmctld": None}
    lease = {"active": "http://a:6828", "token": 7, "expires_s": 10.4, "controllers": [active, passive]}
    lines = controller_lines("http://a:6828, http://b:6828", STATUS | {"lease": lease}, 1_800_000_000.0)
    own = "http://a:6828 is active, version 0.2.0, token 7, lease for 10 s, beside the active slurmctld"
    assert [line for line in lines if line.startswith("  role ")] == [
        f"  role      {own}",
        "  role      http://b:6828 is passive, version 0.2.0",
    ]
    passive |= {"ready": False}
    lines = controller_lines("x", STATUS | {"lease": lease | {"controllers": [active, passive]}}, 0.0)
    assert any("cannot take over" in line for line in lines)
    passive |= {"present": False, "seen_s": 120.0}
    lines = controller_lines("x", STATUS | {"lease": lease | {"controllers": [active, passive]}}, 0.0)
    assert any("http://b:6828 is absent" in line and "last seen" in line for line in lines)


BUDGET = {"mode": "enforce", "budgets": 2, "decided": 1_800_000_000.0 - 2, "cycle_s": 0.05, "over": []}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "budgets   2, enforce, decided 2 s ago in 0.05 s"),
        ({"decided": None, "error": "no numpy"}, "budgets   2, enforce, no decision yet, failed: no numpy"),
        (
            {"over": ["site"], "silent_nodes": 3, "problems": ["no license"]},
            "budgets   2, enforce, decided 2 s ago in 0.05 s, ABOVE THE LIMIT: site, 3 nodes silent, "
            "failed: no license",
        ),
    ],
)
def test_the_status_shows_power_budgets(changes: dict[str, Any], line: str) -> None:
    from slurm_energy.reports.status_text import controller_lines

    lines = controller_lines("http://c:6828", STATUS | {"budget": BUDGET | changes}, 1_800_000_000.0)
    assert f"  {line}" in lines
    off = controller_lines("http://c:6828", STATUS | {"budget": {"mode": "off"}}, 1_800_000_000.0)
    assert not any("budgets" in text for text in off)


def test_a_login_node_without_agent_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = STATUS | {
        "nodes": [],
        "records": 0,
        "records_without_job": 0,
        "enrichment": {"last_error": "sacct: down"},
    }
    fake_controller.install(monkeypatch, {"/v1/status": fresh})
    agent_says(monkeypatch, UnavailableError("agent x", "No such file or directory"))
    assert main(["status"]) == 0
    golden_files.compare("status_login.txt", capsys.readouterr().out)


def test_a_node_without_knobs_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/status": STATUS})
    agent_says(monkeypatch, {"node": "vm", "devices": {"counters": [], "knobs": {}}})
    assert main(["status"]) == 0
    assert capsys.readouterr().out.endswith("  counters  none\n  knobs     none\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnavailableError("controller x", "refused"), 4), (ForbiddenError("munge", "no credential"), 5)],
)
def test_the_agent_is_shown_without_a_controller(
    error: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/status": error})
    agent_says(monkeypatch, AGENT)
    assert main(["status"]) == code
    output = capsys.readouterr().out
    assert output.startswith(f"controller  not reachable: {error}\n")
    assert "agent       n1, version 0.1.0" in output
    assert main(["status", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"controller": {"error": str(error)}, "agent": AGENT}


def test_a_dead_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No such file or directory: is senergyd running"):
        agent_socket.ask_agent(tmp_path / "none.sock", {"op": "status"})


def test_the_example_configuration_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "example"]) == 0
    file = tmp_path / "energy.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out.endswith(f"{file}: ok\n")


def test_config_show_output_is_a_valid_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, again = tmp_path / "energy.toml", tmp_path / "again.toml"
    file.write_text('[cluster]\nname = "x"\n[policies.night]\nbase = "cap"\ncap_watts = 400\n')
    assert main(["config", "show", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"# In force: {file}\n")
    again.write_text(shown)
    assert main(["config", "show", str(again)]) == 0
    values = [line.partition("  # ")[0] for line in shown.splitlines()[1:]]  # without the origin
    assert [line.partition("  # ")[0] for line in capsys.readouterr().out.splitlines()[1:]] == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[agent]\nsampling_hertz = 2\n",
            ":2: error: agent.sampling_hertz: unknown key: did you mean 'sampling_hz'?",
        ),
        ("[agent]\nsampling_hz = 2000\n", ":2: error: agent.sampling_hz: must be from 0.1 to 50, not 2000"),
        ('[defaults]\npolicy = "fast"\n', ":2: error: defaults.policy: 'fast' is not a policy"),
    ],
)
def test_a_wrong_configuration_is_exit_code_3(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "energy.toml"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{file}{said}")
    assert lines[-1] == f"{file}: 1 error"
    assert main(["config", "check", "--json", str(file)]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["file"], report["errors"]) == (str(file), 1)
    assert report["findings"][0]["severity"] == "error"
