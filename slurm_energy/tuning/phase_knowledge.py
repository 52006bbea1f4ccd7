"""Knowledge about one phase (part of the run time) of a job, as the basis of tuning.

The module stores measurements of the phase without tuning and at tuned settings. From these
measurements it computes how the phase may respond to settings: a set of possible responses, each with
a weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.candidates import Reference
from slurm_energy.tuning.decision import MARGIN
from slurm_energy.tuning.ensemble import Ensemble, EnsemblePosterior, Observation
from slurm_energy.tuning.measurements import ReferenceTrack, SpeedMeasurement
from slurm_energy.tuning.objective import TIME_EXPONENTS, Objective
from slurm_energy.tuning.priors import Prior
from slurm_energy.tuning.progress_window import ProgressWindow

_SAME_SPEED = 0.04
_SAME_POWER = 0.08
_REFUTING_SIGMA = 3.0
_MAX_REFERENCE_BLOCKS = 8


class PhaseKnowledge:
    """Measurements of the tuning in one phase (part of the run time) of a job, and their evaluation.

    The tuning measures the job at some of the candidate points. A candidate point is a set of hardware
    settings. The measurements weight an ensemble, which is a set of possible responses of the job to
    settings.

    Attributes:
        track: measurements of the untuned job over time, which serve as the reference.
        visits: measurement at each candidate point that was tried, by index. Index 0 is the untuned
            point.
        probes: number of candidate points that were tried.
        chosen: index of the point at which the search settled in this phase; None before the first
            choice.
        held_s: time spent in this phase after the measurement of the reference.
    """

    def __init__(self, blocks: Sequence[SpeedMeasurement] = ()) -> None:
        """Start a phase of tuning.

        `blocks` contains the first measurements of the untuned job, which serve as the reference.
        """
        self.track = ReferenceTrack(blocks)
        self.visits: dict[int, SpeedMeasurement] = {}
        self.probes = 0
        self.chosen: int | None = None
        self.held_s = 0.0
        self.reference: Reference | None = None
        self.ensemble: Ensemble | None = None

    def build(self, points: Sequence[OperatingPoint], prior: Prior, reference: Reference) -> None:
        """Draw samples of how the job may respond to operating points (possible settings).

        The samples (the ensemble) come from the prior, the expectation without measurements of this job.

        Args:
            points: operating points that the search may try.
            prior: source of the samples.
            reference: measured power of the untuned job.
        """
        self.reference = reference
        self.ensemble = prior.ensemble(points, reference)

    def add(self, index: int, window: ProgressWindow) -> None:
        """Add a measurement window in which the job ran at a tuned operating point.

        An operating point is a set of hardware settings.
        """
        self.visits.setdefault(index, SpeedMeasurement()).add(window)
        self.held_s += window.duration_s

    def log_ratios(self, window_or_visit: ProgressWindow | SpeedMeasurement) -> tuple[float, float]:
        """Return how the time and power in a measurement window differ from those of the untuned job.

        The two results are the logarithms of the relative time and of the relative power. The time and power
        of the untuned job are those at the time of the measurement.
        """
        if isinstance(window_or_visit, ProgressWindow):
            mid_s = window_or_visit.start_s + window_or_visit.duration_s / 2
        else:
            mid_s = window_or_visit.mid_s
        rate, _, power = self.track.at(mid_s)
        return rate - math.log(window_or_visit.units_per_s), math.log(window_or_visit.watts) - power

    def reference_error(self) -> float:
        """Return the standard error of the logarithm of the job's untuned speed."""
        return self.track.at(self.track.blocks[-1].mid_s)[1]

    def needs_reference_for(self, index: int) -> bool:
        """Return whether the untuned job must be measured again before a point can be judged.

        The measurement of the untuned job is the reference for the measurements of all operating points. The
        result is True if the reference is less accurate than the measurement of the given point. It is False
        if the reference has already been measured the maximum number of times.

        Args:
            index: index of the operating point.
        """
        visit = self.visits.get(index)
        return (
            visit is not None
            and len(self.track.blocks) < _MAX_REFERENCE_BLOCKS
            and self.reference_error() > visit.relative_error
        )

    def refuted(self, objective: Objective) -> frozenset[int]:
        """Return the indices of the operating points that their own measurements have ruled out.

        The measurements of such a point show that it saves nothing, or that its slowdown exceeds the limit.
        """
        return frozenset(index for index, visit in self.visits.items() if self._is_refuted(visit, objective))

    def _is_refuted(self, visit: SpeedMeasurement, objective: Objective) -> bool:
        log_time, log_power = self.log_ratios(visit)
        exponent, limit = TIME_EXPONENTS[objective.name], objective.slowdown_limit
        time_error = math.hypot(visit.relative_error, self.reference_error())
        if limit is not None and log_time - _REFUTING_SIGMA * time_error > math.log1p(limit + MARGIN):
            return True
        error = _REFUTING_SIGMA * math.hypot(exponent * time_error, visit.power_error)
        return exponent * log_time + log_power - error > 0.0

    def posterior(self) -> EnsemblePosterior:
        """Return the prediction of the job's response, given all measurements in this phase.

        The prediction is the ensemble of possible responses, weighted by the measurements. The measurements
        include all visits to each point.
        """
        assert self.ensemble is not None
        observations = []
        for index, visit in self.visits.items():
            log_time, log_power = self.log_ratios(visit)
            observations.append(
                Observation(index, log_time, log_power, visit.relative_error, visit.power_error)
            )
        power_error = min(block.power_error for block in self.track.blocks if block.windows)
        return self.ensemble.condition(observations, self.reference_error(), power_error)

    def resembles(self, block: SpeedMeasurement) -> bool:
        """Return whether a measurement without tuning could come from this phase of the job.

        Speed and power of the measurement are compared with the last untuned measurement of the phase.
        """
        blocks = [item for item in self.track.blocks if item.windows]
        if not blocks or self.ensemble is None:
            return False
        last = blocks[-1]
        error = math.hypot(block.relative_error, last.relative_error)
        same_speed = abs(math.log(block.units_per_s / last.units_per_s)) <= max(_SAME_SPEED, 3.0 * error)
        return same_speed and abs(math.log(block.watts / last.watts)) <= _SAME_POWER

    def to_json(self) -> dict[str, Any]:
        """Return the measurements of this phase of the job as a dict that can be stored as JSON."""
        reference = self.reference
        return {
            "blocks": [block.to_json() for block in self.track.blocks],
            "visits": {str(index): visit.to_json() for index, visit in self.visits.items()},
            "probes": self.probes,
            "chosen": self.chosen,
            "held_s": self.held_s,
            "reference": reference
            and {
                "watts": reference.watts,
                "gpu_watts": reference.gpu_watts,
                "package_watts": reference.package_watts,
            },
        }

    @classmethod
    def from_json(
        cls, data: dict[str, Any], points: Sequence[OperatingPoint], prior: Prior
    ) -> PhaseKnowledge:
        """Restore the measurements of a phase of tuning from a dict that `to_json` returned."""
        made = cls()
        made.track = ReferenceTrack(SpeedMeasurement(**block) for block in data["blocks"])
        made.visits = {int(index): SpeedMeasurement(**visit) for index, visit in data["visits"].items()}
        made.probes, made.chosen, made.held_s = data["probes"], data["chosen"], data["held_s"]
        if data["reference"] is not None:
            made.build(points, prior, Reference(**data["reference"]))
        return made
