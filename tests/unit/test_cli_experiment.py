"""Tests of `senergy experiment`, which sums results of jobs by group.

The results must have the names and definitions of the simulator's results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import numpy as np
import pytest
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.cli import experiment
from slurm_energy.cli.main import main
from slurm_energy.reports import summary
from slurm_energy.reports.usage import AccountedRecord, summarise
from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.fairness import jain
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload

START = examples.START


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    with fake_controller.timezone("UTC"):
        yield


def a_job(job_id: int, submit: float, start: float, end: float, joules: float | None, **changes: Any) -> Any:
    """Return an example job with one energy record.

    `changes` replace values of the record or of Slurm's data about the job.
    """
    facts = {key: changes.pop(key) for key in ("state", "account", "requested") if key in changes}
    user = changes.get("user", "alice")
    info = examples.job_info(job_id, submit=submit, start=start, end=end, user=user, **facts)
    parts = (examples.component("cpu", joules),)
    return examples.answer(examples.record(job_id, start=start, end=end, components=parts, **changes), info)


def mixed() -> list[Any]:
    jobs = [
        a_job(1, START, START + 10, START + 110, 20_000, tag="run-a", account="physics"),
        a_job(2, START + 5, START + 110, START + 310, 60_000, tag="run-b", user="bob", account="biology"),
        a_job(3, START + 6, START + 20, START + 60, 4000, state="FAILED", user="bob", account="biology"),
        a_job(4, START + 7, START + 30, START + 90, None, state="DEADLINE", account="physics"),
        a_job(
            *(5, START + 8, START + 400, START + 500, 30_000),
            requested="cpu=4,gres/gpu:h100=2,node=1",
            gpus=(0, 1),
            policy="edp",
        ),
        a_job(6, START + 9, START + 50, START + 70, 1000, state="CANCELLED by 1001", gpus=(0,)),
    ]
    requeued = a_job(5, START + 8, START + 100, START + 200, 8000, state="PREEMPTED", policy="edp")
    jobs[4]["restart_count"] = 1
    unknown = examples.answer(examples.record(7, start=START + 100, end=START + 130, user=None, uid=77), None)
    return [*jobs, requeued, unknown]


def show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, answers: Any = None
) -> str:
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    records = mixed() if answers is None else answers
    fake = fake_controller.install(monkeypatch, {"/v1/records": {"scope": "all", "records": records}})
    assert main(["experiment", *arguments]) == 0
    ((_, query),) = fake.asked
    assert query["duplicates"] == "1"
    assert query["steps"] == "0"
    return capsys.readouterr().out


ALL_TIMES = ("-a", "-S", "2026-11-01", "-E", "2026-12-01")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("experiment_default.txt", []),
        ("experiment_users.txt", ["--by", "user"]),
        ("experiment_gpus.txt", ["--by", "gpu", "-P"]),
        ("experiment_tags.txt", ["--by", "tag", "--tag", "run-*", "-n"]),
    ],
)
def test_reports_match_golden_files(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    golden_files.compare(name, show(monkeypatch, capsys, *ALL_TIMES, *arguments))


def test_an_empty_window_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(show(monkeypatch, capsys, *ALL_TIMES, "--json", answers=[]))
    assert document["groups"] == []
    assert document["total"]["jobs"] == 0
    assert document["total"]["job_kwh"] is None
    assert document["total"]["mean_jct_s"] is None


def test_the_figures_of_a_window(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    total = json.loads(show(monkeypatch, capsys, *ALL_TIMES, "--json"))["total"]
    assert total["jobs"] == 7
    assert total["completed"] == 3
    assert total["states"] == {"CANCELLED": 1, "COMPLETED": 3, "DEADLINE": 1, "FAILED": 1, "unknown": 1}
    joules = 20_000 + 60_000 + 4000 + 30_000 + 8000 + 1000 + 17_600
    assert total["job_energy_joules"] == pytest.approx(joules)
    assert total["jobs_without_energy"] == 1
    assert total["lost_kwh"] == pytest.approx(8000 / 3.6e6)
    assert total["makespan_s"] == 500
    assert total["jobs_per_hour"] == pytest.approx(3 / (500 / 3600))
    spent = [110, 305, 492]
    assert total["mean_jct_s"] == pytest.approx(np.mean(spent))
    assert total["p95_jct_s"] == pytest.approx(np.quantile(spent, 0.95))
    assert total["max_wait_s"] == 105
    assert total["job_edp_js"] == pytest.approx(joules * np.mean(spent))
    assert total["job_mean_watts"] == pytest.approx(joules / 500)
    assert total["deadline_kills"] == 1


def test_jobs_that_ended_outside_the_window_do_not_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    window = ("-a", "-S", f"uts{START + 100:.0f}", "-E", f"uts{START + 310:.0f}")
    total = json.loads(show(monkeypatch, capsys, *window, "--json"))["total"]
    assert total["states"] == {"COMPLETED": 1, "unknown": 1}


def test_runs_from_before_the_window_count_for_a_requeued_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    early, last, other = (
        a_job(5, START, START + 100, START + 200, 8000, state="PREEMPTED"),
        a_job(5, START + 200, START + 400, START + 500, 30_000),
        a_job(6, START, START + 100, START + 200, 70_000),
    )
    last |= {"restart_count": 1, "record_id": "second"}
    fake = fake_controller.install(monkeypatch, {})

    def get(_: str, query: dict[str, str]) -> dict[str, Any]:
        fake.asked.append(("", query))
        return {"records": [last] if len(fake.asked) == 1 else [early, last, other]}

    monkeypatch.setattr(fake, "get", get)
    window = ("-S", f"uts{START + 300:.0f}", "-E", f"uts{START + 600:.0f}", "-A", "physics")
    assert main(["experiment", *window, "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert (total["jobs"], total["job_energy_joules"]) == (1, 38_000)
    assert (total["first_submit"], total["max_wait_s"]) == (START, 100)
    asked = fake.asked[1][1]
    assert (asked["job"], asked["end"], asked["account"]) == ("5", f"{START + 300:.0f}", "physics")
    assert "start" not in asked


def test_patterns_match_only_jobs_with_tags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    total = json.loads(show(monkeypatch, capsys, *ALL_TIMES, "--tag", "*", "--json"))["total"]
    assert total["jobs"] == 2


def test_the_chart_contains_every_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "r.png"
    show(monkeypatch, capsys, *ALL_TIMES, "--by", "user", "--png", str(picture))
    few = picture.read_bytes()
    assert few.startswith(b"\x89PNG")
    many = [
        a_job(i, START, START + 1, START + 2, None if i == 3 else 5.0 * i, user=f"$u{i}_")
        for i in range(1, 40)
    ]
    show(monkeypatch, capsys, *ALL_TIMES, "--by", "user", "--png", str(picture), answers=many)

    def height(png: bytes) -> int:
        return int.from_bytes(png[20:24], "big")

    assert height(few) < height(picture.read_bytes()) < 2 * height(few) + 800


@pytest.mark.parametrize(("target", "answers", "code"), [("/nowhere/x.png", None, 1), ("x.png", [], 6)])
def test_chart_errors_are_one_line(
    target: str,
    answers: Any,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    records = mixed() if answers is None else answers
    fake_controller.install(monkeypatch, {"/v1/records": {"records": records}})
    assert main(["experiment", *ALL_TIMES, "--png", target]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_reused_ids_are_different_jobs() -> None:
    records = [
        a_job(1, START, START + 1, START + 2, 10.0),
        a_job(1, START + 9000, START + 9001, START + 9002, 10.0),
    ]
    usages = summarise(map(AccountedRecord.from_json, records), duplicates=True)
    assert [len(job.runs) for job in summary.whole_jobs(usages)] == [1, 1]


def test_group_choices_match_the_defined_groups() -> None:
    assert set(experiment.GROUPS) == set(summary.GROUPS)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1000),
            st.integers(0, 500),
            st.integers(1, 2000),
            st.floats(1, 1e9),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_groups_sum_up_to_the_total(rows: list[tuple[int, int, int, float, int]]) -> None:
    records = [
        a_job(i, START + at, START + at + wait, START + at + wait + time, joules, user=f"u{user}")
        for i, (at, wait, time, joules, user) in enumerate(rows, 1)
    ]
    jobs = summary.whole_jobs(summarise(map(AccountedRecord.from_json, records), duplicates=True))
    groups, total = summary.grouped(jobs, "user"), summary.totals(jobs)
    assert sum(group.jobs for group in groups.values()) == total.jobs == len(rows)
    assert sum(group.energy_joules or 0 for group in groups.values()) == pytest.approx(total.energy_joules)
    for group in groups.values():
        assert group.makespan_s is not None
        assert total.makespan_s is not None
        assert group.makespan_s <= total.makespan_s
        assert group.mean_jct_s is not None
        assert group.mean_jct_s <= group.jct_s[-1] + 1e-9


def test_figures_have_the_simulators_definitions() -> None:
    """The report on real jobs and the simulator compute the same totals for the same jobs.

    The test converts a simulated run to energy records, and compares the totals with the summary of the
    simulator.
    """
    table = workload(
        np.arange(7),
        {"submit_s": [0.0, 3, 4, 20, 21, 30], "user": [0, 1, 1, 0, 2, 1]},
        {"units": [4, 4, 8, 2, 8, 1], "time_s": [50.0, 30, 10, 90, 20, 5], "power_watts": [400.0] * 6},
        users=("u0", "u1", "u2"),
    )
    outcome = simulate(table, [NodeKind("n", 8, 1)], policy("sjf"), ScheduleSettings(Discipline.EASY))
    accounts = outcome.accounts
    records = [
        a_job(
            *(i + 1, START + table.submit_s[i], START + accounts.start_s[i], START + accounts.end_s[i]),
            float(accounts.energy_joules[i]),
            user=f"u{table.user[i]}",
        )
        for i in range(6)
    ]
    live = summary.totals(summary.whole_jobs(summarise(map(AccountedRecord.from_json, records)))).to_json()
    simulated = outcome.summary()
    shared = sorted(set(live) & set(simulated))
    assert {"job_kwh", "job_edp_js", "jobs_per_hour", "mean_jct_s", "p95_wait_s", "makespan_s"} <= set(shared)
    assert {name: live[name] for name in shared} == pytest.approx({name: simulated[name] for name in shared})


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], part: float) -> None:
    values = sorted(values)
    assert summary._quantile(values, part) == pytest.approx(np.quantile(values, part), rel=1e-9, abs=1e-300)


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=30))
def test_the_fairness_index_is_that_of_the_policies(values: list[float]) -> None:
    expected = jain(np.array(values)) if any(values) else None
    assert summary._jain(values) == (None if expected is None else pytest.approx(expected, rel=1e-9))


@pytest.mark.parametrize("joules", [3.5e6, 3.7e6, 12.0, 4e12])
def test_the_columns_of_a_report_have_the_same_unit_whatever_the_energy(
    joules: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job(1, START, START + 10, START + 110, joules)]
    header, row = show(monkeypatch, capsys, *ALL_TIMES, "-P", answers=jobs).splitlines()
    values = dict(zip(header.split("|"), row.split("|"), strict=True))
    assert float(values["EnergykWh"]) == pytest.approx(joules / 3.6e6, abs=1e-9)
    assert float(values["EDP(J*s)"]) == pytest.approx(joules * 110)
    table = show(monkeypatch, capsys, *ALL_TIMES, answers=jobs).splitlines()
    assert table[4].split() == header.split("|")
    assert float(table[6].split()[3]) == pytest.approx(joules / 3.6e6, rel=0.02, abs=1e-6)


def test_unknown_energy_is_marked_in_tables_and_empty_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job(1, START, START + 10, START + 110, None)]
    table = show(monkeypatch, capsys, *ALL_TIMES, "-n", answers=jobs).splitlines()[0].split()
    assert (table[3], table[4], table[-1]) == ("unknown", "unknown", "unknown")
    row = show(monkeypatch, capsys, *ALL_TIMES, "-np", answers=jobs).split("|")
    assert (row[3], row[5], row[-2], row[-1]) == ("", "", "", "\n")
