"""Tests of the energy in Slurm's own accounting.

The plugin acct_gather_energy/senergy provides this energy to Slurm. The tests compare it with the records of
slurm-energy.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import time

import judges
import pytest
from lab_driver import LabDriver
from test_energy_truth import TruthRecorder

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.lab(
        profiles=["xeon-8358", "epyc-7513-a100"],
        slurm_energy=True,
        slurm=["AcctGatherNodeFreq=1", "JobAcctGatherFrequency=task=1"],
    ),
]
MAX_WATTS = 2500.0
"""More than a node of the lab draws."""
GEMM = "senergy lab run gemm --cpu --seconds"
UNEVEN = "srun -n4 --exact -c1 sh -c 'sleep $SLURM_PROCID && {}'"
"""Tasks that end one after the other: Slurm then continues with the zeroed struct of another task."""


def rows_of(lab: LabDriver, job: int, *options: str) -> list[list[str]]:
    """Return the rows of sacct: job or step, state, joules."""
    argv = ["sacct", *options, "-n", "-P", "-j", str(job), "-o", "JobID,State,ConsumedEnergyRaw"]
    return [line.split("|") for line in lab.run(*argv).stdout.splitlines()]


def sacct(lab: LabDriver, job: int) -> dict[str, int]:
    """Return the joules that sacct shows for an ended job, by step; `job` is the job's own row.

    The function waits until sacct shows energy for the job.
    """
    deadline = time.monotonic() + 90
    while True:
        rows = rows_of(lab, job)
        if rows and int(rows[0][2] or 0) > 0 and not any("RUNNING" in row[1] for row in rows):
            return {row[0].partition(".")[2] or "job": int(row[2]) for row in rows}
        assert time.monotonic() < deadline, rows
        time.sleep(0.3)


def records(lab: LabDriver, *jobs: int) -> dict[int, dict[str, dict]]:
    """Return the energy that senergyd has recorded for jobs and their steps, by job id.

    For each job, the key `job` stands for the whole job, the other keys for its steps. Each value has
    `energy_joules`, `start` and `end`.
    """
    rows: dict[int, dict[str, dict]] = {}
    for label in judges.acct(lab, *jobs, steps=True):
        steps = {str(step["step"]["id"]).rpartition(".")[2]: step["energy"] for step in label["steps"]}
        rows[label["job_id"]] = {"job": label["energy"], **steps}
    return rows


def stamp(lab: LabDriver, step: str) -> str:
    """Return the last command of a task: it writes the time into a file of its own, see `last_task_end`."""
    return f"date +%s.%N > {lab.layout.root}/ended.$SLURM_JOB_ID.{step}.$SLURM_PROCID"


def last_task_end(lab: LabDriver, job: int, row: str) -> float:
    """Return when the last task of a step of an ended job ended, in Unix seconds.

    For the rows of the job and of its external step, this is the end of the batch script. The energy of the
    job is that of the external step, which ends after the batch script.
    """
    step = "batch" if row in ("job", "extern") else row
    return max(float(path.read_text()) for path in lab.layout.root.glob(f"ended.{job}.{step}.*"))


def assert_rows_agree(
    lab: LabDriver, recorder: TruthRecorder, job: int, shown: dict[str, int], ours: dict[str, dict]
) -> None:
    """Check that sacct and the energy records agree within 2 % for every row of a job.

    Slurm polls a step for the last time when its last task ends. The record ends later, when
    slurmstepd has cleaned up. The tolerance therefore also includes the energy that the job uses in
    this time, in a further half second, and while this machine stood still.
    """
    whole = ours["job"]
    for name, value in shown.items():
        record = ours[name]
        joules = record["energy_joules"]
        ended = min(last_task_end(lab, job, name), record["end"])
        late_s = 0.5 + record["end"] - ended + recorder.stalled_s(ended - 1, record["end"] + 1)
        late_joules = late_s * whole["energy_joules"] / (whole["end"] - whole["start"])
        deviation = f"{value / joules - 1:+.2%}" if joules else "no energy in the record"
        print(f"job {job} row {name}: sacct {value} J, record {joules:.1f} J, {deviation}")
        assert value == pytest.approx(joules, abs=0.02 * joules + late_joules + 1), (name, record)


def test_sacct_agrees_with_our_records(lab: LabDriver):
    """sacct shows the same energy for jobs and steps as the records of slurm-energy.

    The first job has several steps, and the agent on its node is killed meanwhile. Three further jobs
    share another node; one of these jobs uses GPUs.
    """
    seen = lab.layout.root / "seen"
    first, second, end = (stamp(lab, step) for step in ("0", "1", "batch"))
    until_seen = f"{GEMM} 5 && until [ -e {seen} ]; do sleep 0.2; done && {second}"
    with TruthRecorder(lab, "n1") as n1, TruthRecorder(lab, "n2") as n2:
        steps = f"{UNEVEN.format(first)} && srun -n1 sh -c '{until_seen}'"
        alone = lab.sbatch(f"{steps} && {GEMM} 2 && {end}", "--exclusive", "-wn1")
        cpu_job = lab.sbatch(f"srun -n1 -c16 sh -c '{GEMM} 2 && {first}' && {end}", "-wn2", "-n1", "-c16")
        gpu_step = f"srun -n1 sh -c 'senergy lab run gemm --gpu --seconds 6 && {first}'"
        gpu_job = lab.sbatch(f"{gpu_step} && {end}", "-wn2", "-n1", "--gres=gpu:2")
        no_srun = lab.sbatch(f"{GEMM} 1 && {end}", "-wn2", "-n1", "-c8")
        running = live_joules(lab, gpu_job)
        watts = node_watts(lab, "n2", lambda value: value > 300)
        before, without, after = joules_around_a_kill(lab, alone, "1")
        seen.touch()
        jobs = (alone, cpu_job, gpu_job, no_srun)
        assert [lab.wait(job) for job in jobs] == ["COMPLETED"] * 4
        rows, ours = {job: sacct(lab, job) for job in jobs}, records(lab, *jobs)
    for job, steps_of_job in zip(jobs, ({"0", "1"}, {"0"}, {"0"}, set()), strict=True):
        assert rows[job].keys() == {"job", "batch", "extern"} | steps_of_job
        assert_rows_agree(lab, n1 if job == alone else n2, job, rows[job], ours[job])
    assert all(row["job"] == row["extern"] for row in rows.values())
    assert 0 < running <= rows[gpu_job]["extern"]
    assert before <= without <= after <= rows[alone]["1"]
    assert watts < MAX_WATTS
    assert_sreport_sums(lab, rows)


def joules_around_a_kill(lab: LabDriver, job: int, step: str) -> tuple[int, int, int]:
    """Kill the senergyd of node n1 and start it again.

    Return the joules of a Slurm step at three times: before the kill, without senergyd, and after the
    restart.
    """
    before = live_joules(lab, job, step)
    lab.kill("senergyd", "n1")
    without = live_joules(lab, job, step)
    lab.start("senergyd", "n1")
    return before, without, live_joules(lab, job, step)


def live_joules(lab: LabDriver, job: int, step: str = "extern", above: int = 0) -> int:
    """Wait until sstat shows more than `above` joules for a running step, and return the joules."""
    deadline = time.monotonic() + 60
    while True:
        argv = ["sstat", "-n", "-P", "-a", "-j", str(job), "-o", "JobID,ConsumedEnergyRaw"]
        rows = dict(line.split("|") for line in lab.run(*argv, check=False).stdout.splitlines())
        if int(rows.get(f"{job}.{step}") or 0) > above:
            return int(rows[f"{job}.{step}"])
        assert time.monotonic() < deadline, rows
        time.sleep(0.2)


def node_watts(lab: LabDriver, node: str, right) -> float:
    deadline = time.monotonic() + 60
    while True:
        words = lab.run("scontrol", "-o", "show", "node", node).stdout.split()
        shown = dict(word.split("=", 1) for word in words if "=" in word)["CurrentWatts"]
        if shown not in ("n/a", "0") and right(float(shown)):
            return float(shown)
        assert time.monotonic() < deadline, shown
        time.sleep(0.3)


def assert_sreport_sums(lab: LabDriver, rows: dict[int, dict[str, int]]) -> None:
    """Compare the sum in sreport with sacct, in an hour in which all jobs start and end.

    slurmdbd rolls up an hour when the hour is over. The test requests the roll-up of this hour.
    """
    argv = ["sacct", "-X", "-n", "-P", "-j", ",".join(map(str, rows)), "-o", "Start,End"]
    spans = lab.run(*argv, env={"SLURM_TIME_FORMAT": "%s"}).stdout.replace("|", " ").split()
    hour = min(map(int, spans)) // 3600 * 3600
    if max(map(int, spans)) >= hour + 3600:
        return  # Slurm books a job in both hours
    roll_up(lab, hour, hour + 3600)
    start, end = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) for at in (hour, hour + 3600))
    argv = ["sreport", "-n", "-P", "-T", "energy", "-t", "seconds", "cluster", "AccountUtilizationByUser"]
    argv += [f"start={start}", f"end={end}", "format=account,login,tresname,used"]
    shown = [line.split("|") for line in lab.run(*argv).stdout.splitlines()]
    total = [int(row[3]) for row in shown if row[0] == "root" and not row[1]]
    assert total == [sum(row["job"] for row in rows.values())], shown


def roll_up(lab: LabDriver, start: int, end: int) -> None:
    """Let slurmdbd compute the usage sums (roll-up) of a time window, through Slurm's own library."""
    code = f"""
import ctypes, sys
slurm = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
slurm.slurm_init(None) if hasattr(slurm, "slurm_init") else None
slurm.slurmdb_connection_get.restype = ctypes.c_void_p
flags = ctypes.c_uint16(0)
connection = slurm.slurmdb_connection_get(ctypes.byref(flags))
roll = slurm.slurmdb_usage_roll
roll.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_uint16, ctypes.c_void_p]
sys.exit(roll(connection, {start}, {end}, 0, None))
"""
    lab.run("python3", "-c", code, ctypes.util.find_library("slurm") or "libslurm.so")


@pytest.mark.soak
def test_a_requeued_job_has_a_value_of_its_own_for_each_run(lab: LabDriver):
    """Each run of a requeued job has its own energy value in sacct.

    Slurm starts a requeued job two minutes later. The row of the first run itself is blank in
    sacct, because Slurm writes this row before the last step of the run ends.
    """
    job = lab.sbatch(f"srun -n1 {GEMM} 8", "--exclusive", "-wn1", "--requeue")
    live_joules(lab, job, above=1500)
    lab.run("scontrol", "requeue", str(job))
    assert lab.wait(job, 300) == "COMPLETED"
    judges.acct(lab, job)
    shown = [int(row[2]) for row in rows_of(lab, job, "-D") if row[0].endswith(".extern")]
    argv = ["senergy", "acct", "-D", "-X", "--json", "-j", str(job)]
    runs = [label["energy"] for label in json.loads(lab.run(*argv).stdout)["jobs"]]
    assert len(shown) == len(runs) == 2
    for value, run in zip(shown, runs, strict=True):  # a second between the last poll and the epilog's end
        tolerance = 0.02 * run["energy_joules"] + run["energy_joules"] / (run["end"] - run["start"])
        assert value == pytest.approx(run["energy_joules"], abs=tolerance)
    states = [row[1] for row in rows_of(lab, job, "-D", "-X")]
    assert states == ["REQUEUED", "COMPLETED"]


def test_jobs_run_without_an_agent_and_have_no_energy(lab: LabDriver):
    lab.kill("senergyd", "n1")
    try:
        job = lab.sbatch("srun -n2 true", "-wn1", "-n2")
        assert lab.wait(job) == "COMPLETED"
        node = lab.run("scontrol", "-o", "show", "node", "n1").stdout
        assert "DRAIN" not in node and "Reason=" not in node
        assert {int(row[2] or 0) for row in rows_of(lab, job)} == {0}
        said = lab.run("srun", "-wn1", "-n1", "true").stderr
        assert "senergy" not in said and "error" not in said
    finally:
        lab.start("senergyd", "n1")
    assert lab.log("n1-slurmd").count("last energy value stays") >= 1
