"""The predictor (oracle) that predicts a job from the history of similar runs.

It converts a forecast per unit (GPU or node, see `similarity.units`) to a prediction for the whole job.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_energy.oracle.history.distribution import Grid, high, low, mean
from slurm_energy.oracle.history.forecast import Forecast
from slurm_energy.oracle.history.observed_run import RunEnding
from slurm_energy.oracle.history.run_history import History
from slurm_energy.oracle.history.similarity import LEVELS, units
from slurm_energy.oracle.prediction import Estimate, Oracle, Prediction, PredictionRequest, PredictionSource

_AGES = ((172800.0, 86400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))


class HistoryOracle:
    """Predictor (oracle) that predicts a job from the runs of similar jobs.

    Args:
        history: runs in memory.
        power: another predictor, which predicts the watts if the energy of all similar runs is unknown.
            None means that such a job is not predicted.
        clock: function that returns the current time in Unix seconds.
        own_only: whether only runs of the job's own user are used.
    """

    def __init__(
        self,
        history: History,
        power: Oracle | None = None,
        clock: Callable[[], float] = time.time,
        *,
        own_only: bool = False,
    ) -> None:
        self._history, self._power, self._clock, self._own_only = history, power, clock, own_only

    def predict(self, request: PredictionRequest) -> Prediction | None:
        """Return the prediction for a job, or None.

        The result is None if no run is similar to the job. The result is also None if the energy of all
        similar runs is unknown and the `power` oracle is missing or cannot predict the watts.
        """
        forecast = self._history.forecast(request, own_only=self._own_only)
        if forecast is None:
            return None
        duration = _duration(forecast, request.time_limit_s)
        notes = _notes(forecast)
        power = _power(forecast, request)
        if power is None:
            prediction = self._power.predict(request) if self._power is not None else None
            if prediction is None:
                return None
            power = prediction.power_watts
            notes = (
                *notes,
                f"the energy of no run is known: watts from {prediction.source} ({prediction.basis})",
            )
        age_s = max(0.0, (request.submitted_unix_s or self._clock()) - forecast.newest)
        return Prediction(
            duration_s=duration,
            power_watts=power,
            energy_joules=_energy(forecast, request, duration, power),
            source=PredictionSource.HISTORY,
            basis=f"{_count(forecast.runs)}: {LEVELS[forecast.level].text}",
            age_s=age_s,
            observations=forecast.runs,
            notes=notes,
        )


def age_text(seconds: float) -> str:
    """Return an age as text in the largest suitable unit, e.g. `3 days`."""
    unit_s, unit = next((size, name) for least, size, name in _AGES if seconds >= least)
    return f"{seconds / unit_s:.0f} {unit}"


def _duration(forecast: Forecast, limit_s: float | None) -> Estimate:
    scale = limit_s if forecast.by_limit and limit_s is not None else 1.0
    return _estimate(forecast.seconds, scale, limit_s)


def _power(forecast: Forecast, request: PredictionRequest) -> Estimate | None:
    return None if forecast.watts is None else _estimate(forecast.watts, units(request))


def _energy(forecast: Forecast, request: PredictionRequest, duration: Estimate, power: Estimate) -> Estimate:
    """Return the predicted energy in joules of a job.

    The prediction uses the joules of similar runs. If the joules of all these runs are unknown, the
    predicted time is multiplied by the predicted power. The mean and both bounds of the prediction are
    multiplied separately.

    Args:
        forecast: forecast from similar runs, for one unit (GPU or node) of the job.
        request: the job to predict.
        duration: predicted run time in seconds.
        power: predicted watts of the whole job.
    """
    if forecast.joules is None:
        return Estimate(*(getattr(duration, at) * getattr(power, at) for at in ("mean", "low", "high")))
    limit_s = request.time_limit_s
    scale = limit_s if forecast.by_limit and limit_s is not None else 1.0
    max_joules = None if limit_s is None else limit_s * power.high
    return _estimate(forecast.joules, scale * units(request), max_joules)


def _estimate(grid: Grid, factor: float, max_value: float | None = None) -> Estimate:
    values = [value * factor if max_value is None else min(value * factor, max_value) for value in grid]
    return Estimate(mean(values), low(values), high(values))


def _notes(forecast: Forecast) -> tuple[str, ...]:
    notes = []
    censored = sum(count for ending, count in forecast.endings.items() if not ending.by_itself)
    if censored:
        words = ", ".join(
            f"{forecast.endings[ending]} {ending}"
            for ending in RunEnding
            if not ending.by_itself and forecast.endings.get(ending)
        )
        notes.append(
            f"{censored} of {_count(forecast.runs)} did not end by themselves ({words}): "
            "their lengths are lower bounds"
        )
    if failed := forecast.endings.get(RunEnding.FAILED):
        notes.append(f"{failed} of {_count(forecast.runs)} failed")
    if forecast.converted:
        notes.append(f"{_count(forecast.converted)} under other caps: time and watts are converted")
    return tuple(notes)


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
