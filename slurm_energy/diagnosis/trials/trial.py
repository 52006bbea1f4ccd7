"""Data of a trial: a test whether adjusted values improve the runs of a diagnosed program.

A trial contains the adjustments, the compared runs with and without the adjustments, and the
decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal
from slurm_energy.diagnosis.trials.run_figures import RunFigures
from slurm_energy.diagnosis.trials.verification import TrialDecision, TrialVerdict, is_unresolved


@dataclass(frozen=True, slots=True)
class AdjustmentTrial:
    """Test of adjustments (changed values of a program): the adjustments, the runs, and the decision.

    Runs with the adjustments are compared with runs without them. The program and the state of the trial are
    stored separately.

    Attributes:
        job: id of the diagnosed job.
        proposal: the adjustments with their predicted gain.
        slowdown_percent: permitted increase of the time per unit of progress, in percent.
        base: values of the diagnosed run, by kind of adjustment.
        before: completed runs with the values of `base`.
        after: runs with the adjustments.
        decision: result of the last comparison; None means that there was no comparison yet.
        controls: completed runs with the values of `base` since the trial began.
    """

    job: str
    proposal: AdjustmentProposal
    slowdown_percent: int
    base: Mapping[str, int] = field(default_factory=dict)
    before: tuple[RunFigures, ...] = ()
    after: tuple[RunFigures, ...] = ()
    decision: TrialDecision | None = None
    controls: int = 0

    @property
    def awaits_control(self) -> bool:
        """Whether the next run gets the unadjusted values of `base`, as a control run.

        While noise hides the predicted gain, runs with and without the adjustments alternate. The
        alternation is necessary because the load of the nodes during the trial may differ from the
        load before the trial.
        """
        if self.decision is None or self.controls >= len(self.after):
            return False
        return is_unresolved(self.proposal, self.decision, len(self.before) + len(self.after))

    @property
    def values(self) -> dict[str, int]:
        """Values with which a run in the trial starts, by kind of adjustment.

        The values are those of the diagnosed run. The adjustments of the trial replace some of them.
        """
        return {**self.base, **{one.kind.value: one.new for one in self.proposal.adjustments}}

    @property
    def program_values(self) -> dict[str, int]:
        """New values of the adjustments that the running program must request itself.

        The dict maps each kind of adjustment to its value.
        """
        own = self.proposal.adjustments
        return {one.kind.value: one.new for one in own if one.is_for_program}

    @property
    def sbatch_options(self) -> list[str]:
        """Options that sbatch needs so that the next run uses the adjusted values.

        The list is empty if the adjustments work without any option of sbatch.
        """
        return [option for one in self.proposal.adjustments if (option := one.sbatch_option) is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the trial as a JSON object."""
        return {
            "job": self.job,
            **self.proposal.to_json(),
            "slowdown_percent": self.slowdown_percent,
            "base": dict(self.base),
            "before": [run.to_json() for run in self.before],
            "after": [run.to_json() for run in self.after],
            "decision": None if self.decision is None else self.decision.to_json(),
            "controls": self.controls,
        }

    @classmethod
    def from_json(cls, text: str) -> AdjustmentTrial:
        """Build a trial (test of changed values in the next runs of a program) from its JSON text.

        The method `to_json` wrote the text.
        """
        data = json.loads(text)
        decision = data.get("decision")
        return cls(
            job=data["job"],
            proposal=AdjustmentProposal.from_json(data),
            slowdown_percent=data["slowdown_percent"],
            base=data["base"],
            before=tuple(RunFigures.from_json(run) for run in data["before"]),
            after=tuple(RunFigures.from_json(run) for run in data["after"]),
            controls=data.get("controls", 0),
            decision=None
            if decision is None
            else TrialDecision(
                TrialVerdict(decision["verdict"]),
                decision["reason"],
                decision["unit"],
                decision["measured_time_ratio"],
                decision["measured_energy_ratio"],
                decision["noise"],
            ),
        )
