"""Simulated agents: many nodes in one process.

The agents report and deliver to senergyctld with the real protocol. Their requests are like those of
senergyd: they have the same bodies, munge credentials, pauses and repetitions, and the responses are
verified. The nodes share a few threads, and one spool in memory.

`python -m slurm_energy_lab.simulated_agents --config energy.toml --nodes 1000 --seconds 60` prints the
measured times and counts as JSON, with the ids of all delivered items.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm_energy import config
from slurm_energy.agent.state.delivery import PERIOD_ROUTE, RECORD_ROUTE, DeliveryRoute
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import EnergyError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.live_reports import LIVE_PATH, MAX_INTERVAL_S
from slurm_energy_lab.simulated_nodes import SimulatedNode, SimulatedWorkload

# Values of agent/state/delivery.py and agent/controller_request.py.
_DELIVERY_TIMEOUT_S: Final = 5.0
_DELIVERY_TOTAL_S: Final = 60.0
_LIVE_TIMEOUT_S: Final = 2.0
_FIRST_WAIT_S: Final = 1.0
_MAX_WAIT_S: Final = 60.0
_MAX_SWITCH_WAIT_S: Final = 10.0
_IDLE_S: Final = 0.05


@dataclass(slots=True)
class Delivery:
    """Items that one node delivers to the controller.

    Attributes:
        route: route of the controller.
        node: name of the node.
        items: the items, as in the request.
        ids: ids of the items.
        handed_over_s: monotonic time at which the items were ready.
        attempts: number of requests so far.
    """

    route: DeliveryRoute
    node: str
    items: list[dict[str, Any]]
    ids: list[str]
    handed_over_s: float
    attempts: int = 0


@dataclass(slots=True)
class Figures:
    """Results of a simulation of agents that deliver to senergyctld.

    Attributes:
        handed_over: ids of all items to deliver, by URL path.
        confirmed: ids of the items that the controller accepted, by URL path.
        lags_s: by path, the seconds from the time at which an item was ready until it was confirmed.
        requests: number of requests by path.
        body_bytes: bytes of request bodies by path.
        errors: number of failed requests by path and error.
        rejected: reasons that the controller gave for items that it did not accept.
        durations_s: seconds that each live report took.
    """

    handed_over: dict[str, list[str]] = field(default_factory=dict)
    confirmed: dict[str, list[str]] = field(default_factory=dict)
    lags_s: dict[str, list[float]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    body_bytes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    rejected: list[str] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)


class SimulatedAgents:
    """Simulated agents of several nodes, which send reports to a controller until `stop`.

    Args:
        cluster: address of the controller, and munge's socket.
        nodes: nodes whose agents are simulated.
        live_report_s: seconds between live reports of a node; 0 means no live reports. The controller may
            lengthen the interval.
        threads: maximum number of requests in progress.
        seed: seed of the random pauses.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        nodes: Sequence[SimulatedNode],
        *,
        live_report_s: float = 30.0,
        threads: int = 32,
        seed: int = 1,
    ) -> None:
        self.figures = Figures()
        self._cluster, self._nodes, self._live_report_s = cluster, nodes, live_report_s
        self._threads = ThreadPoolExecutor(threads, "agent")
        self._random = random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ends_jobs = True
        self._outstanding = 0
        self._requested_interval_s = 0.0
        now_s, now = time.monotonic(), time.time()
        for node in nodes:
            if live_report_s > 0:
                self._at(now_s + self._random.uniform(0.0, live_report_s), self._reporter(node))
            self._at(now_s + node.job_end - now, self._job_ender(node))

    def run(self) -> None:
        """Send requests when they are due, until `stop` is called."""
        while not self._stop.is_set():
            with self._lock:
                action = heapq.heappop(self._due)[2] if self._is_due() else None
            if action is None:
                self._stop.wait(_IDLE_S)
            else:
                self._threads.submit(self._logged, action)
        self._threads.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Stop the simulated agents: make the method `run` return."""
        self._stop.set()

    def end_jobs_no_more(self) -> None:
        """End no more jobs and send no more live reports, so that all deliveries can finish."""
        self._ends_jobs = False

    @property
    def outstanding(self) -> int:
        """Number of deliveries that the controller has not confirmed."""
        return self._outstanding

    def close_period(self, start: int, end: int, spread_s: float | None = None) -> None:
        """Deliver the energy that each node used in a period, as agents do at each full hour.

        Args:
            start: start of the period in Unix seconds.
            end: end of the period in Unix seconds.
            spread_s: maximum of the random delay before the first request of a node; None means the maximum
                of senergyd.
        """
        if spread_s is None:
            spread_s = max(PERIOD_ROUTE.spread_s, self._requested_interval_s)
        now_s = time.monotonic()
        for node in self._nodes:
            period = node.period(start, end)
            items = [{PERIOD_ROUTE.key: period.to_json(), "trace": None}]
            delivery = Delivery(PERIOD_ROUTE, node.name, items, [period.period_id], now_s)
            self._hand_over(delivery, now_s + self._random.uniform(0.0, spread_s))

    def _is_due(self) -> bool:
        return bool(self._due) and self._due[0][0] <= time.monotonic()

    def _at(self, due_s: float, action: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._due, (due_s, next(self._numbers), action))

    def _logged(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # it would otherwise be lost in the pool
            with self._lock:
                self.figures.errors[f"simulation: {type(error).__name__}: {error}"] += 1

    def _reporter(self, node: SimulatedNode) -> Callable[[], None]:
        failed = 0

        def report() -> None:
            nonlocal failed
            if not self._ends_jobs:
                return
            begin_s = time.monotonic()
            try:
                answer = self._post(LIVE_PATH, node.live_report().to_json(), _LIVE_TIMEOUT_S, _LIVE_TIMEOUT_S)
            except EnergyError:
                failed += 1
                pause_s = min(600.0, self._live_report_s * 2.0 ** min(failed, 10))
            else:
                failed = 0
                self.figures.durations_s.append(time.monotonic() - begin_s)
                self._requested_interval_s = min(float(answer["interval_s"]), MAX_INTERVAL_S)
                pause_s = max(self._live_report_s, self._requested_interval_s)
            self._at(begin_s + pause_s, report)

        return report

    def _job_ender(self, node: SimulatedNode) -> Callable[[], None]:
        def end() -> None:
            if not self._ends_jobs:
                return
            items = node.end_job()
            ids = [item["record"]["record_id"] for item in items]
            now_s = time.monotonic()
            self._hand_over(Delivery(RECORD_ROUTE, node.name, items, ids, now_s), now_s)
            self._at(now_s + node.job_end - time.time(), end)

        return end

    def _hand_over(self, delivery: Delivery, due_s: float) -> None:
        with self._lock:
            self.figures.handed_over.setdefault(delivery.route.path, []).extend(delivery.ids)
            self._outstanding += 1
        self._at(due_s, lambda: self._deliver(delivery))

    def _deliver(self, delivery: Delivery) -> None:
        body = {"items": delivery.items, "node": delivery.node, "spooled": 0, "rejected": 0}
        delivery.attempts += 1
        path = delivery.route.path
        try:
            answer = self._post(path, body, _DELIVERY_TIMEOUT_S, _DELIVERY_TOTAL_S)
        except EnergyError:
            max_wait_s = _MAX_SWITCH_WAIT_S if len(self._cluster.controller_url) > 1 else _MAX_WAIT_S
            wait_s = min(_FIRST_WAIT_S * 2.0 ** min(delivery.attempts - 1, 10), max_wait_s)
            wait_s *= self._random.uniform(0.7, 1.0)
            self._at(time.monotonic() + wait_s, lambda: self._deliver(delivery))
            return
        accepted = set(answer["accepted"])
        lag_s = time.monotonic() - delivery.handed_over_s
        with self._lock:
            self._outstanding -= 1
            self.figures.confirmed.setdefault(path, []).extend(accepted)
            self.figures.lags_s.setdefault(path, []).append(lag_s)
            for key in ("rejected", "retry", "traces_rejected"):
                self.figures.rejected += [entry["error"] for entry in answer[key]]

    def _post(self, path: str, body: dict[str, Any], timeout_s: float, total_s: float) -> dict[str, Any]:
        cluster = self._cluster
        client = ControllerClient(
            *(cluster.controller_url, cluster.munge_socket, timeout_s, cluster.controller_users),
            total_timeout_s=total_s,
        )
        with self._lock:
            self.figures.requests[path] += 1
            self.figures.body_bytes[path] += len(json.dumps(body, separators=(",", ":")))
        try:
            return client.post(path, body)
        except EnergyError as error:
            with self._lock:
                self.figures.errors[f"{path}: {error}"] += 1
            raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run simulated agents and print their statistics (see `Figures`) as JSON."""
    arguments = _parser().parse_args(argv)
    cluster = config.load(arguments.config).cluster
    model = SimulatedWorkload(
        cluster.name, arguments.prefix, arguments.gpus, arguments.job_s, trace_points=arguments.trace_points
    )
    now = time.time()
    numbers = range(arguments.first, arguments.first + arguments.nodes)
    nodes = [SimulatedNode(model, number, arguments.run, now) for number in numbers]
    agents = SimulatedAgents(
        cluster, nodes, live_report_s=arguments.live_s, threads=arguments.threads, seed=arguments.first
    )
    signal.signal(signal.SIGTERM, lambda *_: agents.stop())
    thread = threading.Thread(target=_command, args=(agents, arguments), daemon=True)
    thread.start()
    with contextlib.suppress(KeyboardInterrupt):
        agents.run()
    print(json.dumps(agents.figures, default=_as_json))
    return 0 if not agents.outstanding else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", required=True, type=Path, help="energy.toml of the agents")
    parser.add_argument("--nodes", type=int, default=1000, help="number of nodes (default 1,000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first node")
    parser.add_argument("--prefix", default="node", help="first part of the names of nodes")
    parser.add_argument("--run", type=int, default=1, help="distinguishes job ids of several simulations")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration (default 60)")
    parser.add_argument(
        "--drain-s", type=float, default=120.0, help="maximum wait for confirmations at the end"
    )
    parser.add_argument("--live-s", type=float, default=30.0, help="interval of live reports; 0: none")
    parser.add_argument("--job-s", type=float, default=7200.0, help="mean duration of jobs (default 7,200)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs per node")
    parser.add_argument("--trace-points", type=int, default=7200, help="intervals of a trace; 0: no traces")
    parser.add_argument("--threads", type=int, default=32, help="maximum number of concurrent requests")
    parser.add_argument(
        "--periods-at", type=float, metavar="S", help="all nodes close a period S seconds after the start"
    )
    parser.add_argument("--spread-s", type=float, help="time over which they spread (default: as senergyd)")
    parser.add_argument(
        "--period-end", type=int, help="end of that period in Unix seconds (default: last full hour)"
    )
    return parser


def _command(agents: SimulatedAgents, arguments: argparse.Namespace) -> None:
    """Run the simulated agents as the command-line arguments say, and then stop them.

    The arguments determine when a period of node energy is closed, how long the simulation lasts, and how
    long the function waits for outstanding deliveries.
    """
    begin_s = time.monotonic()
    if arguments.periods_at is not None:
        time.sleep(arguments.periods_at)
        end = arguments.period_end or int(time.time()) // 3600 * 3600
        agents.close_period(end - 3600, end, arguments.spread_s)
    time.sleep(max(0.0, begin_s + arguments.seconds - time.monotonic()))
    agents.end_jobs_no_more()
    until_s = time.monotonic() + arguments.drain_s
    while agents.outstanding and time.monotonic() < until_s:
        time.sleep(_IDLE_S)
    agents.stop()


def _as_json(value: Any) -> Any:
    return {key: getattr(value, key) for key in value.__slots__}


if __name__ == "__main__":
    sys.exit(main())
