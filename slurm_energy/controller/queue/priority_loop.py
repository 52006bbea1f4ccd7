"""Background loop of the priority engine in senergyctld.

The loop runs the engine's cycles on a schedule, chooses the source of the queue, and publishes the new order
of the jobs. The package `priority` ranks the queue. numpy is imported in the first cycle, not before.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.accounting import decisions
from slurm_energy.accounting.history import start_predictions
from slurm_energy.accounting.usage import consumption
from slurm_energy.config import Config
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import ConfigError, EnergyError, install_extra
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.priority.quota_levels import QuotaStandings
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.controller.deferral.loop import DeferralLoop
    from slurm_energy.controller.queue.priority_pipeline import PriorityPipeline
    from slurm_energy.priority.engine import EngineState
    from slurm_energy.priority.snapshot import Snapshot

OFF: Final = "off"
_POLL_INTERVAL_S: Final = 1.0
_MIN_PAUSE_S: Final = 2.0
_PAUSE_FACTOR: Final = (
    4.0  # times the duration of the last cycle: a long queue uses at most a fifth of a core
)
_CORRELATION_INTERVAL_S: Final = 600.0
_HISTORY_TIMEOUT_S: Final = 60.0
_CLOCK_STEP_S: Final = 60.0
_LOOKBACK_S: Final = 30 * 86400.0
log = logging.getLogger(__name__)

PipelineFactory = Callable[[Config, "HistoryCache | None", "EngineState | None"], "PriorityPipeline"]


def make_pipeline(
    config: Config, history: HistoryCache | None, state: EngineState | None
) -> PriorityPipeline:
    """Return the priority pipeline for a configuration.

    Args:
        config: configuration with a mode other than off.
        history: history of measured runs; None means that there is no history.
        state: state of the priority engine in the previous pipeline; None means that there was no previous
            pipeline.

    Raises:
        ConfigError: numpy is missing, or the scheduling policy is unavailable.
    """
    try:
        from slurm_energy.controller.queue import priority_pipeline
    except ImportError as error:
        why = f"{error.name or error} is not installed"
        raise ConfigError("priority.mode", why, f"{install_extra('scheduling')}, or mode off") from None
    return priority_pipeline.build_pipeline(config, history, state)


class PriorityLoop:
    """Task that ranks the queue periodically. Each ranking is a cycle.

    Requests are answered with the result of the last cycle (snapshot). All work except database access runs
    in one dedicated thread, so that a long cycle delays only the next cycle.

    Args:
        config: configuration at the start.
        store: the database.
        history: history of measured runs; None means that predictions do not use it.
        failures: log of failures; a repeated failure is logged once.
        make: function that creates the priority pipeline.

    Attributes:
        snapshot: result of the last cycle; None means that no cycle has been completed.
        quotas: function that returns the use of quotas, which the order takes into account.
        deferral: loop that defers jobs. Time for which a job is deferred does not count as waiting. None
            means that jobs are not deferred.
        permit: function that raises an error while the order must not be published.
        config: the configuration.

    Raises:
        ConfigError: the configuration cannot be used.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        history: HistoryCache | None,
        failures: RepeatedFailureLog,
        make: PipelineFactory = make_pipeline,
    ) -> None:
        self._store, self._history, self._failures, self._make_pipeline = store, history, failures, make
        self._thread = ThreadPoolExecutor(1, "priority")
        self._pipeline: PriorityPipeline | None = None
        self._next: tuple[Config, PriorityPipeline | None] | None = None
        self._began_s = self._correlation_logged_s = float("-inf")
        self._cycle_s = 0.0
        self._ahead_s = time.time() - time.monotonic()
        self._signature: tuple[int, ...] | None = None
        self._error: str | None = None
        self._correlation: dict[str, Any] | None = None
        self.snapshot: Snapshot | None = None
        self.quotas: Callable[[], QuotaStandings] = QuotaStandings
        self.deferral: DeferralLoop | None = None
        self.permit: Callable[[], None] = lambda: None
        self.config = config
        self.adopt(self.prepare(config))

    def prepare(self, config: Config) -> tuple[Config, PriorityPipeline | None]:
        """Prepare a new configuration of the priority engine without using it yet.

        The result is the argument for the method `adopt`, which brings the configuration into force. It is a
        pair: the configuration, and the pipeline that reads, ranks and publishes the queue. The pipeline is
        None if the mode of the priority engine is off.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        if config.priority.mode == OFF:
            return config, None
        latest = self._next[1] if self._next else self._pipeline
        return config, self._make_pipeline(config, self._history, latest.state if latest else None)

    def adopt(self, prepared: tuple[Config, PriorityPipeline | None]) -> None:
        """Let the next cycle use the configuration and the pipeline that `prepare` returned.

        The method returns at once, even while a cycle runs.
        """
        self._next, self.config = prepared, prepared[0]
        self._began_s = float("-inf")

    @property
    def engine_state(self) -> EngineState | None:
        """State of the priority engine, which persists from cycle to cycle; None while the engine is off."""
        return self._pipeline.state if self._pipeline else None

    async def loop(self) -> None:
        """Run the cycles of the priority engine, until cancelled.

        A cycle ranks the queue. The loop checks every second whether a cycle is due.
        """
        await self._wait_for_history()
        while True:
            if self._due():
                await self.cycle()
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _wait_for_history(self) -> None:
        """Wait at the start, for a limited time, until the history is loaded.

        If the queue were ranked without the history, the order of jobs would change, and would change back as
        soon as the history is loaded.
        """
        latest = time.monotonic() + _HISTORY_TIMEOUT_S
        while self._history is not None and not self._history.loaded and time.monotonic() < latest:
            await asyncio.sleep(_POLL_INTERVAL_S / 10)

    async def cycle(self) -> None:
        """Rank the queue once and publish the order.

        A failure is logged, and the previous order stays in force.
        """
        self._adopt_next()
        if self._pipeline is None:
            return
        self._began_s = time.monotonic()
        try:
            self._error = await self._rank(self._pipeline)
        except EnergyError as error:
            self._error = str(error)
        except (Exception, SystemExit) as error:  # a site's own policy may raise anything
            at = traceback.extract_tb(error.__traceback__)[-1]
            location = f"{Path(at.filename).name}, line {at.lineno}"
            self._error = f"{location}: {type(error).__name__}: {shown(str(error), 120)}"
        if self._error is None:
            self._failures.clear("priority")
        else:
            self._failures.report("priority", self._error)

    def status(self) -> dict[str, Any]:
        """Return the state of the priority engine for the status page."""
        settings, snapshot = self.config.priority, self.snapshot
        return {
            "mode": settings.mode,
            "policy": settings.policy,
            "source": self._pipeline.source_name if self._pipeline else None,
            "computed": snapshot.computed if snapshot else None,
            "cycle_s": snapshot.duration_s if snapshot else None,
            "pending": snapshot.pending if snapshot else None,
            "ranked": len(snapshot.order) if snapshot else None,
            "rank_correlation": self._correlation,
            "error": self._error,
        }

    def close(self) -> None:
        """Stop a running Slurm command and wait for the engine's thread to end."""
        for pipeline in (self._pipeline, self._next[1] if self._next else None):
            if pipeline is not None:
                pipeline.stop()
        self._thread.shutdown()

    def _adopt_next(self) -> None:
        if self._next is None:
            return
        if self._pipeline is not None:
            self._pipeline.close(self._next[1])
        (_, self._pipeline), self._next = self._next, None
        self._signature = self._error = self._correlation = None
        if self._pipeline is None:
            self.snapshot = None
            return
        settings = self.config.priority
        if settings.mode == "plugin":  # the plugin's site factors are not those set by scontrol
            self._pipeline.state.applied_factors.clear()
        log.info("priority: %s, by %s from %s", settings.mode, settings.policy, self._pipeline.source_name)

    def _due(self) -> bool:
        passed_s = time.monotonic() - self._began_s
        if self._next is not None or passed_s >= self.config.priority.interval_s:
            return True
        if self._pipeline is None or passed_s < max(_MIN_PAUSE_S, (1.0 + _PAUSE_FACTOR) * self._cycle_s):
            return False
        return self._pipeline.signature() != self._signature

    async def _rank(self, pipeline: PriorityPipeline) -> str | None:
        now = time.time()
        await self._load_predictions(pipeline)
        self._check_clock(pipeline.state)
        usage, run = pipeline.state.usage, asyncio.get_running_loop().run_in_executor
        while True:
            records = await self._store.read(
                consumption.read_consumption, usage.last_row, now - usage.window_s
            )
            await run(self._thread, usage.add_records, records, now)
            if len(records) < consumption.CHUNK:
                break
        if again := usage.rows_to_read_again():
            usage.add_records(await self._store.read(consumption.reread_consumption, again), now)
        # Taken before the queue is read: any later write triggers another cycle.
        self._signature = pipeline.signature()
        pipeline.state.quotas = self.quotas()
        pipeline.state.waiting_since_s = self.deferral.eligible_times() if self.deferral else {}
        self.snapshot = await run(self._thread, pipeline.rank)
        await self._save_predictions(pipeline)
        self._cycle_s = time.monotonic() - self._began_s
        if pipeline.share_error is None:
            self._failures.clear("priority, shares")
        else:
            self._failures.report("priority, shares", pipeline.share_error)
        if self.config.priority.mode == "shadow":
            await self._compare_with_slurm(self.snapshot)
        self.permit()
        problem = await run(self._thread, pipeline.publish, self.snapshot)
        await self._intervene(pipeline, self.snapshot)
        return problem

    def _check_clock(self, state: EngineState) -> None:
        """Discard the decayed usage if the system clock was set.

        The usage is then computed again from records. Otherwise the usage would have decayed for a time that
        has not passed.
        """
        ahead_s = time.time() - time.monotonic()
        if abs(ahead_s - self._ahead_s) > _CLOCK_STEP_S:
            log.info(
                "priority: the clock was set by %.0f s; usage is computed again", ahead_s - self._ahead_s
            )
            state.usage = state.usage.without_records()
        self._ahead_s = ahead_s

    async def _load_predictions(self, pipeline: PriorityPipeline) -> None:
        """Load the stored predictions of jobs that were running when senergyctld started.

        The predictions are loaded only once.
        """
        mispredictions = pipeline.state.mispredictions
        if not mispredictions.loaded:
            before, cluster = time.time() - _LOOKBACK_S, self.config.cluster.name
            rows = await self._store.read(start_predictions.since, cluster, before)
            mispredictions.load(rows)

    async def _save_predictions(self, pipeline: PriorityPipeline) -> None:
        """Store the predictions of started jobs.

        The predictions are compared with measurements when the jobs have ended.
        """
        mispredictions = pipeline.state.mispredictions
        if started := list(mispredictions.unsaved):
            await self._store.write(start_predictions.save, self.config.cluster.name, started)
            del mispredictions.unsaved[: len(started)]

    async def _intervene(self, pipeline: PriorityPipeline, snapshot: Snapshot) -> None:
        """Change jobs in Slurm as the ranking requires: GPU shapes and preemptions.

        A shape is a type and number of GPUs. The decisions are stored in the database.
        """
        interventions, cluster = pipeline.state.interventions, self.config.cluster.name
        if not interventions.loaded:
            before = time.time() - _LOOKBACK_S
            interventions.load(await self._store.read(decisions.since, cluster, before))
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, pipeline.intervene, snapshot)
        finally:
            if made := list(interventions.unsaved):
                await self._store.write(decisions.save, cluster, made)
                del interventions.unsaved[: len(made)]

    async def _compare_with_slurm(self, snapshot: Snapshot) -> None:
        """Compare the order of the jobs in the ranked queue with Slurm's own order.

        Log the result from time to time.
        """
        correlation = await asyncio.get_running_loop().run_in_executor(
            self._thread, snapshot.correlation_with_slurm
        )
        tau = correlation.kendall_tau if correlation.jobs > 1 else None
        self._correlation = {
            "jobs": correlation.jobs,
            "kendall_tau": tau,
            "moved_jobs": correlation.moved_jobs,
        }
        if correlation.jobs > 1 and time.monotonic() - self._correlation_logged_s >= _CORRELATION_INTERVAL_S:
            self._correlation_logged_s = time.monotonic()
            log.info(
                "priority, shadow: of %d jobs free to start %s would move %d; "
                "Kendall's tau against Slurm's order %.2f",
                correlation.jobs,
                snapshot.policy,
                correlation.moved_jobs,
                tau,
            )
