"""Construction of the planner of deferrable jobs. The module needs numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.config import Config
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.deferral.planner import DeferralPlanner
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.oracle.history.queue_forecast import QueueForecast, predict_many
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.queue.job_update import JobUpdater
from slurm_energy.slurm.queue.node_resources import read_nodes
from slurm_energy.slurm.queue.squeue_source import SqueueSource


def make_planner(
    config: Config, run: CommandRunner, history: HistoryCache | None, begin_times: BeginTimes
) -> DeferralPlanner:
    """Return the planner for a configuration.

    Args:
        config: configuration with a deferral policy.
        run: runs Slurm's commands.
        history: history of measured runs, from which run times are predicted; None means that there is no
            history.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay jobs.

    Raises:
        NotFoundError: the deferral policy is unknown.
    """

    def predict(columns: Mapping[str, Sequence[Any]]) -> QueueForecast:
        assert history is not None
        return history.run(lambda known: predict_many(known, columns))

    updater = JobUpdater(config.priority.updates_per_s, max(1.0, config.deferral.interval_s))
    return DeferralPlanner(
        *(config, SqueueSource(run), updater, begin_times),
        None if history is None else predict,
        lambda: read_nodes(run),
    )
