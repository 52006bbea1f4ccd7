"""A running lab cluster (emulated Slurm cluster) with A100 and H100 GPUs, for benchmarks.

The module sets how Slurm orders the queue, submits jobs at given times, and reads the records of the jobs.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from live import workload
from slurm_energy_lab import client
from slurm_energy_lab.cluster import configuration, layout, lifecycle
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec

Json = dict[str, Any]
Progress = Callable[[str], None]
USUAL = ("Age=1000", "Fairshare=10000", "JobSize=1000", "Partition=1000", "QOS=0")
"""Common weights of priority/multifactor."""
CPU_SHARE = 16.0
"""Real cores that the emulated cores of a node may use, so that the start of a job is not measured."""
CYCLE_S = 1.0
"""Seconds between two rankings."""
LOOK_S = 2
"""Seconds between two looks of slurmctld at the queue: twice the interval of the rankings, as by default."""
LONGEST_S = 900.0
QUIET_S = 14.0
"""Seconds in which senergyd learns the idle power of the nodes."""
_SETTINGS = (
    "PriorityType=priority/multifactor",
    "PriorityMaxAge=1-0",
    "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:h100",
    f"SchedulerParameters=defer,batch_sched_delay={LOOK_S},bf_interval={LOOK_S},sched_min_interval=50000",
)

_WEIGHTS = {"a1": 10, "h1": 1}


@dataclass(frozen=True, slots=True)
class Sent:
    """A submitted job.

    Attributes:
        number: number of the job as in `workload.LiveJob`; 0 for a job outside the workload.
        job_id: job id of Slurm.
        at_unix_s: time of the call of sbatch.
    """

    number: int
    job_id: int
    at_unix_s: float


class LiveCluster:
    """A running lab cluster, in which the benchmark runs commands."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.environment = {**os.environ, **lab.environment()}

    def call(self, *argv: str, text: str | None = None) -> str:
        """Run a command on the login node and return its output."""
        done = subprocess.run(
            argv,
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.lab.layout.root,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"live_energy.py: {' '.join(argv[:3])}: {done.stderr.strip()}")
        return done.stdout

    def order_by(self, policy: str) -> None:
        """Order the queue by Slurm's own formula (`multifactor`), or by a policy of slurm-energy."""
        ours = policy != "multifactor"
        weights = [f"PriorityWeight{item.partition('=')[0] if ours else item}" for item in USUAL]
        settings = [f"{weight}=0" for weight in weights] if ours else weights
        path = self.lab.layout.slurm_conf
        path.write_text(configuration.with_settings(path.read_text(), settings))
        self.call("scontrol", "reconfigure")
        for node, weight in _WEIGHTS.items():  # a job that names no kind gets the faster kind if it is free
            self.call("scontrol", "update", f"NodeName={node}", f"Weight={weight}")
        path = self.lab.layout.energy_toml
        table = {"mode": "portable", "policy": policy} if ours else {"mode": "off"}
        more = {"priority": {**table, "interval_s": CYCLE_S, "age_weight": 0.01}}
        path.write_text(
            configuration.toml_document(configuration.merged(tomllib.loads(path.read_text()), more))
        )
        pid = self.lab.daemon_pid("senergyctld")
        assert pid is not None
        os.kill(pid, signal.SIGHUP)

    def submit(self, model: str, number: int, arguments: Sequence[str]) -> Sent:
        """Submit a job that runs a model, and return its job id with the time of the submission."""
        now_s = time.time()
        response = self.call("sbatch", "--parsable", *arguments, text=workload.script(model))
        return Sent(number, int(response.strip().split(";")[0]), now_s)

    def queued(self) -> int:
        """Return the number of jobs that have not ended."""
        return len(self.call("squeue", "--noheader", "--format=%A").split())

    def truth(self) -> Json:
        """Return the exact energy and power of each emulated node, for comparison with measurements.

        The dict contains for each node the energy in joules, the power in watts and the time.
        """
        return {node: client.truth(self.lab.layout.emulator_socket(node)) for node in self.lab.nodes}

    def records(self, sent: Sequence[Sent]) -> list[Json]:
        """Wait for the record and Slurm's facts of every job; return them by job id."""
        ids = ",".join(str(job.job_id) for job in sent)
        result: list[Json] = []
        for _ in range(90):
            result = json.loads(self.call("senergy", "acct", "--json", "-X", "-j", ids))["jobs"]
            recorded = [{**job, **job["energy"]} for job in result if job["energy"]]
            if len(recorded) == len(sent) and all("COMPLETED" in job["state"]["current"] for job in recorded):
                return sorted(recorded, key=lambda job: int(job["job_id"]))
            time.sleep(1)
        states = sorted({str(job["state"]) for job in result})
        raise SystemExit(f"live_energy.py: {len(result)} of {len(sent)} records came, of jobs {states}")


@contextmanager
def cluster(progress: Progress) -> Iterator[LiveCluster]:
    """Context manager that starts a lab (emulated nodes), yields its cluster, and ends the lab."""
    lab_layout = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-live-", dir="/var/tmp"))
    spec = LabSpec(workload.NODES, _SETTINGS, cpu_share=CPU_SHARE)
    progress(f"bringing up a lab in {lab_layout.root}")
    lab = lifecycle.up(lab_layout, spec)
    try:
        yield LiveCluster(lab)
    finally:
        lifecycle.down(lab_layout)


def calibrate(on: LiveCluster, progress: Progress) -> Json:
    """Measure the benchmark's cluster: idle power, start delay, and each model in each shape.

    A shape is a number and kind of GPUs. The longest jobs run first, to save time.

    Returns:
        A dict with three keys. `idle_watts` is the idle power of each node by component. `launch_s` is the
        time from submission to start of a job that did not have to wait. `jobs` lists model, shape and
        record of each run.
    """
    progress(f"{QUIET_S:.0f} s of idle time, to measure the idle power of the nodes")
    time.sleep(QUIET_S)
    idle = {node: truth["power_watts"] for node, truth in on.truth().items()}
    probes = []
    for _ in range(5):
        probes.append(on.submit("ViT-B", 0, workload.options("ViT-B", "gpu:h100:8")))
        _drain(on, [probes[-1]], lambda line: None)
    begun = on.records(probes)
    waits = [job["start"] - probe.at_unix_s for job, probe in zip(begun, probes, strict=True)]
    todo = list(workload.kinds_of_jobs())
    sent = [on.submit(model, 0, workload.options(model, shape.text)) for model, shape in todo]
    _drain(on, sent, progress)
    jobs = [
        {"model": model, "shape": shape.text, "record": record}
        for (model, shape), record in zip(todo, on.records(sent), strict=True)
    ]
    return {"idle_watts": idle, "launch_s": statistics.median(waits), "waits_s": waits, "jobs": jobs}


def run(on: LiveCluster, jobs: Sequence[workload.LiveJob], wish: workload.Wish, progress: Progress) -> Json:
    """Run jobs on the live test cluster.

    Each job is submitted at its time. The function waits until all jobs have ended.

    Returns:
        `jobs`: number, job id, time of submission, record; `makespan_s` from the first submission to the
            last end; `cluster_joules` of all nodes in that time; `report` of `senergy experiment --json`.
    """
    begin, sent = on.truth(), []
    origin = time.time()
    for job in jobs:
        time.sleep(max(0.0, origin + job.submit_s - time.time()))
        sent.append(on.submit(job.model, job.number, job.sbatch(wish)))
        if job.number % 10 == 0:
            progress(f"{job.number} of {len(jobs)} jobs sent, {on.queued()} queued or running")
    _drain(on, sent, progress)
    end = on.truth()
    records = on.records(sent)
    last_s = max(job["end"] for job in records)
    ids = ",".join(str(job.job_id) for job in sent)
    return {
        "jobs": [
            {"number": job.number, "job_id": job.job_id, "submit": job.at_unix_s - origin, "record": record}
            for job, record in zip(sent, records, strict=True)
        ],
        "origin": origin,
        "makespan_s": last_s - origin,
        "cluster_joules": sum(_joules(begin[node], end[node], origin, last_s) for node in end),
        "report": json.loads(on.call("senergy", "experiment", "--json", "-j", ids)),
    }


def _joules(begin: Mapping[str, Any], end: Mapping[str, Any], origin: float, last_s: float) -> float:
    """Return the joules of a node between `origin` and `last_s`.

    The energy between the readings `begin` and `end` is corrected for the short times before
    `origin` and after `last_s`. The node is idle at both readings.
    """
    whole = end["energy_joules"]["node"] - begin["energy_joules"]["node"]
    before, after = origin - begin["time"], end["time"] - last_s
    return float(whole - before * begin["power_watts"]["node"] - after * end["power_watts"]["node"])


def _drain(on: LiveCluster, sent: Sequence[Sent], progress: Progress) -> None:
    begin, reported = time.monotonic(), 0.0
    while left := on.queued():
        now_s = time.monotonic() - begin
        if now_s > LONGEST_S:
            raise SystemExit(f"live_energy.py: {left} of {len(sent)} jobs did not end in {LONGEST_S:.0f} s")
        if now_s - reported > 20:
            reported = now_s
            progress(f"{left} of {len(sent)} jobs queued or running")
        time.sleep(0.3)


def print_progress(line: str) -> None:
    """Print a line of progress."""
    print(f"  {time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
