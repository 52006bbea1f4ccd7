"""Simulated days of the cluster in the thesis, as files that `senergy study` reads.

    python weeks.py SITE --days 14 [--study STUDY]

Each day is a simulation of 24 hours of the shipped scenario `training` (8 A100 and 8 H100 GPUs; ViT,
ALBERT and ResNet-50). The scheduling policy is `priority.policy` of SITE's energy.toml if
`priority.mode` is `plugin` or `portable`, otherwise Pollux. With --study, the policy is in force on
days drawn at random (switchback); the file is changed accordingly at each midnight. In the output, a
GPU counts as a node. All jobs of the same model count as the same work, whatever number and kind of
GPUs the policy gave them. Days are therefore compared at equal work.
"""

import argparse
import csv
import json
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from slurm_energy import simulations
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.rollout.deploy_step import Deployment

DAY_S, HOUR_S = 86400, 3600
FIRST_S = int(datetime(2026, 9, 7, tzinfo=UTC).timestamp())
# Assumed round numbers, which only set how much work a job of each model is.
GPU_HOURS = {"ViT-B": 0.5, "ALBERT": 1.2, "ResNet-50": 0.8}
COLUMNS = ("job_id", "name", "user", "account", "partition", "state", "nodes", "submit_s", "start_s", "end_s")


def policy(site: Path) -> str:
    """Return the policy in force."""
    priority = tomllib.loads((site / "energy.toml").read_text()).get("priority", {})
    return priority["policy"] if priority.get("mode") in ("plugin", "portable") else "pollux"


def day_rows(day: int, name: str) -> tuple[list[dict], list[tuple]]:
    """Return the jobs and the hourly energy of a day."""
    values = {"workload.hours": 24.0, "schedule.horizon_hours": 24.0}
    schedule = simulations.read("training").with_values(values).run(name, seed=day)
    begin_s = FIRST_S + day * DAY_S
    rows = []
    for job in schedule.jobs.itertuples():
        if job.outcome != "completed":
            continue
        gpu_hours = job.units * job.run_s / HOUR_S
        rows.append(
            {
                "job_id": f"{day}{job.job_id:04d}",
                "name": job.name,
                "user": job.user,
                "account": job.user,
                "partition": "gpu",
                "state": "COMPLETED",
                "nodes": job.units,
                "submit_s": begin_s + job.submit_s,
                "start_s": begin_s + job.start_s,
                "end_s": begin_s + job.end_s,
                "energy_joules": job.energy_joules,
                "speed": GPU_HOURS[job.name] / gpu_hours,
            }
        )
    times = [*schedule.power.time_s.clip(upper=DAY_S).tolist(), DAY_S]
    joules = [0.0] * 24
    for begin, end, watts in zip(times[:-1], times[1:], schedule.power.watts, strict=True):
        while begin < end:
            hour = min(23, int(begin // HOUR_S))
            until = min(end, (hour + 1) * HOUR_S)
            joules[hour] += (until - begin) * watts
            begin = until
    return rows, [(begin_s + h * HOUR_S, begin_s + (h + 1) * HOUR_S, value) for h, value in enumerate(joules)]


def main() -> None:
    """Run some days and write jobs-N.csv and energy-N.csv of all N days."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--study", type=Path)
    args = parser.parse_args()
    args.site.mkdir(parents=True, exist_ok=True)
    config, log = args.site / "energy.toml", args.site / "policies.json"
    if not config.exists():
        config.write_text("# The site orders its queue by Pollux.\n")
    policies = json.loads(log.read_text()) if log.exists() else []
    for _ in range(args.days):
        if args.study:
            now_s = FIRST_S + len(policies) * DAY_S
            Deployment(StudyDirectory(args.study), now_s, lambda _: []).tick("weeks.py")
        policies.append(policy(args.site))
    log.write_text(json.dumps(policies))
    days = [day_rows(day, name) for day, name in enumerate(policies)]
    with (args.site / f"jobs-{len(days)}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, "energy_joules", "speed"))
        writer.writeheader()
        writer.writerows(row for rows, _ in days for row in rows)
    with (args.site / f"energy-{len(days)}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("start_s", "end_s", "joules"))
        writer.writerows(hour for _, hours in days for hour in hours)
    print(f"{args.site}: {len(days)} days, {policies.count('pollux')} of them under Pollux")


if __name__ == "__main__":
    main()
