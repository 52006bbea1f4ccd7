"""Helpers for tests of slurmctld's plugin, which sets the order of the queue.

The helpers submit jobs that record their start, write tables by hand, and read priorities.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from lab_driver import LabDriver

from slurm_energy.priority import table_file
from slurm_energy.slurm.queue.columns import QueueColumns
from slurm_energy.slurm.queue.table_source import QueueTableSource

WISH: dict[str, Any] = {
    "profiles": ["xeon-8358"],
    "priority": "plugin",
    "energy": {"priority": {"mode": "off"}},  # the tests write the table
}
PASS_S = 130
"""The longest wait for slurmctld's pass over all priorities: PriorityCalcPeriod is at least a minute."""
_PROBE = 1_234_567_890


def write(lab: LabDriver, factors: Mapping[int, int], **options: Any) -> None:
    """Write the table of site factors, which the plugin reads later."""
    table_file.write(lab.layout.priority_table, list(factors), list(factors.values()), **options)


def put_in_force(lab: LabDriver, factors: Mapping[int, int], **options: Any) -> None:
    """Write the table of site factors (job priorities) and wait until slurmctld's plugin has read it.

    To detect the read, the function submits a held job and adds it to the table with a special site
    factor. The plugin has read the table when Slurm shows this site factor for the held job. The held job
    is then cancelled.

    After a slow read, the plugin reads no table for twenty times the duration of this read. A job that is
    submitted soon after this function may therefore still get a value of the table written here.
    """
    probe = lab.sbatch("true", "-H", "--begin=now+1hour", "-wn1", "-t5")
    write(lab, {**factors, probe: _PROBE}, **options)
    until(lambda: given_anew(lab, probe) == _PROBE, "the table is read")
    lab.run("scancel", str(probe))


def given_anew(lab: LabDriver, job: int) -> int:
    """Make Slurm compute the priority of a held job again, and return the new priority.

    The job is released, so that Slurm computes its priority. The job is then held again. The result may lack
    the job's site factor, because the plugin may not have read the table of site factors yet.
    """
    release(lab, job)
    given = priorities(lab)[job]
    lab.update("hold", str(job))
    return given


def held(lab: LabDriver, command: str = "true", **more: Any) -> int:
    """Submit a held job that takes the whole node."""
    return lab.sbatch(command, "-H", "--exclusive", "-wn1", "-t5", **more)


def release(lab: LabDriver, *jobs: int) -> None:
    """Release held jobs together. Each job gets its priority immediately."""
    lab.update("release", ",".join(map(str, jobs)))


def blocker(lab: LabDriver) -> int:
    """Occupy the node until the job is cancelled."""
    job = lab.sbatch("exec sleep 600", "--exclusive", "-wn1", "-t20", "--nice=-100000")
    until(lambda: lab.job(job)["JobState"] == "RUNNING", "the node is full")
    return job


def priorities(lab: LabDriver) -> dict[int, int]:
    """Return the priorities of pending jobs from squeue."""
    lines = lab.run("squeue", "-h", "-tPD", "-o", "%A %Q").stdout.splitlines()
    return {int(job): int(priority) for job, priority in (line.split() for line in lines)}


def queue(lab: LabDriver) -> QueueColumns:
    """Read the queue file of the plugin."""
    return QueueTableSource(lab.layout.queue_table).read()


def complaints(lab: LabDriver) -> list[str]:
    """Return the plugin's lines in slurmctld's log."""
    return [line for line in lab.log("slurmctld").splitlines() if "site_factor/energy" in line]


def until(condition: Callable[[], Any], what: str, timeout_s: float = 90) -> None:
    """Wait until a condition is true; fail the test if it is still false after the timeout.

    Args:
        condition: function that returns whether the condition is true.
        what: description of the condition for the message of the failure.
        timeout_s: maximum waiting time in seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)
