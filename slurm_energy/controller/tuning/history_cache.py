"""History of measured runs in memory, from which requests for predictions are answered.

Runs are added when they have ended. The module executes no SQL. One thread owns the history. The history is
built from the runs that the database stores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from slurm_energy.accounting.history import run_history
from slurm_energy.accounting.history.run_history import FinishedRun
from slurm_energy.config import Config
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.oracle_calibrations import site_calibrations
from slurm_energy.errors import EnergyError, ForbiddenError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.oracle.history import History, HistoryOracle, ObservedRun, RunEnding
from slurm_energy.oracle.nameplate import NameplateOracle
from slurm_energy.oracle.prediction import FallbackOracle, Oracle, PredictionRequest
from slurm_energy.quantities import shown

MAX_PREDICTION_REQUESTS: Final = 1000
_LOAD_CHUNK: Final = 2000
_PREDICTION_CHUNK: Final = 20
_FORGET_INTERVAL_S: Final = 3600.0
_MAX_TEXT_LENGTH: Final = 1024
_TYPES: Final = {field.name: str(field.type).split(" ")[0] for field in dataclasses.fields(PredictionRequest)}
T = TypeVar("T")
log = logging.getLogger(__name__)


class HistoryCache:
    """History of measured runs in memory, kept consistent with the database.

    Args:
        store: the database.
        failures: log of failures; a repeated failure is logged once.
        retention_days: value of `controller.history_days`; replaced on reload.
        policy_caps: power caps of the site's energy policies, used for jobs that request no cap; replaced on
            reload.

    Attributes:
        model: model of neural network training, which predicts jobs with `--energy-model` that the history
            cannot predict. Replaced on reload.
        loaded: whether the runs in the database have been loaded.
    """

    def __init__(
        self,
        store: Store,
        failures: RepeatedFailureLog,
        retention_days: float,
        policy_caps: run_history.PolicyCaps | None = None,
    ) -> None:
        self._store, self._failures = store, failures
        self.retention_days, self.policy_caps = retention_days, policy_caps or {}
        self.model: Oracle | None = None
        self._history = History()
        self._thread = ThreadPoolExecutor(1, "history")
        self.loaded = False
        self._next_drop_s = 0.0

    async def loop(self, interval_s: Callable[[], float]) -> None:
        """Load the runs from the database, then add new runs periodically until cancelled.

        `interval_s` returns the current interval in seconds.
        """
        while True:
            try:
                if not self.loaded:
                    await self.load()
                await self.learn()
                await self._drop_old()
                self._failures.clear("history")
            except EnergyError as error:
                self._failures.report("history", str(error))
            await asyncio.sleep(interval_s())

    async def load(self) -> None:
        """Load the runs from the database into memory, in place of runs that were loaded before."""
        self._history = History()
        runs = await self._store.read(lambda connection: list(run_history.read_runs(connection)))
        for first in range(0, len(runs), _LOAD_CHUNK):
            await self._run_in_thread(self._learn_runs, runs[first : first + _LOAD_CHUNK])
        self.loaded = True

    async def learn(self) -> int:
        """Add the runs that have ended since the last call. Return the number of runs.

        Raises:
            UnavailableError: the database refused; the next call retries.
        """
        total, more = 0, True
        while more:
            runs, more = await self._store.write(
                run_history.store_finished_runs, time.time(), self.policy_caps
            )
            # The runs are committed: the history must include them even if this task is cancelled.
            self._thread.submit(self._learn_runs, runs)
            total += len(runs)
        return total

    async def predict(self, requests: list[PredictionRequest], own_only: bool) -> list[dict[str, Any] | None]:
        """Return a prediction as JSON for each request.

        A prediction is None if neither the history nor `model` predicts the job.

        The work is split into chunks, so that other callers and the priority engine are served in between.

        Args:
            requests: the jobs to predict.
            own_only: use only runs of the user whom the request names.
        """
        predictions: list[dict[str, Any] | None] = []
        for first in range(0, len(requests), _PREDICTION_CHUNK):
            predictions += await self._run_in_thread(
                self._predict_chunk, requests[first : first + _PREDICTION_CHUNK], own_only
            )
        return predictions

    def run(self, function: Callable[[History], T]) -> T:
        """Run a function on the history in the history's thread and return the result.

        The call blocks until the function has returned. Never call this method from the event loop.
        """
        return self._thread.submit(function, self._history).result()

    def status(self) -> dict[str, Any]:
        """Return the entries of the status page that describe the history of finished runs.

        The number of learned runs includes the runs that were loaded at the start.
        """
        return {"runs": self._history.runs_learned, "kinds": len(self._history), "loaded": self.loaded}

    def close(self) -> None:
        """Wait for running work in the history's thread to end."""
        self._thread.shutdown()

    async def _drop_old(self) -> None:
        """Delete runs that exceed the retention time or the size limits, at most once an hour."""
        if time.monotonic() < self._next_drop_s:
            return
        self._next_drop_s = time.monotonic() + _FORGET_INTERVAL_S
        before = time.time() - self.retention_days * 86400
        while await self._store.write(run_history.delete_old_runs, before) >= run_history.BATCH:
            await asyncio.sleep(0)
        await self._run_in_thread(self._history.forget, before)

    async def _run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _learn_runs(self, runs: Iterable[FinishedRun]) -> None:
        for run in runs:
            values = run._asdict()
            del values["budget_limited"]
            self._history.learn(ObservedRun(ending=RunEnding.of_state(values.pop("state")), **values))

    def _predict_chunk(
        self, requests: list[PredictionRequest], own_only: bool
    ) -> list[dict[str, Any] | None]:
        history = HistoryOracle(self._history, NameplateOracle(), own_only=own_only)
        oracle = FallbackOracle([history, *([self.model] if self.model else [])])
        predictions = [oracle.predict(self._with_caps(request)) for request in requests]
        return [None if prediction is None else prediction.to_json() for prediction in predictions]

    def _with_caps(self, request: PredictionRequest) -> PredictionRequest:
        """Return the prediction request with power caps filled in.

        If the request has no caps, the caps of the job's energy policy are used.
        """
        cap, gpu_cap = self.policy_caps.get(request.policy or "", (None, None))
        return dataclasses.replace(
            request,
            cap_watts=request.cap_watts or cap,
            gpu_cap_watts=request.gpu_cap_watts or gpu_cap,
        )


def training_model(config: Config) -> Oracle | None:
    """Return the training model with the calibrations and hardware of the site; None if numpy is missing.

    Raises:
        ConfigError: a file named in section oracle is invalid.
    """
    try:
        from slurm_energy.oracle.training_oracle import TrainingOracle

        site = site_calibrations(config)
    except ImportError:
        return None
    return TrainingOracle(site.of)


def read_requests(data: Any, user: str | None, *, operator: bool) -> list[PredictionRequest]:
    """Return the prediction requests in a request body. Users may only name their own jobs.

    Args:
        data: the JSON object in the body.
        user: name of the caller; None means that this host does not know the name.
        operator: whether the caller may request predictions for jobs of any user. If a caller with this right
            names no user, the prediction uses no user name.

    Raises:
        UsageError: a request is malformed.
        ForbiddenError: a request is about another user's job.
    """
    entries = data.get("requests") if isinstance(data, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_PREDICTION_REQUESTS:
        raise UsageError(f"'requests' is not a list of at most {MAX_PREDICTION_REQUESTS}")
    return [_read_request(entry, user, operator=operator) for entry in entries]


def _read_request(entry: Any, user: str | None, *, operator: bool) -> PredictionRequest:
    if not isinstance(entry, dict):
        raise UsageError("request: not a JSON object")
    for name, value in entry.items():
        _check_value(name, value)
    request = PredictionRequest(**entry)
    if operator:
        return request
    if request.user not in (None, user) or user is None:
        raise ForbiddenError(
            f"jobs of user {shown(str(request.user))}",
            "you may ask for your own",
            "ask an operator (controller.operators)",
        )
    return dataclasses.replace(request, user=user)


def _check_value(name: str, value: Any) -> None:
    value_type = _TYPES.get(name)
    if value_type is None:
        raise UsageError(f"request: unknown key '{shown(name)}'")
    if value is None:
        return
    if value_type == "str":
        good = isinstance(value, str) and len(value) <= _MAX_TEXT_LENGTH
    else:
        number = isinstance(value, int if value_type == "int" else (int, float)) and not isinstance(
            value, bool
        )
        good = number and 0 <= value <= 1e15
    if not good:
        raise UsageError(f"request: bad value for '{name}': {shown(repr(value), 60)}")
