"""Search for the operating point that is best for a job's objective, while the job runs.

The search measures the progress of the job in time windows at different operating points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.candidates import Reference
from slurm_energy.tuning.decision import Situation, decide
from slurm_energy.tuning.ensemble import EnsemblePosterior
from slurm_energy.tuning.guard import (
    ChangeDetector,
    DevicePowerGuard,
    RegularityGuard,
    RunBudget,
    is_surprise,
)
from slurm_energy.tuning.measurements import NoiseScale, ReferenceCheck, SpeedMeasurement
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.phase_knowledge import PhaseKnowledge
from slurm_energy.tuning.priors import Prior
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve
from slurm_energy.tuning.search_options import SearchOptions, SearchPhase
from slurm_energy.tuning.search_summary import response_points, summary

__all__ = ["SearchOptions", "SearchPhase", "TuningSearch"]

_MAX_PHASES = 8
_MAX_POINT_WINDOWS = 30
_MIN_CHANGE = 0.04
_MIN_POWER_CHANGE = 0.15
_SHORT_PHASE_WINDOWS = 5
_MAX_SHORT_PHASES = 3
_MAX_PATIENCE = 4.0
_REFUSED_AFTER_WINDOWS = 3
_RETRY_WINDOWS = 2


class TuningSearch:
    """Search for the best operating point of one job.

    The caller sets `requested` on all nodes and GPUs of the job, measures a window that begins after the
    setting took effect, and passes the window to `observe`. The search first measures the untuned reference.
    The search then repeatedly tries the point with the best expected objective, until no untried point is
    expected to be better. After that, the job stays at the best measured point.

    If a later window contradicts the expectation at this point, the job returns to the reference. If the
    reference has changed as well, a new phase of the job has begun, and a separate search starts for it.
    """

    def __init__(
        self,
        candidates: Sequence[OperatingPoint],
        objective: Objective,
        prior: Prior,
        options: SearchOptions | None = None,
    ) -> None:
        """Start the search. The search first measures the job with untuned settings, as its reference."""
        self._points = (UNTUNED, *dict.fromkeys(point for point in candidates if point != UNTUNED))
        self._index = {point: number for number, point in enumerate(self._points)}
        self._objective = objective
        self._prior = prior
        self._options = options or SearchOptions()
        self._phase = SearchPhase.REFERENCE
        self._current = 0
        self._knowledge = PhaseKnowledge()
        self._memory: list[PhaseKnowledge] = []
        self._check: ReferenceCheck | None = None
        self._contradicted: set[int] = set()
        self._noise = NoiseScale()
        self._detector = ChangeDetector()
        self._budget = RunBudget(objective, self._options.expected_duration_s)
        self._refused: set[int] = set()
        self._mismatches = 0
        self._windows_here = 0
        self._phase_windows = 0
        self._short_phases = 0
        self._regularity = RegularityGuard()
        self._source: ProgressSource | None = None
        self._spans_cycles = False
        self._start_s: float | None = None
        self._last_s = 0.0
        self._posterior: EnsemblePosterior | None = None
        self._device_power = DevicePowerGuard()
        self._static = (UNTUNED, CurveSource.GENERIC_PRIOR)

    @property
    def requested(self) -> OperatingPoint:
        """Operating point (hardware settings) that the search wants to be in force now."""
        return self._static[0] if self._phase is SearchPhase.STATIC else self._points[self._current]

    @property
    def phase(self) -> SearchPhase:
        """Present stage of the search for the best settings of a job.

        An example is the stage in which the untuned job is measured.
        """
        return self._phase

    def observe(self, window: ProgressWindow) -> None:
        """Update the search with a measurement window, and decide on the next operating point."""
        if not window.is_plausible:
            return
        self._start_s = window.start_s if self._start_s is None else self._start_s
        # The time between two windows counts as the later window: the setting took effect in between.
        elapsed_s = window.start_s + window.duration_s - max(self._last_s, self._start_s)
        self._last_s = window.start_s + window.duration_s
        if window.start_s < self._start_s + self._options.warmup_s:
            return
        if window.source is ProgressSource.NONE:
            self._observe_without_progress(window)
            return
        self._note_units(window)
        if window.point != self._points[self._current]:
            self._observe_mismatch()
            return
        self._mismatches = 0
        if not window.has_speed:
            if self._current != 0:
                self._return_to_reference()
            return
        window = window.with_error_scaled(self._noise.factor)
        self._windows_here += 1
        self._phase_windows += 1
        self._regularity.add_window()
        if self._current == 0:
            self._budget.add(elapsed_s, 0.0, 0.0)
        if self._current != 0:
            self._observe_tuned(window, elapsed_s)
        elif self._phase is SearchPhase.REFERENCE:
            self._observe_reference(window)
        else:
            self._observe_untuned_hold(window)

    def summary(self) -> dict[str, Any]:
        """Return the result of the tuning in the format of the key `tuning` in the job's record."""
        static = self._static if self._phase is SearchPhase.STATIC else None
        return summary(self._points, self._objective, [self._knowledge, *self._memory], self._source, static)

    def curve(self, hardware: str, workload: str) -> ResponseCurve:
        """Return the relative times and powers that this run has measured, as a response curve."""
        return ResponseCurve(
            hardware, workload, tuple(response_points(self._points, [self._knowledge, *self._memory]))
        )

    def to_json(self) -> dict[str, Any]:
        """Return the state as a dict for JSON. Measurements in progress are left out."""
        return {
            "knowledge": self._knowledge.to_json(),
            "memory": [item.to_json() for item in self._memory],
            "phase": self._phase.value,
            "current": self._current,
            "refused": sorted(self._refused),
            "source": self._source and self._source.value,
            "spans_cycles": self._spans_cycles,
            "start_s": self._start_s,
            "static": [self._static[0].to_json(), self._static[1].value],
            "points": [point.to_json() for point in self._points],
        }

    @classmethod
    def from_json(
        cls,
        data: dict[str, Any],
        candidates: Sequence[OperatingPoint],
        objective: Objective,
        prior: Prior,
        options: SearchOptions | None = None,
    ) -> TuningSearch:
        """Restore a search from a dict that `to_json` returned.

        If `candidates` are not the candidates of the stored search, the search starts from the beginning.
        """
        made = cls(candidates, objective, prior, options)
        if data["points"] != [point.to_json() for point in made._points]:
            return made
        made._knowledge = PhaseKnowledge.from_json(data["knowledge"], made._points, prior)
        made._memory = [PhaseKnowledge.from_json(item, made._points, prior) for item in data["memory"]]
        made._phase = SearchPhase(data["phase"])
        made._current = data["current"]
        made._refused = set(data["refused"])
        made._source = None if data["source"] is None else ProgressSource(data["source"])
        made._spans_cycles = data.get("spans_cycles") is True
        made._start_s = data["start_s"]
        made._static = (OperatingPoint.from_json(data["static"][0]), CurveSource(data["static"][1]))
        if made._phase is SearchPhase.REFERENCE and made._knowledge.ensemble is not None:
            made._check = ReferenceCheck(None, False)
        return made

    def _observe_without_progress(self, window: ProgressWindow) -> None:
        if self._source is not None:
            # The progress has stopped. The point in force has proved good; nothing can be learned now.
            return
        if self._phase is SearchPhase.REFERENCE and window.point == UNTUNED and window.watts > 0:
            reference = Reference(window.watts, window.gpu_watts, window.package_watts)
            self._static = self._prior.static_point(self._points, reference, self._objective)
            self._phase = SearchPhase.STATIC

    def _observe_mismatch(self) -> None:
        """Count a measurement window with a wrong operating point in force.

        If the requested operating point is repeatedly not in force, the hardware refuses it. The search then
        excludes this point.
        """
        self._mismatches += 1
        if self._mismatches >= _REFUSED_AFTER_WINDOWS and self._current != 0:
            self._refused.add(self._current)
            self._mismatches = 0
            if self._knowledge.ensemble is not None:
                self._move_on()

    def _observe_reference(self, window: ProgressWindow) -> None:
        if self._check is not None:
            self._noise.add(self._check.block, window)
            self._check.block.add(window)
            self._finish_check(self._check, window)
            return
        block = self._knowledge.track.open_block()
        self._noise.add(block, window)
        block.add(window)
        if self._is_accurate(block):
            self._begin_phase(block, window)

    def _finish_check(self, check: ReferenceCheck, window: ProgressWindow) -> None:
        """Complete a check whether the untuned job still behaves as before.

        The check repeats the measurement of the untuned job (the reference). If the new measurement agrees
        with the reference of the current phase of the job, this phase continues. Otherwise the job has
        changed, and another phase begins.
        """
        if not self._knowledge.resembles(check.block):
            self._check = None
            self._short_phases = self._short_phases + 1 if self._phase_windows < _SHORT_PHASE_WINDOWS else 0
            self._phase_windows = 0
            if self._short_phases >= _MAX_SHORT_PHASES:
                self._merge_phases(check.block)
            else:
                self._remember()
                self._knowledge = PhaseKnowledge([check.block])
                self._begin_phase(check.block, window)
        elif not check.precise or self._is_accurate(check.block):
            self._check = None
            self._knowledge.track.append(check.block)
            if check.suspect is not None:
                self._regularity.add_contradiction()
                self._accept(check.suspect)
            self._move_on()

    def _merge_phases(self, block: SpeedMeasurement) -> None:
        """Merge the last short phases of a job into one phase.

        A phase is a time in which the job behaves equally. A short phase lasts only a few measurement
        windows, for example because of checkpoints. The measurements of the short phases differ. The merged
        phase treats these differences as noise: it assumes a larger scatter of the measurements.
        """
        last = self._knowledge.track.blocks[-1]
        self._noise.widen(last, block)
        self._knowledge, self._memory = PhaseKnowledge([last.joined(block)]), []
        self._posterior, self._short_phases = None, 0
        self._contradicted.clear()

    def _accept(self, window: ProgressWindow) -> None:
        """Use a measurement that contradicts the earlier measurements at the same operating point.

        The untuned job has not changed, so the measurement is not discarded but added to the earlier ones.
        After a second contradiction in succession, the new measurement replaces the earlier ones at this
        point.
        """
        knowledge, index = self._knowledge, self._index[window.point]
        if index == 0:
            self._noise.add(knowledge.track.blocks[-1], window)
            knowledge.track.blocks[-1].add(window)
            return
        visit = knowledge.visits.get(index)
        if visit is not None and index not in self._contradicted:
            self._noise.add(visit, window)
            self._contradicted.add(index)
        else:
            # The second contradiction in a row: the response at this point has changed.
            knowledge.visits.pop(index, None)
        knowledge.add(index, window)

    def _begin_phase(self, block: SpeedMeasurement, window: ProgressWindow) -> None:
        """Continue the search of an earlier phase of the job, or start a search for a new phase.

        An earlier phase is continued if its untuned speed and power are similar to the new untuned
        measurement.
        """
        for item in self._memory:
            if item.resembles(block):
                self._memory.remove(item)
                item.track.append(block)
                self._knowledge = item
                self._move_on()
                return
        reference = Reference(block.watts, window.gpu_watts, window.package_watts)
        self._knowledge.build(self._points, self._prior, reference)
        start = self._index.get(self._options.start) if self._options.start is not None else None
        if start and start not in self._refused and not self._memory:
            self._go_to(start, SearchPhase.PROBE)
        else:
            self._move_on()

    def _observe_tuned(self, window: ProgressWindow, elapsed_s: float) -> None:
        knowledge = self._knowledge
        log_time, log_power = knowledge.log_ratios(window)
        posterior = self._posterior or knowledge.posterior()
        residual = float(posterior.mean_log_time()[self._current]) - log_time
        error = math.hypot(posterior.log_time_error(self._current), window.relative_error)
        power = log_power - float(posterior.mean_log_power()[self._current])
        if self._phase is SearchPhase.HOLD:
            power = max(power, self._device_power.add(window), key=abs)
        self._budget.add(elapsed_s, log_time, log_power)
        if self._has_changed(residual, error, power if self._phase is SearchPhase.HOLD else 0.0):
            self._return_to_reference(suspect=window)
            return
        self._contradicted.discard(self._current)
        if self._current in knowledge.visits:
            self._noise.add(knowledge.visits[self._current], window)
        knowledge.add(self._current, window)
        remaining = self._budget.remaining_windows(knowledge.track.blocks[0].window_s)
        if self._phase is SearchPhase.HOLD and knowledge.track.is_old(self._windows_here, remaining):
            self._return_to_reference()
        else:
            self._move_on()

    def _observe_untuned_hold(self, window: ProgressWindow) -> None:
        knowledge = self._knowledge
        log_time, log_power = knowledge.log_ratios(window)
        error = math.hypot(window.relative_error, knowledge.reference_error())
        knowledge.held_s += window.duration_s
        if self._has_changed(-log_time, error, log_power):
            self._return_to_reference(suspect=window)
        else:
            self._noise.add(knowledge.track.blocks[-1], window)
            knowledge.track.blocks[-1].add(window)
            if self._windows_here % _RETRY_WINDOWS == 0:
                self._move_on()  # the budget for probes grows with the time that the job has run

    def _has_changed(self, residual: float, error: float, power_residual: float) -> bool:
        """Return whether a measurement shows that the program has changed.

        The program has changed if the measured speed or power contradicts the expected speed or power.
        """
        if is_surprise(residual, error, _MIN_CHANGE) or abs(power_residual) > _MIN_POWER_CHANGE:
            return True
        return self._phase is SearchPhase.HOLD and self._detector.add(residual, error)

    def _move_on(self) -> None:
        """Decide which operating point is measured or kept next, and change to it.

        The decision uses all measurements of the present phase of the search. If the speed of the job
        fluctuates too much, the search ends at the untuned point.
        """
        if self._regularity.is_irregular:
            self._go_to(0, SearchPhase.HOLD)
            return
        knowledge = self._knowledge
        window_s = knowledge.track.blocks[0].window_s
        situation = Situation(
            self._current,
            frozenset(knowledge.visits),
            frozenset(self._excluded()),
            knowledge.refuted(self._objective),
            may_probe=knowledge.probes < self._options.max_probes,
            remaining_windows=self._budget.remaining_windows(window_s),
            max_time_ratio=self._budget.max_time_ratio(window_s),
            run_slowdown=self._budget.slowdown,
            max_loss=self._budget.max_loss(window_s),
        )
        self._posterior = knowledge.posterior()
        decision = decide(self._posterior, self._objective, situation)
        if decision.probe and knowledge.needs_reference_for(decision.index):
            self._return_to_reference(precise=True)
        else:
            self._go_to(decision.index, SearchPhase.PROBE if decision.probe else SearchPhase.HOLD)

    def _excluded(self) -> set[int]:
        """Return the operating points that the search must not try any more.

        These are the points that the hardware refused, and the points that took too many measurement
        windows.
        """
        visits = self._knowledge.visits.items()
        return self._refused | {index for index, visit in visits if visit.windows >= _MAX_POINT_WINDOWS}

    def _go_to(self, index: int, phase: SearchPhase) -> None:
        knowledge = self._knowledge
        if index != self._current:
            self._windows_here = 0
            self._device_power.reset()
            self._detector.reset()
            if index != 0 and index not in knowledge.visits:
                knowledge.probes += 1
        if phase is SearchPhase.HOLD:
            knowledge.chosen = index
        self._current, self._phase = index, phase

    def _return_to_reference(self, suspect: ProgressWindow | None = None, precise: bool = False) -> None:
        self._current, self._phase = 0, SearchPhase.REFERENCE
        self._windows_here = 0
        self._device_power.reset()
        self._detector.reset()
        if self._knowledge.ensemble is not None:
            self._check = ReferenceCheck(suspect, precise)

    def _remember(self) -> None:
        if self._knowledge.ensemble is not None:
            self._memory.append(self._knowledge)
            del self._memory[: -(_MAX_PHASES - 1)]

    def _restart(self) -> None:
        """Discard all measurements, because the job now reports its progress in another unit."""
        self._knowledge, self._memory = PhaseKnowledge(), []
        self._check, self._posterior = None, None
        self._contradicted.clear()
        self._current, self._phase, self._windows_here = 0, SearchPhase.REFERENCE, 0
        self._detector.reset()

    def _note_units(self, window: ProgressWindow) -> None:
        """Start the search again if the progress is measured in another way than before.

        There are two cases. In the first case, the source of the progress has changed. In the second case,
        the measurement windows have begun or ceased to contain only whole cycles of the job's pauses.
        """
        if self._phase is SearchPhase.STATIC or self._source not in (None, window.source):
            self._restart()
        elif self._source is not None and window.spans_cycles != self._spans_cycles:
            self._restart()
            self._regularity.begin_units()
            self._budget.forget_losses()
            self._noise = NoiseScale()  # the scatter came from windows with and without a pause
            self._phase_windows = self._short_phases = 0
        self._source, self._spans_cycles = window.source, window.spans_cycles

    def _is_accurate(self, block: SpeedMeasurement) -> bool:
        """Return whether the measurement of the untuned job, the reference of the search, may end.

        It may end if its relative error is small enough, or if it has used the maximum number of windows.
        """
        maximum = self._options.max_reference_windows * min(self._noise.factor, _MAX_PATIENCE)
        return block.relative_error <= self._reference_target() or block.windows >= maximum

    def _reference_target(self) -> float:
        limit = self._objective.slowdown_limit
        return 0.02 if limit is None else min(max(limit / 5, 0.003), 0.01)
