"""Tests of `senergy top --cluster`, which shows the power of budgets, jobs and nodes."""

from __future__ import annotations

import json
from typing import Any

import budget_answers
import fake_controller
import golden_files
import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import UnavailableError
from slurm_energy.reports.budgets.cluster_power import cluster_screen
from slurm_energy.reports.plots.text_plot import ASCII


def test_the_screen_shows_budgets_jobs_and_nodes() -> None:
    with fake_controller.timezone("UTC"):
        lines = cluster_screen(budget_answers.status(), "12:00:00", ASCII)
    golden_files.compare("top_cluster.txt", "\n".join(lines) + "\n")


def test_long_lists_are_cut_and_nodes_that_need_attention_come_first() -> None:
    response: dict[str, Any] = dict(budget_answers.status())
    template = response["nodes"][0]
    response["nodes"] = [
        {
            **template,
            "node": f"n{i:05d}",
            "measured_watts": float(i),
            "state": "silent" if i == 3 else "reporting",
        }
        for i in range(10_000)
    ]
    lines = cluster_screen(response, "12:00:00", ASCII, 2)
    rows = [line for line in lines if line.startswith("n0")]
    assert [row.split()[0] for row in rows] == ["n00003", "n09999"]
    assert lines[-1] == "... and 9998 more nodes" and lines[0].startswith("50.0 MW on 10000 of 10000 nodes")


def test_a_cluster_without_budgets_has_a_screen() -> None:
    lines = cluster_screen({"mode": "off", "budgets": [], "nodes": [], "jobs": []}, "12:00:00", ASCII)
    assert lines[0] == "unknown power on 0 of 0 nodes  mode off  12:00:00"
    assert "budget.mode is off, or there is no table [[budgets]]" in lines[2] and len(lines) == 4
    assert "no budget is configured" not in lines  # budgets may be configured, but not computed
    lines = cluster_screen({"mode": "observe", "budgets": [], "nodes": [], "jobs": []}, "12:00:00", ASCII)
    assert {"no budget is configured", "no running job to show", "no node to show"} <= set(lines)


def test_a_note_names_nodes_without_known_power() -> None:
    response = {"budgets": [{"name": "site", "nodes": 2, "unmeasured_nodes": 1}]}
    note = "note: budget site: 1 of 2 nodes report no power, counted at budget.node_reserve_watts"
    assert any(line.startswith(note) for line in cluster_screen(response, "12:00:00", ASCII))


def test_the_command_asks_the_controller(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = fake_controller.install(monkeypatch, {"/v1/budget": dict(budget_answers.status())})
    assert main(["top", "--cluster", "--once", "--ascii"]) == 0
    assert "site" in capsys.readouterr().out
    assert main(["top", "--cluster", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][1]["state"] == "silent"
    assert fake.asked == [("/v1/budget", {"plan_hours": "0", "nodes": "1", "jobs": "1"})] * 2


def test_a_missing_controller_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/budget": UnavailableError("controller x", "refused")})
    assert main(["top", "--cluster"]) == 4
    assert capsys.readouterr().err == "senergy: error: controller x: refused\n"
