"""The active senergyctld, from the creation of its components to the shutdown.

The module also runs the periodic tasks and handles a reload of the configuration.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from slurm_energy import __version__, service_manager
from slurm_energy.config import Config
from slurm_energy.controller.budgets.loop import BudgetLoop
from slurm_energy.controller.budgets.routes import BudgetRoutes
from slurm_energy.controller.cluster_metrics import ClusterMetrics
from slurm_energy.controller.clusters.cluster_states import ClusterStates
from slurm_energy.controller.clusters.placement_routes import PlacementRoutes
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.deferral.loop import DeferralLoop
from slurm_energy.controller.diagnosis.adjustment_parts import adjustment_parts
from slurm_energy.controller.diagnosis.finding_alerts import FindingAlerts
from slurm_energy.controller.diagnosis.running_findings import RunningFindings
from slurm_energy.controller.grid.fetcher import GridFetcher
from slurm_energy.controller.grid.present_grid import PresentGrid
from slurm_energy.controller.grid.quota_routes import QuotaRoutes
from slurm_energy.controller.grid.quota_watch import QuotaWatch
from slurm_energy.controller.grid.routes import GridRoutes
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http import http_listener
from slurm_energy.controller.http.authorization import PrivilegedUsers
from slurm_energy.controller.http.name_check import NameCheck
from slurm_energy.controller.http.node_hosts import NodeHosts
from slurm_energy.controller.http.node_routes import NodeRoutes
from slurm_energy.controller.http.server import ControllerServer
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.controller.periodic_tasks import kept_running, run_until
from slurm_energy.controller.policy_file import PolicyPublication, write_policy_file
from slurm_energy.controller.power_saving.loop import PowerSavingLoop
from slurm_energy.controller.queue.priority_loop import PriorityLoop
from slurm_energy.controller.records.admin_comments import AdminCommentWriter
from slurm_energy.controller.records.enrichment import Enrichment
from slurm_energy.controller.records.retention_loop import drop_old_data
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.records.usage_loop import UsageLoop
from slurm_energy.controller.records.usage_routes import UsageRoutes
from slurm_energy.controller.reload_warnings import pending_changes
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.controller.standby.controller_host import ControllerHost
from slurm_energy.controller.standby.failover import Resignation, wait_until_resigned
from slurm_energy.controller.standby.lease import ControllerLease
from slurm_energy.controller.standby.lease_metrics import lease_families, lease_status
from slurm_energy.controller.tuning.advisor import TuningAdvisor, curve_oracle
from slurm_energy.controller.tuning.history_cache import HistoryCache, training_model
from slurm_energy.controller.tuning.learner import TuningLearner
from slurm_energy.controller.tuning.oracle_refit import OracleRefit
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.openmetrics.exposition import MetricFamily
from slurm_energy.openmetrics.listener import MetricsListener
from slurm_energy.policies.catalogue import policy_caps
from slurm_energy.policies.policy_file import policy_file_text, with_budget_lines
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.user_lookup import uid_of
from slurm_energy.validation import DaemonRole, load_for_daemon

REQUEST_THREADS: Final = 16
SQUEUE_TIMEOUT_S: Final = 5.0
NODE_STATES_TIMEOUT_S: Final = 8.0

log = logging.getLogger(__name__)


class ActiveController:
    """senergyctld in the active role: its components, periodic tasks and HTTP server.

    Args:
        config: the configuration at the start.
        store: the open database.
        argument: path of the configuration file named on the command line, from which a reload reads; None
            means the default path.
        manager: the service manager to notify.
        log_level: log level named on the command line; None means that the level in the configuration
            applies.
        lease: the lease of this process; None means that the cluster has one controller only.
        host: state that this process keeps when it changes between the active and the passive role; None
            means that the cluster has one controller only.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        argument: str | None,
        manager: service_manager.ServiceManager,
        log_level: str | None,
        lease: ControllerLease | None = None,
        host: ControllerHost | None = None,
    ) -> None:
        self._config = config
        self._lease, self._host = lease, host
        self._resignation: Resignation | None = None
        self._argument, self._manager = argument, manager
        self._log_levels = service_manager.LogLevels(log_level)
        self._set_log_levels()
        self._store = store
        self._failures = RepeatedFailureLog(log, ignore_numbers=True)
        self._publication = PolicyPublication()
        self._build_slurm_queries()
        self._build_learning()
        self._build_queue_control()
        self._build_reporting()
        self._server = self._build_server()
        if lease is not None:
            self._priority.permit = self._deferral.permit = lease.require
            self._budget.policy_lines = lease.policy_lines
        metrics = ClusterMetrics(
            *(store, self._status, lambda: self._budget.states, self._lease_families),
            self._findings.families,
        )
        self._metrics = MetricsListener(config.metrics.controller_listen, config.metrics, metrics.collect)

    def _current_config(self) -> Config:
        return self._config

    def _build_slurm_queries(self) -> None:
        self._commands = CommandRunner()
        self._sinfo = CommandRunner()
        self._node_states = CommandRunner(NODE_STATES_TIMEOUT_S)
        self._squeue = CommandRunner(SQUEUE_TIMEOUT_S)
        self._sacctmgr = CommandRunner()
        self._enrichment = Enrichment(
            *(self._store, self._commands, self._failures, self._config.controller.enrich_interval_s)
        )
        self._hosts = NodeHosts(self._sinfo, self._failures)
        self._running = RunningJobCache(self._squeue)

    def _build_learning(self) -> None:
        """Build the parts that learn from finished runs: prediction, tuning, adjustments, calibrations."""
        config, store, failures = self._config, self._store, self._failures
        self._history = HistoryCache(store, failures, config.controller.history_days, policy_caps(config))
        self._history.model = training_model(config)
        self._learner = TuningLearner(
            *(store, failures),
            site_uids=lambda: self._server.access.agents | {0},
            retention_days=lambda: self._config.controller.history_days,
        )
        self._advisor = TuningAdvisor(
            *(self._current_config, store, self._hosts, self._running), oracle=curve_oracle(config)
        )
        self._adjustment_routes, self._adjustments = adjustment_parts(
            *(self._current_config, store, self._advisor, failures)
        )
        self._refit = OracleRefit(
            *(self._current_config, store, failures), self._is_trusted, self._use_calibrations
        )

    def _build_queue_control(self) -> None:
        """Build the parts that decide when jobs start: priority, budgets, quotas, deferral, power saving."""
        config, store, failures = self._config, self._store, self._failures
        begin_times = BeginTimes()
        self._priority = PriorityLoop(config, store, self._history, failures)
        self._budget = BudgetLoop(
            *(config, store, self._history, self._running, failures),
            oracle=lambda: self._advisor.oracle,
            on_policy_lines=lambda: self._write_policies(self._config),
            begin_times=begin_times,
        )
        self._grid = GridFetcher(self._current_config, store, failures)
        self._factors = GridFactorSource(self._current_config, store)
        self._quotas = QuotaWatch(
            *(self._current_config, store, self._factors, failures), begin_times=begin_times
        )
        self._deferral = DeferralLoop(*(config, store, self._factors, self._history, failures, begin_times))
        self._priority.quotas = lambda: self._quotas.standings
        self._priority.deferral = self._deferral
        self._clusters = ClusterStates(
            *(self._current_config, self._factors, CommandRunner(SQUEUE_TIMEOUT_S)),
            *(lambda: self._priority.snapshot, failures),
        )

    def _build_reporting(self) -> None:
        """Create the parts of senergyctld that report energy.

        The parts write comments in Slurm, compute sums, receive live reports, and store the findings of
        running jobs.
        """
        store, failures = self._store, self._failures
        self._comments = AdminCommentWriter(
            *(lambda: self._config.controller.admin_comment, store, self._sacctmgr),
            *(self._factors.factors, failures),
        )
        self._usage = UsageLoop(store, failures)
        self._live = LiveReports(
            *(self._current_config, self._hosts, self._running),
            factors=PresentGrid(self._factors).current,
            policies_digest=lambda: self._publication.digest,
        )
        self._saving = PowerSavingLoop(
            *(self._current_config, store, self._live, self._budget, failures), history=self._history
        )
        self._findings = RunningFindings(self._live)
        self._alerts = FindingAlerts(lambda: self._config.diagnosis, self._findings, failures)

    def _build_server(self) -> ControllerServer:
        current, store = self._current_config, self._store
        groups = (
            GridRoutes(current, self._factors, self._grid).routes,
            QuotaRoutes(current, store, self._quotas, NameCheck(current, store)).routes,
            UsageRoutes(current, store, self._usage, self._factors, self._commands).routes,
            NodeRoutes(current, self._live, self._node_states).routes,
            self._publication.routes,
            PlacementRoutes(current, self._clusters).routes,
            self._deferral.routes,
            self._findings.routes,
        )
        return ControllerServer(
            *(self._config, self._access(self._config), store, self._failures, self._status, self._history),
            priority=self._priority,
            hosts=self._hosts,
            advisor=self._advisor,
            live=self._live,
            budget=BudgetRoutes(current, self._budget, store, self._hosts, self._squeue),
            groups=groups,
            permit=self._lease.require if self._lease else lambda: None,
            adjustments=self._adjustment_routes,
        )

    async def run(self) -> Resignation | None:
        """Start server, signal handlers and periodic tasks; return when the active role ends.

        Returns:
            The reason why this process is no longer the active controller; None means that a signal ended the
            daemon.
        """
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.set_default_executor(ThreadPoolExecutor(REQUEST_THREADS, "request"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._log_levels.handle_signals(loop)
        runner = http_listener.application_runner(self._server.application())
        await runner.setup()
        listener: asyncio.Server | None = None
        try:
            # Bind the address first: a second controller must not change the policy file of the first.
            address = self._config.controller.listen
            listener = await http_listener.listen(address, runner, self._server.admission)
            addresses = http_listener.listening_addresses(listener)
            log.info("senergyctld %s listens on %s, database %s", __version__, addresses, self._store.name)
            await self._metrics.open()
            self._write_policies(self._config)
            self._manager.ready(f"Listening on {addresses}")
            await self._work_until(stop)
        finally:
            if self._resignation is None:
                self._manager.stopping()
            for one in (self._commands, self._sinfo, self._node_states, self._squeue, self._sacctmgr):
                one.stop()
            self._hosts.close()
            self._clusters.close()
            if listener is not None:
                listener.close()
            await self._metrics.close()
            await runner.cleanup()
            self._priority.close()
            self._budget.close()
            self._deferral.close()
            self._history.close()
        log.info("stopped" if self._resignation is None else "no longer active")
        return self._resignation

    async def _work_until(self, stop: asyncio.Event) -> None:
        interval_s = lambda: self._config.controller.enrich_interval_s  # noqa: E731
        tasks: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self._enrichment.loop,
            lambda: drop_old_data(lambda: self._config, self._store, self._grid, self._failures),
            lambda: self._history.loop(interval_s),
            lambda: self._learner.loop(interval_s),
            lambda: self._adjustments.loop(interval_s),
            lambda: self._comments.loop(interval_s),
            self._refit.loop,
            self._usage.loop,
            self._priority.loop,
            self._budget.loop,
            self._grid.loop,
            self._quotas.loop,
            self._deferral.loop,
            self._saving.loop,
            self._clusters.loop,
            self._alerts.loop,
            self._server.admission.loop,
            self._server.roles.loop,
        )
        errors = UnexpectedErrorLog(log)
        loops = (
            *(kept_running(task, errors) for task in tasks),
            self._manager.keep_alive(),
            *([self._watch_lease(self._lease, self._host)] if self._lease and self._host else []),
        )
        await run_until(stop, loops, self._commands.stop)

    async def _watch_lease(self, lease: ControllerLease, host: ControllerHost) -> None:
        successor = await wait_until_resigned(lease, host)
        self._resignation = Resignation(self._config, successor)

    def _reload(self) -> None:
        """Load a new configuration. Keep the old configuration if any part of the new one is invalid."""
        with self._manager.reload():
            self._load_new_configuration()

    def _load_new_configuration(self) -> None:
        try:
            config = load_for_daemon(self._argument, DaemonRole.CONTROLLER, log)
            priority, budget = self._priority.prepare(config), self._budget.prepare(config)
            self._deferral.prepare(config)
            self._write_policies(config)
            model = training_model(config)
            oracle = curve_oracle(config)
        except EnergyError as error:
            for line in error.lines:
                log.error("configuration not reloaded: %s", line)
            return
        for warning in pending_changes(self._config, config):
            log.warning("%s", warning)
        self._config = config
        self._set_log_levels()
        self._priority.adopt(priority)
        self._budget.adopt(budget)
        self._deferral.config = config
        self._server.config = config
        self._server.access = self._access(config)
        self._server.follow_roles(config.controller.slurm_roles)
        self._history.retention_days = config.controller.history_days
        self._history.policy_caps = policy_caps(config)
        self._history.model = model
        self._advisor.oracle = oracle
        self._enrichment.schedule.interval_s = config.controller.enrich_interval_s
        log.info("configuration read again: %s", config.path or "defaults")

    def _set_log_levels(self) -> None:
        self._log_levels.configure(self._config.controller.log_level, self._config.controller.log_levels)

    def _use_calibrations(self) -> None:
        """Load the calibrations again after a refit has changed them."""
        try:
            self._history.model, self._advisor.oracle = (
                training_model(self._config),
                curve_oracle(self._config),
            )
        except EnergyError as error:
            log.error("calibrations not loaded: %s", error)

    def _is_trusted(self, user: str) -> bool:
        """Return whether runs of a user may change calibrations for the whole site. The call may block."""
        uid = uid_of(user)
        return uid is not None and self._server.access.is_privileged(uid)

    def _write_policies(self, config: Config) -> None:
        text = policy_file_text(config)
        self._publication.publish(text)
        text, left_out = with_budget_lines(text, self._budget.policy_lines)
        write_policy_file(config.controller.policy_file, text)
        if left_out:
            reason = f"longer than 64 KiB: {left_out} lines about power budgets are left out"
            self._failures.report("policy file", reason)
        else:
            self._failures.clear("policy file", "contains all lines again")
        if self._lease is not None:
            self._lease.policy_lines = tuple(self._budget.policy_lines)

    def _access(self, config: Config) -> PrivilegedUsers:
        access, unknown = PrivilegedUsers.from_config(config.controller)
        for name in unknown:
            log.warning("controller.agent_users or operators: this host does not know '%s'", name)
        return access

    def _lease_families(self) -> Sequence[MetricFamily]:
        return lease_families(self._lease.state, is_active=self._lease.is_valid) if self._lease else ()

    def _status(self) -> dict[str, Any]:
        lease = {"lease": lease_status(self._lease.state)} if self._lease else {}
        return lease | {
            "enrichment": self._enrichment.status(),
            "history": self._history.status(),
            "priority": self._priority.status(),
            "budget": self._budget.status(),
            "grid": self._grid.status(),
            "quotas": self._quotas.status(),
            "deferral": self._deferral.status(),
            "power_saving": self._saving.status(),
            "tuning": self._learner.status(),
            "adjustments": self._adjustments.status(),
        }
