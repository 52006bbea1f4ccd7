"""Expected run times of running and pending jobs, for power saving. The module needs numpy."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slurm_energy.config import Config
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.oracle.history.queue_forecast import QueueForecast, predict_many
from slurm_energy.priority.prediction import QueuePredictor
from slurm_energy.priority.prediction_guard import Mispredictions, PredictionGuard
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.queue.squeue_source import SqueueSource

_SUBJECT: Final = "run times of jobs for power saving"

log = logging.getLogger(__name__)


class ExpectedRunTimes:
    """Predictor of the run times of all jobs in the queue. Only one thread at a time may use it.

    Args:
        config: energy policies and calibrations.
        run: runs squeue.
        history: history of measured runs; None means that there is no history.
    """

    def __init__(self, config: Config, run: Runner, history: HistoryCache | None) -> None:
        self._source, self._history = SqueueSource(run), history
        predict = None if history is None else self._predict
        guard = PredictionGuard(Mispredictions(), None)
        self._predictor = QueuePredictor(config, predict, guard)
        self._failures = RepeatedFailureLog(log)

    def read(self) -> dict[int, float]:
        """Return the expected run times in seconds by job id.

        The result is empty if the run times cannot be predicted now.
        """
        try:
            queue = self._source.read()
            predicted = self._predictor.predict(queue)
        except EnergyError as error:
            self._failures.report(_SUBJECT, f"time limits are used instead: {error}")
            return {}
        self._failures.clear(_SUBJECT)
        times = zip(queue.job_id.tolist(), predicted.time_s.tolist(), strict=True)
        return {job_id: time_s for job_id, time_s in times if math.isfinite(time_s)}

    def _predict(self, columns: Mapping[str, Sequence[Any]]) -> QueueForecast:
        assert self._history is not None
        return self._history.run(lambda known: predict_many(known, columns))
