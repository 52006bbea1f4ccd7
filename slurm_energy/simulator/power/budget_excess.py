"""Time in which the power of the cluster exceeds the budget."""

from __future__ import annotations

from slurm_energy.simulator.power.budget_outlook import SLACK_WATTS
from slurm_energy.simulator.power.step_function import StepFunction


class BudgetExcess:
    """Seconds in which the power exceeded the budget.

    Args:
        budget: the budget over time; None: there is none.

    Attributes:
        over_s: seconds above the budget.
        nodes_over_s: part of them in which the nodes alone exceeded it, without any job.
    """

    def __init__(self, budget: StepFunction | None) -> None:
        self._budget = budget
        self.over_s = self.nodes_over_s = 0.0

    def add(self, begin_s: float, end_s: float, watts: float, node_watts: float) -> None:
        """Count a time of constant power.

        Args:
            begin_s: start of the time.
            end_s: its end; the budget has no step before it.
            watts: power of the cluster.
            node_watts: part of it that belongs to the nodes without jobs.
        """
        if self._budget is None:
            return
        # Twice the slack, because decisions use all of it and sums of floats differ by rounding.
        limit_watts = self._budget.at(begin_s) + 2 * SLACK_WATTS
        if watts > limit_watts:
            self.over_s += end_s - begin_s
            self.nodes_over_s += end_s - begin_s if node_watts > limit_watts else 0.0
