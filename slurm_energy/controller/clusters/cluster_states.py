"""State of this cluster, and states of the clusters in `[clusters.NAME]`.

The senergyctld of each cluster reports its state.

Each of the other clusters is queried once per `placement.refresh_s`. Each query has a time limit and a thread
of its own, so that a slow cluster delays nothing else. A cluster whose senergyctld does not answer is left
out. A refresh runs at most two Slurm commands for this cluster, and no Slurm command for another cluster.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.config import Config
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.errors import EnergyError, UnavailableError, install_extra
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.protocol.cluster_state import CLUSTER_STATE_PATH, MAX_STATE_BYTES, ClusterState
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.slurm.command import CommandRunner

if TYPE_CHECKING:
    from slurm_energy.controller.clusters.cluster_queue import ClusterQueue
    from slurm_energy.priority.snapshot import Snapshot

TIMEOUT_S: Final = 2.0
"""Maximum duration of connecting to another cluster and of each read."""
TOTAL_TIMEOUT_S: Final = 4.0
OWN_WAIT_S: Final = 1.5
"""Maximum wait of a request for the state of this cluster."""
STALE_REFRESHES: Final = 3.0
STALE_EXTRA_S: Final = 10.0
"""A state counts for `STALE_REFRESHES` refreshes and this time."""
_POLL_S: Final = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """Last known state of a cluster, for the choice of a cluster for a job.

    Attributes:
        state: last state of the cluster; None means that the cluster has never answered.
        received_s: time at which the state arrived, in Unix seconds of this host's clock.
        problem: why the cluster is left out of the choice; an empty value means that the cluster can be
            chosen.
    """

    state: ClusterState | None
    received_s: float
    problem: str = ""


class ClusterStates:
    """Cache of the states of all clusters, for the choice of a cluster for a job.

    Args:
        config: function that returns the configuration.
        grid: source of price and carbon intensity of this cluster.
        run: function that runs Slurm commands.
        snapshot: function that returns the last ranking of this cluster's queue; None means that the queue
            was never ranked.
        failures: log of failures; a repeated failure is logged once.
        clock: function that returns Unix seconds.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        grid: GridFactorSource,
        run: CommandRunner,
        snapshot: Callable[[], Snapshot | None],
        failures: RepeatedFailureLog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._grid, self._run, self._snapshot = config, grid, run, snapshot
        self._failures, self._clock = failures, clock
        self._unexpected = UnexpectedErrorLog(log)
        self._commands = ThreadPoolExecutor(1, "cluster-queue")
        self._others: dict[str, KnownCluster] = {}
        self._asked_s: dict[str, float] = {}
        self._requests: dict[str, ControllerClient] = {}
        self._own: KnownCluster | None = None
        self._reading: asyncio.Task[ClusterState] | None = None
        self._queue: ClusterQueue | None = None
        self._closed = False

    async def loop(self) -> None:
        """Request the state of each other cluster regularly, until the task is cancelled.

        A state is requested again when it is older than the configured refresh time.
        """
        while True:
            self.ask_others()
            await asyncio.sleep(_POLL_S)

    def ask_others(self) -> None:
        """Request the state of each other cluster whose known state is too old.

        A cluster with a request in progress is skipped.
        """
        config, now_s = self._config(), self._clock()
        for name in self._other_names(config):
            is_due = abs(now_s - self._asked_s.get(name, float("-inf"))) >= config.placement.refresh_s
            if is_due and name not in self._requests and not self._closed:
                self._asked_s[name] = now_s
                client = self._requests[name] = _client(config, name)
                # A daemon thread: a name resolution that hangs must not delay the end of senergyctld.
                arguments = (name, client)
                threading.Thread(target=self._refresh, args=arguments, daemon=True, name="cluster").start()

    def close(self) -> None:
        """Stop a running Slurm command and the requests to other clusters."""
        self._closed = True
        self._run.stop()
        for client in list(self._requests.values()):
            client.cancel()
        self._commands.shutdown(wait=False, cancel_futures=True)

    async def own(self) -> ClusterState:
        """Return the state of this cluster.

        The state is read again if it is older than one refresh interval. The method waits at most
        `OWN_WAIT_S` for slurmctld. If slurmctld does not answer in this time, the last state is returned. If
        the last state is too old to use, a state without a queue is returned.

        Raises:
            UnavailableError: numpy is not installed.
        """
        known, refresh_s = self._own, self._config().placement.refresh_s
        age_s = self._clock() - known.received_s if known is not None else -1.0
        if known is not None and known.state is not None and 0 <= age_s < refresh_s:
            return known.state
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh_own())
            self._reading.add_done_callback(self._has_read)
        try:
            return await asyncio.wait_for(asyncio.shield(self._reading), OWN_WAIT_S)
        except TimeoutError:
            if known is not None and known.state is not None and not self._is_stale(age_s, refresh_s):
                return known.state
            name = self._config().cluster.name
            return ClusterState(name, self._clock(), problem="slurmctld does not answer in time")

    def _has_read(self, task: asyncio.Task[ClusterState]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # all waiting requests have received the exception

    async def _refresh_own(self) -> ClusterState:
        state = await self._read_own()
        self._own = KnownCluster(state, self._clock())
        return state

    async def known(self) -> Mapping[str, KnownCluster]:
        """Return the last known state of all clusters by name, this controller's cluster first.

        Raises:
            UnavailableError: numpy is not installed.
        """
        config = self._config()
        own = await self.own()
        clusters = {config.cluster.name: KnownCluster(own, self._clock(), own.problem)}
        for name in self._other_names(config):
            clusters[name] = self._judged(self._others.get(name), config.placement.refresh_s)
        return clusters

    def _judged(self, known: KnownCluster | None, refresh_s: float) -> KnownCluster:
        """Return what is known about a cluster, with the reason why jobs cannot be sent to it now.

        The attribute `problem` of the result states this reason, for example that the last state is too old.
        It is empty if jobs can be sent to the cluster.
        """
        if known is None or known.state is None:
            return known or KnownCluster(None, 0.0, "not asked yet")
        age_s = self._clock() - known.received_s
        if self._is_stale(age_s, refresh_s):
            why = known.problem or "no answer"
            return KnownCluster(known.state, known.received_s, f"{why}; last state {age_s:.0f} s old")
        return KnownCluster(known.state, known.received_s, known.state.problem)

    def _is_stale(self, age_s: float, refresh_s: float) -> bool:
        return not 0 <= age_s <= STALE_REFRESHES * refresh_s + STALE_EXTRA_S

    def _other_names(self, config: Config) -> list[str]:
        return [
            name
            for name, one in config.clusters.items()
            if name != config.cluster.name and one.controller_url is not None
        ]

    def _refresh(self, name: str, client: ControllerClient) -> None:
        """Query another cluster for its state. Each call runs in a separate thread."""
        label = f"cluster {name}"
        try:
            state = ClusterState.from_json(client.get(CLUSTER_STATE_PATH))
            if state.cluster != name:
                why = f"its senergyctld is that of cluster {state.cluster}"
                raise UnavailableError(label, why, "correct [clusters]")
        except EnergyError as error:
            self._store_problem(name, str(error))
        except Exception as error:  # whatever another cluster sends, this senergyctld goes on
            self._unexpected.report(error, f"{label} sent an unexpected answer", name)
            self._store_problem(name, f"unexpected answer: {type(error).__name__}")
        else:
            self._failures.clear(label)
            self._others[name] = KnownCluster(state, self._clock())
        finally:
            del self._requests[name]

    def _store_problem(self, name: str, problem: str) -> None:
        if self._closed:
            return
        self._failures.report(f"cluster {name}", problem)
        before = self._others.get(name, KnownCluster(None, 0.0))
        self._others[name] = KnownCluster(before.state, before.received_s, problem)

    async def _read_own(self) -> ClusterState:
        try:
            from slurm_energy.controller.clusters import cluster_queue, cluster_signals
        except ImportError as error:
            why = f"{error.name or error} is not installed"
            raise UnavailableError("choice among clusters", why, install_extra("scheduling")) from None
        config, now_s = self._config(), self._clock()
        history_s = 86400.0 * config.signals.history_days
        if self._queue is None:
            self._queue = cluster_queue.ClusterQueue(
                self._run, self._snapshot, lambda: self._config().placement.refresh_s, self._clock
            )
        values: dict[str, Any] = {"cluster": config.cluster.name, "taken_unix_s": now_s, "problem": ""}
        try:
            load = await asyncio.get_running_loop().run_in_executor(self._commands, self._queue.read)
            values |= {name: getattr(load, name) for name in load.__slots__}
        except EnergyError as error:
            values["problem"] = str(error)[:300]
        try:
            factors = await self._grid.factors(now_s - history_s, now_s + cluster_signals.HORIZON_S)
        except EnergyError:  # `senergy grid show` reports the error
            return ClusterState(**values)
        columns = await asyncio.to_thread(cluster_signals.signal_columns, factors, now_s, history_s)
        return ClusterState(
            **values,
            pue=factors.pue or 1.0,
            currency=factors.currency,
            start_unix_s=columns.start_s,
            step_s=columns.step_s,
            signals=cluster_signals.signal_values(columns),
        )


def _client(config: Config, name: str) -> ControllerClient:
    """Return a client of another cluster's senergyctld whose requests are bounded in time and size."""
    other = config.clusters[name]
    return ControllerClient(
        other.controller_url or (),
        other.munge_socket or config.cluster.munge_socket,
        TIMEOUT_S,
        other.controller_users,
        total_timeout_s=TOTAL_TIMEOUT_S,
        max_response_bytes=MAX_STATE_BYTES,
    )
