"""Two real Slurm clusters with different electricity prices, compared with their simulation.

The two clusters share one slurmdbd. Time passes 180 times as fast: an hour of prices lasts 20 s. Half of the
jobs belong to each cluster, their home cluster. The benchmark submits all jobs three times at the login
nodes of their home clusters. The first time, each job runs on its home cluster. The second time, the jobs go
to the two clusters in turn. The third time, `senergy where --submit` chooses the cluster of each job. The
benchmark checks three claims about the third time. The choices of clusters equal those in the simulation.
The cost is not above the simulated cost. The cost is lower than in the first and the second time.

Then slurmctld and senergyctld of the cheaper cluster are killed. The benchmark checks that the other cluster
accepts jobs in bounded time, that these jobs start, and that `senergy where` chooses the killed cluster
again after its return.

The benchmark needs root, munge and MariaDB.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from claims import Claim, at_least, at_most, claim, publish

from slurm_energy_lab.slurm_clusters import SlurmCluster, SlurmClusters, missing_programs

Json = dict[str, Any]
SENERGY = (sys.executable, "-m", "slurm_energy.cli.main")
WITHIN = 0.08
REFRESH_S = 1.0
SLURM_TIMEOUT_S = 10.0
"""Slurm's MessageTimeout: how long sbatch tries to reach a slurmctld that has just died."""
MARGIN_S = 5.0
STATE_SAVE_S = 7.0
"""slurmctld saves its state every 5 s. It forgets a job that was submitted after that when it is killed."""


class TwoZones:
    """Two running Slurm clusters of the benchmark, with different electricity prices.

    Args:
        group: the clusters.
        values: prices per kWh from `HOURS_BEFORE` hours before the start on, by cluster.
    """

    def __init__(self, group: SlurmClusters, values: Mapping[str, Any]) -> None:
        self.group, self.values = group, values
        self.origin_s = 0.0
        self.clusters = group.clusters
        for cluster in self.clusters.values():
            self._write_prices(cluster, time.time())
            cluster.configure_controller(self._configuration(cluster))
            cluster.start_controller()
        self.wait_for_controllers()

    def _configuration(self, cluster: SlurmCluster) -> str:
        from live.clusters import BANDWIDTH_MBIT_PER_S, MAX_DELAY_S, TRANSFER_KWH_PER_GB

        network = (
            f"bandwidth_mbit_per_s = {BANDWIDTH_MBIT_PER_S}\ntransfer_kwh_per_gb = {TRANSFER_KWH_PER_GB}\n"
        )
        tables = [
            f'[clusters.{one.name}]\ncontroller_url = "{one.controller_url}"\n'
            f'controller_users = ["0"]\n{network}'
            for one in self.clusters.values()
            if one is not cluster
        ]
        return (
            f'[price]\nprovider = "csv"\ncurrency = "USD"\nfile = "{cluster.directory}/prices.csv"\n'
            f'[placement]\npolicy = "cheapest"\nmax_delay_s = {MAX_DELAY_S}\nrefresh_s = {REFRESH_S}\n'
            f"[clusters.{cluster.name}]\n{network}" + "".join(tables)
        )

    def _write_prices(self, cluster: SlurmCluster, origin_s: float) -> None:
        from live.clusters import HOUR_S, HOURS_BEFORE

        rows = [
            f"{origin_s + (at - HOURS_BEFORE) * HOUR_S:.3f},{1000 * value}\n"
            for at, value in enumerate(self.values[cluster.name])
        ]
        path = cluster.directory / "prices.new"
        path.write_text("".join(["time,USD/MWh\n", *rows]))
        path.chmod(0o644)
        path.rename(cluster.directory / "prices.csv")

    def begin(self) -> None:
        """Write the electricity prices of both clusters so that they begin now."""
        self.origin_s = float(int(time.time()) + 3)
        for cluster in self.clusters.values():
            self._write_prices(cluster, self.origin_s)
            cluster.daemons["senergyctld"].send_signal(signal.SIGHUP)
        time.sleep(max(0.0, self.origin_s - time.time()))

    def wait_for_controllers(self) -> None:
        """Wait until the controller of each cluster can reach the controllers of all clusters."""
        for cluster in self.clusters.values():
            self.group.wait_for(lambda c=cluster: self.knows_all(c), f"senergyctld of {cluster.name}")

    def knows_all(self, cluster: SlurmCluster) -> bool:
        """Return whether the senergyctld of a cluster can choose among all clusters."""
        script = self.script(1)
        done = cluster.try_run(*SENERGY, "where", "--json", str(script))
        return done.returncode == 0 and not json.loads(done.stdout)["left_out"]

    def script(self, sleep_s: int) -> Path:
        """Return the path of a batch script that sleeps for `sleep_s` seconds."""
        path = self.group.directory / f"sleep{sleep_s}.sh"
        if not path.exists():
            path.write_text(f"#!/bin/sh\nsleep {sleep_s}\n")
            path.chmod(0o755)
        return path

    def submit(self, job: Any, rule: str, number: int) -> Json:
        """Submit a job at the login node of its home cluster.

        Args:
            job: job to submit.
            rule: how to choose the cluster on which the job runs: `round-robin`, or a policy of `senergy
                where`.
            number: number of the job, for `round-robin`.

        Returns:
            The chosen cluster, the job id and the duration of the submission.
        """
        home, began_s = self.clusters[job.home], time.monotonic()
        options = f"-n1 -c{job.cpus} -t{job.minutes} -o/dev/null"
        script = str(self.script(job.sleep_s))
        if rule == "round-robin":
            name = list(self.clusters)[number % len(self.clusters)]
            out = home.run("sbatch", "--parsable", f"--clusters={name}", *options.split(), script)
            answer: Json = {"cluster": name, "job_id": int(out.split(";")[0])}
        else:
            data = ("--data", f"{job.data_gb}GB")
            out = home.run(
                *SENERGY,
                "where",
                "--submit",
                "--json",
                "--policy",
                rule,
                *data,
                f"--sbatch={options}",
                script,
            )
            document = json.loads(out)
            rows = {row["cluster"]: row for row in document["clusters"]}
            answer = {**document["submitted"], "reason": document["reason"], "figures": rows}
        return answer | {"submit_s": time.monotonic() - began_s}

    def times(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Return start and end of each job by cluster and id."""
        found = {}
        for name, cluster in self.clusters.items():
            text = cluster.run(
                "squeue", "-h", "-t", "all", "-o", "%A %S %e", SLURM_TIME_FORMAT="%s", SQUEUE_PARTITION="all"
            )
            for line in text.splitlines():
                job_id, start, end = line.split()
                if start.isdigit() and end.isdigit():
                    found[name, int(job_id)] = float(start), float(end)
        return found

    def pending_or_running(self) -> int:
        """Return the number of jobs that have not ended."""
        return sum(len(one.run("squeue", "-h", "-o", "%A").split()) for one in self.clusters.values())

    def run(self, jobs: Sequence[Any], rule: str) -> list[Json]:
        """Run all jobs under one rule for the choice of the cluster.

        The jobs are submitted at their times, and the method waits for their end.

        Returns:
            For each job, its cluster, its start and end time, and its cost.
        """
        from live.clusters import cost

        self.begin()
        rows: list[Json] = [{} for _ in jobs]
        threads = []
        for number, job in enumerate(jobs):
            time.sleep(max(0.0, self.origin_s + job.at_s - time.time()))

            def one(number: int = number, job: Any = job) -> None:
                rows[number] = self.submit(job, rule, number)

            threads.append(threading.Thread(target=one))
            threads[-1].start()
            if number % 10 == 9:
                note(f"{rule}: {number + 1} of {len(jobs)} jobs sent")
        for thread in threads:
            thread.join()
        while self.pending_or_running():
            time.sleep(1.0)
        times = self.times()
        for job, row in zip(jobs, rows, strict=True):
            start_s, end_s = (one - self.origin_s for one in times[row["cluster"], row["job_id"]])
            row |= {"start_s": start_s, "end_s": end_s}
            row["cost"] = cost(job, row["cluster"], start_s, end_s, self.values)
        return rows


def dead_controllers(zones: TwoZones) -> Json:
    """Kill the daemons of the cheaper cluster, and return where jobs then run.

    The jobs are submitted at the login nodes of both clusters while the daemons are dead.
    """
    from live.clusters import ZoneJob

    cheap, other = cheaper_first(zones)
    job = {name: ZoneJob(0.0, name, 1, 1, 2, 0.0) for name in (cheap.name, other.name)}
    note(f"{cheap.name} is the cheaper cluster; its slurmctld is killed")
    result: Json = {"before": [zones.submit(job[other.name], "cheapest", 0) for _ in range(3)]}
    kept = zones.submit(ZoneJob(0.0, cheap.name, 1, 1, 40, 0.0), "cheapest", 0)
    zones.group.wait_for(lambda: running(cheap, kept["job_id"]), "the job on the killed cluster")
    time.sleep(STATE_SAVE_S)
    cheap.end("slurmctld", signal.SIGKILL)
    result["just after"] = zones.submit(job[other.name], "cheapest", 0)
    zones.group.wait_for(lambda: not zones.knows_all(other), "the end of the killed cluster")
    result["slurmctld dead"] = [zones.submit(job[other.name], "cheapest", 0) for _ in range(3)]
    cheap.end("senergyctld", signal.SIGKILL)
    result["senergyctld dead too"] = [zones.submit(job[other.name], "cheapest", 0) for _ in range(3)]
    result["at the dead cluster"] = zones.submit(job[cheap.name], "cheapest", 0)
    other.end("senergyctld", signal.SIGKILL)
    result["both senergyctld dead"] = zones.submit(job[other.name], "cheapest", 0)
    other.start_controller()
    ids = [one["job_id"] for one in submissions(result) if one["cluster"] == other.name]
    zones.group.wait_for(lambda: not other.run("squeue", "-h").split(), "the jobs of the other cluster")
    details = {one: other.run("scontrol", "show", "job", str(one), SLURM_TIME_FORMAT="%s") for one in ids}
    result["wait_s"] = max(
        number(text, "StartTime") - number(text, "SubmitTime") for text in details.values()
    )
    result["completed"] = sum("JobState=COMPLETED" in text for text in details.values()) / len(ids)
    returned_s = time.monotonic()
    cheap.start("slurmctld", "slurmctld", "-D", "-f", f"{cheap.directory}/slurm.conf")
    cheap.start_controller()
    zones.wait_for_controllers()
    zones.group.wait_for(
        lambda: zones.submit(job[other.name], "cheapest", 0)["cluster"] == cheap.name, "the return"
    )
    result["return_s"] = time.monotonic() - returned_s
    zones.group.wait_for(lambda: not zones.pending_or_running(), "the end of all jobs")
    result["kept"] = "JobState=COMPLETED" in cheap.run("scontrol", "show", "job", str(kept["job_id"]))
    return result


def cheaper_first(zones: TwoZones) -> tuple[SlurmCluster, SlurmCluster]:
    """Make the prices of one cluster much lower than the prices of the other at all times.

    Return the cheap and the expensive cluster.
    """
    cheap, other = zones.clusters.values()
    zones.values = {
        cheap.name: 0 * zones.values[cheap.name] + 0.02,
        other.name: 0 * zones.values[other.name] + 0.2,
    }
    zones.begin()
    zones.wait_for_controllers()
    return cheap, other


def submissions(result: Mapping[str, Any]) -> list[Json]:
    """Return the job submissions that followed the kill of a controller, joined to one list."""
    rows: list[Json] = []
    for name, value in result.items():
        if name != "before" and isinstance(value, (list, dict)):
            rows += value if isinstance(value, list) else [value]
    return rows


def running(cluster: SlurmCluster, job_id: int) -> bool:
    """Return whether a job runs."""
    return "JobState=RUNNING" in cluster.run("scontrol", "show", "job", str(job_id))


def number(text: str, key: str) -> float:
    """Return the number that follows `key=` in the output of `scontrol show job`."""
    return float(text.split(f"{key}=")[1].split()[0])


def simulated_runs(jobs: Sequence[Any], live: Mapping[str, Any], values: Mapping[str, Any]) -> Json:
    """Simulate the benchmark once with each rule that chooses a cluster for a job.

    The entry `same choices` of the result is a further simulation. In it, each job runs on the cluster that
    the rule `cheapest` chose in the live run.
    """
    from live.clusters import simulate

    pairs = zip(jobs, live["home"], strict=True)
    launch_s = statistics.median(row["end_s"] - row["start_s"] - job.sleep_s for job, row in pairs)
    chosen = [row["cluster"] for row in live["cheapest"]]
    return {
        **{rule: simulate(jobs, rule, values, launch_s) for rule in live},
        "same choices": simulate(jobs, "cheapest", values, launch_s, chosen),
    }


def evaluate(jobs: Sequence[Any], live: Mapping[str, Any], simulated: Mapping[str, Any]) -> list[Claim]:
    """Print a table that compares the rules by which jobs choose a cluster, and return the checks.

    The checks compare the results with the targets of the benchmark.
    """
    print("| rule | jobs elsewhere | cost, live | cost, simulated | mean wait, live | simulated |")
    print("|---|---|---|---|---|---|")
    costs: dict[str, tuple[float, float]] = {}
    for rule, other in simulated.items():
        pair = live[rule if rule in live else "cheapest"], other
        live_cost, cost = (sum(row["cost"] for row in rows) for rows in pair)
        waits = [mean_wait(jobs, rows) for rows in pair]
        moved = [
            sum(row["cluster"] != job.home for job, row in zip(jobs, rows, strict=True)) for rows in pair
        ]
        costs[rule] = live_cost, cost
        print(
            f"| {rule} | {moved[0]}, simulated {moved[1]}, of {len(jobs)} | {1e3 * live_cost:.4g} "
            f"| {1e3 * cost:.4g} | {waits[0]:.1f} s | {waits[1]:.1f} s |"
        )
    both = list(zip(live["cheapest"], simulated["cheapest"], strict=True))
    for job, (a, b) in zip(jobs, both, strict=True):
        if a["cluster"] != b["cluster"]:
            reason = f"{a['cluster']}, {a['reason']}; simulated {b['cluster']}"
            note(f"job at {job.at_s:.0f} s, home {job.home}: {reason}")
    ratio = costs["same choices"][0] / costs["same choices"][1]
    cheapest = costs["cheapest"][0]
    return [
        at_least(
            "clusters_live_same_choice", statistics.mean(a["cluster"] == b["cluster"] for a, b in both), 0.9
        ),
        at_most("clusters_live_cost", cheapest / costs["cheapest"][1], 1 + WITHIN),
        claim(
            "clusters_live_cost_of_same_choices",
            ratio,
            f"{1 - WITHIN:g}..{1 + WITHIN:g}",
            abs(ratio - 1) <= WITHIN,
        ),
        at_least("clusters_live_saving_home", 1 - cheapest / costs["home"][0], 0.05),
        at_least("clusters_live_saving_round_robin", 1 - cheapest / costs["round-robin"][0], 0.05),
    ]


def mean_wait(jobs: Sequence[Any], rows: Sequence[Json]) -> float:
    """Return the mean waiting time of the jobs from submission to start, in seconds."""
    return statistics.mean(row["start_s"] - job.at_s for job, row in zip(jobs, rows, strict=True))


def evaluate_kill(result: Mapping[str, Any]) -> list[Claim]:
    """Evaluate how a lab behaved after the controllers of a cluster were killed.

    Print the results and return them as claims. A claim is a result that is compared with a target.
    """
    print("| state | cluster of the job | submission |\n|---|---|---|")
    for name, value in result.items():
        for one in value if isinstance(value, list) else [value] if isinstance(value, dict) else []:
            print(f"| {name} | {one['cluster']} | {one['submit_s']:.1f} s |")
    print(f"longest wait of a job {result['wait_s']:.0f} s, chosen again after {result['return_s']:.0f} s")
    known = [*result["slurmctld dead"], *result["senergyctld dead too"], result["both senergyctld dead"]]
    return [
        at_most("clusters_live_submit_known_dead_s", max(one["submit_s"] for one in known), MARGIN_S),
        at_most(
            "clusters_live_submit_just_dead_s",
            max(one["submit_s"] for one in submissions(result)),
            SLURM_TIMEOUT_S + MARGIN_S,
        ),
        at_most("clusters_live_wait_s", result["wait_s"], MARGIN_S),
        at_least("clusters_live_completed", result["completed"], 1.0),
        at_least("clusters_live_job_of_dead_slurmctld_completed", float(result["kept"]), 1.0),
    ]


def note(line: str) -> None:
    """Print a line of progress."""
    print(f"  {time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark on several clusters. Print its claims (results compared with targets)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50, help="number of jobs (default 50)")
    parser.add_argument("--hours", type=float, default=10.0, help="hours in which they arrive (default 10)")
    parser.add_argument("--begin", type=int, default=12, help="first hour of the day, UTC (default 12)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the workload (default 1)")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="FILE@YYYY-MM-DD",
        help="hourly prices of a zone and the day to take; give it twice (default: two synthetic days)",
    )
    parser.add_argument("--kill-only", action="store_true", help="only kill daemons")
    parser.add_argument("--out", type=Path, help="also write all jobs to this file")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or (missing := missing_programs()):
        why = "a lab needs root" if os.geteuid() else f"missing: {', '.join(missing)}"
        print(f"clusters_live.py: error: {why}", file=sys.stderr)
        return 2
    from live import clusters as zones_of  # after the usage errors: it imports the simulator

    days: dict[str, Sequence[float]] = dict(zones_of.SYNTHETIC)
    for name, text in zip(days, arguments.price, strict=False):
        file, _, day = text.rpartition("@")
        days[name] = zones_of.prices(Path(file), day)
    values = {name: zones_of.hourly(day, arguments.begin) for name, day in days.items()}
    jobs = zones_of.draw(arguments.jobs, arguments.hours, list(values), arguments.seed)
    claims: list[Claim] = []
    everything: Json = {}
    note("starting two clusters")
    with SlurmClusters(dict.fromkeys(values, zones_of.CPUS)) as group:
        zones = TwoZones(group, values)
        if not arguments.kill_only:
            live = {rule: zones.run(jobs, rule) for rule in ("home", "round-robin", "cheapest")}
            simulated = simulated_runs(jobs, live, values)
            claims += evaluate(jobs, live, simulated)
            everything |= {"live": live, "simulated": simulated}
        kill = dead_controllers(zones)
        claims += evaluate_kill(kill)
        everything["kill"] = kill
    if arguments.out:
        arguments.out.write_text(json.dumps(everything, indent=1))
    return publish(claims, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
