"""Tests of the JSON and YAML output of `senergy acct`.

The output document is based on the JSON of sacct, from an old or a new Slurm release. Without JSON of sacct,
the document is built from the rows of text that sacct prints.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fake_controller
import pytest
import report_examples as examples
import sacct_answers
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples as example_count

from slurm_energy.cli.main import main
from slurm_energy.reports.acct import acct_json
from slurm_energy.reports.acct.rows import AcctRow, VisibleJobs, joined
from slurm_energy.reports.usage import JobInfo
from slurm_energy.slurm import sacct
from slurm_energy.slurm.command import CommandFailedError
from slurm_energy.slurm.release import Release

START = sacct_answers.START


def number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def old_document() -> dict[str, Any]:
    """Return an example of the JSON output of sacct in Slurm 22.05, with only the keys in use."""
    times = {"start": START, "end": START + 40}
    step = {"time": times, "state": "COMPLETED", "nodes": {"range": "n1"}}
    job = {
        "job_id": 11,
        "cluster": "lab",
        "account": "physics",
        "user": "alice",
        "name": "=a\n",
        "nodes": "n1",
        "time": times | {"submission": START - 5},
        "state": {"current": "COMPLETED", "reason": "None"},
        "steps": [step | {"step": {"id": "batch"}}, step | {"step": {"id": 0}}],
    }
    return {"meta": {"plugin": {"type": "openapi/dbv0.0.38"}}, "errors": [], "jobs": [job]}


def document_of_23_02() -> dict[str, Any]:
    """Return the example document that `sacct --json` of Slurm 23.02 prints."""
    document = copy.deepcopy(old_document())
    for step, name in zip(document["jobs"][0]["steps"], ("batch", "0"), strict=True):
        step["step"]["id"] = {"job_id": 11, "step_id": name}
    return document


def new_document() -> dict[str, Any]:
    """Return the example document that `sacct --json` of Slurm 24.11 prints.

    The job is the same as in `old_document`.
    """
    document = copy.deepcopy(old_document())
    (job,) = document["jobs"]
    job["state"]["current"] = ["COMPLETED"]
    for step, name in zip(job["steps"], ("11.batch", "11.0"), strict=True):
        step["step"]["id"] = name
        step["state"] = ["COMPLETED"]
        step["time"] = {key: number(value) for key, value in step["time"].items()}
    return document | {"warnings": [{"description": "old", "source": "sacct"}]}


@pytest.fixture(autouse=True)
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    answers = {"/v1/records": {"scope": "all", "records": examples.cpu_job()}}
    fake_controller.install(monkeypatch, answers)
    with fake_controller.timezone("UTC"):
        yield


@pytest.mark.parametrize(
    "document",
    [old_document(), document_of_23_02(), new_document()],
    ids=["22.05", "23.02", "24.11"],
)
@pytest.mark.parametrize("option", ["--json", "--yaml"])
def test_the_document_of_sacct_gets_energy(
    document: dict[str, Any], option: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sacct_answers.install(monkeypatch, [])
    monkeypatch.setattr(sacct, "CommandRunner", lambda timeout_s: lambda argv: json.dumps(document))
    assert main(["acct", option]) == 0
    text = capsys.readouterr().out
    assert text.isascii()
    printed = json.loads(text) if option == "--json" else pytest.importorskip("yaml").safe_load(text)
    (job,) = printed["jobs"]
    energies = [item.pop("energy") for item in (job, *job["steps"])]
    assert [energy["energy_joules"] for energy in energies] == [17600.0, 15900.0, 15000.0]
    assert printed["meta"].pop("senergy")["format"] == 2
    assert printed == {"warnings": []} | document


def test_a_data_parser_is_passed_on_from_23_11(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    calls = []

    def run(argv: list[str]) -> str:
        calls.append(list(argv))
        return json.dumps(new_document())

    sacct_answers.install(monkeypatch, [])
    monkeypatch.setattr(sacct, "CommandRunner", lambda timeout_s: run)
    assert main(["acct", "--json=v0.0.42", "-a"]) == 2
    assert "data parsers from 23.11 on; this is 22.05.8" in capsys.readouterr().err
    monkeypatch.setattr("slurm_energy.cli.acct_query.installed_release", lambda: Release(24, 11, 5))
    assert main(["acct", "--json=v0.0.42", "-a"]) == 0
    assert calls == [["sacct", "--json=v0.0.42", "--allusers"]]


def test_without_the_plugin_the_document_is_built_from_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    details = {"ExitCode": "1:9", "TimelimitRaw": "10", "AllocTRES": "cpu=4,gres/gpu=2,mem=1G"}
    rows = [sacct_answers.job(11, **details), sacct_answers.job(11, "0"), sacct_answers.job(15, JobID="12_3")]
    fake = sacct_answers.install(monkeypatch, rows)

    def run(argv: list[str]) -> str:
        if "--json" in argv:
            raise CommandFailedError("sacct", ["fatal: unable to load openapi plugin"], 1)
        return fake(argv)

    monkeypatch.setattr(sacct, "CommandRunner", lambda timeout_s: run)
    assert main(["acct", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"meta", "errors", "warnings", "jobs"}
    assert "built from its rows" in printed["warnings"][0]["description"]
    first, second = printed["jobs"]
    assert first["state"] == {"current": ["COMPLETED"], "reason": ""}
    assert first["time"]["limit"] == number(10) and first["time"]["submission"] == START - 5
    assert first["exit_code"]["return_code"] == number(1)
    assert first["exit_code"]["signal"]["id"] == number(9)
    assert first["tres"]["allocated"] == [
        {"type": "cpu", "name": "", "count": 4},
        {"type": "gres", "name": "gpu", "count": 2},
        {"type": "mem", "name": "", "count": "1G"},
    ]
    assert first["steps"][0]["step"] == {"id": "11.0", "name": "0"}
    assert first["steps"][0]["energy"]["energy_joules"] == 15000.0
    assert second["array"] == {"job_id": 12, "task_id": number(3)} and second["energy"] is None


@pytest.mark.parametrize(
    ("facts", "status", "code"),
    [
        (examples.job_info(11), [], None),
        (examples.job_info(11, state=None), [], None),
        (examples.job_info(11, exit_code="3:0"), ["ERROR"], 3),
        (None, ["PENDING"], None),
    ],
    ids=["unknown", "unknown state", "known", "running"],
)
def test_without_slurmdbd_elapsed_time_and_exit_code_are_those_of_the_record(
    facts: dict[str, Any] | None,
    status: list[str],
    code: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("slurm_energy.cli.acct_query.installed_release", lambda: None)
    item = examples.answer(examples.record(11, end=examples.START + 40.6), facts)
    records, running = ([item], []) if facts else ([], [item])
    answers = {"/v1/records": {"scope": "all", "records": records}, "/v1/running": {"records": running}}
    answers["/v1/untuned-runs"] = {"untuned_runs": [None]}
    fake_controller.install(monkeypatch, answers)
    assert main(["acct", "-j", "11", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert job["time"]["elapsed"] == 41
    assert (job["exit_code"]["status"], job["exit_code"]["return_code"]) == (status, number(code))


@pytest.mark.parametrize(
    ("members", "displayed"),
    [
        ({}, "11"),
        ({"array": {"job_id": 0, "task_id": None}, "het": {"job_id": 0, "job_offset": None}}, "11"),  # 22.05
        ({"array": {"job_id": 9, "task_id": 2}, "het": {"job_id": 0, "job_offset": None}}, "9_2"),
        ({"array": {"job_id": 0, "task_id": None}, "het": {"job_id": 11, "job_offset": 0}}, "11+0"),
        (
            {"array": {"job_id": 9, "task_id": number(0)}, "het": {"job_id": 0, "job_offset": number(None)}},
            "9_0",
        ),
        (
            {"array": {"job_id": 0, "task_id": number(None)}, "het": {"job_id": 9, "job_offset": number(1)}},
            "9+1",
        ),
    ],
)
def test_the_id_that_users_see_is_known_before_the_facts_of_the_record(
    members: dict[str, Any], displayed: str
) -> None:
    usage = replace(examples.usages(examples.cpu_job())[0], job=JobInfo())
    job: dict[str, Any] = {"job_id": 11, "cluster": "c1", **members}
    (cells,) = acct_json.job_cells([job])
    acct_json.add_energy({"jobs": [job]}, [AcctRow(cells, usage)], "own", [])
    assert job["energy"]["display_id"] == displayed


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "its output is not a JSON object with jobs"),
        ("[" * 100_000, "its output is not a JSON object with jobs"),
        ('{"errors": [{"description": "Unable to parse\\n time"}]}', "Unable to parse\\n time"),
        ('{"jobs": {}}', "its output is not a JSON object with jobs"),
    ],
)
def test_damaged_documents_are_one_line(
    output: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sacct_answers.install(monkeypatch, [])
    monkeypatch.setattr(sacct, "CommandRunner", lambda timeout_s: lambda argv: output)
    assert main(["acct", "--json"]) == 4
    assert capsys.readouterr().err == f"senergy: error: sacct --json: {said}\n"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "range", "set", "number", "current", "start", "job_id", "task_id", "job_offset"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)
keys = ("job_id", "cluster", "account", "user", "nodes", "time", "state", "step", "array", "het")
parts = st.fixed_dictionaries({}, optional=dict.fromkeys(keys, values))
jobs = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(keys, values) | {"steps": st.lists(parts | values) | values}
)


@given(st.lists(jobs | values, max_size=3), values, values)
@example_count(100)
def test_any_document_can_be_completed(items: list[Any], meta: Any, warnings: Any) -> None:
    document = {"jobs": items, "meta": meta, "warnings": warnings}
    rows = joined(acct_json.job_cells(items), examples.usages(examples.cpu_job()), VisibleJobs(0, "own"))
    acct_json.add_energy(document, rows, "own", ["a note"])
    assert document["meta"]["senergy"]["scope"] == "own"
    assert document["warnings"][-1]["description"] == "a note"
    assert all("energy" in job for job in document["jobs"] if isinstance(job, dict))
