"""Tests of `senergy workload`, which prints statistics of workload files as text or JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_energy.cli.main import main

ROWS = """\
submit_s,time_s,units,time_limit_s,user,partition,power_watts
1767225600,100,1,200,ann,gpu,300
1767225700,100,2,50,bob,gpu,600
1767225900,100,4,,ann,cpu,
1767226000,0,4,,ann,cpu,
1767226000,x,4,,ann,cpu,
"""


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["workload", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_json_has_all_statistics_and_each_key_is_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.csv"
    file.write_text(ROWS)
    table = json.loads(shown(capsys, file, "--units", 2, "--nodes", 2, "--json"))
    assert (table["jobs"], table["rows"], table["rejected"], table["users"]) == (3, 4, 2, 2)
    reasons = {(entry["problem"], entry["line"]): entry["rejected"] for entry in table["problems"]}
    assert reasons == {("it never ran (run time 0)", 5): True, ("time_s is not a number", 6): True}
    period = table["period"]
    assert (period["begin"], period["span_s"]) == ("2026-01-01T00:00:00+00:00", 300.0)
    assert table["quantities"]["units"] == pytest.approx(
        {"count": 3, "mean": 7 / 3, "min": 1, "p25": 1.5, "median": 2, "p75": 3, "p95": 3.8, "max": 4}
    )
    assert table["quantities"]["watts_per_unit"]["count"] == 2  # the third is unknown, not 0
    assert table["quantities"]["unit_memory_gib"] is None
    assert table["outlasting_limit"] == 1
    assert (table["unit_hours"], table["peak_demand_units"]) == (pytest.approx(700 / 3600), 4)
    assert [entry["max_units"] for entry in table["sizes"]] == [1, 2, 4]
    assert sum(entry["work_share"] for entry in table["sizes"]) == pytest.approx(1)
    assert table["busiest_users"][0] == {"user": "ann", "jobs": 2, "work_share": pytest.approx(5 / 7)}
    assert table["cluster"] == {
        "units": 4,
        "nodes": 2,
        "offered_load": pytest.approx(700 / 300 / 4),
        "too_large_jobs": 0,
    }
    page = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()
    keys = {*table, *table["period"], *table["cluster"], *table["sizes"][0], *table["problems"][0]}
    assert [
        key for key in {*keys, *table["quantities"], *table["busiest_users"][0]} if f"`{key}`" not in page
    ] == []


def test_text_shows_load_sizes_and_rejected_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.csv"
    file.write_text(ROWS)
    text = shown(capsys, file, "--units", 2)
    for part in (
        "jobs:       3, and 2 rejected rows",
        "2026-01-01T00:00:00+00:00 to 2026-01-01T00:05:00+00:00",
        "1 jobs run longer than their time limit",
        "1 jobs are larger than the cluster",
        f"rejected        1  {file}:5: it never ran (run time 0)",
        "partitions: gpu, cpu",
    ):
        assert part in text
    assert "load:" not in shown(capsys, file)


def test_a_scenario_gives_files_columns_selection_and_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.csv").write_text(ROWS.replace("units", "gpus", 1))
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        '[cluster.a]\nnodes = 3\nunits = 4\n[workload]\nfile = "w.csv"\n'
        'columns = { units = "gpus" }\n[trace]\nusers = ["ann"]\n'
    )
    table = json.loads(shown(capsys, "--scenario", scenario, "--json"))
    assert (table["jobs"], table["cluster"]["units"], table["files"]) == (2, 12, [str(tmp_path / "w.csv")])
    assert table["remarks"] == ["[trace] uses 2 of 3 jobs (users 1)"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no file given"),
        (["missing.swf"], "No such file"),
        (["w.csv", "--units", "0"], "--units: 0 is not a number from 1"),
        (["w.csv", "--nodes", "9" * 30], "--nodes: 999"),
        (["w.csv", "--format", "pdf"], "format 'pdf' is not known"),
        (["--scenario", "training", "--units", "2"], "not possible together with --scenario"),
        (["--scenario", "training"], "no file given"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments, reason
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.csv").write_text(ROWS)
    assert main(["workload", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
