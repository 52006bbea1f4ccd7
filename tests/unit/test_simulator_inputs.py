"""Tests of the reader of workload files.

The tests check which values the reader takes from a file. They also check that it counts and reports lines
that it cannot use.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy.reports.acct.acct_fields import rows_of_records
from slurm_energy.reports.acct.acct_json import built_document
from slurm_energy.reports.labels.json_view import document
from slurm_energy.reports.usage import JobInfo, JobUsage
from slurm_energy.simulator.inputs import WorkloadFormat, read_workload
from slurm_energy.simulator.scenario_schema import TraceSection

TRACES = Path(__file__).parents[2].parent / "shared/data/traces"
SWF = """\
; UnixStartTime: 0
1 10 -1 100 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1
2 20 -1 50 -1 -1 -1 8 60 -1 1 9 -1 -1 0 -1 -1 -1

3 15 -1 5 1 -1 -1 -1 30 -1 1 7 -1 -1 0 -1 -1 -1
"""


def put(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_swf_fields(tmp_path):
    loaded = read_workload(put(tmp_path, "w.swf", SWF), ["n"], WorkloadFormat(watts_per_unit=50.0))
    work = loaded.workload
    assert list(work.submit_s) == [0, 5, 10]  # relative to the first submission, ascending
    assert list(work.units) == [4, 1, 8]
    assert list(work.time_s) == [100, 5, 50]
    assert np.isnan(work.time_limit_s[0]) and list(work.time_limit_s[1:]) == [30, 60]
    assert list(work.power_watts) == [200, 50, 400]
    assert [work.users[u] for u in work.user] == ["7", "7", "9"]
    assert loaded.problems.report() == [
        f"{tmp_path}/w.swf:5: submitted before the job above it: put in order"
    ]


def test_parts_of_a_swapped_job_are_not_further_jobs(tmp_path):
    lines = [
        "1 10 5 30 4 -1 -1 4 60 -1 1 7 -1 -1 0 -1 -1 -1",
        "1 10 5 10 4 -1 -1 4 60 -1 2 7 -1 -1 0 -1 -1 -1",
        "1 -1 9 20 4 -1 -1 4 60 -1 3 7 -1 -1 0 -1 -1 -1",
        "2 50 0 40 4 -1 -1 4 60 -1 4 7 -1 -1 0 -1 -1 -1",  # no line sums this job up
    ]
    path = put(tmp_path, "w.swf", "\n".join([*lines, ""]))
    loaded = read_workload(path, ["n"])
    assert list(loaded.workload.time_s) == [30, 40]
    assert loaded.problems.report() == [f"{path}:2: a part of a job that another line sums up (and 1 more)"]


BAD_LINES = {
    "1 10 -1 100 4\n": "not 18 numbers",
    "1 10 -1 x 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "not all words are numbers",
    "1 10 -1 -1 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the run time is missing",
    "1 10 -1 -5 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the run time is negative",
    "1 10 -1 0 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "it never ran (run time 0)",
    "1 10 -1 9 -1 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the size is missing or not positive",
    "1 nan -1 9 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the time of submission is missing",
    "1 1 -1 inf 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the run time is infinite",
    "1 1 -1 9 1.5 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the size is not a whole number",
    "1 1 -1 9 1e300 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the size is above 1e+09",
    "1 1 -1 9 inf -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the size is above 1e+09",
    "1 1e20 -1 9 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the time of submission is beyond 1e+11 s",
    "1 1 -1 1e20 4 -1 -1 -1 -1 -1 1 7 -1 -1 0 -1 -1 -1\n": "the run time is beyond 1e+11 s",
    "1 1 -1 9 4 -1 -1 -1 1e20 -1 1 7 -1 -1 0 -1 -1 -1\n": "the time limit is beyond 1e+11 s",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_swf_line_is_reported_and_the_rest_is_used(tmp_path, line):
    path = put(tmp_path, "w.swf", SWF + line * 3)
    loaded = read_workload(path, ["n"])
    assert loaded.workload.count == 3
    assert loaded.problems.skipped == 3
    assert f"{path}:6: {BAD_LINES[line]} (and 2 more)" in loaded.problems.report()
    with pytest.raises(UsageError) as caught:
        read_workload(path, ["n"], strict=True)
    assert str(caught.value) == f"{path}:6: {BAD_LINES[line]}"


def test_csv_with_shapes_deadlines_and_power(tmp_path):
    text = (
        "job_id,user,submit_s,hardware,units,time_s,power_watts,deadline_s\n"
        "a,ann,100,x,1,60,300,400\n"
        "a,ann,100,y,2,20,1400,400\n"
        "b,bob,130,,1,5,,\n"
    )
    work = read_workload(
        put(tmp_path, "w.csv", text), ["x", "y"], WorkloadFormat(watts_per_unit=7.0)
    ).workload
    assert list(work.first) == [0, 2, 3]
    assert list(work.hardware) == [0, 1, 0]
    assert list(work.power_watts) == [300, 1400, 7]
    assert work.deadline_s[0] == 300 and np.isnan(work.deadline_s[1])
    assert work.users == ("ann", "bob")


def test_names_follow_their_jobs_into_the_order_of_submission(tmp_path):
    text = "job_id,name,user,submit_s,time_s,units\n1,late,ann,100,60,1\n2,early,bob,0,70,1\n"
    work = read_workload(put(tmp_path, "w.csv", text), ["n"]).workload
    assert work.names == ("early", "late") and [work.users[user] for user in work.user] == ["bob", "ann"]


@pytest.mark.parametrize(("name", "text"), [("w.csv", "submit_s,time_s,units\n1,2,3\n"), ("w.swf", SWF)])
def test_a_byte_order_mark_is_ignored(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    loaded = read_workload(path, ["n"], strict=True)
    assert loaded.workload.count == text.count("\n") - (2 if name == "w.swf" else 1)


def test_an_infinite_user_number_is_unknown(tmp_path):
    line = "1 10 -1 100 4 -1 -1 -1 -1 -1 1 inf -1 -1 0 -1 -1 -1\n"
    assert read_workload(put(tmp_path, "w.swf", line), ["n"]).workload.users == ("nobody",)


@given(st.lists(st.lists(st.floats(), min_size=18, max_size=18), min_size=1, max_size=5))
@settings(deadline=None)
def test_any_number_is_used_or_reported(tmp_path_factory, lines):
    """The reader of workload files uses or reports a line whatever numbers it contains.

    No float in a file leads to a numpy warning or a traceback.
    """
    path = tmp_path_factory.mktemp("swf") / "w.swf"
    path.write_text("".join(" ".join(map(repr, line)) + "\n" for line in lines))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            work = read_workload(path, ["n"]).workload
        except UsageError as error:
            assert str(error).startswith(f"{path}: no job in it")
        else:
            assert np.all((work.units >= 1) & np.isfinite(work.submit_s) & (work.time_s > 0))


def test_columns_of_other_names(tmp_path):
    path = put(tmp_path, "w.csv", "arrival,length,cpus,note\n1,2,3,hello\n")
    renamed = {"submit_s": "arrival", "time_s": "length", "units": "cpus"}
    assert read_workload(path, ["n"], WorkloadFormat(renamed=renamed)).workload.units[0] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("submit_s,time_s,units,colour\n1,2,3,4\n", ":1: column 'colour' is not known: known: submit_s"),
        ("submit_s,tim_s,units\n1,2,3\n", ":1: column 'tim_s' is not known: did you mean 'time_s'"),
        ("submit_s,time_s,units,units\n1,2,3,4\n", ":1: column 'units' occurs twice"),
        ("submit_s,units\n1,2\n", ":1: column 'time_s' is missing"),
        ("submit_s,time_s,units\n", "no job in it"),
        ("submit_s,time_s,units\n1,x,1\n", ":2: time_s is not a number"),
        ("submit_s,time_s,units\n1,2\n", ":2: not as many columns"),
        ("submit_s,time_s,units\n1,2,1.5\n", ":2: the size is not a whole number"),
        ("submit_s,time_s,units\n1,2,1e300\n", ":2: the size is above"),
        ("submit_s,time_s,units\n1e20,2,1\n", ":2: the time of submission is beyond"),
        ("submit_s,time_s,units,deadline_s\n1,2,1,-1e300\n", ":2: the deadline is beyond"),
        ("submit_s,time_s,units,time_limit_s\n1,2,1,-5\n", ":2: the time limit is not positive"),
        ("submit_s,time_s,units,power_watts\n1,2,1,1e300\n", ":2: the power is above"),
        ("submit_s,time_s,units,batch\n1,2,1,inf\n", ":2: the batch size is not a whole number"),
        ("submit_s,time_s,units,hardware\n1,2,1,moon\n", ":2: hardware that the cluster does not have"),
    ],
)
def test_a_bad_csv_is_refused_with_file_and_line(tmp_path, text, message):
    path = put(tmp_path, "w.csv", text)
    with pytest.raises(UsageError, match=f"^{path}.*{message}"):
        read_workload(path, ["n"])


def test_deeply_nested_json_is_refused(tmp_path):
    path = put(tmp_path, "w.json", "[" * 100_000)
    with pytest.raises(UsageError, match=f"^{path}: is not the JSON"):
        read_workload(path, ["n"])


def test_a_quotation_mark_in_a_job_name_is_part_of_it(tmp_path):
    lines = ["JobIDRaw|JobName|Submit|ElapsedRaw|NNodes"]
    lines += ['7|"x|2026-01-01T00:00:00|10|1', "8|y|2026-01-01T00:00:10|20|2", "9|a|b|300|30|3"]
    work = read_workload(
        put(tmp_path, "dump.txt", "\n".join([*lines, ""])), ["n"], WorkloadFormat(watts_per_unit=5.0)
    ).workload
    assert list(work.time_s) == [10, 20]


def test_sacct_lines_without_steps(tmp_path):
    text = (
        "JobIDRaw|User|Submit|ElapsedRaw|TimelimitRaw|NNodes|AllocCPUS|ConsumedEnergyRaw\n"
        "7|ann|2026-01-01T00:00:00|100|2|3|96|60000\n"
        "7.batch||2026-01-01T00:00:00|100||1|32|20000\n"
        "8|bob|2026-01-01T00:00:10|50|UNLIMITED|1|4|\n"
        "9|bob|2026-01-01T00:00:20|50|1|1|4|18446744073709551614\n"  # NO_VAL64: the energy is unknown
    )
    path = put(tmp_path, "dump.txt", text)
    work = read_workload(path, ["n"], WorkloadFormat(watts_per_unit=5.0)).workload
    assert list(work.submit_s) == [0, 10, 20] and list(work.units) == [3, 1, 1]
    assert list(work.power_watts) == [600, 5, 5]
    assert work.time_limit_s[0] == 120 and np.isnan(work.time_limit_s[1])
    assert list(read_workload(path, ["n"], WorkloadFormat(units="cpus")).workload.units) == [96, 4, 4]


def test_senergy_accounting_with_measured_energy(tmp_path):
    """The simulator reads jobs with measured energy from the JSON output of `senergy acct`.

    The test makes the document with the code behind `senergy acct --json`.
    """
    energy = (ComponentEnergy("node", 2500.0, "ipmi"),)
    records = tuple(
        EnergyRecord("c", node, 12, 1001, "edp", 1010.0, 1110.0, energy, cpus=8, gpus=(0, 1))
        for node in ("n1", "n2")
    )
    job = JobInfo(name="train", user="alice", submit=1000.0, start=1010.0, end=1110.0, nodes=2)
    printed = document([JobUsage(records, job)])
    unknown = {**printed["jobs"][0], "job_id": 13, "submit": None, "energy_joules": None}
    printed["jobs"].append(unknown)
    path = put(tmp_path, "acct.json", json.dumps(printed))
    for units, size in (("nodes", 2), ("cpus", 16), ("gpus", 4)):
        work = read_workload(path, ["n"], WorkloadFormat(units=units, watts_per_unit=1.0)).workload
        assert list(work.submit_s) == [0, 10] and list(work.time_s) == [100, 100]
        assert list(work.units) == [size, size]
        assert list(work.power_watts) == [50, size]
        assert work.names == ("train", "train") and work.users == ("alice",)
    with pytest.raises(UsageError, match="is not the JSON of sacct or of senergy acct"):
        read_workload(put(tmp_path, "bad.json", '{"meta": {"senergy": "1"}, "jobs": [{}]}'), ["n"])


def test_senergy_accounting_keeps_what_slurm_states(tmp_path):
    """Jobs of `senergy acct --json` have the limits, sizes and names of Slurm, also without a record."""
    job = {"job_id": 6, "user": "bob", "name": "x", "partition": "gpu", "allocation_nodes": 1}
    job["state"] = {"current": ["COMPLETED"], "reason": "None"}
    job["time"] = {"submission": 1000, "start": 1150, "elapsed": 30, "limit": {"set": True, "number": 5}}
    job["tres"] = {"allocated": [{"type": "cpu", "count": 8}, {"type": "energy", "count": 900}]}
    measured = {"energy_joules": 800.0, "elapsed_s": 40.0, "start": 1150, "cpus": 4, "nodes": []}
    jobs = [job | {"energy": None}, job | {"job_id": 7, "energy": measured}]
    path = put(tmp_path, "acct.json", json.dumps({"meta": {"senergy": {"format": 2}}, "jobs": jobs}))
    chosen = TraceSection(states=["COMPLETED"], partitions=["gpu"])
    work = read_workload(path, ["n"], WorkloadFormat(units="cpus"), selection=chosen).workload
    assert list(work.units) == [8, 4] and list(work.time_s) == [30, 40]
    assert list(work.power_watts) == [30, 20] and list(work.time_limit_s) == [300, 300]


def test_senergy_accounting_counts_the_gpus_as_slurm_does(tmp_path):
    """Records count two dies of an AMD card as one GPU. They are used if the TRES of a job lists no GPUs."""
    measured = {"energy_joules": 800.0, "elapsed_s": 40.0, "start": 5, "cpus": 4, "nodes": [{"gpus": [0]}]}
    job = {"job_id": 6, "user": "bob", "name": "x", "allocation_nodes": 1, "energy": measured}
    job["time"] = {"submission": 5, "start": 5, "elapsed": 40}
    both = {"tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]}}
    jobs = [job | both, job | {"job_id": 7, "tres": {"allocated": [{"type": "cpu", "count": 4}]}}]
    path = put(tmp_path, "acct.json", json.dumps({"meta": {"senergy": {"format": 2}}, "jobs": jobs}))
    work = read_workload(path, ["n"], WorkloadFormat(units="gpus")).workload
    assert list(work.units) == [2, 1]


def test_senergy_accounting_without_a_time_of_submission(tmp_path):
    """`senergy acct --json` states 0 for a time of submission that no fact about the job contains."""
    energy = (ComponentEnergy("node", 2500.0, "ipmi"),)
    start_s, usages = 1_700_000_010.0, []
    for job_id, job in ((12, JobInfo(user="alice", submit=start_s - 10)), (13, JobInfo())):
        record = EnergyRecord("c", "n1", job_id, 1001, "edp", start_s, start_s + 100, energy, cpus=8)
        usages.append(JobUsage((record,), job))
    printed = built_document(rows_of_records(usages), "all", [])
    assert [job["time"]["submission"] for job in printed["jobs"]] == [1_700_000_000, 0]
    loaded = read_workload(put(tmp_path, "acct.json", json.dumps(printed)), ["n"])
    assert loaded.begin_s == 1_700_000_000 and list(loaded.workload.submit_s) == [0, 10]


def test_sacct_json_of_old_and_new_releases(tmp_path):
    old = {"job_id": 5, "user": "ann", "allocation_nodes": 2}
    old["time"] = {"submission": 1000, "elapsed": 60, "limit": 10}
    new = {"job_id": 6, "user": "bob", "allocation_nodes": 1}
    new["time"] = {"submission": 1100, "elapsed": 30, "limit": {"set": True, "number": 5}}
    new["tres"] = {
        "allocated": [
            {"type": "cpu", "name": "", "id": 1, "count": 8},
            {"type": "energy", "name": "", "id": 3, "count": 3000},
            {"type": "gres", "name": "gpu", "id": 1001, "count": 3},
        ],
    }
    old["tres"] = {"allocated": [{"type": "energy", "name": None, "id": 3, "count": -2}]}  # unknown
    path = put(tmp_path, "dump.json", json.dumps({"jobs": [old, new]}))
    work = read_workload(path, ["n"]).workload
    assert list(work.submit_s) == [0, 100] and list(work.units) == [2, 1]
    assert list(work.time_limit_s) == [600, 300]
    assert list(work.power_watts) == [0, 100]
    for units, size in (("cpus", 8), ("gpus", 3)):  # the old job states neither
        assert list(read_workload(path, ["n"], WorkloadFormat(units=units)).workload.units) == [size]
    path.write_text('{"jobs": [1]}')
    with pytest.raises(UsageError, match="is not the JSON of sacct"):
        read_workload(path, ["n"])


@given(st.binary(max_size=400), st.sampled_from(["w.swf", "w.csv", "w.json"]))
@examples(200)
def test_arbitrary_bytes_give_a_workload_or_an_error(tmp_path_factory, content, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    try:
        loaded = read_workload(path, ["n"])
    except EnergyError as error:
        assert "\n" not in str(error)
    else:
        assert loaded.workload.count > 0


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout")
def test_real_traces():
    lublin = read_workload(TRACES / "lublin_256.swf", ["n"])
    assert lublin.workload.count == 10_000 and lublin.problems.skipped == 0
    renamed = {"submit_s": "arrival_time", "time_s": "length", "units": "cpus"}
    pai = read_workload(TRACES / "pai-100k.csv", ["n"], WorkloadFormat(renamed=renamed))
    assert pai.workload.count + pai.problems.skipped == sum(1 for _ in (TRACES / "pai-100k.csv").open()) - 1
