"""Simulations by other programs, with which the benchmark simulator.py compares slurm-energy.

The programs are AccaSim 1.1.3, and a SimPy simulation with one process per job. The module also converts the
jobs for these programs. AccaSim still imports names that Python 3.10 removed from `collections`; they are
restored before it is loaded.
"""

from __future__ import annotations

import collections
import collections.abc
import heapq
import json
import math
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.simulator.workloads.workload import Workload

NODES, LOAD, SEED = 1000, 0.8, 42


def columns(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the columns of a random workload: submission times, sizes, run times and time limits.

    Times are whole seconds.
    """
    random = np.random.default_rng(SEED)
    units = 2 ** random.integers(0, 8, count)
    time_s = np.maximum(1.0, np.floor(random.lognormal(8.0, 0.95, count)))
    limit_s = np.floor(time_s * random.uniform(1.1, 4.0, count))
    gap_s = float(np.mean(time_s * units)) / (LOAD * NODES)
    return np.floor(np.cumsum(random.exponential(gap_s, count))), units, time_s, limit_s


def simpy_processes(jobs: Workload) -> float:
    """Return the speed of a SimPy simulation in jobs per second of processor time.

    Each job is one SimPy process, which waits for its nodes.
    """
    import simpy

    environment = simpy.Environment()
    nodes = simpy.Container(environment, NODES, NODES)

    def run(submit_s: float, units: int, time_s: float) -> Generator[Any, Any, None]:
        yield environment.timeout(submit_s)
        yield nodes.get(units)
        yield environment.timeout(time_s)
        yield nodes.put(units)

    begin = time.process_time()
    for row in zip(jobs.submit_s.tolist(), jobs.units.tolist(), jobs.time_s.tolist(), strict=True):
        environment.process(run(*row))
    environment.run()
    return jobs.count / (time.process_time() - begin)


def accasim(count: int) -> dict[str, float]:
    for name in ("Mapping", "MutableMapping", "Iterable", "Callable", "Sequence", "Hashable"):
        setattr(collections, name, getattr(collections.abc, name))
    from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut

    with tempfile.TemporaryDirectory() as folder:
        write_swf(Path(folder), count)
        easy_s, easy_lines = accasim_run(Path(folder), EASYBackfilling)
        _, lines = accasim_run(Path(folder), FirstInFirstOut)
    submit_s = columns(count)[0]
    waits = [start - submit_s[job - 1] for job, start in starts(lines)]
    easy = dict(starts(easy_lines))
    rule = accasims_easy(count)
    return {
        "easy_jobs_per_s": count / easy_s,
        "fcfs_wait_s": statistics.fmean(waits),
        "easy_wait_s": statistics.fmean(easy[job] - submit_s[job - 1] for job in easy),
        "easy_explained": statistics.fmean(rule[job - 1] == start for job, start in easy.items()),
    }


def accasims_easy(count: int) -> list[float]:
    """Simulate the EASY backfill of the simulator AccaSim, and return the start times of jobs.

    AccaSim's EASY differs from the textbook in two points. First, every job that fits starts before the
    job at the head of the queue, even if this delays the head. The reason is that AccaSim's list of
    reserved nodes is always empty. Second, the head waits until its reserved time, even if enough nodes
    are free before.

    Args:
        count: number of jobs.
    """
    submit_s, units, time_s, limit_s = (column.tolist() for column in columns(count))
    start_s = [math.nan] * count
    running: list[Any] = []
    queue: list[Any] = []
    free, arrived = NODES, 0
    reserved_s = math.inf

    def begin(job: int, now_s: float) -> None:
        nonlocal free
        free -= units[job]
        start_s[job] = now_s
        heapq.heappush(running, (now_s + time_s[job], job))
        queue.remove(job)

    while arrived < count or running:
        now_s = min(
            running[0][0] if running else math.inf, submit_s[arrived] if arrived < count else math.inf
        )
        while running and running[0][0] <= now_s:
            free += units[heapq.heappop(running)[1]]
        while arrived < count and submit_s[arrived] <= now_s:
            queue.append(arrived)
            arrived += 1
        if reserved_s <= now_s and units[queue[0]] <= free:
            begin(queue[0], now_s)
            reserved_s = math.inf
        while math.isinf(reserved_s) and queue and units[queue[0]] <= free:
            begin(queue[0], now_s)
        if math.isinf(reserved_s) and queue:
            there = free
            for end_s, job in sorted((start_s[job] + limit_s[job], job) for _, job in running):
                there += units[job]
                if there >= units[queue[0]]:
                    reserved_s = end_s
                    break
        for job in queue[1:]:
            if units[job] <= free:
                begin(job, now_s)
    return start_s


def write_swf(folder: Path, count: int) -> None:
    rows = zip(*(column.astype(int).tolist() for column in columns(count)), strict=True)
    lines = (
        f"{number} {submit} -1 {time_s} {units} -1 1 {units} {limit} 1 1 1 1 1 1 1 -1 -1\n"
        for number, (submit, units, time_s, limit) in enumerate(rows, 1)
    )
    (folder / "jobs.swf").write_text("".join(lines))
    system = {"groups": {"g": {"core": 1, "mem": 10**6}}, "resources": {"g": NODES}}
    system |= {"system_name": "x", "start_time": 0, "equivalence": {"processor": {"core": 1}}}
    (folder / "system.json").write_text(json.dumps(system))


def accasim_run(folder: Path, scheduler: Any) -> tuple[float, Sequence[str]]:
    import os

    from accasim.base.allocator_class import FirstFit
    from accasim.base.simulator_class import Simulator

    os.chdir(folder)
    simulator = Simulator(
        "jobs.swf",
        "system.json",
        scheduler(FirstFit()),
        statistics_output=False,
        show_statistics=False,
        RESULTS_FOLDER_PATH=str(folder),  # otherwise beside this file
    )
    begin = time.process_time()
    files = simulator.start_simulation()
    seconds = time.process_time() - begin
    return seconds, Path(files["sched-"]).read_text().splitlines()


def starts(lines: Sequence[str]) -> Iterator[tuple[int, float]]:
    """Yield (job, start) of AccaSim's dispatching plan: `JOB;USER;SUBMIT__NODES__START;END;...`."""
    from datetime import UTC, datetime

    for line in lines:
        job, _, rest = line.split(";", 2)
        start = datetime.strptime(rest.split("__")[2].split(";")[0], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        yield int(job), start.timestamp()
