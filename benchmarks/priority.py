"""Cost of ordering a long queue of N jobs.

Four costs are measured.

Scores: every policy of the registry ranks random jobs with two shapes (possible resources) each, 500 users,
and a deadline for one job in ten. The time includes the sorting.

Cycle: the work that senergyctld does every 15 s with such a queue and 2,000 finished runs in its history.
The work consists of predictions, ranking, site factors and the plugin's table. For scores and cycle, the
shortest time of several rounds counts.

slurmctld: a slurmctld of the lab runs with N pending job records and the site factor plugin. `pass_timer.c`
measures the CPU time of the plugin's update, and the CPU time in which Slurm's plugin multifactor computes
the priorities of the same jobs. multifactor computes all of its factors, because all weights are above 0.
The values are medians of five measurements.

Portable mode: a cycle consists of one squeue and of changes to 1 % of the jobs. slurmctld's time for these
requests is taken from sdiag and includes waits for locks.

The benchmark prints these claims:

- `CLAIM priority_scores_N ratio=...`: seconds of the slowest policy divided by the target (0.1
  s at 100,000 jobs), at most 1.
- `CLAIM priority_cycle_N`: seconds of a cycle, at most 1.
- `CLAIM priority_update_N`: time of the plugin's update divided by the time of multifactor, at
  most 1.
- `CLAIM priority_portable_N`: slurmctld's seconds for a cycle of portable mode divided by the
  interval of 15 s, at most 0.05.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from claims import Claim, at_most, publish
from real_queue import MOST_SINGLE, RealQueue, real_queue

from slurm_energy import scheduling
from slurm_energy.oracle.history import History, ObservedRun
from slurm_energy.scheduling import queue as tables
from slurm_energy.slurm.queue.columns import QueueColumns, queue_columns

SIZES = (1_000, 10_000, 100_000)
REAL_SIZES = (1_000, 10_000, 20_000, 100_000)
USERS, RUNS, PROGRAMS = 500, 2_000, 300
MOST_SCORES_S, INTERVAL_S = 0.1, 15.0
MOST_CYCLE_S, MOST_PORTABLE_SHARE = 1.0, 0.05
CHANGED_SHARE = 0.01
NOW_S = 1.8e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", help=f"pending jobs (default {_listed(SIZES)})")
    parser.add_argument("--real-sizes", help=f"records in slurmctld (default {_listed(REAL_SIZES)}; none: 0)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of scores and cycles (default 5)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    real = _numbers(arguments.real_sizes, REAL_SIZES)
    if any(real) and os.geteuid() != 0:
        print("priority.py: error: a lab needs root: run it with sudo, or --real-sizes 0", file=sys.stderr)
        return 2
    claims: list[Claim] = []
    for count in _numbers(arguments.sizes, SIZES):
        claims += scores(count, arguments.rounds)
        claims += cycle(count, arguments.rounds)
    if any(real):
        claims += with_slurmctld(real)
    return publish(claims, arguments.json)


def _listed(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def _numbers(text: str | None, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    return otherwise if text is None else tuple(int(number) for number in text.split(","))


def best_s(rounds: int, work: Callable[[], object]) -> float:
    """Run `work` several times and return the shortest wall-clock time in seconds.

    The shortest time is used because other work on the machine only adds time.
    """
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def scores(count: int, rounds: int) -> Iterator[Claim]:
    queue, options = random_queue(count), scheduling.Options()
    taken = {}
    for name in scheduling.names():
        rank = scheduling.policy(name).rank
        taken[name] = best_s(rounds, lambda rank=rank: rank(queue, options).order(queue.jobs.job_id))
    shown = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in taken.items())
    print(f"{count:>7,} jobs, scores and order, ms: {shown}", flush=True)
    if count == max(SIZES):
        worst = max(taken.values())
        yield at_most(f"priority_scores_{count}", worst / MOST_SCORES_S, 1) | {"seconds": taken}


def random_queue(count: int) -> scheduling.Queue:
    """Return a random queue in which each job has two shapes (ways to run it).

    Args:
        count: number of jobs.
    """
    draw = np.random.default_rng(count)
    deadline_s = np.where(draw.random(count) < 0.1, NOW_S + draw.uniform(0, 1e5, count), np.nan)
    jobs = tables.jobs(
        np.arange(1, count + 1),
        NOW_S - draw.exponential(3600, count),
        user=draw.integers(0, USERS, count),
        deadline_s=deadline_s,
        time_limit_s=draw.uniform(60, 1e5, count),
        size=draw.random(count),
    )
    shapes = tables.alternatives(
        np.arange(0, 2 * count + 1, 2),
        draw.lognormal(8, 1, 2 * count),
        draw.uniform(100, 3000, 2 * count),
        gpus=draw.integers(1, 8, 2 * count),
        hardware=draw.integers(0, 2, 2 * count),
    )
    users = tables.Users(draw.uniform(1, 5, USERS), draw.uniform(0, 1e6, USERS), draw.uniform(0, 1e9, USERS))
    return tables.Queue(NOW_S, jobs, shapes, users)


def cycle(count: int, rounds: int) -> Iterator[Claim]:
    """Measure the time of one cycle in which senergyctld ranks the queue and publishes the result.

    The result is published through the table that the plugin of slurmctld reads. In each cycle, 1 % of the
    jobs are new.
    """
    from slurm_energy import config
    from slurm_energy.oracle.history.queue_forecast import predict_many
    from slurm_energy.priority.engine import EngineState, PriorityEngine
    from slurm_energy.priority.publisher import TablePublisher
    from slurm_energy.priority.usage import DecayedUsage

    history = known_runs()
    engine = PriorityEngine(
        config.parse("", Path("energy.toml")),
        EngineState(DecayedUsage(6e5)),
        lambda asked: predict_many(history, asked),
    )
    queues = iter([pending(count, first=1 + step * count // 100) for step in range(rounds + 1)])
    with tempfile.TemporaryDirectory(prefix="senergy-") as folder:
        target = TablePublisher(Path(folder) / "priority.table", 300.0)
        target.publish(engine.cycle(next(queues), NOW_S))
        seconds = best_s(rounds, lambda: target.publish(engine.cycle(next(queues), NOW_S)))
    print(f"{count:>7,} jobs, cycle of the engine: {seconds:.3f} s", flush=True)
    yield at_most(f"priority_cycle_{count}", seconds / MOST_CYCLE_S, 1)


def pending(count: int, first: int = 1) -> QueueColumns:
    """Return a job queue in the form in which the readers of Slurm's queue return it.

    The queue contains only pending jobs, which are numbered from `first` on.
    """
    job_id = np.arange(first, first + count)
    program = job_id * 7919 % PROGRAMS
    user = job_id * 31 % USERS
    return queue_columns(
        NOW_S,
        job_id,
        uid=1000 + user,
        submit_s=NOW_S - (first + count - job_id),
        eligible_s=NOW_S - (first + count - job_id),
        time_limit_s=600.0 * (1 + job_id % 48),
        nodes=np.ones(count, np.int64),
        cpus=1 + job_id % 32,
        gpus=job_id % 5,
        gpu_kind=["a100" if number % 5 else "" for number in job_id.tolist()],
        shares_norm=np.full(count, 1 / USERS),
        user=[f"user{number}" for number in user.tolist()],
        account=[f"account{number % 40}" for number in user.tolist()],
        partition=["gpu"] * count,
        name=[f"program{number}" for number in program.tolist()],
    )


def known_runs() -> History:
    """Return a history of finished runs for the benchmark.

    It has runs of half of the programs, so that predictions exist only for these.
    """
    draw, history = np.random.default_rng(3), History()
    for number in range(RUNS):
        user, seconds = number % USERS, float(draw.lognormal(7, 1))
        history.learn(
            ObservedRun(
                user=f"user{user}",
                account=f"account{user % 40}",
                partition="gpu",
                name=f"program{number % (PROGRAMS // 2)}",
                nodes=1,
                cpus=8,
                gpus=1,
                gpu_kind="a100",
                time_limit_s=36_000.0,
                end=NOW_S - 1e5 + number,
                duration_s=seconds,
                energy_joules=seconds * 300.0,
            )
        )
    return history


def with_slurmctld(sizes: tuple[int, ...]) -> Iterator[Claim]:
    weights = {f"PriorityWeight{name}": 1000 for name in ("Age", "Fairshare", "JobSize", "Partition", "QOS")}
    with real_queue(*(f"{key}={value}" for key, value in weights.items())) as queue:
        for count in sizes:
            queue.grow(count)
            cycle_s = queue.ranked()["cycle_s"]
            passes = queue.passes(5)
            site, own = (statistics.median(each[key] for each in passes) for key in ("site", "own"))
            print(
                f"{count:>7,} records: cycle of senergyctld {cycle_s:.3f} s; CPU ms per pass: "
                f"plugin {site:.2f}, multifactor {own:.2f}",
                flush=True,
            )
            yield at_most(f"priority_update_{count}", site / own, 1) | {"site_ms": site, "own_ms": own}
            if count <= MOST_SINGLE:  # squeue shows an array as one
                with queue.without_senergyctld():
                    yield portable(queue, count)


def portable(queue: RealQueue, count: int) -> Claim:
    """Measure the time that a cycle of the portable mode costs slurmctld.

    Return the benchmark's claim, which compares this time with a target. In portable mode, the priority
    engine uses Slurm's commands instead of the plugin. The cycle reads the queue and changes the site
    factors of some jobs.
    """
    from slurm_energy.slurm.queue.job_update import JobUpdater
    from slurm_energy.slurm.queue.squeue_source import SqueueSource

    os.environ |= queue.lab.environment()
    before = queue.rpcs()
    begin = time.perf_counter()
    columns = SqueueSource().read()
    reading_s = time.perf_counter() - begin
    # The job id of an array stands for all of its tasks.
    tasks = columns.job_id[columns.job_id != columns.array_job_id].tolist()
    changes = {job: 1000 * index for index, job in enumerate(tasks[: round(CHANGED_SHARE * count)], 1)}
    outcome = JobUpdater(updates_per_s=1e4, batch_s=120).set_site_factors(changes)
    seconds = time.perf_counter() - begin
    after = queue.rpcs()
    cost = {
        name: (calls - before.get(name, (0, 0))[0], ms - before.get(name, (0, 0))[1])
        for name, (calls, ms) in after.items()
    }
    asked = {
        name: cost[name]
        for name in ("REQUEST_JOB_INFO", "REQUEST_PARTITION_INFO", "REQUEST_UPDATE_JOB")
        if name in cost
    }
    slurmctld_s = sum(ms for _, ms in asked.values()) / 1e3
    shown = ", ".join(f"{name} {calls} x, {ms:.1f} ms" for name, (calls, ms) in asked.items())
    print(
        f"{count:>7,} records, a cycle of portable mode: {reading_s:.2f} s to read, {seconds:.2f} s; {shown}",
        flush=True,
    )
    if columns.count != count or len(outcome.done) != len(changes):
        raise SystemExit(
            f"priority.py: {columns.count} records read, {len(outcome.done)} changed: {outcome.refused}"
        )
    return at_most(f"priority_portable_{count}", slurmctld_s / INTERVAL_S, MOST_PORTABLE_SHARE) | {
        "rpcs": asked
    }


if __name__ == "__main__":
    sys.exit(main())
