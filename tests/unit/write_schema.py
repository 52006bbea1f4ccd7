"""Program that writes the content of a test database as SQL.

The release of slurm-energy that is checked out creates and fills the database. Each file `schemas/N.sql` was
written by the code of the last commit with schema N, not by the present code:

    git archive COMMIT slurm_energy tests/unit | tar -x -C DIRECTORY export
    PYTHONPATH=DIRECTORY:DIRECTORY/tests/unit python -P tests/unit/write_schema.py tests/unit/schemas/N.sql

The same content is stored with the functions of each release, as far as the release has them.
"""

from __future__ import annotations

import importlib
import inspect
import sqlite3
import sys
import tempfile
from pathlib import Path

from store_examples import Accounting, job, record

from slurm_energy.reports.trace import encode_trace

HOSTILE_NAME = "=cmd|'/c calc'!A1; DROP TABLE records; -- \"\u20ac\u96ea"
HOUR = 3600.0
FINGERPRINT = "9f" * 16


def deliver(accounting):
    """Deliver the records of 24 jobs of two users, some on two nodes, with steps, GPUs and traces."""
    for number in range(24):
        job_id, start = 100 + number, 1000.0 + number * HOUR
        times = {"start": start, "end": start + 600.0 + number}
        common = {"job_id": job_id, "uid": 1000 + number % 2, "record_id": f"{number:032x}"}
        values = {"restart_count": 1 if number == 5 else 0, "policy": "edp" if number % 3 else "none"}
        whole = record(**times, **common, **values)
        energies = [1000.0 + number / 3, 250.25 * number, None if number == 7 else 3.0 * number]
        names = [
            ("cpu", "powercap:intel-rapl"),
            ("dram", "powercap:intel-rapl"),
            ("gpu[0]", "nvml:total_energy"),
        ]
        whole["components"] = [
            {"name": name, "energy_joules": joules, "source": source, "quality": "measured"}
            for (name, source), joules in zip(names, energies, strict=True)
        ]
        if "fingerprint" in whole:
            whole["fingerprint"] = FINGERPRINT
        trace = encode_trace(start, 1.0, {"cpu": [1.5, 2.5, 4.0]}) if number % 6 == 0 else None
        content = {"record": whole, "trace": trace}
        if number % 8 == 0 and module("observations"):
            content["observation"] = {"node": whole["node"], "series": [], "ranks": []}
        accounting.deliver(content, now=times["end"] + 5)
        if number % 4 == 0:
            common["record_id"] = f"{number:031x}f"
            accounting.deliver({"record": record(node="n2", **times, **common, **values), "trace": None})
        if number % 5 == 0:
            common["record_id"] = f"{number:031x}e"
            accounting.deliver({"record": record(step="batch", **times, **common, **values), "trace": None})


def learn(accounting):
    """Store Slurm's facts about all synthetic jobs except the last four.

    The last four are left out, as if Slurm had not answered about these jobs yet.
    """
    known = []
    for number in range(20):
        start = 1000.0 + number * HOUR
        times = {"submit": start - 60.0, "start": start, "end": start + 600.0 + number}
        more = {
            "name": HOSTILE_NAME if number == 3 else f"train-{number}",
            "user": ["alice", "bob"][number % 2],
            "account": ["physics", "Physik"][number % 2],
            "nodes": 2 if number % 4 == 0 else 1,
            "state": "FAILED" if number == 9 else "COMPLETED",
        }
        for name, value in {"time_limit_s": 7200.0, "requested": "cpu=8,mem=16G,node=1,gres/gpu=1"}.items():
            if name in inspect.signature(type(job(1))).parameters:
                more[name] = value
        known.append(job(100 + number, display_id="110_4" if number == 10 else None, **times, **more))
    accounting.learn(*known)


def module(*names):
    """Import a module of slurm_energy.accounting whose name differs between releases.

    The first of the given names that this release has is imported. Return None if it has none of them.
    """
    for name in names:
        for package in ("", "history.", "records.", "usage."):
            try:
                return importlib.import_module(f"slurm_energy.accounting.{package}{name}")
            except ModuleNotFoundError:
                continue
    return None


def fill_priority(connection):
    """Fill the tables of the priority package in a test database.

    The stored rows are start predictions, finished runs and decisions about jobs.
    """
    if predictions := module("start_predictions"):
        predictions.save(connection, "c1", [(100, 1000.0, 700.0), (101, 4600.0, 650.5)])
    if history := module("run_history", "learning"):
        (getattr(history, "store_finished_runs", None) or history.learn)(connection, 200_000.0)
    if decisions := module("decisions"):
        decision = decisions.Decision
        shape = decision(100, 940.0, 950.0, "shape", "fits now", {"offered": ["gpu:2"], "chosen": "gpu:1"})
        requeue = decision(
            105, 18940.0, 19100.0, "requeue", HOSTILE_NAME, {"for_job": 106, "lost_joules": 12.5}
        )
        decisions.save(connection, "c1", [shape, requeue])


def fill_tuning(connection):
    """Fill the tables of tuning for a test of upgrades.

    The tables contain learned runs, hardware settings that a user has fixed (pins), and settings with
    which jobs were started.
    """
    runs, starts = module("tuning_runs"), module("tuning_starts")
    if not runs:
        return
    learned = []
    for one in runs.unlearned_jobs(connection, 6):
        program = (one.user, "a100", FINGERPRINT, FINGERPRINT, "gpt2")
        learned.append((one.key, runs.StoredRun(*program, one.end, '{"points":[1,2.5]}')))
    runs.store_learned(connection, learned)
    program = starts.Program("alice", FINGERPRINT, "a100")
    starts.set_pin(connection, starts.Pin(program, '{"gpu":{"cap_watts":200}}', "bob", 5000.0))
    start = starts.IssuedStart(program, True, '{"point":{}}')
    starts.store_start(connection, starts.JobRun("c1", 119, 0), start, start, (), 6000.0)


def fill_budgets(connection):
    """Fill the tables of power budgets for a test of upgrades.

    The tables contain samples, changes of limits, limits that operators have set, and states of nodes.
    """
    budgets = module("budgets")
    if not budgets:
        return
    powers = (None, 900.0, 950.5, 1200.0, 3.25, None, 0.0)
    samples = [budgets.BudgetSample("room", 1000.0 + 10 * n, 10.0, *powers) for n in range(40)]
    budgets.save_samples(connection, "c1", samples)
    change = budgets.BudgetChange(1500.0, "room", "root", "set", HOSTILE_NAME, {"watts": 1e6})
    override = budgets.LimitOverride("room", 1e6, None, "root", 1500.0, "maintenance")
    budgets.set_override(connection, "c1", override, change)
    budgets.save_nodes(connection, "c1", 1600.0, {"n1": '{"watts":300}', "n2": "{}"})


def fill_periods(connection):
    """Fill the database with the energy of two nodes over 36 hours, and related data.

    The function stores one energy report (period) per hour and sums the reports. It also stores a quota and
    a series of carbon intensities. Data for which the release has no module are left out.
    """
    periods = module("periods")
    if not periods:
        return
    from period_examples import period

    items = []
    for hour in range(36):
        jobs = {(100 + hour, 0): {"cpu": 10**9 + hour, "gpu[0]": 3 * 10**12}} if hour < 24 else {}
        node_period = period(
            hour * 3600, node="n2" if hour % 5 == 0 else "n1", jobs=jobs, period_id=f"{hour:032x}",
            idle={"cpu": 7_000_001, "gpu[0]": 9}, unattributed={"cpu": hour},
        )  # fmt: skip
        items.append({"period": node_period.to_json()})
    parsed, refusals = periods.read_periods(items)
    assert not refusals, refusals
    periods.store_periods(connection, parsed, 200_000.0)
    if rollups := module("usage_rollup"):
        rollup = rollups.UsageRollup()
        while rollup.advance(connection, 200_000.0):
            pass
    quotas, grid = module("quotas"), module("grid_values")
    if not (quotas and grid):
        return
    resource, span = quotas.QuotaResource("energy"), quotas.QuotaPeriod.CUSTOM
    limits = (3.6e9, "J", 80.0, None, 1000.0, 90_000.0, "root", 500.0, HOSTILE_NAME)
    quotas.set_quota(connection, "c1", quotas.Quota("physics", "", resource, span, *limits), "set")
    key = grid.SeriesKey("c1", "carbon", "csv", "FR", "g/kWh")
    grid.save_samples(connection, key, [(3600.0 * n, 3600.0 * (n + 1), 40.5 + n) for n in range(24)], 600.0)


def fill_adjustments(connection):
    """Store examples of all data about adjustments in a database.

    The examples are permissions, a pending and a decided trial, and values offered to a run.
    """
    adjustments = module("adjustments")
    if not adjustments:
        return
    adjustments.set_permissions(connection, "c1", 1000, "workers=0..16,slowdown=5", 5000.0)
    trial = adjustments.StoredTrial(0, "c1", 1000, FINGERPRINT, "pending", "apply", 6000.0, None, "{}")
    decided = adjustments.add_trial(connection, trial)
    adjustments.decide_trial(connection, decided.key, "kept", 7000.0, '{"job":"110_4"}')
    pending = adjustments.add_trial(connection, trial._replace(source="auto", created=8000.0))
    run = module("tuning_starts").JobRun("c1", 119, 0)
    values = ({"workers": 8}, frozenset({"workers"}), 9000.0)
    adjustments.offer(connection, adjustments.OfferedRun(run, 1000, FINGERPRINT, pending.key, False, *values))


def main(target):
    """Fill a database of this release and write it as SQL, for tests of upgrades."""
    with tempfile.TemporaryDirectory() as directory:
        accounting = Accounting(Path(directory))
        deliver(accounting)
        learn(accounting)
        with module("engine", "database").connect(accounting.path) as connection:
            for fill in (fill_priority, fill_tuning, fill_budgets, fill_periods, fill_adjustments):
                fill(connection)
        with sqlite3.connect(accounting.path) as connection:
            connection.execute("UPDATE schema_version SET applied = version")
            (identity,) = connection.execute("PRAGMA application_id").fetchone()
            lines = [f"PRAGMA application_id = {identity};", *connection.iterdump()]
    Path(target).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
