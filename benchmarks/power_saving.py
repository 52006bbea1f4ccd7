"""Benchmark of power saving: saved energy and added waiting times of jobs.

Three methods are compared. The first method powers a node down after a fixed idle time. The second
method is the rule of slurm-energy, which uses a forecast. The third method is the clairvoyant bound:
the minimum energy without any added wait. For this bound, the schedule with all nodes on is known. A
node is powered down in each idle gap in which this saves energy, and boots in time.

The fixed idle times and the rule are each simulated with several warm reserves (idle nodes that stay
on).

Each trace of jobs is simulated as a whole with every setting. Afterwards the time of the trace is
divided into two halves. A table shows the results in one half, for all settings that were tried. The
first half (`--half first`) serves to choose a setting. The second half shows the result of this
setting on other data. The last table does this for both methods: it compares the rule with fixed idle
times at equal mean waits.

The arrivals of two traces are stretched in time so that nodes are idle.

Needs: pip install '.[simulation]', and a folder with the traces lublin_256.swf, pai-100k.csv and
sample_eagle_data.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.power_saving.node_energy import NodeEnergy
from slurm_energy.power_saving.offline_bound import clairvoyant_saving_joules
from slurm_energy.power_saving.power_down_rule import PowerSavingRules
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.queue import Floats
from slurm_energy.scheduling.registry import policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.inputs.workload_file import WorkloadFormat, read_workload
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.schedule_settings import PowerSaving, ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload, workload

IDLE_TIMES_S = (60.0, 300.0, 1200.0, 3600.0)
RISKS = ((0.02, 0.06), (0.05, 0.15), (0.2, 0.5))
RESERVES = (0.0, 0.01, 0.02, 0.05)
BUSY_WATTS = 350.0
KIND = NodeKind(
    "node",
    0,
    1,
    idle_watts=150.0,
    off_watts=10.0,
    boot_s=180.0,
    boot_watts=200.0,
    shutdown_s=30.0,
    shutdown_watts=150.0,
)


@dataclass(frozen=True)
class Trace:
    """A trace and the cluster on which it runs."""

    name: str
    jobs: Workload
    kind: NodeKind


@dataclass(frozen=True)
class PowerSavingFigures:
    """Energy, waiting times of jobs and boots of nodes in a part of the simulated time."""

    energy_kwh: float
    mean_wait_s: float
    boot_share: float
    mean_boot_s: float
    max_boot_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder with the traces")
    parser.add_argument(
        "--half", choices=("first", "second"), default="second", help="part of the time shown"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the rows to FILE as JSON")
    parser.add_argument("--only", default="", help="only the trace whose name begins with this text")
    parser.add_argument("--boot-s", type=float, default=180.0, help="boot time; default: 180")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(
        "| trace | power saving | energy, kWh | saved | of the bound | jobs that wait for a boot "
        "| mean boot wait, s | largest, s | change of the mean wait, s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for trace in traces(args.traces):
        if trace.name.startswith(args.only):
            for row in compare(replace(trace, kind=replace(trace.kind, boot_s=args.boot_s))):
                rows.append(row)
                if row["half"] == args.half:
                    print(line(row), flush=True)
    print("\n| trace | mean boot wait, s | energy at it: fixed time | forecast | forecast saves more |")
    print("|---|---|---|---|---|")
    for name in dict.fromkeys(row["trace"] for row in rows):
        for wait_s in (20.0, 40.0, 60.0, 80.0, 100.0):
            of_trace = [row for row in rows if row["trace"] == name]
            print(equal_wait_line(name, wait_s * args.boot_s / 180.0, of_trace))
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    return 0


def traces(folder: Path) -> Iterator[Trace]:
    """Yield the job traces of the benchmark, each with a cluster that is larger than the jobs need.

    Some nodes of the cluster are therefore idle at times.
    """
    jobs = read_workload(
        folder / "lublin_256.swf", ["node"], WorkloadFormat(watts_per_unit=BUSY_WATTS)
    ).workload
    yield Trace("lublin", part(jobs, 600, stretch=3.0), replace(KIND, nodes=256))
    yield eagle(folder / "sample_eagle_data.csv")
    names = {"submit_s": "arrival_time", "time_s": "length", "units": "cpus"}
    jobs = read_workload(
        folder / "pai-100k.csv", ["node"], WorkloadFormat(renamed=names, watts_per_unit=BUSY_WATTS)
    ).workload
    jobs = replace(
        jobs, submit_s=jobs.submit_s * 3600, time_s=jobs.time_s * 3600, predicted_time_s=jobs.time_s * 3600
    )
    yield Trace("pai", part(jobs, 1500, stretch=1.5), replace(KIND, nodes=256))


def part(jobs: Workload, count: int, stretch: float) -> Workload:
    """Return a workload of the first `count` jobs of a trace, with a lower load.

    The times between arrivals are stretched, which lowers the load.
    """
    rows = slice(0, count)
    return workload(
        np.arange(count + 1),
        {"submit_s": stretch * (jobs.submit_s[rows] - jobs.submit_s[0])},
        {
            "units": jobs.units[rows],
            "time_s": jobs.time_s[rows],
            "power_watts": jobs.units[rows] * BUSY_WATTS,
        },
    )


def eagle(path: Path) -> Trace:
    """Read the jobs in the public sample of NREL's cluster Eagle.

    Return them as a workload, sorted by submission.
    """
    with path.open() as file:
        table = [row for row in csv.DictReader(file) if float(row["run_time"] or 0) > 0]
    table.sort(key=lambda row: row["submit_time"])
    submit = np.array([datetime.fromisoformat(row["submit_time"]).timestamp() for row in table])
    units = np.array([max(1, int(row["nodes_req"])) for row in table])
    time_s = np.array([float(row["run_time"]) for row in table])
    jobs = workload(
        np.arange(len(table) + 1),
        {
            "submit_s": submit - submit[0],
            "time_limit_s": np.array([float(r["wallclock_req"]) for r in table]),
        },
        {"units": units, "time_s": time_s, "power_watts": units * BUSY_WATTS},
    )
    return Trace("eagle", jobs, replace(KIND, nodes=2 * int(units.max())))


def compare(trace: Trace) -> Iterator[dict[str, Any]]:
    """Simulate a trace with each power-saving setting, and yield rows of the result table.

    There is one row for each setting and each half of the trace's time.
    """
    base = run(trace, settings())
    chosen = {
        "all on": settings(),
        **{
            f"SuspendTime {idle_s:.0f} s{reserve_text(share)}": fixed_time(idle_s, share)
            for idle_s in IDLE_TIMES_S
            for share in RESERVES
            if not share or idle_s < 3600.0
        },
        **{
            f"forecast, risk {risk:g}{reserve_text(share)}": forecast(share, risk=risk, wake_probability=wake)
            for risk, wake in RISKS
            for share in RESERVES
        },
    }
    middle_s = float(trace.jobs.submit_s[-1]) / 2
    halves = {"first": (0.0, middle_s), "second": (middle_s, 2 * middle_s)}
    on = {half: figures(base, base, *span) for half, span in halves.items()}
    bound = {
        half: on[half].energy_kwh - bound_saving(trace, base, *span) / 3.6e6 for half, span in halves.items()
    }
    for name, setting in chosen.items():
        result = base if name == "all on" else run(trace, setting)
        for half, span in halves.items():
            yield row(trace.name, half, name, figures(result, base, *span), on[half], bound[half])
    for half in halves:
        best = replace(on[half], energy_kwh=bound[half])
        yield row(trace.name, half, "clairvoyant bound", best, on[half], bound[half])


def reserve_text(share: float) -> str:
    return f", {share:.0%} warm" if share else ""


def fixed_time(idle_s: float, reserve_share: float) -> ScheduleSettings:
    """Return settings that power a node down after a fixed idle time.

    With a reserve, some idle nodes stay on, as with Slurm's SuspendTime and SuspendExcNodes.
    """
    if not reserve_share:
        return settings(idle_off_s=idle_s)
    # With risk 1 the forecast never keeps a node on, and with probability 1 it never boots one ahead.
    return forecast(
        reserve_share, risk=1.0, wake_probability=1.0, min_saving=-math.inf, min_idle_s=idle_s, min_on_s=0.0
    )


def equal_wait_line(trace: str, wait_s: float, rows: list[dict[str, Any]]) -> str:
    """Return a table row that compares two power-saving methods at the same maximum mean boot wait.

    For each method, one setting is chosen on the first half of the trace. It is the setting with the least
    energy among those with a mean boot wait of at most `wait_s`. The row shows the results of the two chosen
    settings on the second half.
    """
    chosen: list[dict[str, Any] | None] = []
    for method in ("SuspendTime", "forecast"):
        first, second = (
            {row["setting"]: row for row in rows if row["half"] == half and row["setting"].startswith(method)}
            for half in ("first", "second")
        )
        fit = [name for name, row in first.items() if row["mean_boot_wait_s"] <= wait_s]
        best = min(fit, key=lambda name: first[name]["energy_kwh"], default=None)
        chosen.append(None if best is None else second[best])
    fixed, rule = chosen
    if fixed is None or rule is None:
        return f"| {trace} | {wait_s:.0f} | no setting | no setting | |"
    texts = [
        f"{row['saved_share']:.1%}, {row['mean_boot_wait_s']:.0f} s ({row['setting']})"
        for row in (fixed, rule)
    ]
    more = rule["saved_share"] - fixed["saved_share"]
    return f"| {trace} | {wait_s:.0f} | {texts[0]} | {texts[1]} | {100 * more:+.1f} points |"


def forecast(reserve_share: float = 0.0, **rules: Any) -> ScheduleSettings:
    return settings(power_saving=PowerSaving(PowerSavingRules(**rules), 0, reserve_share))


def settings(**more: Any) -> ScheduleSettings:
    return ScheduleSettings(discipline=Discipline.EASY, **more)


def run(trace: Trace, chosen: ScheduleSettings) -> SimulationResult:
    return simulate(trace.jobs, [trace.kind], policy("fcfs"), chosen)


def figures(
    result: SimulationResult, base: SimulationResult, start_s: float, end_s: float
) -> PowerSavingFigures:
    """Return energy and waiting times of a simulation between two times, for comparison.

    The energy is that of the cluster between the times. The waits are those of the jobs submitted between
    the times.
    """
    times_s, watts = result.power
    rows = (result.workload.submit_s >= start_s) & (result.workload.submit_s < end_s)
    boot_s = boot_wait_s(result)[rows]
    # Waits move jobs across the ends of the span: count the power of the jobs as with all nodes on.
    jobs_joules = job_joules(result, start_s, end_s) - job_joules(base, start_s, end_s)
    return PowerSavingFigures(
        (energy_joules(times_s, watts, start_s, end_s) - jobs_joules) / 3.6e6,
        float((result.accounts.start_s - result.workload.submit_s)[rows].mean() + boot_s.mean()),
        float(np.mean(boot_s > 0.5)),
        float(boot_s.mean()),
        float(boot_s.max()),
    )


def job_joules(result: SimulationResult, start_s: float, end_s: float) -> float:
    """Return the energy that the jobs used between two times, in joules.

    For each job, only the power above that of its nodes while idle counts.
    """
    shapes = result.workload.first[:-1]
    end = result.accounts.end_s
    begin = end - result.workload.time_s[shapes]
    length_s = np.clip(np.minimum(end, end_s) - np.maximum(begin, start_s), 0.0, None)
    return float(np.sum(length_s * result.workload.power_watts[shapes]))


def boot_wait_s(result: SimulationResult) -> Floats:
    """Return the seconds for which each job held its nodes until all of them were on."""
    shapes = result.workload.first[:-1]
    waited: Floats = result.accounts.end_s - result.workload.time_s[shapes] - result.accounts.start_s
    return waited


def energy_joules(times_s: Floats, watts: Floats, start_s: float, end_s: float) -> float:
    """Return the energy between two times, in joules. The power is a step function of time."""
    stops_s = np.append(times_s[1:], np.inf)
    length_s = np.clip(np.minimum(stops_s, end_s) - np.maximum(times_s, start_s), 0.0, None)
    return float(np.sum(length_s * watts))


def bound_saving(trace: Trace, base: SimulationResult, start_s: float, end_s: float) -> float:
    """Return the energy in joules that an ideal decision would save between two times.

    An ideal (clairvoyant) decision knows the future: it powers nodes down in every idle gap in which this
    saves energy, and boots them in time.
    """
    kind = trace.kind
    energy = NodeEnergy(
        kind.idle_watts, kind.off_watts, kind.boot_s, kind.boot_watts, kind.shutdown_s, kind.shutdown_watts
    )
    starts = np.concatenate([base.accounts.start_s, base.accounts.end_s])
    sizes = base.workload.units[base.workload.first[:-1]].astype(float)
    order = np.argsort(starts, kind="stable")
    times_s, busy = starts[order], np.cumsum(np.concatenate([sizes, -sizes])[order])
    inside = (times_s > start_s) & (times_s < end_s)
    before = busy[times_s <= start_s]
    times_s = np.concatenate([[start_s], times_s[inside]])
    busy = np.concatenate([[before[-1] if len(before) else 0.0], busy[inside]])
    return clairvoyant_saving_joules(energy, times_s, busy, kind.nodes, end_s)


def row(
    trace: str, half: str, name: str, got: PowerSavingFigures, on: PowerSavingFigures, bound_kwh: float
) -> dict[str, Any]:
    saved_kwh = on.energy_kwh - got.energy_kwh
    return {
        "trace": trace,
        "half": half,
        "setting": name,
        "energy_kwh": got.energy_kwh,
        "saved_share": saved_kwh / on.energy_kwh,
        "share_of_bound": saved_kwh / (on.energy_kwh - bound_kwh),
        "added_mean_wait_s": got.mean_wait_s - on.mean_wait_s,
        "jobs_that_wait_for_a_boot": got.boot_share,
        "mean_boot_wait_s": got.mean_boot_s,
        "max_boot_wait_s": got.max_boot_s,
    }


def line(row: dict[str, Any]) -> str:
    return (
        f"| {row['trace']} | {row['setting']} | {row['energy_kwh']:.0f} | {row['saved_share']:.1%} | "
        f"{row['share_of_bound']:.0%} | {row['jobs_that_wait_for_a_boot']:.1%} | "
        f"{row['mean_boot_wait_s']:.0f} | {row['max_boot_wait_s']:.0f} | {row['added_mean_wait_s']:+.0f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
