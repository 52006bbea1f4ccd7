"""Tests that each job has one record per node.

This must hold however the job was submitted, requeued, or combined with other jobs.
"""

from __future__ import annotations

import json
import subprocess
import time

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]

FLAGS = ["--energy-policy=cap", "--energy-cap=1.2kW", "--energy-model=gemm", "--energy-tag=t/1"]
ASKED = {"policy": "cap", "cap_watts": "1200", "model": "gemm", "tag": "t/1"}
SCRIPT = "#!/bin/sh\n" + "".join(f"#SBATCH {flag}\n" for flag in FLAGS) + "sleep 1\n"


def _records(lab: LabDriver, *jobs: int, duplicates: bool = False) -> list[dict]:
    judges.acct(lab, *jobs)
    argv = ["senergy", "acct", "--json", "-X", "-j", ",".join(map(str, jobs))]
    printed = json.loads(lab.run(*argv, *(["-D"] if duplicates else [])).stdout)["jobs"]
    return [{**job, **job["energy"]} for job in printed]


def _submit(lab: LabDriver, how: str) -> int:
    if how == "#SBATCH":
        return lab.sbatch(SCRIPT, "--exclusive", "-wn1")
    if how == "sbatch":
        return lab.sbatch("sleep 1", "--exclusive", "-wn1", *FLAGS)
    inner = ["sh", "-c", "echo $SLURM_JOB_ID; sleep 1"]
    done = lab.run(how, "--exclusive", "-wn1", *FLAGS, *inner)
    return int(done.stdout.split()[0])


@pytest.mark.parametrize("how", ["#SBATCH", "sbatch", "srun", "salloc"])
def test_flags_arrive_however_the_job_is_submitted(lab: LabDriver, how: str):
    job = _submit(lab, how)
    lab.wait(job)
    (label,) = _records(lab, job)
    assert ASKED.items() <= label["requested"].items()
    assert [node["node"] for node in label["nodes"]] == ["n1"]


def test_the_command_line_wins_over_the_script_and_the_last_over_the_first(lab: LabDriver):
    job = lab.sbatch(SCRIPT, "--exclusive", "-wn1", "--energy-policy=edp", "--energy-policy=powersave")
    lab.wait(job)
    assert _records(lab, job)[0]["policy"] == "powersave"


def test_a_forged_environment_reaches_neither_hooks_nor_records(lab: LabDriver):
    """A user cannot impersonate another user or set an energy flag with forged environment variables.

    The forged variables have the names that the hooks use.
    """
    forged = {
        "SLURM_JOB_UID": "0",
        "SLURM_UID": "0",
        "SLURM_JOB_USER": "root",
        "SLURM_JOB_RESTART_COUNT": "7",
    }
    for start in ("", "SLURM_", "_SLURM_", "SLURM__"):
        forged |= {f"{start}SPANK_ENERGY_POLICY": "powersave", f"{start}SPANK_ENERGY_TAG": "forged\n\x1b[31m"}
    forged |= {f"{start}_SLURM_SPANK_OPTION_senergy_energy_cap": "1000" for start in ("", "SPANK_")}
    job = lab.sbatch("sleep 1", "--exclusive", "-wn1", user="nobody", env=forged, cwd="/")
    lab.wait(job)
    (label,) = _records(lab, job)
    assert (label["user"], label["policy"], label["requested"]) == ("nobody", "monitor", {})
    assert label["restart_count"] == 0
    assert [node["settings"] for node in label["nodes"]] == [[]]


def test_a_job_on_four_nodes_has_four_records(lab: LabDriver):
    job = lab.sbatch("srun sleep 1", "--exclusive", "-N4", "--energy-policy=balanced")
    lab.wait(job)
    (label,) = _records(lab, job)
    assert [node["node"] for node in label["nodes"]] == ["n1", "n2", "n3", "n4"]
    assert label["energy_joules"] == pytest.approx(sum(node["energy_joules"] for node in label["nodes"]))


def test_array_tasks_are_jobs_of_their_own(lab: LabDriver):
    job = lab.sbatch("sleep 1", "--exclusive", "--array=1-3", "-wn1", "--energy-policy=powersave")
    lab.wait(job)
    _until(lambda: len(_records(lab, job)) == 3)
    found = _records(lab, job)
    assert {label["display_id"] for label in found} == {f"{job}_1", f"{job}_2", f"{job}_3"}
    assert all(len(label["nodes"]) == 1 for label in found)
    assert len({label["job_id"] for label in found}) == 3


def test_a_requeued_job_has_a_record_per_run(lab: LabDriver):
    begun = lab.layout.root / "requeued-job-runs"
    program = f"[ -e {begun} ] || {{ touch {begun}; sleep 300; }}; sleep 1"
    job = lab.sbatch(program, "--exclusive", "-wn1", "--requeue", "--energy-policy=powersave")
    _until(begun.exists)  # a job that is requeued before its script runs may count as failed
    lab.run("scontrol", "requeue", str(job))
    # A requeued job may not start before its begin time, two minutes ahead, unless that is changed.
    _until(lambda: lab.job(job)["JobState"] == "PENDING")
    time.sleep(2)  # slurmd 22.05 runs no prolog for a job that starts again in the second in which it ended
    lab.update("update", f"jobid={job}", "starttime=now")
    assert lab.wait(job, timeout=200) == "COMPLETED"
    _until(lambda: len(_records(lab, job, duplicates=True)) == 2)
    labels = _records(lab, job, duplicates=True)
    assert [label["restart_count"] for label in labels] == [0, 1]
    assert not any("no epilog ran" in note for label in labels for n in label["nodes"] for note in n["notes"])
    # sacct 22.05 prints all runs with --json, and the last one in its table.
    assert lab.run("senergy", "acct", "-X", "-nP", "-j", str(job), "-o", "restarts").stdout == "1\n"
    settings = [s for label in labels for n in label["nodes"] for s in n["settings"]]
    assert settings and all(setting["restored"] for setting in settings)


def test_components_of_a_heterogeneous_job_are_jobs_of_their_own(lab: LabDriver):
    first = ["--exclusive", "-wn1", "--energy-policy=powersave"]
    second = ["--exclusive", "-wn2", "--energy-policy=powersave"]
    done = lab.run(
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        *first,
        ":",
        *second,
        "--wrap",
        "srun --het-group=0,1 sleep 1",
    )
    job = int(done.stdout.split(";")[0])
    lab.wait(job)
    _until(lambda: len(_records(lab, job)) == 2)
    found = sorted(_records(lab, job), key=lambda label: label["job_id"])
    assert [label["display_id"] for label in found] == [f"{job}+0", f"{job}+1"]
    assert [[node["node"] for node in label["nodes"]] for label in found] == [["n1"], ["n2"]]


def test_a_cancelled_and_a_timed_out_job_leave_records_and_restored_settings(lab: LabDriver):
    before = judges.settings_at_rest(lab, "n1")
    cancelled = lab.sbatch("sleep 300", "--exclusive", "-wn1", "--energy-policy=powersave")
    _until(lambda: judges.settings(lab, "n1") != before)
    lab.run("scancel", str(cancelled))
    lab.wait(cancelled)
    assert judges.settings_at_rest(lab, "n1") == before
    assert _records(lab, cancelled)[0]["policy"] == "powersave"


def test_without_the_daemons_jobs_run_on_and_nothing_is_lost(lab: LabDriver):
    lab.kill("senergyctld")
    spooled = lab.sbatch("sleep 1", "--exclusive", "-wn1", "--energy-policy=powersave")
    assert lab.wait(spooled) == "COMPLETED"
    lab.start("senergyctld")
    assert _records(lab, spooled)[0]["policy"] == "powersave"
    before = judges.settings_at_rest(lab, "n1")
    lab.kill("senergyd", "n1")
    bare = lab.sbatch("sleep 1", "--exclusive", "-wn1", "--energy-policy=powersave")
    assert lab.wait(bare) == "COMPLETED"
    assert judges.settings(lab, "n1") == before
    lab.start("senergyd", "n1")


def test_a_killed_agent_recovers_its_job_and_restores_settings(lab: LabDriver):
    before = judges.settings_at_rest(lab, "n1")
    gate = lab.layout.root / "agent-is-back"
    program = f"while [ ! -e {gate} ]; do sleep 0.2; done"
    job = lab.sbatch(program, "--exclusive", "-wn1", "--energy-policy=powersave")
    _until(lambda: judges.settings(lab, "n1") != before)
    lab.kill("senergyd", "n1")
    lab.start("senergyd", "n1")
    gate.touch()
    assert lab.wait(job) == "COMPLETED"
    assert judges.settings_at_rest(lab, "n1") == before
    (label,) = _records(lab, job)
    assert label["energy_joules"] > 0


def _until(condition, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, subprocess.run(["squeue"], capture_output=True, check=False)
        time.sleep(0.2)
