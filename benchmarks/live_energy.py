"""Energy of a live queue under several policies, and the accuracy of the simulator's forecast.

The benchmark runs 80 jobs on a lab (emulated cluster) with eight A100 and eight H100. Each job stands for the
training of a network. The mix of networks is that of the thesis whose methods slurm-energy implements.
Compared with the thesis, all times of arrival and run times are divided by 80.

The same 80 jobs are run five times. Each run has a name:

- `multifactor`: Slurm's multifactor priority orders the queue. Every user requests a kind of GPU.
- `multifactor-any`: Slurm's multifactor priority orders the queue. No user requests a kind of GPU, and Slurm
  allocates free GPUs.
- `zeus-order`: the policy `zeus` of slurm-energy orders the queue. Every user requests a kind of GPU.
- `pollux`: the policy `pollux` of slurm-energy orders the queue. Users offer four shapes (kind and number of
  GPUs), and the policy chooses one shape.
- `zeus`: as `pollux`, but with the policy `zeus`.

Every kind of job runs once before the experiment, as on a site with a history. The predictions of the live
engine and of the simulation are based on these runs before the experiment only.

The results of every step are stored in --out. The same command resumes from these results. The benchmark
prints a table of the measured results and a table of the simulated results. For each run, the benchmark also
prints two lines, where RUN is the name of the run:

- `CLAIM replay_makespan_RUN ratio=...`
- `CLAIM replay_energy_RUN ratio=...`

The ratio is the simulated value over the measured value. The target is a difference of at most 8 %. The
benchmark needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claims import Claim, claim, publish
from live import cluster, replay, tables, workload
from live.workload import Wish

Json = dict[str, Any]
RUNS = {
    "multifactor": ("multifactor", Wish.KIND),
    "multifactor-any": ("multifactor", Wish.ANY),
    "zeus-order": ("zeus", Wish.KIND),
    "pollux": ("pollux", Wish.SHAPES),
    "zeus": ("zeus", Wish.SHAPES),
}
"""Policy and GPU request of the users, by name of the run."""
WITHIN = 0.08


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("live-energy"), help="%(default)s")
    parser.add_argument("--runs", metavar="A,B", default=",".join(RUNS), help="%(default)s")
    parser.add_argument("--jobs", type=int, default=80, help="number of jobs (default 80)")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs (default 1)")
    parser.add_argument(
        "--load", type=float, default=1.0, help="arrivals against the thesis' 0.005/s (default 1)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("live_energy.py: error: a lab needs root: run it with sudo", file=sys.stderr)
        return 2
    names = [name for name in arguments.runs.split(",") if name]
    if unknown := sorted(set(names) - set(RUNS)):
        print(f"live_energy.py: error: no run {unknown[0]!r}: one of {', '.join(RUNS)}", file=sys.stderr)
        return 2
    jobs = workload.draw(arguments.jobs, arguments.seed, arguments.load)
    setting = [arguments.jobs, arguments.seed, arguments.load]
    runs = measure_runs(arguments.out, setting, names, jobs)
    simulated = {name: simulate_runs(arguments.out / name, runs[name], name, jobs) for name in names}
    print("\n".join(tables.lines({name: runs[name] for name in names}, simulated)))
    return publish(
        [entry for name in names for entry in evaluate(name, runs[name], simulated[name])], arguments.json
    )


def measure_runs(
    folder: Path, setting: list[Any], names: Sequence[str], jobs: Sequence[workload.LiveJob]
) -> Json:
    """Measure the named runs of the benchmark on a lab. Return the results by name.

    Runs with a stored result for the same `setting` are not measured again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {name: stored for name in names if (stored := _kept(folder / f"{name}.json", setting))}
    todo = [name for name in names if name not in found]
    if not todo:
        return found
    with cluster.cluster(cluster.print_progress) as on:
        cluster.print_progress("one run of every kind of job")
        calibration = cluster.calibrate(on, cluster.print_progress)
        for number, name in enumerate(todo, 1):
            cluster.print_progress(f"run {number} of {len(todo)}: {name}")
            policy, wish = RUNS[name]
            on.order_by(policy)
            run = cluster.run(on, jobs, wish, cluster.print_progress)
            found[name] = {**run, "calibration": calibration}
            _keep(folder / f"{name}.json", setting, found[name])
    return found


def simulate_runs(folder: Path, run: Json, name: str, jobs: Sequence[workload.LiveJob]) -> Json:
    """Simulate the jobs that also ran on real hardware, and return the simulator's summary.

    The input files of the simulator are written to `folder`.
    """
    policy, wish = RUNS[name]
    scenario = replay.write(folder, run["calibration"], jobs, wish)
    return replay.simulate(scenario, policy)


def evaluate(name: str, run: Json, simulated: Json) -> list[Claim]:
    """Return the checks of the simulator's accuracy for one policy.

    The checks compare the simulated makespan and energy with those of the live run.
    """
    ratios = {
        "makespan": simulated["makespan_s"] / run["makespan_s"],
        "energy": simulated["energy_kwh"] * 3.6e6 / run["cluster_joules"],
    }
    target = f"{1 - WITHIN:g}..{1 + WITHIN:g}"
    return [
        claim(f"replay_{what}_{name}", ratio, target, abs(ratio - 1) <= WITHIN)
        for what, ratio in ratios.items()
    ]


def _kept(path: Path, setting: Any) -> Json | None:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    result: Json | None = data["result"] if data.get("setting") == setting else None
    return result


def _keep(path: Path, setting: Any, result: Json) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({"setting": setting, "result": result}))
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
