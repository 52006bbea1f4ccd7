"""Draw synthetic jobs that arrive at an HPC site over weeks, with a daily and a weekly pattern.

Equal seeds give equal jobs.
"""

from __future__ import annotations

import csv
import math
import random
from dataclasses import dataclass
from pathlib import Path

from slurm_energy_lab.study_weeks.program_truth import PARTITION_PROFILES

DAY_S = 86400.0
NODES_PER_PARTITION = 2
ACCOUNTS = ("chemistry", "physics", "vision")
THESIS_PROGRAMS = {"vit": "gemm", "albert": "triad", "resnet50": "train"}
"""Programs of the thesis by the kernel that behaves alike: thesis 6.3.3 compares ViT to GEMM and ALBERT to
TRIAD; `train` is the node model's training of ResNet-50."""
_WEEKDAY_LOAD = (1.1, 1.1, 1.1, 1.1, 1.05, 0.8, 0.75)
_DAYTIME_SWING = 0.5
_MAX_HOURS = 12.0
_TRACE_PROGRAMS = {**THESIS_PROGRAMS, "solver": "data_parallel"}


@dataclass(frozen=True, slots=True)
class WeekJob:
    """A job of the synthetic weeks.

    Attributes:
        job_id: number of the job.
        submit_s: submission in seconds since the start of the weeks.
        partition: `ampere` or `hopper`.
        name: name of the program that the user runs, which is the job's name in Slurm.
        program: compute kernel or program of the node model.
        nodes: number of nodes that the job uses.
        seconds: run time without tuning, in seconds.
        limit_s: requested time limit in seconds.
        user, account: user and Slurm account of the job.
        power_factor: power of the job above idle, divided by that of the program in the node model.
    """

    job_id: int
    submit_s: float
    partition: str
    name: str
    program: str
    nodes: int
    seconds: float
    limit_s: float
    user: str
    account: str
    power_factor: float


@dataclass(frozen=True, slots=True)
class WeekMix:
    """Distribution from which the jobs of the synthetic weeks are drawn.

    Attributes:
        load: work that arrives per node and second, in node-seconds at full speed.
        programs: compute kernel of the node model, by name of the program.
        shapes: pairs of a run time in hours and a number of nodes. The jobs are drawn from these pairs.
    """

    load: float
    programs: dict[str, str]
    shapes: tuple[tuple[float, int], ...]


def thesis_mix(load: float = 0.6) -> WeekMix:
    """Return the job mix of the thesis: ViT, ALBERT and ResNet-50 in equal shares, 20 minutes to 6 hours."""
    hours = [math.exp(math.log(1 / 3) + math.log(18.0) * step / 39) for step in range(40)]
    shapes = tuple((length, 2 if step % 4 == 0 else 1) for step, length in enumerate(hours))
    return WeekMix(load, THESIS_PROGRAMS, shapes)


def trace_mix(path: Path, load: float = 0.6) -> WeekMix:
    """Return a random mix of jobs with the lengths and sizes of the jobs of a trace.

    Args:
        path: CSV with the columns `length` in hours and `cpus`. Jobs above 4 CPUs, the largest sixth of the
            PAI trace, get two nodes. Lengths are cut to 12 hours, because the site has four nodes.
        load: load of the site. The gaps between submissions are drawn at random, not taken from the trace.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(float(row["length"]), float(row["cpus"])) for row in csv.DictReader(file)]
    shapes = tuple((min(_MAX_HOURS, hours), 2 if cpus > 4 else 1) for hours, cpus in rows)
    return WeekMix(load, _TRACE_PROGRAMS, shapes)


def draw_week_jobs(seed: int, mix: WeekMix, days: int) -> list[WeekJob]:
    """Return the jobs of some days, ordered by submission. Day 0 is a Monday."""
    numbers = random.Random(f"weeks/{seed}")
    node_s = sum(hours * nodes for hours, nodes in mix.shapes) / len(mix.shapes) * 3600.0
    rate = mix.load * NODES_PER_PARTITION * len(PARTITION_PROFILES) / node_s
    peak = rate * max(_WEEKDAY_LOAD) * (1.0 + _DAYTIME_SWING)
    jobs: list[WeekJob] = []
    submit_s = numbers.expovariate(peak)
    while submit_s < days * DAY_S:
        if numbers.random() * peak < rate * _intensity(submit_s):
            jobs.append(_job(numbers, mix, len(jobs) + 1, submit_s))
        submit_s += numbers.expovariate(peak)
    return jobs


def _intensity(at_s: float) -> float:
    """Return the rate at which jobs are submitted at a time, relative to the usual rate.

    The rate depends on the weekday and on the time of the day.
    """
    day, second = divmod(at_s, DAY_S)
    return _WEEKDAY_LOAD[int(day) % 7] * (1.0 - _DAYTIME_SWING * math.cos(2.0 * math.pi * second / DAY_S))


def _job(numbers: random.Random, mix: WeekMix, job_id: int, submit_s: float) -> WeekJob:
    hours, nodes = numbers.choice(mix.shapes)
    name = numbers.choice(list(mix.programs))
    seconds = hours * 3600.0 * math.exp(numbers.gauss(0.0, 0.05))
    account = numbers.choice(ACCOUNTS)
    return WeekJob(
        job_id,
        submit_s,
        numbers.choice(list(PARTITION_PROFILES)),
        name,
        mix.programs[name],
        nodes,
        seconds,
        60.0 * math.ceil(seconds * numbers.uniform(1.3, 3.0) / 60.0),
        f"{account}{numbers.randrange(3)}",
        account,
        math.exp(numbers.gauss(0.0, 0.04)),
    )
