"""Admission of jobs under power budgets: Slurm licenses of pending jobs, and reservations of licenses.

The license of a job is the power in watts that its start adds above idle. Slurm's scheduler starts only those
jobs whose licenses are free. This module corrects the licenses of jobs, and reserves licenses so that the
free ones equal the headroom of the budget.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_energy.config import Config
from slurm_energy.controller.budget_facts import BudgetScope
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.command import CommandRunner


@dataclass(frozen=True, slots=True)
class BudgetHeadroom:
    """State of one budget after a decision, as the admission of jobs needs it.

    Attributes:
        name: name in the configuration.
        scope: the nodes or jobs under the budget.
        limit_watts: limit now.
        headroom_watts: power that new jobs may add now, above idle; negative above the limit. Infinity: no
            limit.
        steps: (Unix time in seconds, limit in watts from then on) of the next 24 h, in ascending order.
    """

    name: str
    scope: BudgetScope
    limit_watts: float
    headroom_watts: float
    steps: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class NodePowerRange:
    """Power that jobs can add on one node above idle.

    Attributes:
        package_watts: maximum minus idle power of all packages together, with memory.
        gpu_watts: maximum minus idle power of one GPU; 0 without GPUs.
    """

    package_watts: float
    gpu_watts: float = 0.0


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """Result of one update.

    Attributes:
        watts: licenses in watts of each running job, by job id.
        waiting: sentence by pending job that does not fit under a budget.
        problems: what failed or is missing, one line each.
        corrected: number of jobs whose licenses were changed.
    """

    watts: Mapping[int, int] = field(default_factory=dict)
    waiting: Mapping[int, str] = field(default_factory=dict)
    problems: Sequence[str] = ()
    corrected: int = 0


class BudgetAdmission:
    """Admission of jobs under power budgets. Calls block for Slurm's commands: make them in a thread.

    Args:
        config: configuration; `configure` replaces it.
        history: predictions from measured runs; None: there is no history.
        failures: log of failures.
        run: runs Slurm's commands.
    """

    def __init__(
        self,
        config: Config,
        history: object | None,
        failures: RepeatedFailureLog,
        run: CommandRunner | None = None,
    ) -> None:
        self._config, self._history, self._failures = config, history, failures
        self._run = run or CommandRunner()

    def configure(self, config: Config) -> None:
        """Use a new configuration from the next update on."""
        self._config = config

    def policy_lines(self) -> Sequence[str]:
        """Return the lines of the policy file from which the job_submit module computes licenses.

        The lines change after `update`; the caller then writes the policy file again.
        """
        return ()

    def update(
        self,
        now_unix_s: float,
        budgets: Sequence[BudgetHeadroom],
        counted_jobs: Collection[int],
        nodes: Mapping[str, NodePowerRange],
    ) -> AdmissionReport:
        """Adapt licenses and reservations to the budgets. Call it once per control period.

        Args:
            now_unix_s: the time now in Unix seconds.
            budgets: budgets in force after the last decision; empty: no budget applies.
            counted_jobs: job ids whose power the headrooms already count as used. The licenses of other
                running jobs are subtracted from the headrooms.
            nodes: range of power by node, of the nodes that have reported.
        """
        return AdmissionReport()

    def close(self) -> None:
        """Stop Slurm's commands. Reservations stay: they keep the last known budget."""
        self._run.stop()
