"""Benchmark of energy accounting on SQLite, MariaDB and PostgreSQL.

The benchmark measures for each database:

- the records stored per second of the controller's processor time, as in `store_rates.py`;
- the time of the slowest report over a month with 1,000,000 jobs, as in `usage_report.py`;
- the time of `senergy acct` divided by the time of `sacct` alone, for the same 100,000 jobs of
  a real slurmdbd. `senergy acct` asks sacct for its rows and senergyctld for their energy.

The benchmark needs root, Slurm and MariaDB. A database without an installed server is left
out.

Prints `CLAIM ingest_STORE`, `CLAIM report_STORE` and `CLAIM acct_over_sacct_STORE`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import store_rates
import usage_report
from claims import Claim, at_least, at_most, publish

from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.records import record_store
from slurm_energy.accounting.schema import migrations
from slurm_energy.errors import UnavailableError
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy_lab.cluster import layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.database_servers import SERVERS

INGEST_TARGET, REPORT_TARGET_S, ACCT_TARGET = 10_000, 1.0, 10.0
FIRST_JOB = 1001
ELAPSED_S = 600
ROUNDS = 5
_COPY = """
INSERT INTO lab_job_table ({columns})
SELECT {values} FROM lab_job_table t, seq_1_to_{jobs} s WHERE t.id_job = 1
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000, help="records to store (default 100,000)")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs of the reports (default 1,000,000)")
    parser.add_argument("--acct-jobs", type=int, default=100_000, help="jobs of acct (default 100,000)")
    parser.add_argument("--stores", default=",".join(("sqlite", *SERVERS)), help="stores (default: all)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    claims: list[Claim] = []
    for name in arguments.stores.split(","):
        try:
            claims += measure_store(name, arguments)
        except UnavailableError as error:
            print(f"{name}: {error}")
    return publish(claims, arguments.json)


def measure_store(name: str, arguments: argparse.Namespace) -> list[Claim]:
    """Measure one kind of database store, and compare the results with their targets.

    Each comparison is returned as a claim.
    """
    claims = []
    with store_rates.location(name) as place:
        rates = store_rates.measure(place, arguments.records)
    print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in rates.items()))
    claims.append(at_least(f"ingest_{name}", rates["stored/CPU s"] / INGEST_TARGET, 1.0))
    with store_rates.location(name) as place:
        migrations.prepare(place)
        with connect(place) as connection:
            usage_report.fill(connection, arguments.jobs, 1)
            slowest = max(claim["ratio"] for claim in usage_report.measure(connection))
    claims.append(at_most(f"report_{name}", slowest / REPORT_TARGET_S, 1.0))
    with store_rates.location(name) as place:
        ours_s, sacct_s = measure_acct(place, arguments.acct_jobs)
    print(f"{name}: {arguments.acct_jobs} jobs: senergy acct {ours_s:.2f} s, sacct {sacct_s:.2f} s")
    claims.append(at_most(f"acct_over_sacct_{name}", ours_s / sacct_s, ACCT_TARGET))
    return claims


def measure_acct(place: str, jobs: int) -> tuple[float, float]:
    """Return the median seconds of `senergy acct` and `sacct` for jobs in a real slurmdbd."""
    end = int(time.time()) - 60
    fill_records(place, jobs, end)
    made = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-accounting-", dir="/var/tmp"))
    state = tempfile.TemporaryDirectory(dir="/var/tmp")
    keys = {"database": place, "state_dir": state.name, "enrich_interval_s": 3600.0}
    energy: dict[str, Any] = {"controller": keys}
    try:
        lab = lifecycle.up(made, LabSpec(nodes_file.from_profiles(["xeon-8358"]), energy=energy))
        environment = {**os.environ, **lab.environment()}
        subprocess.run(["srun", "-t1", "true"], env=environment, check=True, timeout=120)
        copy_jobs(made.root / "run" / "mysql" / "mysql.sock", jobs, end)
        window = ("-a", "-X", "-P", "-S", "now-1hours")
        ours = ["senergy", "acct", *window, "-o", "JobID,State,Elapsed,ConsumedEnergy"]
        theirs = ["sacct", *window, "-o", "JobID,State,Elapsed,ConsumedEnergy"]
        return timed(ours, environment, jobs), timed(theirs, environment, jobs)
    finally:
        lifecycle.down(made)
        state.cleanup()


def fill_records(place: str, jobs: int, end: int) -> None:
    """Store one energy record per job in the benchmark's database.

    The records are as a node would have delivered them.

    Args:
        place: location of the database.
        jobs: number of jobs.
        end: Unix time at which the last job ends.
    """
    migrations.prepare(place)
    with connect(place) as connection:
        for first in range(0, jobs, store_rates.BATCH):
            count = min(store_rates.BATCH, jobs - first)
            items, _ = record_store.read_items([{"record": record(first + n, end)} for n in range(count)])
            record_store.store(connection, items, float(end))


def record(number: int, end: int) -> dict[str, Any]:
    """Return the record of a job as JSON data."""
    parts = tuple(ComponentEnergy(name, 1e5 + number, f"source:{name}") for name in ("cpu", "dram"))
    return EnergyRecord(
        cluster="lab",
        node="n1",
        job_id=FIRST_JOB + number,
        uid=0,
        policy="monitor",
        start=float(end - ELAPSED_S),
        end=float(end),
        components=parts,
        record_id=f"{number:032x}",
        user="root",
    ).to_json()


def copy_jobs(mysql_socket: Path, jobs: int, end: int) -> None:
    """Copy the first job in slurmdbd's database `jobs` times.

    The copies have new job ids. All copies have the same submit, start and end time.
    """
    shown = _sql(mysql_socket, "SHOW COLUMNS FROM lab_job_table")
    columns = [line.split("\t")[0] for line in shown.splitlines() if line.split("\t")[0] != "job_db_inx"]
    new = {
        "id_job": f"{FIRST_JOB - 1} + s.seq",
        "time_submit": str(end - ELAPSED_S),
        "time_eligible": str(end - ELAPSED_S),
        "time_start": str(end - ELAPSED_S),
        "time_end": str(end),
    }
    values = ", ".join(new.get(name, f"t.`{name}`") for name in columns)
    _sql(mysql_socket, _COPY.format(columns=", ".join(f"`{c}`" for c in columns), values=values, jobs=jobs))


def _sql(mysql_socket: Path, statement: str) -> str:
    command = ["mariadb", "--no-defaults", f"--socket={mysql_socket}", "-N", "-B", "slurm_acct_db"]
    done = subprocess.run(
        [*command, "-e", statement], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout


def timed(command: Sequence[str], environment: dict[str, str], jobs: int) -> float:
    """Return the median seconds of a command that prints a line per job."""
    durations = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        durations.append(time.perf_counter() - begin)
        assert done.stdout.count("\n") >= jobs, (command, done.stdout[:300], done.stderr[:300])
    return statistics.median(durations)


if __name__ == "__main__":
    raise SystemExit(main())
