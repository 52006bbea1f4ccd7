"""Duration of `senergy report` over a month with 1,000,000 jobs.

The benchmark fills a database with 30 days of hourly energy of 1,000,000 jobs of 250 users in 50
accounts. The tables have the contents that senergyctld would store: sums, runs, and facts about jobs.
Jobs have 4 policies, 3 partitions, 6 sizes and 20 tags. Each report is timed from the query of the
database to the printed lines. The time of a report is the minimum of three runs.

With --server, a private MariaDB or PostgreSQL server is used instead of a SQLite file.

For each report, the benchmark prints a line `CLAIM report_*` that compares the duration with its
target. The line states the duration in seconds as `ratio`. `*_hourly_co2e` is a report with a carbon
intensity that changes each hour. `*_local_day` is a report by days of another time zone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims import Claim, at_most, publish
from sqlalchemy import Connection

from slurm_energy.accounting.engine import connect, transaction
from slurm_energy.accounting.schema import migrations, tables, usage_tables
from slurm_energy.accounting.usage.groups import GroupIds, GroupKey
from slurm_energy.accounting.usage.sum_changes import DAY_S, HOUR_S, SUM_COLUMNS
from slurm_energy.accounting.usage.usage_queries import UsageQuery, read_usage, visible_groups
from slurm_energy.controller.records.usage_document import GridRates, usage_rows
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.reports.utilization.columns import report_columns
from slurm_energy.reports.utilization.grammar import parse_report
from slurm_energy.reports.utilization.intervals import interval_edges
from slurm_energy.reports.utilization.lines import dimensions, report_lines
from slurm_energy.reports.utilization.page import text_lines
from slurm_energy.reports.utilization.table import CellStyle, report_table
from slurm_energy.reports.utilization.units import ReportUnits
from slurm_energy.reports.utilization.usage import UsageDocument

T0 = 1_700_006_400
DAYS = 30
END = T0 + DAYS * 86400
CHUNK = 20_000
LOCAL = "Europe/Berlin"
"""Time zone of `*_local_day`, in November and December one hour before UTC. The other reports use UTC."""
REPORTS = {
    "accounts": "cluster AccountUtilizationByUser",
    "users": "cluster UserUtilizationByAccount",
    "policies": "cluster UtilizationByPolicy",
    "tags": "cluster UtilizationByTag",
    "utilization_by_day": "cluster Utilization interval=day",
    "accounts_by_day": "cluster AccountUtilizationByUser interval=day",
    "accounts_by_local_day": "cluster AccountUtilizationByUser interval=day",
    "top": "user TopUsage topcount=10",
}


def fill(connection: Any, jobs: int, seed: int) -> None:
    """Fill the database with random jobs: their accounting data, their runs, and their hourly sums."""
    rng, groups = random.Random(seed), GroupIds()
    users = [(f"user{i:03}", f"account{i % 50:02}", 1000 + i) for i in range(250)]
    habits = {user: [_habit(rng, user) for _ in range(rng.randint(2, 8))] for user in users}
    sums: dict[tuple[int, int], list[int]] = collections.defaultdict(lambda: [0, 0])
    facts, runs = [], []
    with transaction(connection):
        for job in range(1, jobs + 1):
            user = rng.choice(users)
            key = rng.choice(habits[user])
            start = T0 + rng.randrange(DAYS * 86400 - 4 * HOUR_S)
            end = start + int(min(12 * HOUR_S, rng.expovariate(1 / 3600) + 60))
            watts = rng.randrange(100, 700) * 1_000_000
            group = groups.id_of(connection, key)
            for hour in range(start - start % HOUR_S, min(end, END), HOUR_S):
                seconds = min(end, hour + HOUR_S) - max(start, hour)
                entry = sums[hour, group]
                entry[0] += seconds * watts
                entry[1] += seconds * (key.cpus or 0)
            facts.append(_facts(job, key, start, end))
            runs.append(
                {"job": job, "usage_group": group, "start": start, "end": end, "cpus": key.cpus, "gpus": 0}
            )
            if len(facts) == CHUNK or job == jobs:
                connection.execute(tables.jobs.insert(), facts)
                connection.execute(usage_tables.usage_runs.insert(), runs)
                facts, runs = [], []
        idle = groups.id_of(connection, GroupKey("c1", "idle"))
        for hour in range(T0, END, HOUR_S):
            sums[hour, idle] = [10**14, 0]
        rows = [_sums(hour, group, *values) for (hour, group), values in sorted(sums.items())]
        for first in range(0, len(rows), CHUNK):
            connection.execute(usage_tables.usage_sums.insert(), rows[first : first + CHUNK])
        _fill_days(connection, sums)
    print(f"{jobs} jobs, {len(rows)} sums, {len({row['usage_group'] for row in rows})} groups")


def _fill_days(connection: Connection, sums: Mapping[tuple[int, int], Sequence[int]]) -> None:
    """Fill the tables of the benchmark that contain daily sums and the hourly energies of each day.

    Args:
        connection: connection to the database.
        sums: energy and CPU time by hour and group.
    """
    by_day: dict[tuple[int, int], list[int]] = collections.defaultdict(lambda: [0, 0])
    hours: dict[tuple[int, int], dict[str, int]] = {}
    for (hour, group), values in sums.items():
        key = hour - hour % DAY_S, group
        for index, value in enumerate(values):
            by_day[key][index] += value
        of_day = hours.setdefault(key, dict.fromkeys(usage_tables.HOUR_COLUMNS, 0))
        of_day[usage_tables.HOUR_COLUMNS[hour % DAY_S // HOUR_S]] = values[0]
    days = [_sums(day, group, *values) | {"end": day + DAY_S} for (day, group), values in by_day.items()]
    energies = [{"start": day, "usage_group": group, **of_day} for (day, group), of_day in hours.items()]
    for first in range(0, len(days), CHUNK):
        connection.execute(usage_tables.usage_days.insert(), days[first : first + CHUNK])
        connection.execute(usage_tables.usage_day_hours.insert(), energies[first : first + CHUNK])


def _habit(rng: random.Random, user: tuple[str, str, int]) -> GroupKey:
    tag = f"tag{rng.randrange(20)}" if rng.random() < 0.3 else ""
    return GroupKey(
        "c1", "job", user[1], user[0], user[2], rng.choice(["normal", "high"]),
        rng.choice(["cpu", "gpu", "long"]),
        rng.choice(["none", "edp", "min-energy", "cap"]), tag, "", rng.choice([1, 8, 32, 64, 128, 512]),
    )  # fmt: skip


def _facts(job: int, key: GroupKey, start: int, end: int) -> dict[str, Any]:
    return {
        "cluster": "c1", "job_id": job, "submit": start - 60.0, "display_id": str(job), "name": "job",
        "account": key.account, "partition": key.partition, "user": key.user, "state": "COMPLETED",
        "start": start, "end": end, "elapsed_s": end - start, "nodes": 1, "finished": True,
        "updated": end + 20.0,
        "qos": key.qos, "allocated": f"cpu={key.cpus},node=1",
    }  # fmt: skip


def _sums(hour: int, group: int, energy: int, cpu_seconds: int) -> dict[str, int]:
    values = dict.fromkeys(SUM_COLUMNS, 0) | {
        "total_uj": energy, "cpu_uj": energy // 2, "other_uj": energy - energy // 2, "cpu_rows": 1,
        "other_rows": 1, "cpu_seconds": cpu_seconds,
    }  # fmt: skip
    return {"start": hour, "end": hour + HOUR_S, "usage_group": group, **values}


def report(connection: Any, words: str, factors: GridFactors) -> int:
    """Compute one `senergy report` over the benchmark's month. Return the number of its lines."""
    request = parse_report(words.split())
    by = dimensions(request)
    rates = GridRates(factors)
    query = UsageQuery(
        interval_edges(T0, END, request.interval), ("c1",), rates=rates if rates.vary else None
    )
    usage = read_usage(connection, query)
    groups = visible_groups(usage.groups, None, None, with_meter=True)
    rows = usage_rows(usage, groups, by, rates)
    data = {
        "window": {"start": T0, "end": END},
        "intervals": [list(one) for one in query.intervals],
        "rows": rows,
        "parents": {"c1": {"root": ""} | {f"account{i:02}": "root" for i in range(50)}},
        "meter_visible": True,
        "has_carbon": True,
    }
    document = UsageDocument.from_json(json.loads(json.dumps(data)))
    style = CellStyle(ReportUnits(), False, "", str, lambda _: "")
    lines = report_lines(request, document)
    columns = report_columns(request, document, with_tres=False)
    table = report_table(lines, columns, document.intervals, (), style)
    output = io.StringIO()
    for line in text_lines(table, header=True):
        print(line, file=output)
    return len(lines)


def timed(run: Callable[[], int]) -> tuple[float, float, int]:
    """Run a function three times, and return its shortest durations and its result.

    The first value is the shortest elapsed time in seconds. The second value is the shortest CPU time of
    this process in seconds. The third value is the result of the last run.
    """
    best, cpu, result = float("inf"), float("inf"), 0
    for _ in range(3):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        result = run()
        best = min(best, time.perf_counter() - begin)
        cpu = min(cpu, time.process_time() - cpu_begin)
    return best, cpu, result


def measure(connection: Any) -> list[Claim]:
    """Measure the time of each report, with a constant and with an hourly carbon intensity.

    Return the claims that compare the times with the target.
    """
    constant = GridFactor(GridSeries.constant(SeriesSource("constant", "", ""), 400.0))
    samples = [(float(hour), hour + 3600.0, 100.0 + hour % 300) for hour in range(T0, END, HOUR_S)]
    hourly = GridFactor(GridSeries(SeriesSource("csv", "DE", ""), samples))
    claims = []
    for name, words in REPORTS.items():
        os.environ["TZ"] = LOCAL if "_local_" in name else "UTC"
        time.tzset()
        for suffix, factor in (("", constant), ("_hourly_co2e", hourly)):
            seconds, cpu, lines = timed(
                lambda words=words, factor=factor: report(connection, words, GridFactors(factor))
            )
            print(f"{name}{suffix}: {seconds:.3f} s, {cpu:.3f} s of CPU, {lines} lines", flush=True)
            claims.append(at_most(f"report_{name}{suffix}", seconds, 1.0))
    return claims


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--server", choices=["mariadb", "postgresql"], help="a private server; default: SQLite"
    )
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        location: Any = Path(directory) / "a.db"
        if args.server:
            from store_rates import location as store_location

            location = stack.enter_context(store_location(args.server))
        migrations.prepare(location)
        with connect(location) as connection:
            fill(connection, args.jobs, args.seed)
            return publish(measure(connection), args.json)


if __name__ == "__main__":
    raise SystemExit(main())
