"""What tests of slurmctld's plugin share: jobs that note when they start, tables by hand, priorities."""

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
    """Write the table that the plugin reads, when it next does."""
    table_file.write(lab.layout.priority_table, list(factors), list(factors.values()), **options)


def put_in_force(lab: LabDriver, factors: Mapping[int, int], **options: Any) -> None:
    """Write the table and wait until the plugin has it.

    After a slow read it reads no other for twenty times as long, so that the next job may still be given what
    stood there before. A job of its own, which cannot start, shows when the table is read, and is gone then.
    """
    probe = lab.sbatch("true", "-H", "--begin=now+1hour", "-wn1", "-t5")
    write(lab, {**factors, probe: _PROBE}, **options)
    until(lambda: given_anew(lab, probe) == _PROBE, "the table is read")
    lab.run("scancel", str(probe))


def given_anew(lab: LabDriver, job: int) -> int:
    """Let a held job get its priority once more, and return it; the plugin need not have read for it."""
    release(lab, job)
    given = priorities(lab)[job]
    lab.run("scontrol", "hold", str(job))
    return given


def held(lab: LabDriver, command: str = "true", **more: Any) -> int:
    """Submit a held job that takes the whole node."""
    return lab.sbatch(command, "-H", "--exclusive", "-wn1", "-t5", **more)


def release(lab: LabDriver, *jobs: int) -> None:
    """Let held jobs go: each gets its priority at once."""
    lab.run("scontrol", "release", ",".join(map(str, jobs)))


def blocker(lab: LabDriver) -> int:
    """Fill the node until the job is cancelled."""
    job = lab.sbatch("exec sleep 600", "--exclusive", "-wn1", "-t20", "--nice=-100000")
    until(lambda: lab.job(job)["JobState"] == "RUNNING", "the node is full")
    return job


def priorities(lab: LabDriver) -> dict[int, int]:
    """Return what squeue says of pending jobs."""
    lines = lab.run("squeue", "-h", "-tPD", "-o", "%A %Q").stdout.splitlines()
    return {int(job): int(priority) for job, priority in (line.split() for line in lines)}


def queue(lab: LabDriver) -> QueueColumns:
    """Read what the plugin wrote."""
    return QueueTableSource(lab.layout.queue_table).read()


def complaints(lab: LabDriver) -> list[str]:
    """Return what the plugin said in slurmctld's log."""
    return [line for line in lab.log("slurmctld").splitlines() if "site_factor/energy" in line]


def until(condition: Callable[[], Any], what: str, timeout_s: float = 90) -> None:
    """Wait for a condition; fail with `what` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)
