"""Jobs of many kinds on emulated nodes, to compare the output of sacct with that of slurm-energy."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from lab_driver import LabDriver

HOSTILE_NAMES = ("a|b", "two\nlines", "ünïcode東京名前", '=HYPERLINK("http://x")', "\x1b[31mred", "a b,c")
HETEROGENEOUS = "#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\ntrue\n"
REQUEUED = (
    'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then scontrol requeue $SLURM_JOB_ID; exec sleep 60; fi; true'
)


def submit(lab: LabDriver) -> dict[str, int]:
    """Submit jobs that complete, fail, are cancelled, are requeued, wait and run; return their ids by name.

    Returns when all jobs have the state in which they stay, and slurmdbd knows it.
    """
    jobs = {
        "plain": lab.sbatch("srun -n1 true; sleep 0.4", "-n1", "-Jplain", "--comment=first"),
        "array": lab.sbatch("true", "-n1", "-Jarray", "--array=0-3%2"),
        "failed": lab.sbatch("exit 3", "-n1", "-Jfailed"),
        "signal": lab.sbatch("kill -9 $$", "-n1", "-Jsignal"),
        "two": lab.sbatch("srun true", "-n2", "-N2", "-Jtwo", "-t5"),
        "het": lab.sbatch(HETEROGENEOUS, "-Jhet"),
        "requeued": lab.sbatch(REQUEUED, "-n1", "-Jrequeued", "--requeue"),
        "cancelled": lab.sbatch("sleep 100", "-n1", "-Jcancelled"),
        "running": lab.sbatch("srun -n1 sleep 600", "-n1", "-Jrunning", "-t20"),
        "held": lab.sbatch("true", "-n1", "-Jheld", "-H"),
        "begin": lab.sbatch("true", "-n1", "-Jbegin", "--begin=now+1hour", "--array=1-100%4"),
        "dropped": lab.sbatch("true", "-n1", "-Jdropped", "-H"),
        "nobody": lab.sbatch("true", "-n1", "-Jtheirs", user="nobody"),
        "wckey": lab.sbatch("true", "-n1", "-Jlong_name_that_is_cut", "--wckey=key", "-t1-0"),
    }
    jobs |= {name: lab.sbatch("true", "-n1", f"--job-name={name}") for name in HOSTILE_NAMES}
    lab.run("scancel", str(jobs["dropped"]))
    _until(lab, lambda states: states[jobs["cancelled"]] == states[jobs["running"]] == "RUNNING")
    lab.run("scancel", str(jobs["cancelled"]))
    # Slurm starts a requeued job after two minutes.
    lasting = {jobs[name] for name in ("running", "held", "begin", "requeued")}
    _until(
        lab,
        lambda states: (
            not any(
                state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")
                for job_id, state in states.items()
                if job_id not in lasting
            )
            and lab.job(jobs["requeued"])["Restarts"] == "1"
            and states[jobs["requeued"]] == "PENDING"
        ),
    )
    return jobs


def _until(lab: LabDriver, done: Callable[[Mapping[int, str]], bool]) -> None:
    deadline = time.monotonic() + 90
    while not done(states := _states(lab)):
        assert time.monotonic() < deadline, states
        time.sleep(0.2)


def _states(lab: LabDriver) -> Mapping[int, str]:
    """Return the state by job id in slurmdbd; empty for unknown jobs."""
    rows = lab.run("sacct", "-aXnP", "-Snow-1hour", "-Enow+2hours", "-ojobidraw,state").stdout.split("\n")
    pairs = (row.split("|") for row in rows if row)
    states = {int(job_id): state.partition(" ")[0] for job_id, state in pairs}
    return defaultdict(str, states)
