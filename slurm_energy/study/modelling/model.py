"""Step 4 of a study, the model: it calibrates a simulator (digital twin) of the cluster.

The twin is calibrated on the first days of the baseline. The other days are then replayed to check the twin.
Source: thesis, section 6.3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.study.baseline import read_baseline
from slurm_energy.study.data.days import StudyDays
from slurm_energy.study.data.period import StudyPeriod
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.modelling.calibration import Cache, Fit, calibrated_twin
from slurm_energy.study.modelling.replay import BOUNDS, ReplayDeviation, replay_csv, replay_errors
from slurm_energy.study.modelling.twin import TwinSettings, simulate, twin_settings_of
from slurm_energy.study.step_run import StepRun

MIN_CALIBRATION_DAYS: Final = 7
HELD_OUT_DAYS: Final = 7
HOURS_NAME: Final = "hours.csv"
"""Measured and simulated power of the held-out days by hour."""


class TwinError(EnergyError):
    """The twin (simulated site) does not reproduce the measurement well enough.

    The comparison uses the days of the baseline that did not calibrate the twin (held-out days).

    Args:
        errors: replay errors of all compared key performance indicators (KPIs).
    """

    def __init__(self, errors: list[ReplayDeviation]) -> None:
        self.errors = errors
        wrong = [one for one in errors if one.exceeds]
        text = ", ".join(f"{one.kpi} {one.error:+.1%} (permitted {one.bound:.0%})" for one in wrong)
        super().__init__(
            "the twin",
            f"its replay of the held-out days is off: {text}",
            "give the nodes (--nodes), measure a longer baseline, or continue with --accept-error",
        )


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of the study's step `model`, which calibrates a twin (a simulation of the site).

    Attributes:
        nodes: number of nodes by partition. The number is estimated for missing partitions.
        held_out_days: number of days at the end of the baseline that are not used to calibrate the twin.
        accept_error: whether the step accepts errors above their bounds.
        bounds: permitted relative errors of the twin by key performance indicator (KPI), instead of
            `BOUNDS`.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    held_out_days: int = HELD_OUT_DAYS
    accept_error: bool = False
    bounds: Mapping[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the options of the step `model` as a JSON object, for the manifest of the study."""
        return {"nodes": dict(self.nodes), "held_out_days": self.held_out_days, "bounds": dict(self.bounds)}


def run_model(study: StudyDirectory, options: ModelOptions, command: str) -> dict[str, Any]:
    """Run the step `model` of a study, which calibrates the simulator for the site.

    Return the result of the step.

    Args:
        study: directory of the study.
        options: options of the step.
        command: command line of the step, which the manifest records.

    Raises:
        TwinError: an error is above its bound, and the options do not accept errors.
        UsageError: the baseline is too short, or an option contradicts the baseline.
    """
    with study.running("model", command, options=options.document()) as run:
        period = read_baseline(study)
        split = _split(period, options.held_out_days)
        calibration, held_out = period.between(0, split), period.days.between(split, period.days.count)
        twin = calibrated_twin(calibration, options.nodes, _cache(run))
        replay = simulate(period.jobs, twin.settings)
        errors = replay_errors(period, replay, held_out, {**BOUNDS, **options.bounds})
        exceeded = [one.kpi for one in errors if one.exceeds]
        if exceeded and not options.accept_error:
            raise TwinError(errors)
        run.write(HOURS_NAME, replay_csv(period, replay, held_out))
        result = {
            **twin.to_json(),
            "calibration": _range(calibration.days),
            "held_out": _range(held_out),
            "errors": [one.to_json() for one in errors],
            "accepted": exceeded,
            "simulator_notes": list(replay.notes),
        }
        run.finish(result)
    return result


def read_twin(study: StudyDirectory) -> TwinSettings:
    """Return the twin of a study: the settings of the simulator that is calibrated for the site.

    Raises:
        UsageError: the step has not run, or its result is damaged.
    """
    return twin_settings_of(study.result("model")["twin"])


def held_out_rows(study: StudyDirectory, period: StudyPeriod) -> tuple[int, int]:
    """Return the range of the days of the baseline that did not serve to calibrate the simulator.

    The range is the index of the first of these days, and the index of the day after the last one.

    Args:
        study: directory of the study.
        period: measured period of the step `baseline`.

    Raises:
        UsageError: the step has not run.
    """
    held_out = study.result("model")["held_out"]
    dates = period.days.dates
    return dates.index(date.fromisoformat(held_out["begin"])), dates.index(
        date.fromisoformat(held_out["end"])
    ) + 1


def _split(period: StudyPeriod, held_out_days: int) -> int:
    """Divide the days of the baseline into days for calibration and later days for a check.

    The twin (a simulation of the site) is calibrated on the first days. The later days are held out.

    Return the index of the first held-out day.

    Raises:
        UsageError: the baseline is too short; the message says how much is missing.
    """
    days, needed = period.days.count, MIN_CALIBRATION_DAYS + held_out_days
    if days < needed:
        raise UsageError(
            "the baseline",
            f"has {days} days, the twin needs {needed}: {MIN_CALIBRATION_DAYS} to calibrate and "
            f"{held_out_days} held out",
            f"measure {needed - days} more days",
        )
    return days - held_out_days


def _cache(run: StepRun) -> Cache:
    """Return a function that stores the results of calibrating the simulator (digital twin).

    If the step of the study is interrupted, it can later continue without computing the stored results
    again.
    """
    fits: dict[str, list[float]] = run.partial("fits") or {}

    def cached(name: str, compute: Callable[[], Fit]) -> Fit:
        if name not in fits:
            fits[name] = list(compute())
            run.save_partial("fits", fits)
        return fits[name][0], fits[name][1]

    return cached


def _range(days: StudyDays) -> dict[str, Any]:
    return {"begin": days.dates[0].isoformat(), "end": days.dates[-1].isoformat(), "days": days.count}
