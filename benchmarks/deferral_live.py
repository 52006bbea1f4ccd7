"""Benchmark of deferral on a real slurmctld.

Deferral holds jobs until a time with lower electricity prices. Emulated nodes (a lab) run the same
jobs twice: first without deferral, then with deferral. The prices change 200 times faster than in
reality: an hour of prices lasts 18 s. The second run is also simulated, with the job durations and
watts of the first run.

The benchmark checks four statements. The cost equals the simulated cost. No job starts after its
latest permitted start. Jobs that may not be deferred wait as long as in the first run. Held jobs
start in time even if senergyctld was killed with kill -9. The benchmark needs root.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from claims import Claim, at_least, at_most, claim, publish
from live.deferral import CPUS, DAY, HOUR_S, JOB_CPUS, MARGIN_S, NODES, SLOT_S, SPEED, PlannedJob

from slurm_energy.trusted_files import replace_public
from slurm_energy_lab.cluster import configuration, layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec

Json = dict[str, Any]
MAX_SLACK_S = 12 * HOUR_S
INTERVAL_S = 1.0
WITHIN = 0.08
IDLE_JOBS = 12
"""Workloads with more jobs keep the nodes busy."""
_TIMES = ("time", "submit", "eligible_s", "latest_start_s", "since_s", "planned_start_s")
SMALL_NODE = {
    "cpu.packages": 1,
    "cpu.cores_per_package": CPUS,
    "cpu.threads_per_core": 1,
    "cpu.numa_nodes": 1,
    "cpu.turbo_bins": [[CPUS, 3400000]],
}
_SLURM = (
    "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=50000,bf_interval=1",
    "PriorityType=priority/multifactor",
)


def draw(count: int, seed: int) -> list[PlannedJob]:
    """Draw the random jobs of the benchmark, which are submitted within 5 hours.

    All jobs run 40 to 80 minutes. Two of three jobs may wait for 4 to 9 hours.
    """
    rng = random.Random(seed)
    jobs = []
    for number in range(count):
        slack_s = 0 if number % 3 == 2 else round(rng.uniform(4, 9) * HOUR_S)
        sleep_s = round(rng.uniform(0.67, 1.33) * HOUR_S)
        jobs.append(PlannedJob(rng.uniform(0, 5) * HOUR_S, sleep_s, slack_s))
    return sorted(jobs, key=lambda job: job.at_s)


class DeferralLab:
    """A running lab (emulated cluster), and the file from which it reads electricity prices."""

    def __init__(self, lab: Lab, prices: Path, day: Sequence[float]) -> None:
        self.lab, self.prices, self._day = lab, prices, day
        self.environment = {**os.environ, **lab.environment()}
        self.origin_s = 0.0

    def call(self, *argv: str, text: str | None = None) -> str:
        """Run a command on the login node and return its output."""
        root = self.lab.layout.root
        done = subprocess.run(
            *(argv,),
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=root,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"deferral_live.py: {' '.join(argv[:3])}: {done.stderr.strip()}")
        return done.stdout

    def configure(self, policy_name: str) -> None:
        """Write electricity prices that begin now, and a configuration with the given deferral policy.

        Then make senergyctld reload its configuration.
        """
        self.origin_s = float(int(time.time()) + 4)
        rows = [
            f"{self.origin_s + hour * HOUR_S:.3f},{self._day[hour % len(self._day)]}\n"
            for hour in range(-24, 96)
        ]
        replace_public(self.prices, "".join(["time,EUR/MWh\n", *rows]).encode())
        path = self.lab.layout.energy_toml
        data = configuration.merged(tomllib.loads(path.read_text()), {"deferral": {"policy": policy_name}})
        replace_public(path, configuration.toml_document(data).encode())
        pid = self.lab.daemon_pid("senergyctld")
        assert pid is not None
        os.kill(pid, signal.SIGHUP)
        time.sleep(max(0.0, self.origin_s - time.time()))

    def price_at(self, start_s: float, end_s: float) -> float:
        """Return the mean price in EUR/kWh between two Unix times."""
        hours = np.arange(-24, 96)
        starts = self.origin_s + hours * HOUR_S
        values = np.array([self._day[hour % len(self._day)] for hour in hours.tolist()]) / 1000.0
        overlap = np.clip(np.minimum(starts + HOUR_S, end_s) - np.maximum(starts, start_s), 0.0, None)
        return float(np.sum(values * overlap) / np.sum(overlap))

    def submit(self, job: PlannedJob) -> int:
        """Submit a job and return its id."""
        options = [f"--energy-slack={job.slack_s}s"] if job.slack_s else []
        arguments = ("-n1", f"-c{JOB_CPUS}", "-t3", f"-Jsleep{job.sleep_s}", "--output=/dev/null")
        script = f"#!/bin/sh\nsleep {job.sleep_s}\n"
        return int(self.call("sbatch", "--parsable", *arguments, *options, text=script).split(";")[0])

    def queued(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return self.call("squeue", "--noheader", "--format=%A").split()

    def times(self, job_ids: Sequence[int]) -> dict[int, Json]:
        """Wait for the energy record of every job, and return the data of each job by job id.

        The data contain the submission, the start, the end and the energy.
        """
        ids = ",".join(map(str, job_ids))
        rows: list[Json] = []
        for _ in range(90):
            rows = json.loads(self.call("senergy", "acct", "--json", "-X", "-j", ids))["jobs"]
            if len(rows) == len(job_ids) and all(row["energy"] for row in rows):
                return {int(row["job_id"]): {**row, **row["energy"]} for row in rows}
            time.sleep(1)
        raise SystemExit(f"deferral_live.py: {len(rows)} of {len(job_ids)} records came")

    def run(self, jobs: Sequence[PlannedJob], policy_name: str) -> Json:
        """Submit the jobs at their times and wait for their end."""
        self.configure(policy_name)
        ids = []
        for number, job in enumerate(jobs, 1):
            time.sleep(max(0.0, self.origin_s + job.at_s - time.time()))
            ids.append(self.submit(job))
            if number % 10 == 0:
                note(f"{policy_name}: {number} of {len(jobs)} jobs sent, {len(self.queued())} not ended")
        while self.queued():
            time.sleep(0.5)
        records = self.times(ids)
        return {
            "origin_s": self.origin_s,
            "jobs": [self._measured(records[one]) | {"plans": self.plans(one)} for one in ids],
        }

    def plans(self, job_id: int) -> list[Json]:
        """Return the decisions of the deferral about one job, as `senergy job` reports them.

        The times of the decisions are in seconds since the start of the benchmark's run.
        """
        job = json.loads(self.call("senergy", "job", "--json", str(job_id)))["jobs"][0]
        return [
            {key: value - self.origin_s if key in _TIMES else value for key, value in one.items()}
            for one in job.get("decisions", ())
        ]

    def reported(self, run: Json) -> Json:
        """Wait until the report of savings contains all deferred jobs of a run, and return its totals."""
        expected = sum(any(plan["kind"] == "defer" for plan in job["plans"]) for job in run["jobs"])
        words = ("report", "--json", "job", "DeferralSavings", "start=now-2hours", "end=now")
        total: Json = {}
        for _ in range(90):
            document = json.loads(self.call("senergy", *words))
            total = document["total"]["cost"] or {}
            if total.get("jobs", 0) >= expected:
                return total
            time.sleep(1)
        raise SystemExit(f"deferral_live.py: the report has {total.get('jobs')} of {expected} deferred jobs")

    def _measured(self, record: Json) -> Json:
        start_s, end_s, joules = (float(record[key]) for key in ("start", "end", "energy_joules"))
        mean_price = self.price_at(start_s, max(end_s, start_s + 1.0))
        return {
            "start_s": start_s - self.origin_s,
            "end_s": end_s - self.origin_s,
            "watts": joules / max(1.0, end_s - start_s),
            "cost": joules / 3.6e6 * mean_price,
        }


@contextmanager
def running_lab(day: Sequence[float]) -> Iterator[DeferralLab]:
    """Run an emulated cluster (lab) for the deferral benchmark, and yield it."""
    root = tempfile.mkdtemp(prefix="senergy-defer-", dir="/var/tmp")
    lab_layout = layout.locate_lab(root)
    prices = Path(tempfile.mkdtemp(prefix="senergy-prices-", dir="/var/tmp")) / "prices.csv"
    prices.parent.chmod(0o755)
    replace_public(prices, f"time,EUR/MWh\n{time.time():.0f},50\n".encode())
    energy = {
        "price": {"provider": "csv", "file": str(prices)},
        "priority": {"interval_s": 1.0, "policy": "fcfs"},
        "deferral": {
            "slot_s": SLOT_S,
            "interval_s": INTERVAL_S,
            "max_slack_s": MAX_SLACK_S,
            "deadline_margin_s": 1800.0 / SPEED,
            "start_margin_s": MARGIN_S,
        },
    }
    nodes = tuple(
        nodes_file.NodeSpec(node.name, node.profile, SMALL_NODE) for node in nodes_file.from_profiles(NODES)
    )
    note(f"bringing up a lab in {root}")
    try:
        lab = lifecycle.up(lab_layout, LabSpec(nodes, _SLURM, energy, priority="portable"))
        yield DeferralLab(lab, prices, day)
    finally:
        lifecycle.down(lab_layout)
        prices.unlink(missing_ok=True)
        prices.parent.rmdir()


def released_after_kill(on: DeferralLab) -> Json:
    """Kill senergyctld while jobs are held. Return the seconds from the kill to the last job start."""
    on.configure("cheapest")
    jobs = [PlannedJob(0.0, 2, round(10 * HOUR_S)) for _ in range(4)]
    ids = [on.submit(job) for job in jobs]
    time.sleep(6 * INTERVAL_S)
    listing = on.call("squeue", "--noheader", "--states=PENDING", "--format=%A %r")
    pid = on.lab.daemon_pid("senergyctld")
    assert pid is not None
    killed_s = time.time()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while on.queued() and time.monotonic() < deadline:
        time.sleep(0.5)
    on.lab.start_daemon("senergyctld")
    records = on.times(ids)
    return {
        "held": listing.count("BeginTime"),
        "last_start_s": max(float(records[one]["start"]) for one in ids) - killed_s,
    }


def evaluate(
    jobs: Sequence[PlannedJob], first: Json, second: Json, simulated: Json, kill: Json
) -> list[Claim]:
    """Print the result table of the benchmark and return the claims (comparisons with targets)."""
    slack = np.array([job.slack_s for job in jobs])
    waits = {
        name: np.array([row["start_s"] - job.at_s for job, row in zip(jobs, run["jobs"], strict=True)])
        for name, run in (("first", first), ("second", second))
    }
    deferrable = slack > 0
    costs = {
        "run now": np.array([row["cost"] for row in first["jobs"]]),
        "deferred": np.array([row["cost"] for row in second["jobs"]]),
        "simulated": np.array(simulated["cost"]),
    }
    print("| run | cost of all jobs, EUR | of deferrable jobs, EUR | mean wait of jobs without slack, s |")
    print("|---|---|---|---|")
    for name, cost in costs.items():
        wait = {"run now": waits["first"], "deferred": waits["second"]}.get(name)
        shown = f"{np.mean(wait[~deferrable]):.2f}" if wait is not None else ""
        print(f"| {name} | {cost.sum():.3e} | {cost[deferrable].sum():.3e} | {shown} |")
    ratio = float(costs["deferred"].sum() / costs["simulated"].sum())
    late_s = np.max(waits["second"][deferrable] - slack[deferrable])
    urgent = {name: float(np.mean(wait[~deferrable])) for name, wait in waits.items()}
    noise_s = 2.0 * float(np.std(waits["first"][~deferrable])) / np.sqrt(np.sum(~deferrable)) + 1.0
    was_deferred = np.array([any(plan["kind"] == "defer" for plan in row["plans"]) for row in second["jobs"]])
    reported = second["reported"]["at_once"] - second["reported"]["actual"]
    measured = float(np.sum((costs["run now"] - costs["deferred"])[was_deferred]))
    hold_s = max(SLOT_S / 3, 5 * INTERVAL_S)
    saving = 1 - float(costs["deferred"].sum() / costs["run now"].sum())
    busy = len(jobs) > IDLE_JOBS  # the plan then leaves hardly any room
    within = f"{1 - WITHIN:g}..{1 + WITHIN:g}"
    claims = [
        claim("deferral_live_cost", ratio, within, abs(ratio - 1) <= WITHIN),
        at_most("deferral_live_latest_start_s", float(late_s), 2.0),
        at_most("deferral_live_urgent_wait_s", urgent["second"] - urgent["first"], noise_s),
        at_least("deferral_live_saving", saving, 0.0 if busy else 0.05),
        at_least("deferral_live_held_before_kill", float(kill["held"]), 1.0 if busy else 4.0),
        at_most("deferral_live_release_after_kill_s", kill["last_start_s"], hold_s + 3.0),
    ]
    if not busy:
        ratio = reported / measured
        claims.append(claim("deferral_live_reported_saving", ratio, within, abs(ratio - 1) <= WITHIN))
    return claims


def note(line: str) -> None:
    """Print a line of progress."""
    print(f"  {time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the same jobs with and without deferral, and print the checks of the benchmark's targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=12, help="number of jobs (default 12)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the workload (default 1)")
    parser.add_argument("--out", type=Path, help="also write times and costs of all jobs to this file")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("deferral_live.py: error: a lab needs root: run it with sudo", file=sys.stderr)
        return 2
    from live.deferral_replay import simulate  # after the usage errors: it imports the simulator

    jobs = draw(arguments.jobs, arguments.seed)
    with running_lab(DAY) as on:
        first = on.run(jobs, "off")
        second = on.run(jobs, "cheapest")
        second["reported"] = on.reported(second)
        kill = released_after_kill(on)
    measured = {
        "jobs": [dataclasses.asdict(job) for job in jobs],
        "off": first,
        "cheapest": second,
        "kill": kill,
    }
    if arguments.out:  # first the measurements, which cannot be repeated
        arguments.out.write_text(json.dumps(measured, indent=1))
    simulated = simulate(jobs, first, second["origin_s"] - first["origin_s"], DAY)
    if arguments.out:
        arguments.out.write_text(json.dumps(measured | {"simulated": simulated}, indent=1))
    return publish(evaluate(jobs, first, second, simulated, kill), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
