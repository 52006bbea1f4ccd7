"""Part `records` of the benchmark scale.py: the time of queries on a big database.

The queries are those of one user, of operators and of dashboards.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import big_database
import record_rows
import scale_agents
import store_rates
from claims import Claim, at_most
from process_figures import cpu_s, with_children

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.schema import migrations

LIMIT_S = 1.0
ROUNDS = 3
HOUR_S, DAY_S = 3600, 86400
USER = 7


def measure(arguments: argparse.Namespace, store: str, records: int) -> list[Claim]:
    """Fill a database of one kind with records, measure the queries, and compare them with targets.

    The result is a list of claims. A claim is a measured ratio with a target, and states whether the target
    is reached.
    """
    jobs = records // record_rows.RECORDS_PER_JOB
    end = float(int(time.time()) // HOUR_S * HOUR_S)
    with contextlib.ExitStack() as stack:
        if store == "postgresql":
            folder = arguments.database_folder
            place, state = stack.enter_context(big_database.filled_server(folder, jobs, end))
            jobs, end = state.jobs, state.end
            print(f"{store}: rows in {state.rows_s:.0f} s, indexes in {state.indexes_s:.0f} s")
        else:
            place = stack.enter_context(store_rates.location(store))
            _fill(place, jobs, end)
        with connect(place) as connection:
            size = backend_of(connection).size_bytes(connection)
        records = jobs * record_rows.RECORDS_PER_JOB
        print(
            f"{store}: {records} records of {jobs} jobs, {size / 1e9:.2f} GB, {size / records:.0f} bytes each"
        )
        if arguments.fill_only:
            return []
        if arguments.cold:
            _drop_caches()
        daemons = stack.enter_context(scale_agents.running_daemons(place))
        claims = measure_queries(daemons, scale_agents.server_pid(place), store, jobs, end)
        if arguments.prune:
            print(f"{store}: prune: {prune(place, end, jobs)}")
        return claims


def _fill(place: str, jobs: int, end: float) -> None:
    begin_s = time.monotonic()
    migrations.prepare(place)
    with connect(place) as connection:
        record_rows.fill(connection, record_rows.RecordRows(end, jobs), jobs)
        record_rows.fill_sums(connection, int(end))
    print(f"rows and indexes in {time.monotonic() - begin_s:.0f} s")


def _drop_caches() -> None:
    """Empty the kernel's page cache, so that the database files must be read from disk.

    The database server has just started, so its own cache is empty too.
    """
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def measure_queries(
    daemons: scale_agents.Daemons, server: int | None, store: str, jobs: int, end: float
) -> list[Claim]:
    """Time the commands of a user and of an operator, and return the claims (checks of targets)."""
    own_jobs = [
        job for job in range(jobs - 1, max(0, jobs - 100_000), -1) if record_rows.user_of(job) == USER
    ]
    uid = str(record_rows.FIRST_UID + USER)
    user = ["senergy", "acct", "-P"]
    commands = {
        "acct_job": [*user, "-j", str(own_jobs[0])],
        "acct_day": [*user, "-S", _text(end - DAY_S)],
        "acct_week": [*user, "-S", _text(end - 7 * DAY_S)],
        "acct_week_jobs": [*user, "-X", "-S", _text(end - 7 * DAY_S)],
        "acct_month_jobs": [*user, "-X", "-S", _text(end - 30 * DAY_S)],
        "job": ["senergy", "job", str(own_jobs[-1])],
        "status": ["senergy", "status"],
        "report_month": ["senergy", "report", "cluster", "AccountUtilizationByUser", *_month(end)],
        "report_days": ["senergy", "report", "cluster", "Utilization", "interval=day", *_month(end)],
    }
    claims = []
    for name, command in commands.items():
        as_user = uid if name.startswith(("acct", "job")) else "0"
        timing = timed(daemons, server, command, as_user)
        cpu = timing.cpu_s
        parts = ", ".join(f"{part} {value:.2f}" for part, value in cpu.items())
        print(
            f"{store}: {name}: {timing.first_s:.2f} s at first, then {timing.seconds:.2f} s; CPU seconds:"
            f" {parts}; {timing.lines} lines; at first read {timing.first_read_mb:.1f} MB",
            flush=True,
        )
        details = {"seconds": round(timing.seconds, 3), "first_s": round(timing.first_s, 3), "cpu_s": cpu}
        claims.append(at_most(f"scale_{name}_{store}", sum(cpu.values()) / LIMIT_S, 1.0) | details)
    return claims


def _text(when: float) -> str:
    return datetime.fromtimestamp(when).strftime("%Y-%m-%dT%H:%M:%S")


def _month(end: float) -> list[str]:
    day = end - end % DAY_S
    return [f"Start={_text(day - 30 * DAY_S)}", f"End={_text(day)}"]


@dataclass(frozen=True)
class Timing:
    """Cost of a command that was run several times.

    Attributes:
        seconds: minimum duration.
        first_s: duration of the first run.
        first_read_mb: bytes that the processes of the database server read from files during the first run,
            from the disk or the page cache; in 10^6 bytes.
        cpu_s: median CPU seconds by process.
        lines: lines of output.
    """

    seconds: float
    first_s: float
    first_read_mb: float
    cpu_s: dict[str, float]
    lines: int


def timed(daemons: scale_agents.Daemons, server: int | None, command: Sequence[str], uid: str) -> Timing:
    """Run a command several times as a given user, and return how much time the command needs."""
    # Without slurmdbd the rows come from the records, so that only our own time is measured.
    slurm_conf = daemons.config.with_name("slurm.conf")
    slurm_conf.write_text("ClusterName=cluster\nSlurmctldHost=localhost\n")
    environment = os.environ | {"SENERGY_CONFIG": str(daemons.config), "SLURM_CONF": str(slurm_conf)}
    argv = [
        "setpriv",
        f"--reuid={uid}",
        "--clear-groups",
        "--",
        sys.executable,
        "-m",
        "slurm_energy.cli.main",
    ]
    durations, cpu, read_bytes, lines = [], [], [], 0
    for _ in range(ROUNDS):
        before, read_before = _cpu_s(daemons, server), _read_bytes(server)
        begin_s = time.monotonic()
        done = subprocess.run(
            [*argv, *command[1:]], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        durations.append(time.monotonic() - begin_s)
        cpu.append({name: value - before[name] for name, value in _cpu_s(daemons, server).items()})
        read_bytes.append(_read_bytes(server) - read_before)
        lines = done.stdout.count("\n")
        if done.returncode:
            print(f"    {command}: {done.stderr.strip()[:300]}")
    medians = {name: round(statistics.median(one[name] for one in cpu), 3) for name in cpu[0]}
    return Timing(min(durations), durations[0], read_bytes[0] / 1e6, medians, lines)


def _read_bytes(server: int | None) -> int:
    """Return the bytes that the living processes of a server have read from files."""
    total = 0
    for process in with_children(server) if server else ():
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{process}/io").read_text().split()[1])
    return total


def _cpu_s(daemons: scale_agents.Daemons, server: int | None) -> dict[str, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    database = sum(map(cpu_s, with_children(server))) if server else 0.0
    return {
        "command": children.ru_utime + children.ru_stime,
        "senergyctld": cpu_s(daemons.controller),
        "database server": database,
    }


def prune(place: str, end: float, jobs: int) -> str:
    """Measure how long `senergy db prune` takes to delete the oldest tenth of the records.

    Return the duration as text.
    """
    first_end = end - jobs * 86400.0 / record_rows.JOBS_PER_DAY
    before = datetime.fromtimestamp(first_end + (end - first_end) / 10, UTC).strftime("%Y-%m-%d")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "energy.toml"
        config.write_text(f'[controller]\ndatabase = "{place}"\n')
        begin_s = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "slurm_energy.cli.main",
            "db",
            "prune",
            "records",
            "--before",
            before,
        ]
        done = subprocess.run(
            [*command, "--before", before],
            env=os.environ | {"SENERGY_CONFIG": str(config)},
            capture_output=True,
            text=True,
            check=False,
        )
        output = (done.stdout + done.stderr).strip().splitlines()
        return f"{time.monotonic() - begin_s:.1f} s: {output[-1:]}"
