"""Parts of the priority engine that senergyctld creates for one configuration.

The parts are the source of the queue, the engine that ranks it, the publisher of the order, and the
interventions (changes of jobs). In each cycle they work one after another. Import this module only
where the engine runs, because it needs numpy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from slurm_energy.config import Config
from slurm_energy.controller.queue.interventions import Interventions
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import ConfigError, EnergyError, UnavailableError
from slurm_energy.oracle.history.lower_bounds import Bounds, bounds_many
from slurm_energy.oracle.history.queue_forecast import QueueForecast, predict_many
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.offered_shapes import OfferedShapeProvider
from slurm_energy.priority.prediction import HistoryPredictor, QueuePredictor
from slurm_energy.priority.prediction_guard import BoundsSource, PredictionGuard
from slurm_energy.priority.publisher import NullPublisher, Publisher, ScontrolPublisher, TablePublisher
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.slurm.command import CommandRunner, Runner
from slurm_energy.slurm.fair_share import ShareCache, ShareTree, read_shares
from slurm_energy.slurm.queue.columns import QueueSource
from slurm_energy.slurm.queue.fallback_source import FallbackQueueSource
from slurm_energy.slurm.queue.job_update import JobUpdater
from slurm_energy.slurm.queue.priority_weights import check_weights
from slurm_energy.slurm.queue.squeue_source import SqueueSource
from slurm_energy.slurm.queue.table_source import QueueTableSource
from slurm_energy.trusted_files import read_trusted

_QUEUE_AGE_S: Final = 900.0  # three times Slurm's default PriorityCalcPeriod


@dataclass(slots=True)
class PriorityPipeline:
    """The stages of a priority cycle for one configuration.

    `signature` and `stop` may be used by any thread. All other members may be used by one thread only.

    Attributes:
        engine: ranks the queue.
        source: reads the queue.
        publisher: publishes the order.
        state: state of the engine, which the pipelines before and after a reload share.
        read_shares: reads the Slurm shares of all associations.
        interventions: assigns GPU shapes (kind and number of GPUs) before jobs start, and preempts jobs.
        changes: whether interventions may change jobs in Slurm; not in mode `shadow`.
        stops: functions that `stop` calls; each one stops running Slurm commands.
        share_error: reason why the last attempt to read the Slurm shares failed, in one line of text;
            None means that the attempt succeeded.
    """

    engine: PriorityEngine
    source: QueueSource
    publisher: Publisher
    state: EngineState
    read_shares: Callable[[], ShareTree]
    interventions: Interventions
    changes: bool = True
    stops: Sequence[Callable[[], None]] = ()
    share_error: str | None = None
    _shares: ShareCache = field(init=False)

    def __post_init__(self) -> None:
        self._shares = ShareCache(self._read_shares)

    @property
    def source_name(self) -> str:
        """Name of the source from which the queue is read, as shown to users."""
        return self.source.name if isinstance(self.source, FallbackQueueSource) else "squeue"

    def rank(self) -> Snapshot:
        """Read the queue, rank it and return the snapshot."""
        self.interventions.begin_cycle()
        queue = self.source.read()
        try:
            shares = self._shares.current(zip(queue.account, queue.user, strict=True))
        except UnavailableError as error:
            self.share_error = str(error)
        else:
            if self.share_error is None:  # after an error, the shares from before a reload stay valid
                self.state.configured_shares = shares
        return self.engine.cycle(queue, time.time())

    def _read_shares(self) -> ShareTree:
        shares = self.read_shares()
        self.share_error = None  # only now: between tries, the last known shares come without an error
        return shares

    def publish(self, snapshot: Snapshot) -> str | None:
        """Publish the order of the jobs, so that Slurm can apply it.

        Return the failures in one line; None means that there were no failures. If the queue is read from
        the file queue.table, a missing or old file also counts as a failure.

        Args:
            snapshot: the queue with the computed order.
        """
        problem, age_s = self.publisher.publish(snapshot), snapshot.computed - snapshot.queue.taken_unix_s
        if problem is not None or not isinstance(self.source, FallbackQueueSource):
            return problem
        if self.source.problem is not None or abs(age_s) <= _QUEUE_AGE_S:
            return self.source.problem
        if age_s > 0:
            return f"queue.table is {age_s / 60.0:.0f} minutes old: do slurmctld and slurmdbd run?"
        # slurmctld schedules its passes by the wall clock: none runs before that time is reached again.
        minutes = -age_s / 60.0
        return f"queue.table is {minutes:.0f} minutes ahead, the clock was set back: restart slurmctld"

    def intervene(self, snapshot: Snapshot) -> None:
        """Carry out the interventions that follow from a ranking of the queue.

        Other GPUs are assigned to pending jobs, and running jobs are preempted. The decisions are added to
        `InterventionState.unsaved`.
        """
        if self.changes:
            self.interventions.apply(snapshot, self.engine.policy)

    def signature(self) -> tuple[int, ...] | None:
        """Return a value that changes when slurmctld reports new jobs.

        The result is None if the source of the queue does not announce new jobs.
        """
        return self.source.signature() if isinstance(self.source, FallbackQueueSource) else None

    def close(self, successor: PriorityPipeline | None) -> None:
        """Close this pipeline after a reload. `successor` is the pipeline that replaces it, or None."""
        self.stop()
        self.publisher.close(successor.publisher if successor else None)

    def stop(self) -> None:
        """Stop the Slurm commands that are running."""
        for stop in self.stops:
            stop()


def build_pipeline(
    config: Config, history: HistoryCache | None, state: EngineState | None
) -> PriorityPipeline:
    """Create the stages of a priority cycle for a configuration: read, rank and publish the queue.

    Args:
        config: configuration with a mode other than off.
        history: history of measured runs; None means that predictions do not use it.
        state: state of the priority engine in the previous pipeline; None means that there was no previous
            pipeline.

    Raises:
        ConfigError: the scheduling policy is unknown or cannot be loaded, or settings contradict each other.
    """
    settings = config.priority
    if state is None:
        state = EngineState(DecayedUsage(settings.half_life_s))
    elif state.usage.half_life_s != settings.half_life_s:
        state = replace(state, usage=DecayedUsage(settings.half_life_s))  # the records are then read again
    try:
        if settings.policy_file is not None:
            read_trusted(settings.policy_file)  # because the file is executed
        run, predict_history = CommandRunner(), _history_predictor(history)
        guard = PredictionGuard(state.mispredictions, _bounds_source(history))
        applied_factors = state.applied_factors if settings.mode == "portable" else None
        updater = JobUpdater(settings.updates_per_s, settings.interval_s, applied_factors)
        interventions = Interventions(config, updater, run, state.interventions)
        shape_provider = OfferedShapeProvider(
            QueuePredictor(config, predict_history, guard),
            interventions.nodes,
            state.interventions.blocked_shapes,
            state.interventions.keeps_request,
        )
        engine = PriorityEngine(config, state, predict_history, shape_provider, guard)
    except OSError as error:
        where = f"priority.policy_file {settings.policy_file}"
        raise ConfigError(where, error.strerror or str(error)) from None
    except ConfigError:
        raise
    except EnergyError as error:
        raise ConfigError("priority", str(error)) from None
    publisher: Publisher = NullPublisher()
    if settings.mode == "plugin":
        refresher = updater if settings.refresh_new_jobs else None
        publisher = TablePublisher(
            settings.table, settings.stale_s, refresher, ranks_all=not settings.partitions
        )
    elif settings.mode == "portable":
        publisher = ScontrolPublisher(updater, lambda: check_weights(run))
    return PriorityPipeline(
        *(engine, _source(config, state, run), publisher, state),
        read_shares=lambda: read_shares(run, config.cluster.name),
        interventions=interventions,
        changes=settings.mode != "shadow",
        stops=(run.stop, updater.stop),
    )


def _source(config: Config, state: EngineState, run: Runner) -> QueueSource:
    """Return the source from which the queue is read: slurmctld's plugin or Slurm commands."""
    settings = config.priority
    table = settings.mode == "plugin" or (settings.mode == "shadow" and _exists(settings.queue_table))
    if table:
        return FallbackQueueSource(QueueTableSource(settings.queue_table), SqueueSource(run))
    return SqueueSource(run, state.applied_factors)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _history_predictor(history: HistoryCache | None) -> HistoryPredictor | None:
    """Return a function that predicts jobs from the history; None means that there is no history."""
    if history is None:
        return None

    def ask(columns: Mapping[str, Sequence[Any]]) -> QueueForecast:
        return history.run(lambda known: predict_many(known, columns))

    return ask


def _bounds_source(history: HistoryCache | None) -> BoundsSource | None:
    """Return a function that reads lower bounds of run times from the history.

    The result is None if there is no history.
    """
    if history is None:
        return None

    def ask(
        columns: Mapping[str, Sequence[Any]], limit_s: Sequence[float], watts: Sequence[float], now: float
    ) -> Bounds:
        return history.run(lambda known: bounds_many(known, columns, limit_s, watts, now))

    return ask
