"""The running agent: an event loop, and a worker thread for all code that uses hardware or disk."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file, service_manager
from slurm_energy.agent.adjustment_client import AdjustmentClient
from slurm_energy.agent.agent_facts import AgentFacts
from slurm_energy.agent.budget.poll_client import BudgetPollClient
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.live_report_client import LiveReportClient
from slurm_energy.agent.node_metrics import NodeMetrics
from slurm_energy.agent.policy_copy_client import PolicyCopyClient
from slurm_energy.agent.signals.live_diagnosis import LiveDiagnosisLoop
from slurm_energy.agent.signals.loop import SignalLoop
from slurm_energy.agent.sockets.server import AgentServer, refuse_if_served
from slurm_energy.agent.state.deferred_messages import DeferredMessages
from slurm_energy.agent.state.delivery import PERIOD_ROUTE, RecordDelivery
from slurm_energy.agent.state.state_directory import StateDirectory, lock_file
from slurm_energy.agent.tuning.advice_client import AdviceClient
from slurm_energy.agent.tuning.group_client import GroupClient
from slurm_energy.agent.worker_thread import PeriodicTask, WorkerThread
from slurm_energy.config import Config, this_node
from slurm_energy.devices.cpu.resctrl import MonitoringFiles, open_monitoring
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.node.power_options import node_power_options
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.openmetrics.listener import MetricsListener
from slurm_energy.trusted_files import check_folder
from slurm_energy.validation import DaemonRole, load_for_daemon

log = logging.getLogger(__name__)

_HOUSEKEEPING_S = 10.0
_FLUSH_DELAY_S = 0.2
_FLUSH_INTERVAL_S = 1.0
"""Many jobs that start or end within this time share one sync to disk and one delivery."""
_FLUSH_RETRY_S = 5.0
_FIRST_READING_S = 0.5
_RESTART_DELAY_S = 1.0


def load_config(argument: str | None) -> Config:
    """Load and check the configuration for senergyd, which runs as root.

    Args:
        argument: value of --config; None if it was not given.

    Raises:
        ConfigError: the configuration is invalid, or other users could change it.
    """
    return load_for_daemon(argument, DaemonRole.NODE, log)


class AgentDaemon:
    """The node agent senergyd from start to stop.

    Args:
        config: the configuration.
        argument: value of --config, for reloads; None if it was not given.
        manager: the service manager to notify; None if there is no service manager.
        log_level: value of --log-level; None for the configured level.
    """

    def __init__(
        self,
        config: Config,
        argument: str | None = None,
        manager: service_manager.ServiceManager | None = None,
        log_level: str | None = None,
    ) -> None:
        self._file_config, self._config = config, config.for_this_node()
        self._argument = argument
        self._manager = manager or service_manager.ServiceManager()
        self._log_levels = service_manager.LogLevels(log_level)
        self._set_log_levels()
        self._worker, self._signals_thread = WorkerThread("jobs"), WorkerThread("signals")
        self._stop = asyncio.Event()
        self._written = asyncio.Event()
        self._pending = asyncio.Event()
        self._failures = RepeatedFailureLog(log)
        self._errors = UnexpectedErrorLog(log)

    async def run(self) -> None:
        """Serve until the process receives SIGTERM or SIGINT.

        Raises:
            EnergyError: the agent could not start.
        """
        socket_path = self._config.agent.socket
        await refuse_if_served(socket_path)
        lock = _socket_lock(socket_path)
        state = StateDirectory(self._config.agent.state_dir)
        self._loop = asyncio.get_running_loop()
        try:
            jobs = self._jobs = await self._work(self._create_job_manager, state)
            cluster = self._config.cluster
            self._delivery = RecordDelivery(jobs.spool, cluster, lambda: jobs.node, self._work)
            self._period_delivery = RecordDelivery(
                *(jobs.period_spool, cluster, lambda: jobs.node, self._work, PERIOD_ROUTE),
                spread_s=lambda: self._live.requested_interval_s,
            )
            self._advice = AdviceClient(jobs.tuners, lambda: self._config.cluster, self._work)
            adjusted = jobs.queries.adjusted
            self._adjustments = AdjustmentClient(adjusted, lambda: self._config.cluster, self._work)
            self._groups = GroupClient(jobs.tuners, lambda: self._config.cluster, self._work)
            self._policy_copy = PolicyCopyClient(lambda: self._config)
            self._live = LiveReportClient(
                *(jobs, lambda: jobs.config, self._work, self._agent_facts, self._policy_copy.confirm)
            )
            self._signals = SignalLoop(jobs.signals, self._work, self._signals_thread)
            self._diagnosis = LiveDiagnosisLoop(jobs.signals.diagnosis, lambda: jobs.config, self._work)
            self._budget = BudgetPollClient(jobs, lambda: self._config.cluster, self._work)
            self._manager.status("Restoring settings of ended jobs")
            await self._work(jobs.start)
            self._deferred_messages = await self._work(DeferredMessages, socket_path, jobs)
            await self._work(self._deferred_messages.replay)
            await self._serve(jobs, socket_path)
        except OSError as error:
            raise UnavailableError(
                f"{error.filename or state.folder}", error.strerror or str(error)
            ) from None
        finally:
            self._worker.shutdown()
            self._signals_thread.shutdown()
            os.close(lock)

    def _create_job_manager(self, state: StateDirectory) -> JobManager:
        devices = self._discover()
        jobs = JobManager(self._file_config, devices, state, on_written=self._notify_written)
        self._metrics = NodeMetrics(jobs, devices, state, self._work)
        self._agent_facts = AgentFacts(jobs, devices)
        return jobs

    def _notify_written(self) -> None:
        if not self._written.is_set():  # each call wakes the event loop
            self._loop.call_soon_threadsafe(self._written.set)

    def _discover(self) -> NodeDevices:
        devices = discover(node_power=node_power_options(self._config.node_power, this_node()))
        devices.wait_for_readings(_FIRST_READING_S)
        return dataclasses.replace(devices, monitoring=self._open_monitoring(devices))

    def _open_monitoring(self, devices: NodeDevices) -> MonitoringFiles | None:
        components = {counter.component for counter in devices.counters}
        try:
            return open_monitoring(devices.root, self._config.agent.resctrl, components)
        except DeviceError as error:
            log.warning("agent.resctrl: %s; memory energy is divided by CPU time", error)
            return None

    async def _serve(self, jobs: JobManager, socket_path: Path) -> None:
        server = AgentServer(jobs, self._serve_work, self._deferred_messages.replay)
        await server.open(socket_path)
        metrics = MetricsListener(
            self._config.metrics.agent_listen, self._config.metrics, self._metrics.collect
        )
        await metrics.open()
        self._handle_signals()
        runs = (
            self._housekeeping,
            self._delivery.run,
            self._period_delivery.run,
            self._advice.run,
            self._groups.run,
            self._adjustments.run,
            self._budget.run,
            self._live.run,
            self._policy_copy.run,
            self._signals.run,
            self._diagnosis.run,
            self._flush,
            self._apply_pending_settings,
        )
        tasks = [asyncio.create_task(self._run_forever(run)) for run in runs]
        tasks.append(asyncio.create_task(self._manager.keep_alive()))
        failed = partial(self._report_error, "sampling")
        self._worker.run_periodically(PeriodicTask(jobs.sample, lambda: jobs.sampling_interval_s, failed))
        if jobs.has_pending_settings:
            self._pending.set()
        self._advice.wake()
        self._groups.wake()
        log.info("senergyd serves %s at %s", jobs.node, socket_path)
        self._manager.ready(f"Serving {jobs.node} at {socket_path}")
        await self._stop.wait()
        self._manager.stopping()
        await server.close()
        await metrics.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker.run_periodically(None)
        await self._signals.close()
        await self._work(jobs.stop)
        log.info("senergyd stopped; settings of running jobs stay until they end")

    async def _run_forever(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a background task and restart it when it fails.

        An unexpected error in one task must not stop the others.
        """
        while True:
            try:
                await run()
            except Exception as error:
                self._report_error(getattr(run, "__qualname__", "task"), error)
            await asyncio.sleep(_RESTART_DELAY_S)

    def _report_error(self, task: str, error: Exception) -> None:
        """Log an unexpected error of a background task.

        The same error is logged only once.
        """
        message = f"{task} failed and continues; the same error is not logged again"
        self._errors.report(error, message, context=task)

    async def _work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    async def _serve_work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._work(function, *arguments)
        finally:
            if self._jobs.has_pending_settings:
                self._pending.set()
            self._signals.wake()
            if self._jobs.tuners.has_group_work:
                self._groups.wake()
            if self._jobs.queries.adjusted.has_requests:
                self._adjustments.wake()
            if self._jobs.tuners.awaits_advice:
                self._advice.wake()
            if self._jobs.budget.wants_poll:
                self._budget.wake()

    async def _apply_pending_settings(self) -> None:
        """Apply the settings of jobs that were postponed until after the response to a hook.

        Settings are postponed if the CPUs of a job become known, or if a job has to share the node from now
        on. The hook thus does not wait for the writes.
        """
        while True:
            await self._pending.wait()
            self._pending.clear()
            await self._work(self._jobs.apply_pending_settings)

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            await self._serve_work(self._run_housekeeping)

    def _run_housekeeping(self) -> None:
        self._deferred_messages.replay()
        self._jobs.housekeeping()

    async def _flush(self) -> None:
        """Write records and sync files to disk after a short delay, in the background.

        A hook therefore never waits for the disk.
        """
        time_s = asyncio.get_running_loop().time
        earliest_s = time_s()
        while True:
            await self._written.wait()
            await asyncio.sleep(max(_FLUSH_DELAY_S, earliest_s - time_s()))
            self._written.clear()
            earliest_s = time_s() + _FLUSH_INTERVAL_S
            flush = await self._work(self._jobs.finalize_jobs)
            try:
                await asyncio.to_thread(atomic_file.flush, flush.files)
            except OSError as error:
                self._failures.report(
                    "agent.state_dir", f"cannot be synced to disk, will be retried: {error}"
                )
                await self._work(partial(self._jobs.flushed, flush, succeeded=False))
                asyncio.get_running_loop().call_later(_FLUSH_RETRY_S, self._written.set)
            else:
                self._failures.clear("agent.state_dir", "can be synced to disk again")
                await self._work(self._jobs.flushed, flush)
            self._delivery.wake()
            self._period_delivery.wake()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._log_levels.handle_signals(loop)

    def _set_log_levels(self) -> None:
        self._log_levels.configure(self._config.agent.log_level, self._config.agent.log_levels)

    def _reload(self) -> None:
        """Load the configuration again.

        If the new configuration is invalid, the current configuration remains in use.
        """
        with self._manager.reload():
            self._load_new_configuration()

    def _load_new_configuration(self) -> None:
        try:
            new = load_config(self._argument)
        except EnergyError as error:
            for line in error.lines:
                log.error("configuration not reloaded: %s", line)
            return
        own, old = new.for_node(self._jobs.node), self._config.agent
        if (own.agent.socket, own.agent.state_dir) != (old.socket, old.state_dir):
            log.warning("agent.socket and agent.state_dir take effect at the next start")
        if own.metrics != self._config.metrics:
            log.warning("section metrics takes effect at the next start, but metrics.jobs at once")
        self._file_config, self._config = new, own
        self._agent_facts.refresh()
        self._set_log_levels()
        self._delivery.cluster = self._period_delivery.cluster = new.cluster
        self._worker.submit(self._jobs.reconfigure, new)
        log.info("configuration reloaded from %s", new.path or "defaults")


def _socket_lock(path: Path) -> int:
    """Lock the agent's socket and return the file descriptor of the lock.

    The lock ensures that only one agent serves the socket.

    Only trusted users may be able to change the socket's directory.

    Raises:
        AlreadyRunningError: another agent holds the lock.
        ConfigError: other users could replace the socket.
        UnavailableError: the directory cannot be used.
    """
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)  # users must reach the socket, whatever the umask
        check_folder(path.parent)
        return lock_file(path.with_name(path.name + ".lock"))
    except OSError as error:
        raise UnavailableError(
            f"agent.socket {path}", error.strerror or str(error), f"make {path.parent} writable for the agent"
        ) from None
