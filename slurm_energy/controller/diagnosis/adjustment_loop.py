"""Periodic task in senergyctld that verifies trials of adjustments.

A trial is an attempt to save time or energy by adjustments, which are changes of settings of a user's
program. The task also starts trials for jobs with policy `auto`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from slurm_energy.accounting import adjustments
from slurm_energy.accounting.adjustments import PENDING, StoredTrial
from slurm_energy.accounting.history.tuning_starts import JobRun
from slurm_energy.config import Config
from slurm_energy.controller.diagnosis.adjusted_programs import AdjustedProgram, own_values
from slurm_energy.controller.diagnosis.adjustment_trials import AUTOMATIC, SETTLE_S, AdjustmentTrials
from slurm_energy.controller.records.store import Store
from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal
from slurm_energy.diagnosis.trials.trial import AdjustmentTrial
from slurm_energy.diagnosis.trials.verification import TrialVerdict
from slurm_energy.errors import EnergyError, UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.policies.catalogue import AUTO, catalogue

_WINDOW_S: Final = 3600.0
"""Age up to which ended jobs are diagnosed. After a restart they are diagnosed again, without effect."""
_REJECTED: Final = (TrialVerdict.UNDONE.value, TrialVerdict.UNUSED.value)
_SAME_VALUE: Final = 0.25
"""Maximum relative difference from a rejected value at which a value is not tried, such as 5 workers after 4.

The difference is relative to the larger value.
"""

log = logging.getLogger(__name__)


class AdjustmentLoop:
    """Periodic task that compares runs with and without adjusted values, and starts new comparisons.

    A comparison is called a trial. The task starts trials only for jobs with policy `auto`.

    Args:
        config: returns the current configuration.
        store: the database.
        trials: trials of adjustments of all programs.
        failures: log of failures; a repeated failure is logged once.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        trials: AdjustmentTrials,
        failures: RepeatedFailureLog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._store, self._trials = config, store, trials
        self._failures, self._clock = failures, clock
        self._diagnosed: dict[tuple[JobRun, int], float] = {}
        self._errors = UnexpectedErrorLog(log)
        self._started = self._decided = 0

    async def loop(self, interval_s: Callable[[], float]) -> None:
        """Periodically verify pending trials and start new trials, until cancelled.

        A trial is a set of adjustments that the next runs of a program try. `interval_s` returns the current
        interval in seconds.
        """
        while True:
            try:
                await self.verify()
                await self.start_automatic()
                self._failures.clear("adjustments")
            except EnergyError as error:
                self._failures.report("adjustments", str(error))
            await asyncio.sleep(interval_s())

    def status(self) -> dict[str, Any]:
        """Return the numbers of started and of decided trials of adjustments, for the status page."""
        return {"trials_started": self._started, "trials_decided": self._decided}

    async def verify(self) -> int:
        """Verify all pending trials, and return the number of trials that were decided.

        A trial tests an adjustment of a program in further runs. The decision is whether the adjustment is
        kept or undone. A trial that cannot be verified is undone, so that it does not stop the others.

        Raises:
            UnavailableError: the database does not answer.
        """
        count = 0
        for trial in await self._store.read(adjustments.pending_trials, self._config().cluster.name):
            try:
                decision = await self._trials.verify(trial)
            except UnavailableError:
                raise
            except Exception as error:  # of another release, or with figures beyond all limits
                self._errors.report(error, f"trial {trial.key} is undone; further ones are not logged")
                await self._store.write(adjustments.decide_trial, trial.key, "undone", self._clock())
                continue
            if decision is not None:
                count += 1
                log.info(
                    "adjustments of trial %d: %s, %s", trial.key, decision.verdict.value, decision.reason
                )
        self._decided += count
        return count

    async def start_automatic(self) -> int:
        """Start trials of adjustments for programs whose jobs with the policy `auto` have ended.

        Return the number of started trials.
        """
        names = [name for name, policy in catalogue(self._config()).items() if policy.base == AUTO]
        now, started = self._clock(), 0
        since = now - _WINDOW_S
        self._diagnosed = {key: at for key, at in self._diagnosed.items() if at >= since - _WINDOW_S}
        for cluster, job_id, restarts, uid in await self._store.read(
            adjustments.recent_runs, names, since, now - SETTLE_S
        ):
            key = JobRun(cluster, job_id, restarts), uid
            if key not in self._diagnosed:
                started += await self._started_for(*key)
                self._diagnosed[key] = now
        self._started += started
        return started

    async def _started_for(self, run: JobRun, uid: int) -> bool:
        """Start the trial that the advice for a finished run suggests, if there is one.

        A trial tries adjustments in the next runs of the run's program. Return whether a trial was started.

        If the run cannot be diagnosed, the error is logged. The caller can therefore continue with other
        runs.

        Raises:
            UnavailableError: the database does not answer.
        """
        try:
            return await self._start_for(run, uid)
        except UnavailableError:
            raise
        except EnergyError as error:
            log.info("job %d is not adjusted: %s", run.job_id, error)
        except Exception as error:
            self._errors.report(error, f"job {run.job_id} is not adjusted; further ones are not logged")
        return False

    async def _start_for(self, run: JobRun, uid: int) -> bool:
        """Start a trial of the adjustments that the diagnosis of a run advises.

        A trial compares runs without and with the adjustments. Return whether a trial was started.
        """
        permissions = await self._trials.automatic_permissions(run.cluster, uid)
        if not permissions.ranges:
            return False
        observed = await self._trials.observed(run, uid)
        if observed.workload is None:
            return False
        program = AdjustedProgram(run.cluster, uid, observed.workload)
        if any(trial.state == PENDING for trial in await self._trials.effective(program)):
            return False
        earlier = await self._trials.of_program(program)
        for proposal in await self._trials.proposals(observed, permissions):
            if _is_new(proposal, earlier):
                try:
                    await self._trials.start(
                        program, run, observed, proposal, permissions.slowdown_percent, AUTOMATIC
                    )
                except UsageError as error:
                    log.debug("job %d is not adjusted: %s", run.job_id, error)
                    return False
                return True
        return False


def _is_new(proposal: AdjustmentProposal, earlier: list[StoredTrial]) -> bool:
    """Return whether policy `auto` may try a proposal, given the earlier trials of the program.

    The advised values vary a little with the measured times. Without a tolerance, values that were undone or
    not used would therefore be tried again and again.
    """
    values = {one.kind.value: one.new for one in proposal.adjustments}
    for trial in earlier:
        tried = own_values(AdjustmentTrial.from_json(trial.body))
        if values == tried or (trial.state in _REJECTED and _are_near(values, tried)):
            return False
    return True


def _are_near(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Return whether two sets of adjusted values have the same kinds and nearly the same values."""
    return one.keys() == other.keys() and all(
        math.isclose(value, other[name], rel_tol=_SAME_VALUE) for name, value in one.items()
    )
