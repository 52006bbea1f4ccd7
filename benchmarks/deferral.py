"""Benchmark of deferral: cost, emissions and deadlines on real prices and carbon intensities.

The jobs are synthetic. They arrive at random, run 1 to 12 hours on 1 to 4 of 16 nodes, and use half
of the cluster on average. All series of prices and carbon intensities use the same jobs. The first
third of each year was used to choose the defaults of forecasts and policies (`--part first`). The
tables show the other two thirds, which were not used for this choice. Costs are the costs of the
jobs' energy at the actual prices.

The results are compared with the published figures of CE-DLA (Kang et al. 2022, as described in
section 3.3 of the survey that the project follows). The survey describes CE-DLA only in part. It does
not state the jobs and their energies, the arrivals, the slack, the size of the cluster, the period of
the NYISO prices, and by how much soft constraints may be exceeded. Here the energy of a job is scaled
so that starting all jobs at once gives the published 2.09 jobs per dollar.

The tables also show the fraction of the energy that is used at low prices. The publication calls
prices of at most 20 $/MWh low, and states a share of 31 % for the policy that ignores prices. A
second column therefore shows the fraction in the cheapest 31 % of the hours.

Needs: pip install '.[simulation]', and a folder with price/ and carbon/ (see docs/signals.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy import deferral
from slurm_energy.deferral import DeferralOptions, DeferralPlan, DeferralQueue
from slurm_energy.deferral.planning import immediate_plan, plan_of, start_table
from slurm_energy.deferral.slot_fit import SlotFit
from slurm_energy.deferral.window_costs import cost_curve
from slurm_energy.scheduling import policy
from slurm_energy.signals import SignalName
from slurm_energy.signals.csv_files import read_signal
from slurm_energy.signals.feed import SignalFeed, SignalSource
from slurm_energy.signals.forecast import ForecastMode
from slurm_energy.signals.signal_series import SignalSeries
from slurm_energy.simulator import engine
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.deferral.signal_costs import signal_costs
from slurm_energy.simulator.kernels import fast_path
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.schedule_settings import Deferral, ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload, workload

HOUR_S, DAY_S = 3600.0, 86_400.0
NODES, NODE_WATTS = 16, 1000.0
SERIES = {
    "DE-LU 2023 price": ("price/DE-LU_electricity_prices_2023.csv", SignalName.PRICE, 3600.0),
    "California 2022 price": ("price/US-CAL-CISO_electricity_prices_2022.csv", SignalName.PRICE, -28_800.0),
    "California 2022 carbon": ("carbon/CISO_2022_generation_and_intensity.csv", SignalName.CARBON, -28_800.0),
}
SLACK_HOURS = (0, 4, 12, 24)
PUBLISHED_BASELINE = 2.09
PUBLISHED_BAND_UNAWARE = 0.31
PUBLISHED_REJECTED_HARD = 0.245
BAND_PER_KWH = 0.020
FIRST_SEED = 11
"""Workloads 1 to 3 were used to choose the margin before the latest start."""


@dataclass(frozen=True)
class Market:
    """Series of electricity prices or carbon intensities for the benchmark.

    The class also states which part of the series is simulated.
    """

    name: str
    signal: SignalName
    series: SignalSeries
    begin_s: float
    end_s: float
    utc_offset_s: float

    def feed(self, mode: ForecastMode) -> SignalFeed:
        """Return the prices or carbon intensities of the market in the form that the simulator reads.

        Time 0 is the start of the simulated part of the year. Earlier values are the history for forecasts.
        """
        offset_s = self.utc_offset_s + self.begin_s % DAY_S
        source = SignalSource(self.series.shifted(-self.begin_s), mode, 13.0, offset_s)
        return SignalFeed({self.signal: source}, horizon_s=2 * DAY_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with price/ and carbon/")
    parser.add_argument("--part", choices=("first", "rest"), default="rest", help="part of the year shown")
    parser.add_argument("--days", type=float, default=240.0, help="days of the part that are simulated")
    parser.add_argument("--seeds", type=int, default=2, help="number of workloads of the savings (default 2)")
    parser.add_argument("--only-savings", action="store_true", help="skip the comparison with CE-DLA")
    parser.add_argument("--json", metavar="FILE", help="also write the rows to FILE as JSON")
    args = parser.parse_args()
    markets = [market(args.data, name, args.part, args.days) for name in SERIES]
    label = "in-sample" if args.part == "first" else "held-out"
    rows = []
    print(f"Savings against slack 0 ({label}, {args.days:g} days at most, {NODES} nodes)")
    columns: tuple[str, ...] = ("series", "policy", "forecast", "slack h", "saved %")
    columns += ("in time %", "at once %", "difference", "95 % from", "to", "mean wait h")
    print(" | ".join(columns))
    for row in savings(markets, seeds=args.seeds):
        rows.append({"part": args.part, "table": "savings", **row})
        print(" | ".join(_shown(row[column]) for column in columns), flush=True)
    if args.only_savings:
        markets = []
    print("\nCE-DLA's comparison, slack 24 h")
    columns = ("series", "policy", "jobs per $", "ratio", "<= 20 $/MWh %", "cheapest 31 % of hours %")
    print(" | ".join(columns))
    for row in cedla_comparison(markets[:2]):
        rows.append({"part": args.part, "table": "cedla", **row})
        print(" | ".join(_shown(row[column]) for column in columns), flush=True)
    print("\nRejected jobs at high load; the load is that at which hard constraints reject 24.5 %")
    columns = ("series", "constraints", "load", "rejected %", "cost ratio")
    print(" | ".join(columns))
    for row in rejections(markets[:2]):
        rows.append({"part": args.part, "table": "rejections", **row})
        print(" | ".join(_shown(row[column]) for column in columns), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def market(data: Path, name: str, part: str, days: float) -> Market:
    file, signal, utc_offset_s = SERIES[name]
    with (data / file).open(newline="", encoding="utf-8") as lines:
        series = read_signal(lines, file, signal)
    third_s = series.start_s + len(series.values) * series.step_s / 3
    begin_s = series.start_s + 28 * DAY_S if part == "first" else third_s
    end_s = third_s if part == "first" else series.end_s
    return Market(name, signal, series, begin_s, min(end_s, begin_s + days * DAY_S), utc_offset_s)


def jobs(seconds: float, slack_hours: float, seed: int = 1, load: float = 0.5, **columns: Any) -> Workload:
    """Return random jobs that keep the fraction `load` of the nodes busy.

    All jobs have the same slack (permitted delay), `slack_hours`.
    """
    random = np.random.default_rng(seed)
    count = int(load * seconds * NODES / (2.5 * 4.6 * HOUR_S))
    seconds_to_submit = seconds - 3 * DAY_S
    return workload(
        np.arange(count + 1),
        {
            "submit_s": np.sort(random.uniform(0, seconds_to_submit, count)),
            "slack_s": np.full(count, slack_hours * HOUR_S if slack_hours else np.nan),
            **{name: np.full(count, value) for name, value in columns.items()},
        },
        {
            "units": (units := random.integers(1, 5, count)),
            "time_s": np.exp(random.uniform(np.log(HOUR_S), np.log(12 * HOUR_S), count)),
            "power_watts": NODE_WATTS * units * random.uniform(0.5, 1.0, count),
        },
    )


def simulated(work: Workload, name: str, feed: SignalFeed, options: DeferralOptions) -> SimulationResult:
    kinds = [NodeKind("node", NODES, 1)]
    signal = next(iter(feed.sources))
    if name == deferral.OFF:
        return fast_path.simulate(work, kinds, ScheduleSettings(signals=feed))
    rules = ScheduleSettings(deferral=Deferral(deferral.policy(name), options, signal), signals=feed)
    return engine.simulate(work, kinds, policy("fcfs"), rules)


def total_cost(result: SimulationResult, market: Market) -> float:
    costs = signal_costs(result, market.feed(ForecastMode.PERFECT), market.signal)
    assert costs is not None
    return float(np.nansum(costs.jobs))


def savings(
    markets: list[Market],
    options: DeferralOptions | None = None,
    slacks: tuple[int, ...] = SLACK_HOURS,
    seeds: int = 1,
) -> Iterator[dict[str, Any]]:
    """Simulate deferral on each series of prices or carbon intensities, and yield the results.

    The cost and the deadlines are compared with those of running the same jobs at once.
    """
    options = options or DeferralOptions()
    for one in markets:
        seconds = one.end_s - one.begin_s
        modes = [ForecastMode.PERFECT, ForecastMode.DAY_AHEAD, ForecastMode.HISTORY]
        if one.signal is SignalName.CARBON:
            modes.remove(ForecastMode.DAY_AHEAD)
        names = ["cleanest"] if one.signal is SignalName.CARBON else ["cheapest"]
        perfect = one.feed(ForecastMode.PERFECT)
        at_once = [
            simulated(jobs(seconds, 0, seed), deferral.OFF, perfect, options)
            for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        ]
        for name in names:
            for mode in modes:
                for slack in slacks:
                    runs = [
                        simulated(
                            jobs(seconds, slack, seed),
                            name if slack else deferral.OFF,
                            one.feed(mode),
                            options,
                        )
                        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
                    ]
                    costs = [sum(total_cost(run, one) for run in kind) for kind in (runs, at_once)]
                    yield {
                        "series": one.name,
                        "policy": name,
                        "forecast": str(mode),
                        "slack h": slack,
                        "saved %": 100.0 * (1 - costs[0] / costs[1]),
                        **deadlines(runs, at_once, slack),
                        "mean wait h": float(np.mean([np.mean(run.wait_s()) for run in runs])) / HOUR_S,
                    }


def deadlines(
    runs: list[SimulationResult], at_once: list[SimulationResult], slack_hours: float
) -> dict[str, float]:
    """Compare deferred jobs with the same jobs started at once: how many of them start in time.

    A job starts in time if it waits at most `slack_hours`. The result contains the two percentages of
    jobs that start in time, and the difference between these percentages with a confidence interval. The
    interval is a bootstrap over the days of submission, because jobs of one day are late together.
    """
    if not slack_hours:
        return {"in time %": 100.0, "at once %": 100.0, "difference": 0.0, "95 % from": 0.0, "to": 0.0}
    late, late_at_once = (
        np.concatenate([run.wait_s() > slack_hours * HOUR_S + 1e-6 for run in kind])
        for kind in (runs, at_once)
    )
    days = np.concatenate([1000 * at + run.workload.submit_s // DAY_S for at, run in enumerate(runs)]).astype(
        np.int64
    )
    day = np.unique(days, return_inverse=True)[1]
    more = np.bincount(day, late_at_once.astype(float) - late)
    counts = np.bincount(day)
    drawn = np.random.default_rng(1).integers(0, len(more), (4000, len(more)))
    differences = 100.0 * np.sum(more[drawn], axis=1) / np.sum(counts[drawn], axis=1)
    low, high = np.quantile(differences, (0.025, 0.975))
    shares = [100.0 * (1 - float(np.mean(one))) for one in (late, late_at_once)]
    return {
        "in time %": shares[0],
        "at once %": shares[1],
        "difference": shares[0] - shares[1],
        "95 % from": float(low),
        "to": float(high),
    }


@deferral.register("threshold")
def threshold(queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
    """Deferral policy that starts a job in the first slot whose price is below the forecast mean.

    If no such slot comes in time, the job starts at the latest start.
    """
    curve = cost_curve(queue.signals, SignalName.PRICE)
    if curve is None:
        return immediate_plan(queue, deferral.DeferralReason.NO_FORECAST, SignalName.PRICE)
    table = start_table(queue, curve, replace(options, suspend=False))
    prices = curve.cost(table.starts_s, table.starts_s + options.slot_s)
    cheap = prices <= curve.tail_rate * options.slot_s
    first = int(np.argmax(cheap)) if np.any(cheap) else len(cheap)
    return plan_of(queue, table, np.minimum(first, table.count - 1), SignalName.PRICE)


def cedla_comparison(markets: list[Market]) -> Iterator[dict[str, Any]]:
    options = DeferralOptions(solver_limit_s=0.1)
    for one in markets:
        seconds = min(one.end_s - one.begin_s, 21 * DAY_S)
        band = float(np.nanquantile(one.series.values, PUBLISHED_BAND_UNAWARE))
        base = None
        for label, name, columns in (
            ("run at once", deferral.OFF, {}),
            ("threshold", "threshold", {}),
            ("cheapest", "cheapest", {}),
            ("cedla", "cedla", {}),
            ("cedla, epochs suspended", "cedla", {"checkpointable": 1}),
        ):
            work = jobs(seconds, 24, **columns)
            result = simulated(work, name, one.feed(ForecastMode.DAY_AHEAD), options)
            cost = total_cost(result, one)
            base = base or cost
            yield {
                "series": one.name,
                "policy": label,
                "jobs per $": PUBLISHED_BASELINE * base / cost,
                "ratio": base / cost,
                "<= 20 $/MWh %": 100.0 * band_share(result, one, BAND_PER_KWH),
                "cheapest 31 % of hours %": 100.0 * band_share(result, one, band),
            }


def band_share(result: SimulationResult, market: Market, price: float) -> float:
    """Return the fraction of the jobs' energy that was used at prices up to `price`."""
    series = market.series.shifted(-market.begin_s)
    cheap = SignalSeries(series.start_s, series.step_s, (series.values <= price).astype(np.float64))
    feed = SignalFeed({SignalName.PRICE: SignalSource(cheap, ForecastMode.PERFECT)})
    costs = signal_costs(result, feed, SignalName.PRICE)
    assert costs is not None
    return float(np.sum(costs.jobs)) / (float(np.sum(result.accounts.energy_joules)) / 3.6e6)


def rejections(markets: list[Market]) -> Iterator[dict[str, Any]]:
    """Simulate the admission of deferrable jobs, and yield the rejected jobs and the savings.

    The jobs are considered in the order of their arrival. A job gets the cheapest time slot with enough
    free resources. A job without a possible slot is rejected. One result is yielded for each electricity
    market and each length of the slack (the permitted delay). It contains the share of rejected jobs and
    the cost ratio. The cost ratio is the cost of starting the admitted jobs at once, divided by the cost
    of their planned starts.
    """
    for one in markets:
        seconds = min(one.end_s - one.begin_s, 30 * DAY_S)
        low, high = 0.5, 6.0
        for _ in range(12):
            load = (low + high) / 2
            rejected, _ = admission(one, jobs(seconds, 4, load=load), 1.0)
            low, high = (load, high) if rejected < PUBLISHED_REJECTED_HARD else (low, load)
        for label, factor in (
            ("hard", 1.0),
            ("soft, slack x1.5", 1.5),
            ("soft, slack x2", 2.0),
            ("soft, slack x4", 4.0),
        ):
            rejected, saved = admission(one, jobs(seconds, 4, load=load), factor)
            yield {
                "series": one.name,
                "constraints": label,
                "load": load,
                "rejected %": 100.0 * rejected,
                "cost ratio": saved,
            }


def admission(market: Market, work: Workload, factor: float) -> tuple[float, float]:
    """Simulate an admission of jobs that rejects a job if it cannot start in time.

    A job must start within `factor` times its slack, the agreed delay. A start after the slack is used
    only if there is no earlier room.

    Two numbers are returned. The first number is the share of rejected jobs. The second number is the
    cost of the admitted jobs if each starts at once, divided by the cost at their planned starts.
    """
    series = market.series.shifted(-market.begin_s)
    slot_s = 900.0
    slots = int((float(work.submit_s[-1]) + 5 * DAY_S) / slot_s)
    starts = slot_s * np.arange(slots)
    fit = SlotFit(
        np.asarray(starts, np.float64), deferral.Capacity(0.0, slot_s, np.full((1, slots), float(NODES)))
    )
    rejected, cost, cost_now = 0, 0.0, 0.0
    for job in range(work.count):
        first = int(np.ceil(work.submit_s[job] / slot_s))
        last = int((work.submit_s[job] + factor * work.slack_s[job]) / slot_s)
        rows = np.arange(first, last + 1)
        time_s, units = float(work.time_s[job]), float(work.units[job])
        after = np.minimum(fit.spans(rows, np.full(len(rows), time_s))[1], slots)
        price = series.integral(starts[rows] + time_s) - series.integral(starts[rows])
        # A start after the agreed slack costs a penalty, so that it is used only if there is no other room.
        late = starts[rows] > work.submit_s[job] + work.slack_s[job]
        score = price + late * 1e9
        room = np.array(
            [
                fit.fits(row, end, 0, units, 0.0)
                for row, end in zip(rows.tolist(), after.tolist(), strict=True)
            ]
        )
        if not np.any(room):
            rejected += 1
            continue
        best = int(np.argmin(np.where(room, score, np.inf)))
        fit.take(int(rows[best]), int(after[best]), 0, units, 0.0)
        watts = float(work.power_watts[job])
        cost, cost_now = cost + watts * float(price[best]), cost_now + watts * float(price[0])
    return rejected / work.count, cost_now / cost


if __name__ == "__main__":
    sys.exit(main())
