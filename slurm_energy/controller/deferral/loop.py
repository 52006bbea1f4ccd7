"""Deferral of jobs in the controller: planning at intervals, reading of signals, storage of the results.

numpy is imported in the first cycle, not before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.accounting import decisions
from slurm_energy.accounting.decisions import Decision
from slurm_energy.accounting.history import arrivals
from slurm_energy.config import Config
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.deferral.jobs import DeferredJob, restored_jobs
from slurm_energy.controller.deferral.routes import DeferralRoutes
from slurm_energy.controller.deferral.suspended_jobs import restored_suspensions
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import ConfigError, EnergyError, install_extra
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.slurm.command import CommandRunner

if TYPE_CHECKING:
    from slurm_energy.controller.deferral.deferral_cycle import DeferralCycle
    from slurm_energy.controller.deferral.planner import DeferralPlanner
    from slurm_energy.controller.deferral.signal_files import SignalFiles
    from slurm_energy.signals import SignalColumns

_SUBJECT: Final = "deferral"
_IDLE_S: Final = 1.0
_PAUSE_FACTOR: Final = 4.0  # times the duration of the last cycle: it uses at most a fifth of a core
_ARRIVAL_CYCLES: Final = 10
_LOOKBACK_S: Final = 40 * 86400.0
log = logging.getLogger(__name__)


class DeferralLoop:
    """Periodic planning of the starts of deferrable jobs.

    All Slurm commands run in one thread. If the signals, the database or slurmctld are unavailable, no job is
    held, and begin times that were set earlier pass.

    Args:
        config: configuration at the start.
        store: the database.
        source: reads carbon intensity, price and further signals.
        history: history of measured runs; None means that predictions do not use it.
        failures: log of failures; a repeated failure is logged once.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay jobs.
        clock: returns Unix seconds.

    Attributes:
        permit: raises an error while this controller must not change anything in Slurm.
        config: the configuration.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        source: GridFactorSource,
        history: HistoryCache | None,
        failures: RepeatedFailureLog,
        begin_times: BeginTimes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._source, self._history, self._failures = store, source, history, failures
        self._begin_times, self._clock = begin_times, clock
        self._unexpected = UnexpectedErrorLog(log)
        self._thread = ThreadPoolExecutor(1, _SUBJECT)
        self._run = CommandRunner()
        self._planner: DeferralPlanner | None = None
        self._configured: Config | None = None
        self._files: SignalFiles | None = None
        self._cycle_s, self._deferrable = 0.0, 0
        self._planned_s: float | None = None
        self._next_arrivals_s = 0.0
        self._error: str | None = None
        self.permit: Callable[[], None] = lambda: None
        self.config = config
        self.prepare(config)

    @staticmethod
    def prepare(config: Config) -> None:
        """Check that deferral can be used with a configuration. Change nothing.

        Raises:
            ConfigError: numpy is missing, or the deferral policy is unknown.
        """
        if not config.deferral.enabled:
            return
        try:
            from slurm_energy import deferral
            from slurm_energy.scheduling import load_file
            from slurm_energy.trusted_files import read_trusted
        except ImportError as error:
            why = f"{error.name or error} is not installed"
            raise ConfigError(
                "deferral.policy", why, f"{install_extra('scheduling')}, or policy off"
            ) from None
        try:
            if config.priority.policy_file is not None:
                read_trusted(config.priority.policy_file)  # because the file is executed
                load_file(config.priority.policy_file)
            deferral.policy(config.deferral.policy)
        except EnergyError as error:
            raise ConfigError("deferral.policy", error.what, error.todo) from None
        except OSError as error:
            where = f"priority.policy_file {config.priority.policy_file}"
            raise ConfigError(where, error.strerror or str(error)) from None

    async def loop(self) -> None:
        """Plan the starts of deferrable jobs periodically until cancelled."""
        while True:
            began_s = time.monotonic()
            enabled = self.config.deferral.enabled
            if enabled or self._planner is not None:
                await self.cycle()
            self._cycle_s = time.monotonic() - began_s
            pause_s = (
                max(self.config.deferral.interval_s, _PAUSE_FACTOR * self._cycle_s) if enabled else _IDLE_S
            )
            await asyncio.sleep(max(0.0, pause_s - self._cycle_s))

    async def cycle(self) -> None:
        """Plan the deferral of jobs once, and hold or release jobs as planned.

        A failure is logged. After a failure, no hold is extended.
        """
        try:
            problems = await self._cycle()
            self._error = "; ".join(problems) or None
        except EnergyError as error:
            self._error = str(error)
        except Exception as error:  # a fault must not end the other tasks of the daemon
            self._error = f"{type(error).__name__} in the plan"
            self._unexpected.report(error, f"{_SUBJECT} failed")
        if self._error is None:
            self._failures.clear(_SUBJECT)
        else:
            self._failures.report(_SUBJECT, self._error)

    def eligible_times(self) -> Mapping[int, float]:
        """Return the time from which the waiting time of each deferred job counts, by job id.

        Time for which a job was held on purpose does not count as waiting time. Otherwise a user could gain
        priority by permitting a long delay (slack).
        """
        planner, now_s = self._planner, self._clock()
        return (
            {}
            if planner is None
            else {job.job_id: job.waiting_since_s(now_s) for job in list(planner.jobs.values())}
        )

    def facts(self, job_ids: tuple[int, ...]) -> dict[str, Any] | None:
        """Return the planned start, the costs and the hold of a deferred job, for `GET /v1/priority`.

        The result is None if the job is not held in the queue for deferral.

        Args:
            job_ids: ids under which the job may be known. These are the job's own id, and the id of the
                job's array or heterogeneous job.
        """
        planner = self._planner
        for job_id in job_ids:
            job = planner.jobs.get(job_id) if planner is not None else None
            if job is not None and job.held_since_s is not None:
                return job.to_json()
        return None

    @property
    def routes(self) -> RouteGroup:
        """The HTTP route about the savings by deferral."""
        return DeferralRoutes(lambda: self.config, self._store, self._source).routes

    def status(self) -> dict[str, Any]:
        """Return the entries about deferral on the status page."""
        planner = self._planner
        return {
            "policy": self.config.deferral.policy,
            "planned": self._planned_s,
            "cycle_s": self._cycle_s if self._planned_s is not None else None,
            "deferrable_jobs": self._deferrable,
            "held_jobs": planner.held if planner else 0,
            "error": self._error,
        }

    def close(self) -> None:
        """Stop a running Slurm command and wait for the thread.

        Held jobs are then no longer held: they may start when their begin times pass.
        """
        self._run.stop()
        if self._planner is not None:
            self._planner.stop()
        self._thread.shutdown()

    async def _cycle(self) -> tuple[str, ...]:
        config, now_s = self.config, self._clock()
        self.permit()
        if not config.deferral.enabled:
            return await self._turn_off(now_s)
        planner = await self._current_planner(config)
        signals = await self._signals(config, now_s)
        await self._read_arrivals(config, planner, now_s)
        run = asyncio.get_running_loop().run_in_executor
        cycle: DeferralCycle = await run(self._thread, planner.plan, signals, self._clock())
        self._deferrable = cycle.deferrable
        # Stored first: after kill -9 the next process must know how long the jobs have been held.
        await self._store_decisions(config, cycle.decisions())
        self.permit()
        ended, problems = await run(self._thread, planner.apply, cycle)
        self._planned_s = self._clock()
        await self._store_ends(config, ended, "its planned time has come, or a start now is as good")
        return problems

    async def _turn_off(self, now_s: float) -> tuple[str, ...]:
        planner, self._planner = self._planner, None
        if planner is None:
            return ()
        release = planner.release_all
        ended, problems = await asyncio.get_running_loop().run_in_executor(self._thread, release, now_s)
        planner.stop()
        self._deferrable, self._planned_s = 0, None
        await self._store_ends(self.config, ended, "deferral was switched off")
        return problems

    async def _current_planner(self, config: Config) -> DeferralPlanner:
        if self._planner is None:
            from slurm_energy.controller.deferral.parts import make_planner

            planner = make_planner(config, self._run, self._history, self._begin_times)
            before = self._clock() - _LOOKBACK_S
            stored = await self._store.read(decisions.since, config.cluster.name, before)
            planner.jobs = restored_jobs(stored)
            planner.suspensions.note(restored_suspensions(stored))
            self._planner, self._configured, self._next_arrivals_s = planner, config, 0.0
        elif config is not self._configured:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._planner.configure, config)
            self._configured = config
        return self._planner

    async def _read_arrivals(self, config: Config, planner: DeferralPlanner, now_s: float) -> None:
        """Give the planner the past job submissions, which are read again every few cycles."""
        if now_s < self._next_arrivals_s:
            return
        since_s = now_s - 86400.0 * config.signals.history_days
        planner.arrivals = await self._store.read(arrivals.read_arrivals, config.cluster.name, since_s)
        self._next_arrivals_s = now_s + _ARRIVAL_CYCLES * config.deferral.interval_s

    async def _signals(self, config: Config, now_s: float) -> SignalColumns:
        from slurm_energy.controller.deferral.signal_files import SignalFiles
        from slurm_energy.controller.deferral.signals import signal_columns

        span_s = 86400.0 * config.signals.history_days, 3.0 * config.deferral.max_slack_s
        series = await self._source.signals(now_s - span_s[0], now_s + span_s[1])
        if self._files is None:
            self._files = SignalFiles()
        files = self._files

        def compute() -> SignalColumns:
            return signal_columns(config, series, now_s, files.read(config.signals))

        return await asyncio.get_running_loop().run_in_executor(self._thread, compute)

    async def _store_ends(self, config: Config, ended: list[DeferredJob], why: str) -> None:
        now_s = self._clock()
        await self._store_decisions(config, [job.release_decision(now_s, why) for job in ended])

    async def _store_decisions(self, config: Config, made: list[Decision]) -> None:
        if made:
            await self._store.write(decisions.save, config.cluster.name, made)
            for one in made:
                log.info("job %d: %s", one.job_id, one.why)
