"""Prediction of the run time and the power in watts of every job of a queue.

A prediction comes from one of three sources: the history of similar runs, the model of trainings, or the
nameplate power of the hardware. Predictors (oracles) compute the predictions. This module decides which
predictor is queried for which job, and which prediction is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from slurm_energy.config import Config
from slurm_energy.errors import EnergyError
from slurm_energy.oracle.history.cap_response import caps_of
from slurm_energy.oracle.history.queue_forecast import QueueForecast
from slurm_energy.oracle.history.similarity import ATTRIBUTES, LEVELS, USER_LEVEL
from slurm_energy.oracle.nameplate import NO_LIMIT_S, NameplateOracle
from slurm_energy.oracle.prediction import Prediction, PredictionRequest, PredictionSource
from slurm_energy.oracle.site_files import read_site
from slurm_energy.oracle.training_oracle import TrainingOracle
from slurm_energy.policies.catalogue import policy_caps
from slurm_energy.policies.flags import PolicyRequest, validate_flags
from slurm_energy.priority.prediction_guard import PredictionGuard
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.queue.columns import QueueColumns
from slurm_energy.slurm.script_fingerprint import FINGERPRINT_FORM

FINGERPRINT: Final = "ENERGY_FINGERPRINT"
"""Name of the script digest among a job's flags."""

SOURCES: Final = (PredictionSource.HISTORY, PredictionSource.MODEL, PredictionSource.NAMEPLATE)
HISTORY, MODEL, NAMEPLATE = range(3)

HistoryPredictor = Callable[[Mapping[str, Sequence[Any]]], QueueForecast]
"""`oracle.history.queue_forecast.predict_many` for the current history."""

PowerQuantiles = Callable[[Mapping[str, Sequence[Any]]], tuple[Floats, Ints]]
"""`oracle.history.queue_forecast.predict_power_quantile` for the current history and one quantile."""

_MIN_TIME_S: Final = 1e-3
_MAX_FIGURE: Final = 1e12  # upper bound of seconds and of watts that no job exceeds
_MAX_CACHED: Final = 50_000
_OWN_PROGRAM: Final = tuple(not level.by_limit for level in LEVELS)


@dataclass(frozen=True, slots=True)
class QueuePredictions:
    """Predictions of run time and power for m rows, as arrays without NaN.

    A row is a job with one GPU shape (number and type of GPUs). The shape is the one that the job requests,
    or one of the other shapes that its user permits.

    Attributes:
        time_s: mean run time in seconds, above 0 and at most the time limit.
        power_watts: mean watts of the whole job.
        source: index into `SOURCES`.
        runs: number of measured runs behind the prediction; 0 for sources other than history.
        level: index into `oracle.history.similarity.LEVELS` if the source is history, else -1.
        source_time_s: run time predicted by the source, before lower bound and misprediction factor are
            applied.
        lower_bound_s: lower bound on the run time (see `prediction_guard`); 0 means none.
        misprediction: misprediction factor by which the run time was multiplied, at least 1. It is the ratio
            of actual to predicted time of the user's jobs.
    """

    time_s: Floats
    power_watts: Floats
    source: Ints
    runs: Ints
    level: Ints
    source_time_s: Floats
    lower_bound_s: Floats
    misprediction: Floats

    @property
    def before_factor_s(self) -> Floats:
        """Predicted run time in seconds before multiplication by the user's misprediction factor.

        The misprediction factor is the ratio of actual to predicted time of the user's earlier jobs.
        """
        greater = np.maximum(self.source_time_s, self.lower_bound_s)
        replaced = (self.source == NAMEPLATE) & (self.lower_bound_s > 0)
        return np.where(replaced, self.lower_bound_s, greater)

    @property
    def energy_joules(self) -> Floats:
        """Predicted energy of each job in joules, as scheduling policies use it: power times run time."""
        return self.power_watts * self.time_s

    @property
    def edp(self) -> Floats:
        """Energy-delay product P T^2 in joule seconds (power P, run time T). Source: thesis, Eq. 5.1."""
        product: Floats = self.power_watts * np.square(self.time_s)
        return product

    def basis(self, row: int) -> str:
        """Describe for users on which data the prediction of the job in queue row `row` is based."""
        source = int(self.source[row])
        if source == HISTORY:
            runs = int(self.runs[row])
            return f"{runs} run{'' if runs == 1 else 's'}: {LEVELS[self.level[row]].text}"
        if source == MODEL:
            return "training model"
        bound_s = float(self.lower_bound_s[row])
        if bound_s in (0.0, float(self.source_time_s[row])):
            return "time limit and TDP, nothing measured"
        return "time limit and TDP, and what is usual in the partition"


class QueuePredictor:
    """Predictor of time and power for whole queues. It caches predictions that never change.

    The predictor asks several sources (oracles), such as the history of measured runs.

    Args:
        config: configuration of energy policies, bounds and defaults. These supplement the energy options of
            each job.
        history: predictions from measured runs; None means that there is no history.
        guard: lower bounds and factors against predictions that are too short; None means that the
            predictions are used unchanged.
    """

    def __init__(
        self, config: Config, history: HistoryPredictor | None = None, guard: PredictionGuard | None = None
    ) -> None:
        self._config, self._history, self._guard = config, history, guard
        self._policy_caps = policy_caps(config)
        self._request_cache: dict[Any, PolicyRequest] = {}
        self._model_cache: dict[Any, tuple[float, float] | None] = {}
        self._nameplate_cache: dict[Any, tuple[float, float]] = {}
        site, _ = read_site(config.oracle.calibrations, config.oracle.hardware)
        self._training, self._nameplate = TrainingOracle(site.of), NameplateOracle()

    def predict(
        self,
        queue: QueueColumns,
        rows: Ints | None = None,
        gpus: Ints | None = None,
        gpu_kind: Sequence[str] | None = None,
    ) -> QueuePredictions:
        """Return predictions for all jobs of a queue.

        If GPU shapes (numbers and types of GPUs) are given for some jobs, these jobs are predicted in the
        given shapes.

        The sources of predictions are, in this order:

        - runs of the same program by the same user;
        - the training model, if the job names a neural network and a GPU type;
        - other runs of the user. Without a guard against too short predictions, this source also
          includes runs of the Slurm account and of the partition;
        - the nameplate (time limit and design power).

        The first source that can predict a job is used.

        Args:
            queue: the jobs.
            rows: rows of the queue, repeated where a job has several shapes, shape (m,); None means all,
                once.
            gpus: number of GPUs by prediction, shape (m,); None means as requested.
            gpu_kind: GPU type by prediction, m entries; None means as requested.
        """
        requests = self._request_columns(queue, rows, gpus, gpu_kind)
        count = len(requests["gpus"])
        limit = np.array([np.inf if value is None else value for value in requests["time_limit_s"]])
        models = requests.pop("model")
        time_s, watts, source, runs, level = self._from_history(requests, count)
        self._fill_from_model(requests, models, time_s, watts, source, level)
        # Impossible figures of one job must not prevent the ranking of all others.
        wrong = ~((time_s >= 0) & (time_s <= _MAX_FIGURE)) | (watts < 0) | (watts > _MAX_FIGURE)
        time_s[wrong], watts[wrong], source[wrong] = np.nan, np.nan, NAMEPLATE
        runs, level = np.where(source == HISTORY, runs, 0), np.where(source == HISTORY, level, -1)
        self._fill_from_nameplate(requests, time_s, watts)
        time_s = np.clip(time_s, _MIN_TIME_S, limit)
        if self._guard is None:
            return QueuePredictions(
                time_s, watts, source, runs, level, time_s, np.zeros(count), np.ones(count)
            )
        uncapped = requests | dict.fromkeys(("cap_watts", "gpu_cap_watts"), [None] * count)
        nameplate_figures = np.array([plate[1] for plate in self._nameplate_figures(uncapped)], np.float64)
        guarded = self._guard.apply(
            requests, time_s, watts, source == NAMEPLATE, nameplate_figures, _max_watts(requests)
        )
        return QueuePredictions(
            np.clip(guarded.time_s, _MIN_TIME_S, limit),
            guarded.power_watts,
            source,
            runs,
            level,
            time_s,
            guarded.lower_bound_s,
            guarded.misprediction,
        )

    def requested_limits(self, queue: QueueColumns) -> tuple[Floats, Floats, Floats]:
        """Return the limits that each job requests, shape (n,) each.

        The limits are the power cap per node and the power cap per GPU in watts (infinity means no cap), and
        the accepted slowdown as a fraction (NaN means no limit).
        """
        partitions = [partition.partition(",")[0] for partition in queue.partition]
        limits = [
            (
                one.cap_watts or math.inf,
                one.gpu_cap_watts or math.inf,
                math.nan if one.slowdown_limit is None else one.slowdown_limit,
            )
            for one in self._requests_of(queue.flags, queue.user, partitions)
        ]
        node_caps, gpu_caps, slowdown_limits = np.array(limits, np.float64).reshape(-1, 3).T
        return node_caps, gpu_caps, slowdown_limits

    def predict_power_quantile(
        self, queue: QueueColumns, quantiles: PowerQuantiles, node_caps: Floats, gpu_caps: Floats
    ) -> Floats:
        """Return an upper quantile of each job's watts under power caps, shape (n,); NaN means unknown.

        Only runs of the same user count. Otherwise one user could lower the predictions for another user by
        running cheap jobs.

        Args:
            queue: the jobs.
            quantiles: function that predicts a quantile of the watts of jobs from measured runs.
            node_caps: cap of each job per node from `requested_limits`, or a higher one, shape (n,).
            gpu_caps: the same per GPU.
        """
        if not queue.count:
            return np.empty(0)
        requests = self._request_columns(queue, None, None, None)
        for name, caps in (("cap_watts", node_caps), ("gpu_cap_watts", gpu_caps)):
            requests[name] = [cap if cap < math.inf else None for cap in caps.tolist()]
        watts, level = quantiles(_similarity_columns(requests))
        is_valid = (level >= 0) & (level <= USER_LEVEL) & (watts > 0) & (watts <= _MAX_FIGURE)
        return np.where(is_valid, np.minimum(watts, node_caps * np.maximum(queue.nodes, 1)), np.nan)

    def _from_history(
        self, requests: dict[str, list[Any]], count: int
    ) -> tuple[Floats, Floats, Ints, Ints, Ints]:
        """Predict the jobs of a queue from earlier runs.

        The function returns five arrays: seconds, watts, source, number of runs, and level of similarity. If
        no run is similar to a job, its time and watts are NaN. The source is then the nameplate, because the
        caller replaces these values by a prediction from time limit and design power.
        """
        time_s, watts = np.full(count, np.nan), np.full(count, np.nan)
        source, runs, level = (np.full(count, value, np.int64) for value in (NAMEPLATE, 0, -1))
        if self._history is None or not count:
            return time_s, watts, source, runs, level
        forecast = self._history(_similarity_columns(requests))
        time_s, watts = forecast.duration_s.copy(), forecast.power_watts.copy()
        runs, level = forecast.runs, forecast.level
        if self._guard is not None:
            # Runs of other users do not count: users could help each other by cheap jobs.
            others = level > USER_LEVEL
            time_s[others], watts[others], runs = np.nan, np.nan, np.where(others, 0, runs)
        return time_s, watts, np.where(runs > 0, HISTORY, NAMEPLATE), runs, level

    def predict_by_model(
        self, queue: QueueColumns, rows: Ints, gpus: Ints, gpu_kind: Sequence[str]
    ) -> tuple[Floats, Floats]:
        """Return run time (s) and watts of GPU shapes, predicted by the training model alone.

        A GPU shape is a number and a type of GPUs. The result is NaN if the model cannot predict a
        job.

        Args:
            queue: the jobs.
            rows: rows of the queue, repeated where a job has several shapes, shape (m,).
            gpus: number of GPUs by shape, shape (m,).
            gpu_kind: GPU type by shape, m entries.
        """
        requests = self._request_columns(queue, rows, gpus, gpu_kind)
        time_s, watts = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        source, level = np.full(len(rows), NAMEPLATE), np.full(len(rows), -1)
        self._fill_from_model(requests, requests["model"], time_s, watts, source, level)
        return time_s, watts

    def _request_columns(
        self, queue: QueueColumns, rows: Ints | None, gpus: Ints | None, gpu_kind: Sequence[str] | None
    ) -> dict[str, list[Any]]:
        at = list(range(queue.count)) if rows is None else rows.tolist()
        partitions = [queue.partition[row].partition(",")[0] for row in at]
        users = [queue.user[row] for row in at]
        requests = self._requests_of([queue.flags[row] for row in at], users, partitions)
        limits = queue.time_limit_s[at].tolist()
        kinds = [queue.gpu_kind[row] for row in at] if gpu_kind is None else gpu_kind
        return {
            "user": [user or None for user in users],
            "account": [queue.account[row] or None for row in at],
            "partition": [partition or None for partition in partitions],
            "name": [queue.name[row] or None for row in at],
            "fingerprint": [_fingerprint(queue.flags[row]) for row in at],
            "nodes": queue.nodes[at].tolist(),
            "cpus": queue.cpus[at].tolist(),
            "gpus": (queue.gpus[at] if gpus is None else gpus).tolist(),
            "gpu_kind": [kind or None for kind in kinds],
            "time_limit_s": [None if limit != limit or limit <= 0 else limit for limit in limits],
            "policy": [request.policy for request in requests],
            "cap_watts": [request.cap_watts for request in requests],
            "gpu_cap_watts": [request.gpu_cap_watts for request in requests],
            "held_cpus": queue.held_cpus[at].tolist(),
            "memory_mib": queue.memory_mib[at].tolist(),
            "model": [request.model for request in requests],
        }

    def _requests_of(
        self, flags: Iterable[Mapping[str, str]], users: Iterable[str], partitions: Iterable[str]
    ) -> list[PolicyRequest]:
        cache, requests = _emptied_if_full(self._request_cache), []
        for job_flags, user, partition in zip(flags, users, partitions, strict=True):
            key = (tuple(item for item in job_flags.items() if item[0] != FINGERPRINT), user, partition)
            request = cache.get(key)
            if request is None:
                request = cache[key] = self._request(job_flags, user, partition)
            requests.append(request)
        return requests

    def _request(self, flags: Mapping[str, str], user: str, partition: str) -> PolicyRequest:
        """Return a job's energy request, completed with the power caps of its energy policy.

        A job with invalid flags counts as a job without flags.
        """
        try:
            request = validate_flags(flags, self._config, user or None, partition or None)
        except EnergyError:
            request = PolicyRequest()
        cap, gpu_cap = self._policy_caps.get(request.policy, (None, None))
        return replace(
            request,
            cap_watts=request.cap_watts or cap,
            gpu_cap_watts=request.gpu_cap_watts or gpu_cap,
        )

    def _fill_from_model(
        self,
        requests: Mapping[str, list[Any]],
        models: list[str | None],
        time_s: Floats,
        watts: Floats,
        source: Ints,
        level: Ints,
    ) -> None:
        """Predict rows by the training model, and write the results to `time_s`, `watts` and `source`.

        A row is changed only if its job names a neural network and a GPU type, and if the history has no runs
        of the same program.
        """
        cache = _emptied_if_full(self._model_cache)
        for row, model in enumerate(models):
            gpu_kind = requests["gpu_kind"][row]
            if not model or not gpu_kind or (level[row] >= 0 and _OWN_PROGRAM[level[row]]):
                continue
            key = (model, gpu_kind, requests["gpus"][row], requests["gpu_cap_watts"][row])
            if key not in cache:
                request = PredictionRequest(model=model, gpu_kind=gpu_kind, gpus=key[2], gpu_cap_watts=key[3])
                cache[key] = _mean_figures(self._training.predict(request))
            answer = cache[key]
            if answer is not None:
                (time_s[row], watts[row]), source[row] = answer, MODEL

    def _fill_from_nameplate(self, requests: Mapping[str, list[Any]], time_s: Floats, watts: Floats) -> None:
        """Replace unknown predictions (NaN) by rough assumptions.

        The run time is assumed to be half the time limit. The power is assumed to be a fraction of the
        thermal design power (TDP).
        """
        rows = np.flatnonzero(np.isnan(time_s) | np.isnan(watts))
        for row, answer in zip(rows.tolist(), self._nameplate_figures(requests, rows), strict=True):
            time_s[row] = answer[0] if np.isnan(time_s[row]) else time_s[row]
            watts[row] = answer[1] if np.isnan(watts[row]) else watts[row]

    def _nameplate_figures(
        self, requests: Mapping[str, list[Any]], rows: Ints | None = None
    ) -> list[tuple[float, float]]:
        """Return (seconds, watts) of jobs, derived only from their time limit and TDP (nameplate).

        Args:
            requests: columns of the requests of all jobs.
            rows: indices of the jobs to predict; None means all jobs.
        """
        cache = _emptied_if_full(self._nameplate_cache)
        columns = ("nodes", "cpus", "gpus", "gpu_kind", "time_limit_s", "cap_watts", "gpu_cap_watts")
        figures = []
        for row in range(len(requests["gpus"])) if rows is None else rows.tolist():
            key = tuple(requests[name][row] for name in columns)
            answer = cache.get(key)
            if answer is None:
                means = _mean_figures(
                    self._nameplate.predict(PredictionRequest(**dict(zip(columns, key, strict=True))))
                )
                answer = cache[key] = means or (NO_LIMIT_S / 2, 0.0)
            figures.append(answer)
        return figures


def _max_watts(requests: Mapping[str, list[Any]]) -> Floats:
    """Return the maximum watts of each job under its power caps; infinity for a job without caps."""
    columns = zip(*(requests[name] for name in ("cap_watts", "gpu_cap_watts", "nodes", "gpus")), strict=True)
    max_watts = []
    for cap, gpu_cap, nodes, gpus in columns:
        caps = caps_of(cap, gpu_cap, nodes, gpus)
        max_watts.append(min(caps.gpu_watts, caps.unit_watts) * (gpus or nodes or 1))
    return np.array(max_watts, np.float64)


def _fingerprint(flags: Mapping[str, str]) -> str | None:
    """Return the script digest that the job_submit plugin recorded; None if missing or malformed."""
    text = flags.get(FINGERPRINT, "")
    return text if FINGERPRINT_FORM.fullmatch(text) else None


def _mean_figures(answer: Prediction | None) -> tuple[float, float] | None:
    return None if answer is None else (answer.duration_s.mean, answer.power_watts.mean)


def _similarity_columns(requests: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: requests[name] for name in ATTRIBUTES}


def _emptied_if_full(memory: dict[Any, Any]) -> dict[Any, Any]:
    """Return the given cache after clearing it if it has too many entries.

    Users define parts of the keys, so the number of entries has no other bound.
    """
    if len(memory) > _MAX_CACHED:
        memory.clear()
    return memory
