"""Tests of `senergy diagnose` with output as text, JSON and HTML.

The diagnosed jobs have signals or only power, are finished or running, or are unknown.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import diagnosis_examples
import fake_controller
import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import ForbiddenError, NotFoundError
from slurm_energy.protocol import agent_socket
from slurm_energy.safe_text import display_width
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED
from slurm_energy_lab.diagnosis_corpus.scores import build

SLOW_STORAGE = build(next(job for job in PLANTED if job.name == "slow-storage"), 6)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    answers: dict[str, Any] = diagnosis_examples.answers(
        SLOW_STORAGE, name="<script>alert(1)</script>\x1b[2J"
    )
    return fake_controller.install(
        monkeypatch,
        answers
        | {
            "/v1/jobs/5": ForbiddenError("job 5", "it belongs to another user"),
            "/v1/jobs/9": NotFoundError("job 9", "no energy record"),
        },
    )


def test_page_names_the_cause_first_with_evidence(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "7", "--ascii"]) == 0
    text = capsys.readouterr().out
    assert "  1. Steps wait for data" in text and "docs/findings/data-stall-io.md" in text
    assert "Tasks waited for I/O" in text and "J per step" in text and "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_page_of_names_with_wide_characters_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = build(next(job for job in PLANTED if job.name == "slow-iterations"), 6)
    named = [replace(one, phase="\u96ea" * 64) for one in job.nodes[0].ranks[0].outliers]
    ranks = tuple(replace(rank, outliers=tuple(named)) for rank in job.nodes[0].ranks)
    nodes = (replace(job.nodes[0], ranks=ranks), *job.nodes[1:])
    answers = diagnosis_examples.answers(replace(job, nodes=nodes), name="\u96ea" * 200, user="\u96ea" * 32)
    fake_controller.install(monkeypatch, answers)
    assert main(["diagnose", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("\u96ea" in line for line in lines) > 3
    assert max(map(display_width, lines)) == 80


def test_json_has_summary_findings_and_null_for_unknown(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["kind"] == "data-stall-io"
    assert document["findings"][0]["joules_lost"] > 0
    assert document["summary"]["joules_per_step"] > 0
    assert set(document) == {"meta", "job", "summary", "findings", "is_short", "advice", "settings"}


def test_html_escapes_text_from_users(controller: fake_controller.FakeController, tmp_path: Path) -> None:
    file = tmp_path / "job.html"
    assert main(["diagnose", "7", "--html", str(file)]) == 0
    page = file.read_text("utf-8")
    assert "Steps wait for data" in page and "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page


def test_exit_codes_of_the_accounting_are_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = build(next(job for job in PLANTED if job.name == "early-failure"), 6)
    codes = {"exit_code": "1:0", "step_exit_code": "0:11"}
    fake_controller.install(monkeypatch, diagnosis_examples.answers(job, **codes))
    assert main(["diagnose", "7"]) == 0
    text = capsys.readouterr().out
    assert "      State: FAILED, exit code 1" in text
    assert "with exit code 1 after" in text and "ended with signal 11 (SIGSEGV)" in text
    assert main(["diagnose", "7", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)["job"]
    assert {name: described[name] for name in codes} == codes


@pytest.mark.parametrize("observed", [NotFoundError("job 7", "no observation"), {"nodes": []}])
def test_job_without_signals_is_judged_by_its_energy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], observed: Any
) -> None:
    answers = diagnosis_examples.answers(SLOW_STORAGE)
    answers["/v1/jobs/7/observation"] = observed
    fake_controller.install(monkeypatch, answers)
    assert main(["diagnose", "7"]) == 0
    captured = capsys.readouterr()
    assert "None." in captured.out and "no signals were observed" in captured.err


def test_hostile_observation_of_a_node_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = diagnosis_examples.answers(SLOW_STORAGE)
    answers["/v1/jobs/7/observation"] = {"nodes": [{"node": "n1", "series": "x"}, None, 5]}
    fake_controller.install(monkeypatch, answers)
    assert main(["diagnose", "7"]) == 0
    assert "Diagnosis of job 7" in capsys.readouterr().out


def test_running_job_is_judged_by_the_signals_of_its_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = diagnosis_examples.answers(SLOW_STORAGE)
    full = answers["/v1/jobs/7"]["records"]
    (node,) = answers["/v1/jobs/7/observation"]["nodes"]
    answers["/v1/jobs/7"] = NotFoundError("job 7", "no energy record")
    records = [item | {"job": None, "trace": None} for item in full]
    answers["/v1/running"] = {"scope": "own", "nodes": [], "records": records}
    fake = fake_controller.install(monkeypatch, answers)
    live = {"ok": True, "node": "n1", "observation": node, "trace": full[0]["trace"]}
    monkeypatch.setattr(agent_socket, "ask_agent", lambda path, message, **_: live if message else {})
    assert main(["diagnose", "7"]) == 0
    text = capsys.readouterr().out
    assert "RUNNING" in text and "1. Steps wait for data" in text
    assert ("/v1/running", {"job": "7"}) in fake.asked


def test_running_job_on_another_node_is_judged_by_its_energy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers = diagnosis_examples.answers(SLOW_STORAGE)
    records = [item | {"job": None, "trace": None} for item in answers["/v1/jobs/7"]["records"]]
    answers |= {"/v1/jobs/7": NotFoundError("job 7", "no energy record")}
    answers["/v1/running"] = {"scope": "own", "nodes": [], "records": records}
    fake_controller.install(monkeypatch, answers)
    config = tmp_path / "energy.toml"
    config.write_text(f'[agent]\nsocket = "{tmp_path}/no.sock"\n')
    assert main(["diagnose", "7", "--config", str(config)]) == 0
    captured = capsys.readouterr()
    assert "None." in captured.out and "on a node of the job" in captured.err


@pytest.mark.parametrize(
    ("job", "code", "text"),
    [
        ("9", 6, "no energy record"),
        ("5", 5, "another user"),
        ("7.batch", 2, "not steps"),
        ("7,8", 2, "one job"),
        ("x", 2, "not a job id"),
    ],
)
def test_errors_are_one_line(
    controller: fake_controller.FakeController,
    capsys: pytest.CaptureFixture[str],
    job: str,
    code: int,
    text: str,
) -> None:
    assert main(["diagnose", job]) == code
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


def test_threshold_of_the_site_has_an_effect(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "energy.toml"
    config.write_text("[diagnosis]\nthresholds = { data_share = 99, gpu_underused = 0 }\n")
    assert main(["diagnose", "7", "--json", "--config", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def without(part: str, records: list[Any]) -> list[Any]:
    """Return records that lack the energy of three of four nodes, or of all components of the type `part`."""
    if part == "nodes":
        return [item | {"job": item["job"] | {"nodes": 4}} for item in records]
    unknown = {"energy_joules": None, "quality": "partial"}
    return [
        item | {"components": [c | unknown if c["name"][:3] == part else c for c in item["components"]]}
        for item in records
    ]


@pytest.mark.parametrize(
    ("part", "text", "missing_nodes", "incomplete"),
    [("nodes", "energy of 1 of 4 nodes", 3, []), ("gpu", "GPU energy unknown", 0, ["gpu"])],
)
def test_incomplete_energy_is_a_lower_bound_and_not_divided(
    part: str,
    text: str,
    missing_nodes: int,
    incomplete: list[str],
    controller: fake_controller.FakeController,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    answer = controller.answers["/v1/jobs/7"]
    answer["records"] = without(part, answer["records"])
    assert main(["diagnose", "7", "--ascii"]) == 0
    page = capsys.readouterr().out
    assert "Energy: at least " in page and "Mean power: at least " in page
    assert f" Incomplete: {text}\n" in page
    assert "per step" not in page and "1. Steps wait for data" in page
    assert max(map(len, page.splitlines())) == 80
    page = page.partition("Use of the hardware")[2]
    assert not any(f"{prefix}J" in page for prefix in (" ", "k", "M"))
    assert main(["diagnose", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    summary = document["summary"]
    assert summary["energy_joules"] > 0 and summary["energy_shares_joules"] == {}
    assert summary["joules_per_step"] is summary["joules_per_sample"] is None
    assert (summary["missing_nodes"], summary["incomplete_components"]) == (missing_nodes, incomplete)
    assert document["findings"][0]["joules_lost"] is document["advice"][0]["joules_gain"] is None
    of_job = [phase["joules"] for phase in summary["phases"] if phase["scope"] == "job"]
    assert set(of_job) == {None}
    assert main(["diagnose", "7", "--html", str(tmp_path / "job.html")]) == 0
    html = (tmp_path / "job.html").read_text("utf-8")
    assert f'<div class="more">{text}</div>' in html and ">at least " in html


def test_energy_of_a_whole_node_is_complete_without_that_of_its_gpus(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = controller.answers["/v1/jobs/7"]["records"]
    total = sum(component["energy_joules"] for component in record["components"])
    (incomplete,) = without("gpu", [record])
    incomplete["components"].append(record["components"][0] | {"name": "node", "energy_joules": total})
    controller.answers["/v1/jobs/7"]["records"] = [incomplete]
    assert main(["diagnose", "7", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["energy_joules"] == pytest.approx(total)
    assert summary["joules_per_step"] > 0 and summary["incomplete_components"] == []


@pytest.fixture
def several_jobs(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    idle = build(next(job for job in PLANTED if job.name == "cpu-program-on-gpus"), 6)
    answers: dict[str, Any] = {}
    records = []
    for number, (job, user) in enumerate(
        [(SLOW_STORAGE, "alice"), (SLOW_STORAGE, "bob\x1b[2J"), (idle, "alice")]
    ):
        one = diagnosis_examples.answers(job, number + 1, user=user)
        records += one[f"/v1/jobs/{number + 1}"]["records"]
        answers |= one
    return fake_controller.install(
        monkeypatch, answers | {"/v1/records": {"scope": "own", "records": records}}
    )


def test_patterns_sum_findings_by_kind(
    several_jobs: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--patterns", "--json", "-u", "alice", "-S", "2026-11-01"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {pattern["kind"]: pattern for pattern in document["patterns"]}
    assert (document["jobs"], document["left_out"]) == (3, 0)
    assert found["data-stall-io"]["jobs"] == 2 and found["unused-gpu"]["example"] == "3"
    energies = [pattern["joules_lost"] for pattern in document["patterns"]]
    assert energies == sorted(energies, reverse=True)
    path, parameters = several_jobs.asked[0]
    assert path == "/v1/records" and parameters["user"] == "alice" and "end" in parameters


def test_patterns_of_each_user_are_a_safe_table(
    several_jobs: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--patterns", "-a", "--by", "user", "--top", "1", "--max-jobs", "3"]) == 0
    text = capsys.readouterr().out
    assert text.count("data-stall-io") == 2 and "unused-gpu" not in text and "\x1b" not in text
    assert main(["diagnose", "--patterns", "-a", "--max-jobs", "1"]) == 0
    assert "2 jobs with less energy are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["--patterns", "7"],
        ["7", "--by", "user"],
        [],
        ["--patterns", "--max-jobs", "0"],
        ["--patterns", "--top", "0"],
    ],
)
def test_patterns_and_a_job_exclude_each_other(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    assert main(["diagnose", *line]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_before_a_requeue_are_findings_of_the_last_one(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    (last,) = controller.answers["/v1/jobs/7"]["records"]
    state = {**last["job"], "state": "PREEMPTED", "submit": last["job"]["submit"] - 5000}
    earlier = {
        **last,
        "job": state,
        "start": last["start"] - 4000,
        "end": last["start"] - 3000,
        "trace": None,
    }
    stranger = {**earlier, "uid": 4711}
    for other, expected in ((earlier, True), (stranger, False)):
        records = [other | {"restart_count": 0}, last | {"restart_count": 1}]
        controller.answers["/v1/jobs/7"] = {"records": records}
        assert main(["diagnose", "7", "--json"]) == 0
        findings = json.loads(capsys.readouterr().out)["findings"]
        titles = [finding["title"] for finding in findings if finding["kind"] == "lost-run"]
        assert titles == (["An earlier run was lost after 1000 s: PREEMPTED"] if expected else [])
