"""Benchmark of the record store: records stored and read per second.

The store runs on SQLite, MariaDB and PostgreSQL. The servers write each commit to the disk. A delivery has
500 records of a node with four GPUs. CPU time is that of the controller, without the CPU time of the
database server.

The program prints a line per store, and `CLAIM ingest_sqlite ratio=... target=>=1 holds=yes|no`. The ratio
is the number of records stored per second of the controller's CPU time, divided by 10,000. The servers have
no target.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claims import at_least, publish

from slurm_energy.accounting.engine import Database
from slurm_energy.accounting.records import record_queries, record_store
from slurm_energy.accounting.records.record_selection import RecordSelection
from slurm_energy.accounting.schema import migrations
from slurm_energy.errors import UnavailableError
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy_lab.database_servers import SERVERS

TARGET = 10_000
BATCH = 500
NOW = 1_800_000_000.0


SERVER_SETTINGS = {"mariadb": {"innodb-buffer-pool-size": "1G"}}
"""Settings beyond the defaults. Slurm's accounting guide, too, asks for more than the default of 128 MiB."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="records to store (default 100,000)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    claims = []
    for name in ("sqlite", *SERVERS):
        try:
            with location(name) as place:
                rates = measure(place, arguments.records)
        except UnavailableError as error:
            print(f"{name}: {error}")
            continue
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in rates.items()))
        if name == "sqlite":
            claims.append(at_least("ingest_sqlite", rates["stored/CPU s"] / TARGET, 1.0))
    return publish(claims, arguments.json)


@contextlib.contextmanager
def location(name: str) -> Iterator[str]:
    """Context manager that creates an empty database and returns its location."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            yield str(Path(folder) / "senergy.db")
    else:
        with SERVERS[name](durable=True, settings=SERVER_SETTINGS.get(name)) as server:
            yield server.create_database("senergy")


def measure(place: str, records: int) -> dict[str, float]:
    """Measure the rates of a database with `records` energy records.

    Returns:
        Records stored per second of elapsed time and per second of CPU time, records selected per
            second, and records read as JSON per second.
    """
    migrations.prepare(place)
    writer, reader = Database(place), Database(place, read_only=True)
    wall_s = cpu_s = 0.0
    with writer.connect() as connection:
        for first in range(0, records, BATCH):
            delivery = [{"record": record(first + n)} for n in range(BATCH)]
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            items, _ = record_store.read_items(delivery)
            accepted, refusals = record_store.store(connection, items, NOW)
            wall_s += time.perf_counter() - start_s
            cpu_s += time.process_time() - start_cpu_s
            assert len(accepted) == BATCH and not refusals
    with reader.connect() as connection:
        start_s = time.perf_counter()
        ids = record_queries.find_records(connection, RecordSelection())
        found_s = time.perf_counter() - start_s
        for first in range(0, len(ids), record_queries.CHUNK):
            record_queries.records_json(connection, ids[first : first + record_queries.CHUNK])
        read_s = time.perf_counter() - start_s - found_s
    writer.close()
    reader.close()
    count = len(ids)
    rates = {"stored/s": records / wall_s, "stored/CPU s": records / cpu_s}
    return rates | {"selected/s": count / found_s, "read/s": count / read_s}


def record(number: int) -> dict[str, Any]:
    """Return a record as JSON data; the number makes it unique."""
    names = ("cpu", "dram", *(f"gpu[{n}]" for n in range(4)))
    start = 1_700_000_000.0 + number
    return EnergyRecord(
        cluster="c1",
        node=f"n{number // BATCH % 1000}",
        job_id=number,
        uid=1000 + number % 97,
        policy="edp",
        start=start,
        end=start + 3600.0,
        components=tuple(ComponentEnergy(name, 1e5 + number, f"source:{name}") for name in names),
        record_id=f"{number:032x}",
        user=f"user{number % 97}",
        gpus=(0, 1, 2, 3),
    ).to_json()


if __name__ == "__main__":
    raise SystemExit(main())
