"""Computation of the total time in which a simulated cluster exceeds its power budget."""

from __future__ import annotations

from slurm_energy.simulator.power.budget_outlook import SLACK_WATTS
from slurm_energy.simulator.power.step_function import StepFunction


class BudgetExcess:
    """Seconds in which the power exceeded the budget.

    Args:
        budget: the budget over time; None means that there is no budget.

    Attributes:
        over_s: seconds in which the power of the cluster exceeded the budget.
        nodes_over_s: part of `over_s` in which the nodes would have exceeded the budget even without any job.
    """

    def __init__(self, budget: StepFunction | None) -> None:
        self._budget = budget
        self.over_s = self.nodes_over_s = 0.0

    def add(self, begin_s: float, end_s: float, watts: float, node_watts: float) -> None:
        """Add a time interval in which the cluster drew constant power.

        If the power exceeds the budget, the length of the interval counts as time over the budget.

        Args:
            begin_s: start of the interval in seconds.
            end_s: end of the interval in seconds. The budget has no step inside the interval.
            watts: power of the cluster.
            node_watts: part of `watts` that the nodes would draw without jobs.
        """
        if self._budget is None:
            return
        # Twice the slack, because decisions use all of it and sums of floats differ by rounding.
        limit_watts = self._budget.at(begin_s) + 2 * SLACK_WATTS
        if watts > limit_watts:
            self.over_s += end_s - begin_s
            self.nodes_over_s += end_s - begin_s if node_watts > limit_watts else 0.0
