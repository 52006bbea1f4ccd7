"""Benchmark of the size of the clusters that one senergyctld can serve.

Part `agents`: simulated agents (default 10,000) send reports with the real protocol over loopback.
The part runs first with SQLite as the database, then with PostgreSQL. Live reports come at the
default interval, which senergyctld lengthens. Jobs run for 2 h on average on 4 nodes, each with a
power trace and two steps. Then all nodes close their measurement period at once, as at each full
hour. The CPU time of senergyctld is read from /proc. It excludes the CPU time of the simulated
agents, munged and PostgreSQL, which is printed separately. This part runs in its own network
namespace and needs root.

Part `records`: a database holds the records of a cluster of 10,000 nodes. A record has 1.5 KB on
PostgreSQL. The database on SQLite holds only a tenth of the records. An operator and one of 1,000
users run commands on this database. The commands run without slurmdbd, so that only the time of
slurm-energy counts. The command, senergyctld and the database server together may use at most 1 s of
CPU time per command.

Part `queue`: a slurmctld without slurmd has 10,000 nodes and 100,000 pending tasks of job arrays. The
part measures CPU time, cycle time and RPCs of senergyctld, which ranks the tasks.

The benchmark prints a `CLAIM` line for each result. STORE is the kind of database:

- `scale_lag_STORE`: maximum seconds from the hand-over of a message to its confirmation,
  divided by 3,600 s.
- `scale_cores_STORE`: CPU seconds of senergyctld per second.
- `scale_memory_STORE`: highest memory of senergyctld, divided by 2 GB.
- `scale_missing_STORE`: number of items lost or doubled.
- `scale_COMMAND_STORE`: CPU seconds of a command, divided by 1 s.
- `scale_queue_cores`: CPU seconds of senergyctld per second, with the long queue.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import scale_agents
import scale_queue
import scale_records
from claims import Claim, publish

from slurm_energy.errors import UnavailableError

_NAMESPACE = "SENERGY_BENCHMARK_NAMESPACE"
# slurmctld ignores IPv4 without an address beyond 127.0.0.0/8.
_UP = 'ip link set lo up && ip addr add 192.0.2.1/32 dev lo && exec "$@"'


def main() -> int:
    arguments = parser().parse_args()
    if os.geteuid() != 0:
        print("scale.py: needs root for a network namespace", file=sys.stderr)
        return 2
    if _NAMESPACE not in os.environ:
        inside = ["sh", "-c", _UP, "sh", sys.executable, *sys.argv]
        return subprocess.call(["unshare", "--net", *inside], env=os.environ | {_NAMESPACE: "1"})
    claims: list[Claim] = []
    for part in arguments.parts.split(","):
        claims += PARTS[part](arguments)
    return publish(claims, arguments.json)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--parts", default=",".join(PARTS), help=f"parts to run (default {','.join(PARTS)})")
    options.add_argument("--agents", type=int, default=10_000, help="simulated agents (default 10,000)")
    options.add_argument("--stores", default="sqlite,postgresql", help="stores (default: sqlite,postgresql)")
    options.add_argument("--warm-s", type=float, default=60.0, help="seconds before the steady phase")
    options.add_argument(
        "--seconds", type=float, default=60.0, help="seconds of the steady phase (default 60)"
    )
    options.add_argument(
        "--burst-s", type=float, default=60.0, help="seconds after the full hour (default 60)"
    )
    options.add_argument("--live-s", type=float, default=30.0, help="interval of live reports (default 30)")
    options.add_argument("--job-s", type=float, default=7200.0, help="mean duration of jobs (default 7,200)")
    options.add_argument(
        "--records", type=int, default=1_000_000, help="records in the database (default 1,000,000)"
    )
    options.add_argument(
        "--database-folder",
        type=Path,
        metavar="DIR",
        help="keep the PostgreSQL server of part `records` in DIR. A later run measures the commands on the"
        " database that it finds there, whatever --records says. An interrupted fill goes on with the indexes"
        " if all rows are stored, or else starts again. To remove the database, delete DIR",
    )
    options.add_argument(
        "--fill-only", action="store_true", help="only fill DIR; a later run measures the commands"
    )
    options.add_argument(
        "--cold",
        action="store_true",
        help="empty the page cache before the first command of part `records`, also that of other programs",
    )
    options.add_argument("--prune", action="store_true", help="also measure the deletion of old records")
    options.add_argument("--nodes", type=int, default=10_000, help="nodes of slurmctld (default 10,000)")
    options.add_argument("--cloud", action="store_true", help="these nodes are CLOUD instead of FUTURE nodes")
    options.add_argument("--pending", type=int, default=100_000, help="pending jobs (default 100,000)")
    options.add_argument("--threads", type=int, default=192, help="concurrent requests of half of the agents")
    options.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    return options


def measure_agents(arguments: argparse.Namespace) -> list[Claim]:
    """Run the benchmark's measurement of the agents once per database type.

    Return the checks of the results. A database that is unavailable is skipped with a message.
    """
    claims: list[Claim] = []
    for store in arguments.stores.split(","):
        try:
            claims += scale_agents.measure(arguments, store)
        except UnavailableError as error:
            print(f"{store}: {error}")
    return claims


def measure_records(arguments: argparse.Namespace) -> list[Claim]:
    """Benchmark the storage of energy records in each kind of database. Return the claims.

    A claim compares a measured ratio with its target. SQLite gets only a tenth of the records.
    """
    claims: list[Claim] = []
    for store in arguments.stores.split(","):
        records = arguments.records // 10 if store == "sqlite" else arguments.records
        try:
            claims += scale_records.measure(arguments, store, records)
        except UnavailableError as error:
            print(f"{store}: {error}")
    return claims


PARTS: dict[str, Callable[[argparse.Namespace], list[Claim]]] = {
    "agents": measure_agents,
    "records": measure_records,
    "queue": scale_queue.measure,
}


if __name__ == "__main__":
    raise SystemExit(main())
