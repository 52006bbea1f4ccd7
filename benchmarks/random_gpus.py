"""Random GPU responses to power limits, as input files of `benchmarks/tuning.py --data DIR`.

Dynamic power follows V²f, and time follows a roofline. Half of the jobs wait for their host for a
part of the time. The coefficients of each GPU and job are drawn at random. A drawn job is left out if
it responds more strongly or more weakly than jobs on measured GPUs. The permitted range bounds the
job's time at power limits of 0.8, 0.7 and 0.6 of its untuned power. The range comes from two sources:
the published classes of data-center GPUs, and the A40 and Quadro RTX 6000 of the power-limit study (5
to 95 %). In addition, no limit may save more than 42 % of the EDP, as on the two GPUs of the study.

`--beyond` draws GPUs outside this range. No job is left out, so the steepness of a response has no
bound. Steps vary by 2 to 10 %. On half of the GPUs the minimum limit is two thirds of the default,
and there are three to five limits. Each limit has 25 rows, so that the mean of the rows is near the
true response in spite of the noise.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from power_limit_runs import COLUMNS

DEFAULT_WATTS = (70, 165, 250, 300, 350, 400, 450, 560, 700, 750)
PLAUSIBLE = {0.8: (1.01, 1.64), 0.7: (1.03, 2.1), 0.6: (1.06, 2.7)}
"""Range of the time ratio of a busy GPU, by its power as a share of the own draw."""
MIN_EDP = 0.58
TIME_NOISE, POWER_SHARE_OF_NOISE = 0.01, 0.8


@dataclass(frozen=True)
class Card:
    """A random GPU for a benchmark.

    The GPU is described by its power limits in watts, by the parts of its power as fractions, and by clocks
    as fractions of the highest clock.
    """

    limits: tuple[int, ...]
    static: float
    voltage_floor: float
    transition: float
    lowest_clock: float
    idle_watts: float
    limit_yield: float
    noise: float = TIME_NOISE
    rows: int = 1
    beyond: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the files")
    parser.add_argument("--seed", type=int, default=1, help="seed (default 1)")
    parser.add_argument("--cards", type=int, default=8, help="number of GPUs (default 8)")
    parser.add_argument("--jobs", type=int, default=16, help="jobs of each GPU (default 16)")
    parser.add_argument("--beyond", action="store_true", help="GPUs outside the range of measured GPUs")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for number in range(arguments.cards):
        random = np.random.default_rng([arguments.seed, number])
        card = draw_beyond(random) if arguments.beyond else draw_card(random)
        with (arguments.folder / f"summary_power_card{number}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            jobs = plausible_jobs(card, random)
            for job in range(arguments.jobs):
                base_s, rows = next(jobs)
                for limit, time, watts in [row for row in rows for _ in range(card.rows)]:
                    time *= base_s * (1 + random.normal(0, card.noise))
                    watts *= 1 + random.normal(0, POWER_SHARE_OF_NOISE * card.noise)
                    writer.writerow(["random", f"net{job}", 128, "sgd", limit, time, watts])


def draw_card(random: np.random.Generator) -> Card:
    """Return a GPU with random properties."""
    default = float(random.choice(DEFAULT_WATTS))
    lowest = 5 * round(default * random.uniform(0.28, 0.55) / 5)
    count = int(random.integers(7, 13))
    limits = {5 * round(watts / 5) for watts in np.linspace(lowest, default, count)}
    static, voltage_floor = random.uniform(0.12, 0.4), random.uniform(0.55, 0.85)
    transition, lowest_clock = random.uniform(0.4, 0.75), random.uniform(0.12, 0.35)
    idle_watts = random.uniform(0.07, 0.2) * default
    ends = {lowest, int(default)}
    return Card(
        tuple(sorted(limits | ends)),
        static,
        voltage_floor,
        transition,
        lowest_clock,
        idle_watts,
        random.uniform(0.94, 1.0),
    )


def draw_beyond(random: np.random.Generator) -> Card:
    """Draw a random GPU with noisy measurements.

    The response of the GPU to power limits can have any steepness. Half of these GPUs have only a few power
    limits, all of them high.
    """
    card = draw_card(random)
    default, limits = card.limits[-1], card.limits
    if random.random() < 0.5:
        watts = np.linspace(0.67 * default, default, int(random.integers(3, 6)))
        limits = tuple(5 * round(value / 5) for value in watts)
    return replace(card, limits=limits, noise=random.uniform(0.02, 0.1), rows=25, beyond=True)


def plausible_jobs(
    card: Card, random: np.random.Generator
) -> Iterator[tuple[float, list[tuple[int, float, float]]]]:
    """Yield random but physically plausible jobs of a GPU.

    Each job is a pair: the seconds of an epoch without a limit, and a list of (power limit, time ratio,
    watts).
    """
    while True:
        compute, sharpness = random.uniform(0.05, 1), random.uniform(1.2, 5)
        memory = 0.05 + random.uniform(0.1, 0.35) * (1 - compute)
        host = random.choice([0, random.uniform(0, 0.5)])
        draw_watts = card.limits[-1] * random.uniform(0.3, 1.05)
        base_s, follows_work = random.uniform(10, 60), random.uniform(0, 0.5)
        clock = np.linspace(card.lowest_clock, 1, 400)
        slope = (1 - card.voltage_floor) / (1 - card.transition)
        voltage = np.maximum(card.voltage_floor, 1 - slope * (1 - clock))
        work = (compute / clock) ** sharpness + (1 - compute) ** sharpness
        time = (work / (compute**sharpness + (1 - compute) ** sharpness)) ** (1 / sharpness)
        dynamic = (follows_work / time + (1 - follows_work) * clock) * voltage**2
        power = card.static + (1 - card.static) * (memory / time + (1 - memory) * dynamic)
        if not (card.beyond or _is_plausible(power, time)):
            continue
        rows = []
        for limit in card.limits:
            place = max(int(np.searchsorted(power, limit * card.limit_yield / draw_watts, "right")) - 1, 0)
            total = time[place] * (1 - host) + host
            busy_joules = draw_watts * power[place] * time[place] * (1 - host)
            rows.append((limit, float(total), float((busy_joules + card.idle_watts * host) / total)))
        edp = np.array([time**2 * watts for _, time, watts in rows])
        if card.beyond or edp.min() >= MIN_EDP * edp[-1]:
            yield base_s, rows


def _is_plausible(power: np.ndarray, time: np.ndarray) -> bool:
    """Return whether a simulated GPU's times under power limits lie within the range of real GPUs."""
    return all(low <= _at(power, time, share) <= high for share, (low, high) in PLAUSIBLE.items())


def _at(power: np.ndarray, time: np.ndarray, share: float) -> float:
    """Return the relative run time of one of the randomly drawn GPUs under a power limit.

    The GPU runs at the highest clock whose power is within the limit. The result is infinite if no clock
    has a power within the limit.

    Args:
        power: relative power at each clock, ascending.
        time: relative run time at each clock.
        share: the power limit as a share of the maximum power.
    """
    place = int(np.searchsorted(power, share, "right")) - 1
    return float(time[place]) if place >= 0 else float("inf")


if __name__ == "__main__":
    main()
