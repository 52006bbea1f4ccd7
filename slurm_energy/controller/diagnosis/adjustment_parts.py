"""Construction of the parts of senergyctld that change settings of users' programs (adjustments)."""

from __future__ import annotations

from collections.abc import Callable

from slurm_energy.config import Config
from slurm_energy.controller.diagnosis.adjustment_loop import AdjustmentLoop
from slurm_energy.controller.diagnosis.adjustment_routes import AdjustmentRoutes
from slurm_energy.controller.diagnosis.adjustment_trials import AdjustmentTrials
from slurm_energy.controller.diagnosis.run_diagnosis import RunDiagnosis
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.advisor import TuningAdvisor
from slurm_energy.log_once import RepeatedFailureLog


def adjustment_parts(
    config: Callable[[], Config], store: Store, advisor: TuningAdvisor, failures: RepeatedFailureLog
) -> tuple[AdjustmentRoutes, AdjustmentLoop]:
    """Create the parts of the controller that deal with adjustments.

    An adjustment is a value that the diagnosis advises for the next run of a program. A trial compares
    runs with an adjustment with earlier runs.

    Args:
        config: returns the current configuration.
        store: the database.
        advisor: adviser of the agents, which knows the running jobs and the programs of these jobs.
        failures: log of failures; a repeated failure is logged once.

    Returns:
        The handlers of the HTTP routes about adjustments, and the periodic task that evaluates trials.
    """
    trials = AdjustmentTrials(config, store, RunDiagnosis(config, store))
    routes = AdjustmentRoutes(config, store, trials, advisor)
    return routes, AdjustmentLoop(config, store, trials, failures)
