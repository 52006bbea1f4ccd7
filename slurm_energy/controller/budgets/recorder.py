"""Collection of the data about power budgets that senergyctld stores.

The collected samples of the power go to the database. The collected events go to the audit trail.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.accounting.budgets import FINE_SPAN_S, BudgetChange, BudgetSample
from slurm_energy.controller.budgets.facts import BudgetCycle, BudgetedNodeStatus, BudgetStatus

SMOOTHING_S: Final = 5.0
"""Time over which the measured power is averaged before it is compared with the limit. The power that nodes
report jumps for seconds when jobs start or end, because their sensors do not cover the same time."""
MAX_CHANGES: Final = 1000
"""Events kept while the database does not accept them; older ones are dropped."""
_MAX_NODES_NAMED: Final = 20
_FAULTY: Final = ("silent", "distrusted")


@dataclass(slots=True)
class _Span:
    """Sums about one budget during the current sampling interval, such as its measured energy.

    Times are Unix seconds.
    """

    begin: float
    end: float
    limit_watts: float = math.inf
    measured_joules: float = 0.0
    measured_s: float = 0.0
    max_measured_watts: float | None = None
    committed_watts: float = 0.0
    capped_joules: float = 0.0
    headroom_watts: float = math.inf
    over_s: float = 0.0

    def add(self, status: BudgetStatus, smoothed_watts: float | None, seconds: float) -> None:
        self.end += seconds
        self.limit_watts = min(self.limit_watts, status.limit_watts)
        self.committed_watts = max(self.committed_watts, status.committed_watts)
        self.capped_joules += status.capped_watts * seconds
        self.headroom_watts = min(self.headroom_watts, status.headroom_watts)
        if status.measured_watts is not None:
            self.measured_joules += status.measured_watts * seconds
            self.measured_s += seconds
        if smoothed_watts is not None:
            self.max_measured_watts = max(self.max_measured_watts or 0.0, smoothed_watts)
            self.over_s += seconds if smoothed_watts > status.limit_watts else 0.0

    def sample(self, budget: str) -> BudgetSample:
        span_s = self.end - self.begin
        return BudgetSample(
            budget=budget,
            time=self.begin,
            span_s=span_s,
            limit_watts=self.limit_watts,
            measured_watts=self.measured_joules / self.measured_s if self.measured_s else None,
            max_measured_watts=self.max_measured_watts,
            committed_watts=self.committed_watts,
            capped_watts=self.capped_joules / span_s,
            headroom_watts=self.headroom_watts,
            over_s=self.over_s,
        )


class BudgetRecorder:
    """Collector of the power samples and the events of budgets.

    The collector keeps them in memory from one write to the database to the next.
    """

    def __init__(self) -> None:
        self._spans: dict[str, _Span] = {}
        self._samples: list[BudgetSample] = []
        self._changes: list[BudgetChange] = []
        self._problems: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._is_over: set[str] = set()
        self._added_s: float | None = None
        self._measured: dict[str, deque[tuple[float, float]]] = {}

    @property
    def over(self) -> list[str]:
        """Names of the budgets whose mean power over `SMOOTHING_S` is above their limit."""
        return sorted(self._is_over)

    def add(self, cycle: BudgetCycle, now_s: float, unix_s: float) -> None:
        """Add the states of the budgets after a decision.

        Args:
            cycle: the decision.
            now_s: monotonic time of the decision.
            unix_s: time of the decision in Unix seconds.
        """
        seconds = 1.0 if self._added_s is None else min(FINE_SPAN_S, max(0.0, now_s - self._added_s))
        self._added_s = now_s
        for status in cycle.budgets:
            self._add_status(status, self._smoothed_watts(status, now_s), seconds, unix_s)
        for name in self._spans.keys() - {status.name for status in cycle.budgets}:
            del self._spans[name]
            self._measured.pop(name, None)
            self._is_over.discard(name)

    def _smoothed_watts(self, status: BudgetStatus, now_s: float) -> float | None:
        """Return the mean of the measured power over `SMOOTHING_S`; None means unknown."""
        if status.measured_watts is None:
            self._measured.pop(status.name, None)
            return None
        recent = self._measured.setdefault(status.name, deque())
        recent.append((now_s, status.measured_watts))
        while recent[0][0] < now_s - SMOOTHING_S:
            recent.popleft()
        return sum(watts for _, watts in recent) / len(recent)

    def _add_status(
        self, status: BudgetStatus, smoothed_watts: float | None, seconds: float, unix_s: float
    ) -> None:
        span = self._spans.get(status.name)
        if span is None or not 0 <= unix_s - span.begin < FINE_SPAN_S:
            if span is not None and span.end > span.begin:
                self._samples.append(span.sample(status.name))
            span = self._spans[status.name] = _Span(unix_s, unix_s)
        span.add(status, smoothed_watts, seconds)
        measured, limit = smoothed_watts, status.limit_watts
        if measured is not None and (measured > limit) != (status.name in self._is_over):
            if measured > limit:
                self._is_over.add(status.name)
                text = f"{measured:.0f} W are measured above the limit of {limit:.0f} W"
            else:
                self._is_over.discard(status.name)
                text = f"{measured:.0f} W are measured, within the limit of {limit:.0f} W again"
            self.note(BudgetChange(unix_s, status.name, None, "over", text))

    def add_problems(self, problems: Mapping[str, str], unix_s: float) -> None:
        """Record in the audit trail which faults in reading the budget limits have started or ended.

        `problems` has the present fault of each budget by name; an empty text means no fault.
        """
        for name, problem in problems.items():
            if self._problems.get(name, "") != problem:
                text = problem or "the limit is read again"
                self.note(BudgetChange(unix_s, name, None, "signal", text))
        self._problems = dict(problems)

    def add_nodes(self, nodes: Mapping[str, BudgetedNodeStatus], unix_s: float) -> None:
        """Record events about nodes whose state has changed: a node has a fault, or has recovered.

        A node has a fault if it has stopped reporting or is not trusted.
        """
        states = {name: status.state for name, status in nodes.items()}
        for state in (*_FAULTY, "reporting"):
            changed = sorted(
                name
                for name, now in states.items()
                if now == state != self._states.get(name, "reporting")
                and (state in _FAULTY or self._states.get(name) in _FAULTY)
            )
            if changed:
                names = ", ".join(changed[:_MAX_NODES_NAMED]) + (
                    f" and {len(changed) - _MAX_NODES_NAMED} more" if len(changed) > _MAX_NODES_NAMED else ""
                )
                reason = next((nodes[name].reason for name in changed if nodes[name].reason), "")
                text = f"{state}: {names}" + (f" ({reason})" if reason else "")
                self.note(BudgetChange(unix_s, None, None, "node", text))
        self._states = states

    def note(self, change: BudgetChange) -> None:
        """Add an event to the audit trail."""
        self._changes = [*self._changes[-MAX_CHANGES:], change]

    def take(self) -> tuple[Sequence[BudgetSample], Sequence[BudgetChange]]:
        """Return all power samples and changes of budgets that were recorded since the last call.

        The recorder then no longer stores them.
        """
        samples, changes = self._samples, self._changes
        self._samples, self._changes = [], []
        return samples, changes

    def put_back(self, samples: Sequence[BudgetSample], changes: Sequence[BudgetChange]) -> None:
        """Put back the samples and events that the database did not accept.

        A limited number of each is kept.
        """
        self._samples = [*samples, *self._samples][-MAX_CHANGES:]
        self._changes = [*changes, *self._changes][-MAX_CHANGES:]
