"""A Slurm cluster of emulated nodes (lab) whose queue is ranked by slurm-energy.

It serves tests of the order in which jobs start. The jobs start one after another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from lab_driver import LabDriver

from slurm_energy import scheduling
from slurm_energy.priority import table_file
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.scheduling import queue as tables
from slurm_energy.slurm.queue.table_source import QueueTableSource
from slurm_energy.trusted_files import replace_public
from slurm_energy_lab.cluster.configuration import merged, toml_document

ONE_BY_ONE = ("SchedulerType=sched/builtin", "Prolog=/bin/true", "Epilog=/bin/true")
"""Lines for slurm.conf: no job may pass another one, and our hooks are not what is tested."""

CORES = 4
SMALL_NODE = {
    "cpu.packages": 1,
    "cpu.cores_per_package": CORES,
    "cpu.threads_per_core": 1,
    "cpu.numa_nodes": 1,
    "cpu.turbo_bins": [[CORES, 3400000]],
}
"""Of the profile: the fewer CPUs, the sooner a job has started."""

WAIT_S = 180.0
SUBMITTERS = 4


class OrderedQueue:
    """Jobs that each use a whole node and write their id into a file when they start."""

    def __init__(self, lab: LabDriver) -> None:
        self.lab = lab
        self.record = lab.layout.root / "started"
        self.record.write_text("")
        self.record.chmod(0o666)
        energy = tomllib.loads(lab.layout.energy_toml.read_text())
        self.controller = ControllerClient(energy["cluster"]["controller_url"], lab.layout.munge_socket)

    def configure(self, **priority: Any) -> None:
        """Change the table `priority` of energy.toml and reload the configuration."""
        path = self.lab.layout.energy_toml
        text = toml_document(merged(tomllib.loads(path.read_text()), {"priority": priority}))
        replace_public(path, text.encode())
        self.lab.kill("senergyctld", how=signal.SIGHUP)

    def ask(self, **query: str) -> dict[str, Any]:
        """Return the controller's response about the ranked queue."""
        return self.controller.get("/v1/priority", query)

    def close(self) -> None:
        """Stop Slurm from starting jobs."""
        self.lab.run("scontrol", "update", "PartitionName=all", "State=DOWN")

    def open(self) -> None:
        """Let Slurm start jobs again."""
        self.lab.run("scontrol", "update", "PartitionName=all", "State=UP")

    def submit(self, *options: str, user: str | None = None) -> int:
        """Submit a job that uses the whole node."""
        job = f"echo $SLURM_JOB_ID >> {self.record}"
        return self.lab.sbatch(job, "--exclusive", *options, user=user)

    def submit_all(self, jobs: Sequence[tuple[Sequence[str], str | None]]) -> list[int]:
        """Submit jobs, several at the same time, and return their ids in the same order.

        Each job is given as its options and its user.
        """
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            return list(pool.map(lambda job: self.submit(*job[0], user=job[1]), jobs))

    def ranked(self, jobs: Sequence[int], policy: str) -> dict[str, Any]:
        """Wait until the scheduling policy `policy` has ranked all of `jobs`.

        Return the controller's response, which includes the state of the ranking.
        """
        found: dict[str, Any] = {}

        def known() -> bool:
            found.update(self.ask(state="1"))
            placed = {job["job_id"] for job in found["jobs"] if job["place"]}
            return placed >= set(jobs) and found["state"]["policy"] == policy

        self.until(known, f"a ranking of {len(jobs)} jobs by {policy}")
        return found

    def apply(self, jobs: Sequence[int]) -> None:
        """Wait until slurmctld has applied senergyctld's latest ranking to the given jobs.

        Jobs are held and released, which makes slurmctld look up each job's place now instead of within a
        minute.
        """
        self.until(lambda: self._applied(jobs), f"the places of {len(jobs)} jobs")

    def _applied(self, jobs: Sequence[int]) -> bool:
        """Return whether slurmctld uses the latest table of site factors for the given jobs.

        A site factor represents a job's place in the queue. The method holds and releases the jobs, so that
        slurmctld reads their site factors again.

        The result may be False directly after a slow read of the table. The plugin then reads no other table
        for twenty times the duration of this read.
        """
        wanted = self._in_table()
        if not wanted.keys() >= set(jobs):
            return False
        text = ",".join(map(str, jobs))
        self.lab.update("hold", text)
        self.lab.update("release", text)
        queue = QueueTableSource(self.lab.layout.queue_table).read()
        given = dict(zip(queue.job_id.tolist(), queue.site_factor.tolist(), strict=True))
        return all(given.get(job) == wanted[job] for job in jobs)

    def _in_table(self) -> dict[int, int]:
        """Return the site factors in the table that the plugin reads, by job id.

        The site factor is the value with which the plugin sets the place of the job in the queue.
        """
        path = self.lab.layout.priority_table
        data = path.read_bytes() if path.exists() else b""
        entries = np.frombuffer(data[table_file.HEADER.itemsize :], table_file.ENTRY)
        return dict(zip(entries["job_id"].tolist(), entries["site_factor"].tolist(), strict=True))

    def newcomers(self) -> int:
        """Return the default site factor in the table that the plugin reads.

        The plugin gives this site factor to jobs that are not ranked yet.
        """
        data = self.lab.layout.priority_table.read_bytes()
        return int(np.frombuffer(data[: table_file.HEADER.itemsize], table_file.HEADER)["default"][0])

    def priorities(self) -> dict[int, int]:
        """Return Slurm's priority of each pending job."""
        lines = self.lab.run("squeue", "-h", "-t", "PENDING", "-O", "JobID:20,PriorityLong:20").stdout
        return {int(job): int(priority) for job, priority in (line.split() for line in lines.splitlines())}

    def place(self, job_id: int) -> int | None:
        """Return a job's position (place) in the last ranking of the queue; None: not ranked."""
        (job,) = self.ask(job=str(job_id))["jobs"]
        place: int | None = job["place"]
        return place

    def starts(self, jobs: Sequence[int]) -> list[int]:
        """Wait until all these jobs have run, and return them in the order of their starts."""

        def started() -> list[int]:
            return [int(job) for job in self.record.read_text().split() if int(job) in jobs]

        self.until(lambda: len(started()) >= len(jobs), f"{len(jobs)} starts")
        return started()

    @contextlib.contextmanager
    def followed(self, jobs: Sequence[int], policy: str) -> Iterator[dict[str, Any]]:
        """Context manager that yields the ranking of `jobs` as soon as slurmctld uses its order.

        senergyctld computes the ranking. senergyctld is stopped inside the block, so that it cannot change
        the order.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            seen = self.ranked(jobs, policy)
            wanted = {job["job_id"]: job["site_factor"] for job in seen["jobs"] if job["job_id"] in jobs}
            with self._stopped() as pid:
                applied = seen["mode"] != "plugin" or self._applied(jobs)
                priorities = self.priorities()
                right = applied and all(priorities[job] == number for job, number in wanted.items())
                if right and not changes_jobs(pid):
                    yield seen
                    return
            assert time.monotonic() < deadline, f"wanted {wanted}, Slurm has {priorities}\n{self._picture()}"
            time.sleep(0.3)  # for senergyctld, which does nothing while it is stopped

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[int]:
        pid = self.lab.pid("senergyctld")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):  # the process was killed
                os.kill(pid, signal.SIGCONT)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:.0f} s\n{self._picture()}"
            time.sleep(0.1)

    def _picture(self) -> str:
        queue = self.lab.run("squeue", check=False).stdout
        return f"{queue}\n{self.lab.log('senergyctld')[-1500:]}"


def changes_jobs(pid: int) -> bool:
    """Return whether a process has a child that runs scontrol.

    A running scontrol completes its change of jobs even if the process is stopped.
    """
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text(errors="replace")
            if text.startswith("Name:\tscontrol\n") and f"\nPPid:\t{pid}\n" in text:
                return True
    return False


def recomputed(state: Mapping[str, Any]) -> list[int]:
    """Repeat an earlier ranking of senergyctld with the package `scheduling`.

    The input of the earlier ranking was recorded. Return the job ids in the order of the ranking, the first
    job to start first.
    """

    def columns(name: str) -> dict[str, Any]:
        return {key: _array(values) for key, values in state[name].items()}

    jobs, shapes, users = columns("jobs"), columns("alternatives"), columns("users")
    job_id, submit_s = jobs.pop("job_id"), jobs.pop("submit_s")
    figures = [shapes.pop(key) for key in ("first", "time_s", "power_watts")]
    queue = scheduling.Queue(
        state["now_s"],
        tables.jobs(job_id, submit_s, **jobs),
        tables.alternatives(*figures, **shapes),
        scheduling.Users(**users),
    )
    ranking = scheduling.policy(state["policy"]).rank(queue, scheduling.Options(**state["options"]))
    return [int(job) for job in queue.jobs.job_id[ranking.order(queue.jobs.job_id)]]


def _array(values: list[Any]) -> Any:
    if None in values or any(isinstance(value, float) for value in values):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    return np.array(values)
