"""A real slurmctld with a long queue of separate job records, for benchmarks.

No job runs. The partition is down, so that the jobs are pending without being held. The first jobs are
submitted one by one. Further records come from a job array. One request that updates all tasks of the array
makes slurmctld split the array into separate records. The split takes a second for 100,000 records. Without
the split, senergyctld would rank the array as one job.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy_lab.cluster import layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec

MOST_JOBS = 220_000
MOST_SINGLE, MOST_TASKS = 20_000, 100_000
SUBMITTERS = 4
TIMEOUT_S = 120
_RPC = re.compile(r"^\s*(\w+)\s*\(\s*\d+\)\s*count:(\d+)\s*ave_time:\d+\s*total_time:(\d+)", re.M)


class RealQueue:
    """A lab cluster of one node, for timing the scheduling work of a real slurmctld.

    slurmctld is preloaded with `pass_timer.c`. This library times each pass of slurmctld over the priorities
    of all jobs.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.timings = lab.layout.root / "passes"
        url = f"http://127.0.0.1:{lab.record.ports['senergyctld']}"
        self._controller = ControllerClient(url, lab.layout.munge_socket, timeout_s=60)
        self.environment = {**os.environ, **lab.environment()}
        self._records = self._ranked = 0

    def run(self, *command: str) -> str:
        """Run a command on the login node as root and return its output."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stdout

    def grow(self, count: int) -> None:
        """Submit jobs until slurmctld has `count` job records."""
        self.run("scontrol", "update", "PartitionName=all", "State=DOWN")
        singles = range(self._records, min(count, MOST_SINGLE))
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            list(pool.map(self._submit, singles))
        self._records += len(singles)
        self._ranked += len(singles)
        while (missing := count - self._records) > 0:
            tasks = min(missing, MOST_TASKS)
            job_id = self._submit(self._records, f"--array=0-{tasks}")
            self.run("scontrol", "update", f"JobId={job_id}_[0-{tasks - 2}]", "Nice=0")
            self.run("scancel", f"{job_id}_{tasks}")
            self._records += tasks
            self._ranked += 1

    def _submit(self, number: int, *options: str) -> str:
        """Submit a job that differs from its neighbours and return its job id."""
        size = (f"--time={1 + number * 7919 % 600}", f"--ntasks={1 + number % 32}")
        command = ("sbatch", "--parsable", "--output=/dev/null", *size, *options, "--wrap", "true")
        return self.run(*command).split(";")[0].strip()

    def ranked(self) -> dict[str, Any]:
        """Wait until senergyctld has ranked all records of the queue.

        Return the part about the ranking of senergyctld's status.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while (result := self._controller.get("/v1/status")["priority"])["ranked"] != self._ranked:
            if time.monotonic() > deadline:
                raise SystemExit(f"priority.py: {self._records} records are not ranked: {result}")
            time.sleep(0.2)
        return dict(result)

    @contextlib.contextmanager
    def without_senergyctld(self) -> Iterator[None]:
        """Context manager that stops senergyctld (SIGSTOP) during the `with` block."""
        pid = self.lab.daemon_pid("senergyctld")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def passes(self, count: int = 2) -> list[dict[str, float]]:
        """Wait for the next passes of priority/multifactor, and return the durations of their parts.

        In a pass, this plugin of slurmctld recomputes the priorities of all jobs. A pass that has already
        begun does not count. The result has one dict per pass, with times in milliseconds:

        - `site`: CPU time of the update by the site factor plugin;
        - `own`: CPU time that multifactor itself spends on all jobs;
        - `site_wall`, `own_wall`: wall-clock times of the same two parts.
        """
        observed = len(self._pass_lines())
        deadline = time.monotonic() + TIMEOUT_S
        while len(result := self._pass_lines()) < observed + count + 2:
            if time.monotonic() > deadline:
                raise SystemExit("priority.py: no pass of priority/multifactor within two minutes")
            time.sleep(0.2)
        return result[observed + 1 : observed + 1 + count]

    def _pass_lines(self) -> list[dict[str, float]]:
        """Return the measured times of all passes in which slurmctld computed the priorities of jobs.

        The last pass may be incomplete.
        """
        result: list[dict[str, float]] = []
        for line in self.timings.read_text().splitlines() if self.timings.exists() else []:
            what, cpu_ns, wall_ns, entries = line.split()
            if what == "site":
                values = {"site": int(cpu_ns) / 1e6, "site_wall": int(wall_ns) / 1e6}
                result.append(values | {"own": 0.0, "own_wall": 0.0})
            elif result and int(entries) >= self._records:
                result[-1]["own"] += int(cpu_ns) / 1e6
                result[-1]["own_wall"] += int(wall_ns) / 1e6
        return result

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Change settings in slurm.conf of the emulated cluster, and make slurmctld read the file again."""
        from slurm_energy_lab.cluster.configuration import with_settings

        path = self.lab.layout.slurm_conf
        path.write_text(
            with_settings(path.read_text(), [f"{key}={value}" for key, value in settings.items()])
        )
        self.run("scontrol", "reconfigure")

    def rpcs(self) -> dict[str, tuple[int, float]]:
        """Return how many requests slurmctld has handled, by kind of request.

        Each value is (number of requests, total time in milliseconds).
        """
        text = self.run("sdiag").partition("by message type")[2].partition("by user")[0]
        return {name: (int(calls), int(us) / 1e3) for name, calls, us in _RPC.findall(text)}


@contextlib.contextmanager
def real_queue(*settings: str) -> Iterator[RealQueue]:
    """Context manager for a lab (emulated cluster) whose queue the plugin in slurmctld orders.

    `settings` are added as lines to the lab's slurm.conf.
    """
    lab_layout = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-bench-", dir="/var/tmp"))
    with tempfile.TemporaryDirectory(prefix="senergy-", dir="/dev/shm") as folder:
        yield from _lab_with_tables(lab_layout, Path(folder), settings)


def _lab_with_tables(
    lab_layout: layout.LabLayout, folder: Path, settings: tuple[str, ...]
) -> Iterator[RealQueue]:
    """Run an emulated cluster (lab) for the benchmark, with its queue and priority tables in memory.

    On a real system, the files of these tables are in /run, which is also in memory.
    """
    folder.chmod(0o755)
    queue_table = folder / "queue" / "queue.table"
    queue_table.parent.mkdir()
    table = folder / "priority.table"
    parameters = f"PrioritySiteFactorParameters=table={table},queue={queue_table}"
    lines = (f"MaxJobCount={MOST_JOBS}", "MaxArraySize=100002", parameters, *settings)
    energy = {"priority": {"interval_s": 15.0, "table": str(table), "queue_table": str(queue_table)}}
    spec = LabSpec(nodes_file.from_profiles(("xeon-8358",)), lines, energy, priority="plugin")
    try:
        lab = lifecycle.up(lab_layout, spec)
        _with_timer(lab)
        yield RealQueue(lab)
    finally:
        lifecycle.down(lab_layout)


def _with_timer(lab: Lab) -> None:
    """Restart slurmctld with a preloaded library that measures its scheduling passes.

    The library is built from `pass_timer.c`.
    """
    library = lab.layout.root / "pass_timer.so"
    source = Path(__file__).with_name("pass_timer.c")
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", library, source], check=True, timeout=60)
    pid = lab.daemon_pid("slurmctld")
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    while lab.daemon_pid("slurmctld") is not None:
        time.sleep(0.05)
    (step,) = (step for step in lab.steps() if step.name == "slurmctld")
    more = {"LD_PRELOAD": str(library), "PASS_TIMER_LOG": str(lab.layout.root / "passes")}
    lab.startup([replace(step, needs=(), env={**step.env, **more})]).run()
