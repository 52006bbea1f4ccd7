"""A real slurmctld with a long queue of separate job records, for benchmarks; nothing of it runs.

An array is submitted, and one update of nearly all its tasks makes slurmctld split them into records of their
own, which takes a second for 100,000. The partition is down, so that the jobs are pending, not held.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.lab import layout, lifecycle, nodesfile
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.spec import LabSpec

MOST_JOBS = 220_000
TIMEOUT_S = 300
_RPC = re.compile(r"^\s*(\w+)\s*\(\s*\d+\)\s*count:(\d+)\s*ave_time:\d+\s*total_time:(\d+)", re.M)


class RealQueue:
    """A lab of one node whose slurmctld runs with `pass_timer.c`."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.timings = lab.layout.root / "passes"
        self.table = lab.layout.root / "tables" / "priority.table"
        self.environment = {**os.environ, **lab.environment()}
        self._records = 0

    def run(self, *command: str) -> str:
        """Run a command on the login node as root and return its output."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stdout

    def grow(self, count: int, options: tuple[str, ...] = ()) -> None:
        """Add records until there are so many."""
        self.run("scontrol", "update", "PartitionName=all", "State=DOWN")
        while (missing := count - self._records) > 0:
            tasks = min(missing, 100_000)
            limit = f"--time={5 + self._records % 7}"
            text = self.run(
                *("sbatch", "--parsable", "--output=/dev/null", limit, *options),
                *(f"--array=0-{tasks}" if tasks > 1 else "--array=0-1", "--wrap", "true"),
            )
            job_id = text.split(";")[0].strip()
            last = max(tasks - 2, 0)  # the rest of the array is a record too
            self.run("scontrol", "update", f"JobId={job_id}_[0-{last}]", "Nice=0")
            self.run("scancel", f"{job_id}_{tasks}")
            self._records += tasks

    def give_scores(self) -> None:
        """Write the table that senergyctld would: a place for each record."""
        from slurm_energy.priority import table

        ids = np.array(self.run("squeue", "-h", "-r", "-o", "%A").split(), np.int64)
        places = np.random.default_rng(1).permutation(len(ids)) + 1
        table.write(self.table, ids, 1000 * places)

    def passes(self, count: int = 2) -> list[Mapping[str, float]]:
        """Wait for passes of priority/multifactor that begin from now on; return milliseconds of each.

        Keys: `site`: the site factor plugin's update, `own`: multifactor's walks over the jobs, CPU
        time; `site_wall`, `own_wall`.
        """
        seen = len(self._pass_lines())
        deadline = time.monotonic() + TIMEOUT_S
        while len(found := self._pass_lines()) < seen + count + 2:
            if time.monotonic() > deadline:
                raise SystemExit("priority.py: no pass of priority/multifactor within five minutes")
            time.sleep(0.2)
        return found[seen + 1 : seen + 1 + count]

    def _pass_lines(self) -> list[dict[str, float]]:
        """Return all passes so far; the last may not be over."""
        found: list[dict[str, float]] = []
        for line in self.timings.read_text().splitlines() if self.timings.exists() else []:
            what, cpu_ns, wall_ns, entries = line.split()
            if what == "site":
                values = {"site": int(cpu_ns) / 1e6, "site_wall": int(wall_ns) / 1e6}
                found.append(values | {"own": 0.0, "own_wall": 0.0})
            elif found and int(entries) >= self._records:
                found[-1]["own"] += int(cpu_ns) / 1e6
                found[-1]["own_wall"] += int(wall_ns) / 1e6
        return found

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Change slurm.conf and have slurmctld read it again."""
        from slurm_energy.lab.conf import with_settings

        path = self.lab.layout.slurm_conf
        path.write_text(
            with_settings(path.read_text(), [f"{key}={value}" for key, value in settings.items()])
        )
        self.run("scontrol", "reconfigure")

    def rpcs(self) -> dict[str, tuple[int, float]]:
        """Return how often each kind of request came and slurmctld's milliseconds for all of them."""
        text = self.run("sdiag").partition("by message type")[2].partition("by user")[0]
        return {name: (int(calls), int(us) / 1e3) for name, calls, us in _RPC.findall(text)}


@contextlib.contextmanager
def real_queue(*settings: str, **options: Any) -> Iterator[RealQueue]:
    """Bring the lab up and take it down.

    Args:
        settings: lines for slurm.conf.
        options: further fields of `LabSpec`.
    """
    place = layout.locate(tempfile.mkdtemp(prefix="senergy-bench-", dir="/var/tmp"))
    lines = (
        f"MaxJobCount={MOST_JOBS}",
        "MaxArraySize=100002",
        "PriorityType=priority/multifactor",
        *settings,
    )
    spec = LabSpec(nodes=nodesfile.from_profiles(("xeon-8358",)), slurm=lines, **options)
    try:
        lab = lifecycle.up(place, spec)
        _with_timer(lab)
        yield RealQueue(lab)
    finally:
        lifecycle.down(place)


def _with_timer(lab: Lab) -> None:
    """Start slurmctld again with the timer."""
    library = lab.layout.root / "pass_timer.so"
    source = Path(__file__).with_name("pass_timer.c")
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", library, source], check=True, timeout=60)
    pid = lab.daemon_pid("slurmctld")
    assert pid is not None
    os.kill(pid, 15)
    while lab.daemon_pid("slurmctld") is not None:
        time.sleep(0.05)
    (step,) = (step for step in lab.steps() if step.name == "slurmctld")
    more = {"LD_PRELOAD": str(library), "PASS_TIMER_LOG": str(lab.layout.root / "passes")}
    lab.startup([replace(step, needs=(), env={**step.env, **more})]).run()
