"""Benchmark in which the passive controller takes over while agents deliver data.

Two senergyctld, one active and one passive, share a private PostgreSQL or MariaDB server. In each
round all simulated agents (default 1,000) deliver a period of energy and the records of ended jobs,
with the client of senergyd. At a random instant one fault is caused. With `--fault kill`, the active
controller is killed by SIGKILL. With `stop`, it is stopped for 60 s in the middle of the deliveries.
With `restart`, it is restarted by SIGTERM. With `database`, the database server is killed and started
again. The next round begins when both controllers run again. At the end the ids in the database are
compared with the ids that the agents delivered.

The benchmark prints three lines `CLAIM NAME...` for each kind of database and fault. The line
`failover_seconds_...` states the duration of the longest takeover divided by 30 s. The line
`failover_missing_...` states the number of lost items. The line `failover_doubled_...` states the
number of items that were stored twice.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import sqlalchemy
from claims import Claim, at_most, publish

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.controller_pair import ControllerPair, PairedController, running_pair
from slurm_energy_lab.database_servers import SERVERS, DatabaseServer
from slurm_energy_lab.simulated_agents import SimulatedAgents
from slurm_energy_lab.simulated_nodes import SimulatedNode, SimulatedWorkload

TAKEOVER_S = 30.0
SPREAD_S = 8.0
STOPPED_S = 60.0
DRAIN_S = 300.0
HOUR_S = 3600
QUERIES = {
    "/v1/records": "SELECT record_id FROM records",
    "/v1/periods": "SELECT period_id FROM node_periods",
}


def main() -> int:
    try:
        return publish(claims(parser().parse_args()), parser().parse_args().json)
    except UnavailableError as error:
        print(f"failover.py: error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--stores", default="postgresql,mariadb", help="stores (default: both)")
    options.add_argument(
        "--faults", default="kill", help=f"faults (default: kill; known: {','.join(FAULTS)})"
    )
    options.add_argument("--rounds", type=int, default=20, help="rounds per store and fault (default 20)")
    options.add_argument("--agents", type=int, default=1000, help="simulated agents (default 1,000)")
    options.add_argument("--job-s", type=float, default=120.0, help="mean duration of jobs (default 120)")
    options.add_argument("--seed", type=int, default=1, help="seed of the instants (default 1)")
    options.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    return options


def claims(arguments: argparse.Namespace) -> Iterator[Claim]:
    """Yield the claims (comparisons with targets) of all database servers and kinds of fault."""
    for store in arguments.stores.split(","):
        with contextlib.ExitStack() as stack:
            try:
                server = stack.enter_context(SERVERS[store]())
            except UnavailableError as error:
                print(f"{store}: not measured: {error}")
                continue
            for fault in arguments.faults.split(","):
                url = server.create_database(f"failover_{fault}")
                with running_pair(url) as pair:
                    yield from measure(arguments, pair, server, url, f"{store}_{fault}")


def measure(
    arguments: argparse.Namespace, pair: ControllerPair, server: DatabaseServer, url: str, name: str
) -> Iterator[Claim]:
    """Cause one kind of fault repeatedly with one kind of database, and yield checks of targets.

    The checks (claims) concern the duration of the takeover by the other controller, and lost and duplicate
    records.
    """
    rng, fault = random.Random(arguments.seed), FAULTS[name.rpartition("_")[2]]
    model = SimulatedWorkload("c1", job_s=arguments.job_s, trace_points=60)
    nodes = [SimulatedNode(model, number, 1, time.time()) for number in range(arguments.agents)]
    agents = SimulatedAgents(pair.cluster, nodes, live_report_s=30.0, threads=32)
    thread = threading.Thread(target=agents.run, daemon=True)
    thread.start()
    try:
        takeovers = run_rounds(arguments, rng, agents, pair, lambda: fault(pair, server), name)
    finally:
        agents.stop()
        thread.join()
    print(f"{name}: seconds without a controller: {_described(takeovers)}")
    for error, count in agents.figures.errors.most_common(3):
        print(f"{name}: {count} requests failed: {error[:200]}")
    missing, doubled = compare(agents, url)
    yield at_most(f"failover_seconds_{name}", max(takeovers) / TAKEOVER_S, 1.0)
    yield at_most(f"failover_missing_{name}", missing, 0.0)
    yield at_most(f"failover_doubled_{name}", doubled, 0.0)


def run_rounds(
    arguments: argparse.Namespace,
    rng: random.Random,
    agents: SimulatedAgents,
    pair: ControllerPair,
    act: Callable[[], float],
    name: str,
) -> list[float]:
    """Cause a fault in each round, wait until all is delivered, and return the seconds of each takeover.

    Args:
        arguments: the arguments of the command line.
        rng: source of the random instants.
        agents: the agents, which close a period in each round.
        pair: the controllers.
        act: causes the fault and returns the seconds until another controller is active.
        name: name of the measurement, for messages.
    """
    takeovers = []
    now = int(time.time()) // HOUR_S * HOUR_S
    for number in range(arguments.rounds):
        pair.wait_ready()
        _wait_until_delivered(agents, arguments.agents // 10)
        end = now - number * HOUR_S
        agents.close_period(end - HOUR_S, end, SPREAD_S)
        time.sleep(rng.uniform(0.0, SPREAD_S))
        takeovers.append(act())
        print(
            f"{name}: round {number + 1}: {takeovers[-1]:.1f} s, {agents.outstanding} items wait", flush=True
        )
    agents.end_jobs_no_more()
    _wait_until_delivered(agents, 0)
    return takeovers


def compare(agents: SimulatedAgents, url: str) -> tuple[int, int]:
    """Compare what the agents delivered with what the database contains.

    Return the number of lost items and the number of duplicate rows. An item counts as lost if the database
    lacks it, if it is in the database but no agent sent it, or if it was refused.
    """
    missing = doubled = 0
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url))
    for path, query in QUERIES.items():
        with engine.connect() as connection:
            stored = Counter(connection.execute(sqlalchemy.text(query)).scalars())
        handed_over = set(agents.figures.handed_over[path])
        print(f"{path}: {len(handed_over)} handed over, {len(stored)} stored, {sum(stored.values())} rows")
        missing += len(handed_over ^ stored.keys())
        doubled += sum(count - 1 for count in stored.values())
    engine.dispose()
    print(f"refused: {len(agents.figures.rejected)}")
    return missing + len(agents.figures.rejected), doubled


def until_taken_over(
    pair: ControllerPair, act: Callable[[PairedController], object]
) -> tuple[PairedController, float]:
    """Call `act` on the active controller, and wait until the other controller is active.

    `act` is, for example, a function that kills the controller. Return the controller that was active
    before, and the seconds of the wait.
    """
    active = pair.wait_active()
    began_s = time.monotonic()
    act(active)
    pair.wait_active(pair.other(active))
    return active, time.monotonic() - began_s


def kill(pair: ControllerPair, _: DatabaseServer) -> float:
    """Kill the active controller. Start it again after the passive controller has taken over.

    Return the seconds that passed until the takeover.
    """
    active, passed_s = until_taken_over(pair, lambda active: active.end(signal.SIGKILL))
    active.start()
    return passed_s


def stop(pair: ControllerPair, _: DatabaseServer) -> float:
    """Pause the active controller for a minute (SIGSTOP, SIGCONT), and wait until it is passive.

    The function returns the seconds until the other controller has taken over.
    """
    active, passed_s = until_taken_over(pair, lambda active: active.send(signal.SIGSTOP))
    time.sleep(max(0.0, STOPPED_S - passed_s))
    active.send(signal.SIGCONT)
    while active.role() != "passive":
        time.sleep(0.1)
    return passed_s


def restart(pair: ControllerPair, _: DatabaseServer) -> float:
    """Restart the active controller as a service manager does."""
    active, passed_s = until_taken_over(pair, lambda active: active.send(signal.SIGTERM))
    active.end(signal.SIGTERM)
    active.start()
    return passed_s


def database(pair: ControllerPair, server: DatabaseServer) -> float:
    """Kill the database server, start it again after 20 s, and wait until a controller is active."""
    server.kill()
    time.sleep(20.0)
    server.start()
    began_s = time.monotonic()
    pair.wait_active()
    return time.monotonic() - began_s


FAULTS: dict[str, Callable[[ControllerPair, DatabaseServer], float]] = {
    "kill": kill,
    "stop": stop,
    "restart": restart,
    "database": database,
}


def _wait_until_delivered(agents: SimulatedAgents, count: int) -> None:
    """Wait until at most `count` deliveries are outstanding, or until a timeout of `DRAIN_S` seconds."""
    until_s = time.monotonic() + DRAIN_S
    while agents.outstanding > count and time.monotonic() < until_s:
        time.sleep(0.2)


def _described(values: list[float]) -> str:
    return f"median {statistics.median(values):.1f}, maximum {max(values):.1f} of {len(values)}"


if __name__ == "__main__":
    raise SystemExit(main())
