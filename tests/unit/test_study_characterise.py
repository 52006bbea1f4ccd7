"""Tests of the step `characterise` of a study.

The tests cover the classes of jobs, the response curves of the classes, and the plan of missing
measurements.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_controller import install
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from study_examples import week_jobs
from test_sweep_runs import EmulatedCluster

from slurm_energy.cli import main as cli
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.study.characterisation.characterise import read_classes
from slurm_energy.study.characterisation.curve_sources import curve_programs, read_curves
from slurm_energy.study.characterisation.job_classes import classified, job_class_of, job_classes, programs_of
from slurm_energy.study.data.jobs_table import JobsTable, csv_text, jobs_table
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.sweep.runner import SweepCluster


def point(time_ratio: float, power_ratio: float, cap: float, error: float = 0.01) -> dict[str, Any]:
    return {
        "point": {"gpu_cap_watts": cap},
        "time_ratio": time_ratio,
        "power_ratio": power_ratio,
        "time_error": error,
    }


def answer(**program: Any) -> dict[str, Any]:
    curve = {"points": [point(1.0, 1.0, 300), point(1.02, 0.9, 250)]}
    base = {"user": "alice", "workload": "f00d", "model": None, "last_job": None, "curve": curve}
    return {"scope": "all", "programs": [base | program, base | {"workload": "other", "curve": None}]}


def test_classes_are_ranges_of_what_makes_programs_differ() -> None:
    jobs = week_jobs(7)
    classes = job_classes(jobs)
    assert [one.programs for one in classes] == [("bob/analyse",), ("alice/train",)]
    assert len({name for one in classes for name in one.ranges}) == 1
    assert classes[0].name.startswith("up to ")
    again = [job_class_of(json.loads(json.dumps(one.to_json()))) for one in classes]
    assert [(one.name, dict(one.ranges)) for one in again] == [(c.name, dict(c.ranges)) for c in classes]


def test_a_new_program_belongs_to_the_class_of_its_features() -> None:
    jobs = week_jobs(7)
    classes = job_classes(jobs)
    renamed = jobs.with_columns(user=["carol"] * jobs.count)
    assert np.array_equal(classified(jobs, classes).job_class, classified(renamed, classes).job_class)
    assert "" not in classified(renamed, classes).job_class.tolist()


def test_tuned_jobs_stay_in_their_class() -> None:
    jobs = week_jobs(7)
    classes = job_classes(jobs)
    tuned = jobs.with_columns(energy_joules=jobs.energy_joules * 0.3)
    assert np.array_equal(classified(jobs, classes).job_class, classified(tuned, classes).job_class)


def test_digits_in_names_do_not_make_programs() -> None:
    jobs = jobs_table(submit_s=[0, 0, 0], name=["run1", "run22", "run"], user=["a", "a", "a"])
    assert programs_of(jobs).tolist() == ["a/run#", "a/run#", "a/run"]


def test_classes_of_the_data_are_kept() -> None:
    jobs = week_jobs(7)
    named = jobs.with_columns(job_class=np.where(jobs.name == "train", "memory-bound", ""))
    classes = [job_class_of(one.to_json()) for one in job_classes(named)]
    assert [(one.name, one.programs) for one in classes] == [
        ("memory-bound", ()),
        ("all jobs", ("bob/analyse",)),
    ]
    found = classified(named, classes).job_class
    assert np.array_equal(found == "memory-bound", jobs.name == "train")


def table(rows: list[tuple[int, float, float]]) -> JobsTable:
    return jobs_table(
        submit_s=[0.0] * len(rows),
        start_s=[0.0] * len(rows),
        name=[f"{chr(97 + number)}" for number in range(len(rows))],
        user=["u"] * len(rows),
        nodes=[row[0] for row in rows],
        end_s=[row[1] for row in rows],
        energy_joules=[row[0] * row[1] * row[2] for row in rows],
    )


@examples(15)
@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(1, 1e5), st.floats(50, 3000)), min_size=1, max_size=20)
)
def test_classes_divide_all_programs_and_contain_them(rows: list[tuple[int, float, float]]) -> None:
    jobs = table(rows)
    classes = job_classes(jobs, 5)
    assert 1 <= len(classes) <= 5
    assert sorted(name for one in classes for name in one.programs) == sorted(programs_of(jobs).tolist())
    assert len({one.name for one in classes}) == len(classes)
    by_features = classified(jobs, [job_class_of(one.to_json() | {"programs": []}) for one in classes])
    assert by_features.job_class.tolist() == classified(jobs, classes).job_class.tolist()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    (folder / "jobs.csv").write_text(csv_text(week_jobs(15)))
    assert cli.main(["study", "init", str(folder / "study")]) == 0
    assert cli.main(["study", "baseline", str(folder / "study"), "--jobs", str(folder / "jobs.csv")]) == 0
    return folder / "study"


@pytest.fixture
def study(tmp_path: Path, measured: Path) -> Path:
    return shutil.copytree(measured, tmp_path / "study")


def test_curves_of_a_file_cover_their_classes(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = study.parent / "curves.json"
    curves.write_text(json.dumps(answer(model="train")))
    capsys.readouterr()
    command = ["study", "characterise", str(study), "--curves", str(curves), "--budget", "2", "--json"]
    assert cli.main(command) == 0
    result = json.loads(capsys.readouterr().out)
    other, trained = result["classes"]
    assert trained["programs"] == ["alice/train"]
    assert [p["time_ratio"] for p in trained["points"]] == pytest.approx([1.0, 1.02])
    assert [p["power_ratio"] for p in trained["points"]] == pytest.approx([1.0, 0.9])
    assert trained["points"][1]["settings"] == {"gpu_cap_watts": 250}
    assert trained["points"][1]["deviation"] == pytest.approx(0.01)
    assert other["points"] == []
    assert result["covered_energy"] == pytest.approx(trained["energy_share"])
    (item,) = result["plan"]
    assert (item["program"], item["runs"], item["in_budget"]) == ("bob/analyse", 12, False)
    assert item["node_hours"] == pytest.approx(12 * 900 / 3600, rel=0.1)
    assert result["planned_node_hours"] == 0
    assert [one.name for one in read_classes(StudyDirectory(study))] == [other["name"], trained["name"]]


def test_a_curve_belongs_to_the_program_of_its_last_job(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = week_jobs(15)
    last = jobs.job_id[jobs.name == "analyse"][-1]
    install(monkeypatch, {"/v1/tuning": answer(user="bob", last_job=int(last))})
    assert cli.main(["study", "characterise", str(study)]) == 0
    assert "Response curves cover" in capsys.readouterr().out
    assert StudyDirectory(study).result("characterise")["matched_programs"] == ["bob/analyse"]


def sweep_point(cap: str, time_s: float | None, joules: float) -> dict[str, Any]:
    return {
        "settings": {"gpu-cap": cap},
        "time_s": time_s,
        "time_s_deviation": None if time_s is None else 0.01 * time_s,
        "energy_joules": joules,
        "runs": 4,
    }


def test_a_sweep_gives_the_curve_of_a_planned_program(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves, sweep = study.parent / "curves.json", study.parent / "sweep.json"
    curves.write_text(json.dumps(answer(model="train")))
    points = [sweep_point("300", 100, 3e4), sweep_point("200", 110, 2.2e4), sweep_point("100", None, 0)]
    sweep.write_text(json.dumps({"points": points}))
    options = ["--curves", str(curves), "--json", "--sweep"]
    capsys.readouterr()
    assert cli.main(["study", "characterise", str(study), *options, f"bob/analyse={sweep}"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["plan"] == []
    point = result["classes"][0]["points"][1]
    assert point["time_ratio"] == pytest.approx(1.1)
    assert point["power_ratio"] == pytest.approx(200 / 300)
    assert point["deviation"] == pytest.approx(0.005 * 2**0.5)
    assert cli.main(["study", "characterise", str(study), *options, f"no/program={sweep}"]) == 0
    assert json.loads(capsys.readouterr().out)["unmatched_programs"] == 1
    capsys.readouterr()
    assert cli.main(["study", "characterise", str(study), "--sweep", "no/program=missing.json"]) == 2
    assert "missing.json: No such file or directory: write it with: senergy sweep" in capsys.readouterr().err
    sweep.write_text(json.dumps({"points": points[::-1]}))
    assert cli.main(["study", "characterise", str(study), *options, f"bob/analyse={sweep}"]) == 2
    assert "its reference point is not measured" in capsys.readouterr().err


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedCluster]:
    """Let parameter sweeps run on emulated clusters instead of Slurm.

    Return a list to which each emulated cluster is added when a sweep uses it.
    """
    monkeypatch.setattr("slurm_energy.sweep.runner.POLL_S", 0.0)
    install(monkeypatch, {"/v1/tuning": UnavailableError("senergyctld", "does not answer")})
    used: list[EmulatedCluster] = []

    def access(submitter: Any, args: object) -> SweepCluster:
        emulated = EmulatedCluster(submitter.state)
        emulated.tags = dict.fromkeys(range(101, 200), submitter.state.tag)
        used.append(emulated)
        return SweepCluster(emulated.submit, emulated.find, emulated.read_states, emulated.records)

    monkeypatch.setattr("slurm_energy.cli.sweep.cluster_access", access)
    return used


def test_planned_sweeps_run_within_their_node_hours_and_continue(
    study: Path, slurm: list[EmulatedCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    script = study.parent / "analyse.sh"
    script.write_text("#!/bin/sh\n")
    command = ["study", "characterise", str(study), "--run", "--json", "--gpu-cap", "200,250"]
    command += ["--script", f"bob/analyse={script}", "--budget"]
    capsys.readouterr()
    assert cli.main([*command, "1"]) == 2
    assert "--script bob/analyse: its sweep takes 1.5 node-hours" in capsys.readouterr().err
    assert not slurm
    assert cli.main([*command, "100"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(slurm[0].jobs) == 5  # three settings twice, without the repetition of a dominated one
    (measured,) = result["measured"]
    assert (measured["program"], measured["runs"], measured["is_stored"]) == ("bob/analyse", 5, True)
    assert measured["node_hours"] == pytest.approx(sum((10, 10, 10, 10, 22.5)) / 3600)
    assert [item["program"] for item in result["plan"]] == ["alice/train"]
    points = next(one["points"] for one in result["classes"] if one["points"])
    assert [point["time_ratio"] for point in points] == pytest.approx([1.0, 1.0, 2.25])
    assert cli.main([*command, "100"]) == 0  # the curve is stored: no job runs again
    assert len(slurm) == 1
    capsys.readouterr()
    assert cli.main(["study", "characterise", str(study), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == result["classes"]
    assert cli.main([*command, "100", "--script", f"bob/none={script}"]) == 2
    assert "--script bob/none: is not in the plan: one of alice/train" in capsys.readouterr().err


def test_no_job_is_submitted_beyond_the_node_hours(
    study: Path, slurm: list[EmulatedCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    script = study.parent / "analyse.sh"
    script.write_text("#!/bin/sh\n#SBATCH --nodes=10000\n")  # the jobs in the data have one node
    command = ["study", "characterise", str(study), "--run", "--gpu-cap", "200,250"]
    command += ["--script", f"bob/analyse={script}", "--budget"]
    assert cli.main([*command, "2550"]) == 1  # a run is expected to take 2500, and takes 28 or 63
    assert "not complete: beyond the node-hours of --budget" in capsys.readouterr().out
    assert len(slurm[0].jobs) == 2
    assert cli.main([*command, "100000"]) == 0
    assert len(slurm[1].jobs) == 3


def test_measuring_needs_programs_settings_and_a_bound(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "characterise", str(study)]
    script = ["--script", "bob/analyse=a.sh"]
    for words, fault in (
        (script, "--script: belongs to --run"),
        (["--gpu-cap", "200"], "--gpu-cap: belongs to --run"),
        (["--", "-p", "gpu"], "--: belongs to --run"),
        (["--run"], "--run: names no program"),
        (["--run", *script], "--run: has no bound: --budget NODE_HOURS"),
        (["--run", *script, "--budget", "5"], "--run: has no setting to vary"),
        (
            ["--run", "--script", "a.sh", "--budget", "5", "--gpu-cap", "200"],
            "--script a.sh: is not USER/NAME=FILE",
        ),
    ):
        assert cli.main([*command, *words]) == 2
        assert fault in capsys.readouterr().err, words


def test_without_curves_everything_is_planned(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, {"/v1/tuning": UnavailableError("senergyctld", "does not answer")})
    assert cli.main(["study", "characterise", str(study), "--classes", "1"]) == 0
    captured = capsys.readouterr()
    assert "no response curves: senergyctld: does not answer" in captured.err
    assert "Run them with" in captured.out
    result = StudyDirectory(study).result("characterise")
    assert [one["name"] for one in result["classes"]] == ["all jobs"]
    assert [item["in_budget"] for item in result["plan"]] == [True]


def test_malformed_curves_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    for text in ("", "[]", "{}", '{"programs": [3]}', '{"programs": [{"curve": {"points": [{}]}}]}'):
        path.write_text(text)
        with pytest.raises(UsageError) as caught:
            read_curves(path)
        assert len(caught.value.lines) == 1
    assert curve_programs({"programs": [{"curve": None}]}) == []


@pytest.mark.parametrize(
    "options", [["--classes", "0"], ["--budget", "-1"], ["--curves", "/missing"], ["--sweep", "a=b"]]
)
def test_wrong_options_are_one_line(
    study: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert cli.main(["study", "characterise", str(study), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
