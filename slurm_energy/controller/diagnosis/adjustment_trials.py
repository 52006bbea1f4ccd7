"""Trials of adjustments in senergyctld: proposal, start and verification.

An adjustment changes a value for the next run of a program. A trial tests whether adjustments remove the
cause of a finding about lost time or energy. senergyctld keeps or undoes the adjustments after the trial.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from slurm_energy.accounting import adjustments
from slurm_energy.accounting.adjustments import PENDING, OfferedRun, ProgramRun, StoredTrial
from slurm_energy.accounting.history.tuning_starts import JobRun
from slurm_energy.adjustment import PROGRAM_KINDS
from slurm_energy.adjustment_permissions import AdjustmentPermissions
from slurm_energy.config import Config
from slurm_energy.controller.diagnosis.adjusted_programs import (
    AdjustedProgram,
    effective_values,
    is_permitted,
    is_within,
    own_values,
    plain_values,
    program_part,
    unrequested,
)
from slurm_energy.controller.diagnosis.run_diagnosis import DiagnosableRun, RunDiagnosis
from slurm_energy.controller.records.store import Store
from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal, propose
from slurm_energy.diagnosis.trials.run_figures import RunFigures
from slurm_energy.diagnosis.trials.trial import AdjustmentTrial
from slurm_energy.diagnosis.trials.verification import (
    MAX_NOISY_RUNS,
    TrialDecision,
    TrialVerdict,
    decide,
)
from slurm_energy.errors import NotFoundError, UsageError

AUTOMATIC: Final = "auto"
"""Source of the trials that senergyctld starts for jobs with policy `auto`."""
MAX_BEFORE: Final = 5
"""Earlier runs with which a trial is compared."""
SETTLE_S: Final = 30.0
"""Seconds after the end of a run in which observations and records of all its nodes arrive."""
_COMPLETED: Final = "COMPLETED"
_DISCOUNTED: Final = ("CANCELLED", "NODE_FAIL", "PREEMPTED", "REQUEUED", "BOOT_FAIL", "REVOKED")
"""States of runs that do not show whether the adjustments are good."""

OfferedRuns = list[tuple[ProgramRun, OfferedRun | None]]


class AdjustmentTrials:
    """Trials of adjustments, for all programs.

    An adjustment is a value that the diagnosis advises for the next run of a program. A trial compares runs
    with an adjustment with earlier runs.

    Args:
        config: function that returns the current configuration.
        store: the database.
        diagnosis: reads and diagnoses stored runs.
        clock: function that returns Unix seconds.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        diagnosis: RunDiagnosis,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._store, self._diagnosis, self._clock = config, store, diagnosis, clock

    async def permissions(self, cluster: str, uid: int) -> AdjustmentPermissions | None:
        """Return the stored permissions of a user; None means that the user has stored none."""
        text = await self._store.read(adjustments.permissions_of, cluster, uid)
        return None if text is None else AdjustmentPermissions.parse(text)

    async def automatic_permissions(self, cluster: str, uid: int) -> AdjustmentPermissions:
        """Return the present permissions of a user for policy `auto`.

        The permissions are those of the site if the user has stored none.
        """
        saved = await self.permissions(cluster, uid)
        return (self._config().diagnosis.site_permissions if saved is None else saved).only(PROGRAM_KINDS)

    async def of_program(self, program: AdjustedProgram) -> list[StoredTrial]:
        """Return the trials of a program, oldest first.

        A trial is a set of adjustments that the next runs of the program try.
        """
        return await self._store.read(adjustments.trials_of, *program)

    async def effective(self, program: AdjustedProgram) -> list[StoredTrial]:
        """Return the trials of adjustments of a program, for use in its next run.

        Trials with values beyond the site's present limits are left out. So are trials that policy `auto`
        started, if their values are no longer permitted.
        """
        limits = self._config().diagnosis.site_limits
        trials = [trial for trial in await self.of_program(program) if is_within(trial, limits)]
        if not any(trial.source == AUTOMATIC for trial in trials):
            return trials
        permitted = await self.automatic_permissions(program.cluster, program.uid)
        return [trial for trial in trials if trial.source != AUTOMATIC or is_permitted(trial, permitted)]

    async def observed(self, run: JobRun, uid: int) -> DiagnosableRun:
        """Return a run of a user's job with its stored data, see `RunDiagnosis.observed`."""
        return await self._diagnosis.observed(run, uid)

    async def proposals(
        self, observed: DiagnosableRun, permissions: AdjustmentPermissions
    ) -> list[AdjustmentProposal]:
        """Return the permitted adjustments that the diagnosis of a run proposes, the best first."""
        figures = observed.figures
        return propose(
            await self._diagnosis.change_sets(observed),
            permissions.within(self._config().diagnosis.site_limits),
            elapsed_s=figures.elapsed_s,
            energy_joules=figures.energy_joules,
        )

    async def start(
        self,
        program: AdjustedProgram,
        run: JobRun,
        observed: DiagnosableRun,
        proposal: AdjustmentProposal,
        slowdown_percent: int,
        source: str,
    ) -> StoredTrial:
        """Store a new trial: a test whether proposed adjustments help the next runs of a program.

        The trial is pending until it is decided. An earlier pending trial of the program ends.

        Args:
            program: program of the diagnosed run.
            run: the diagnosed run.
            observed: the stored data of the run.
            proposal: the adjustments to try.
            slowdown_percent: permitted increase of the run time.
            source: origin of the trial, `apply` or `auto`.

        Raises:
            UsageError: the run did not complete, or the program's values have changed since the run.
        """
        figures = observed.figures
        if figures.state != _COMPLETED:
            why = (
                f"it ended with {figures.state or 'an unknown state'}: later runs cannot be compared with it"
            )
            raise UsageError(f"job {figures.job}", why, "apply the advice to a completed run")
        offered = await self._store.read(adjustments.offered_run, run, program.uid)
        base = effective_values(offered)
        in_force = plain_values([one for one in await self.effective(program) if one.state != PENDING])
        if program_part(base) != in_force.values:
            raise UsageError(
                f"job {figures.job}", "its program has other values by now", "diagnose its last run"
            )
        trial = AdjustmentTrial(figures.job, proposal, slowdown_percent, base, (figures,))
        body, now = json.dumps(trial.to_json()), self._clock()
        stored = StoredTrial(0, *program, PENDING, source, now, None, body)
        return await self._store.write(adjustments.add_trial, stored)

    async def verify(self, stored: StoredTrial) -> TrialDecision | None:
        """Compare the runs of a pending trial that have ended with the runs before the trial.

        A trial tests whether changed values of a program (adjustments) remove a cause of waste. Return the
        decision about the trial; None means that there is no new decision.

        Raises:
            UnavailableError: the database refused.
        """
        program = AdjustedProgram(stored.cluster, stored.uid, stored.workload)
        trial = AdjustmentTrial.from_json(stored.body)
        runs = await self._runs(program)
        ended = [pair for pair in runs if self._has_settled(pair[0])]
        own = [(run, offer) for run, offer in ended if offer is not None and offer.trial == stored.key]
        if not own:
            decision = _never_requested(trial, stored, ended)
            return decision and await self._decided(stored, replace(trial, decision=decision))
        last = own[-1][1]
        if last.trial == stored.key and (missing := unrequested(trial, last)):
            reason = f"run {own[-1][0].run.job_id} did not request {', '.join(missing)}"
            decision = TrialDecision(TrialVerdict.UNUSED, reason)
            return await self._decided(stored, replace(trial, decision=decision))
        controls = sum(_is_control(trial, stored, *pair) for pair in ended)
        if len(own) <= len(trial.after) and controls <= trial.controls:
            return None
        after = await self._figures([run for run, _ in own[:MAX_NOISY_RUNS]], program.uid)
        before = await self._before(trial, program, ended)
        if not after:
            return None
        decision = decide(trial.proposal, before, after, trial.slowdown_percent)
        changed = replace(
            trial, before=tuple(before), after=tuple(after), decision=decision, controls=controls
        )
        return await self._decided(stored, changed)

    async def _decided(self, stored: StoredTrial, trial: AdjustmentTrial) -> TrialDecision | None:
        decision = trial.decision
        assert decision is not None, "the caller decided"
        state = PENDING if decision.verdict is TrialVerdict.UNDECIDED else decision.verdict.value
        body, now = json.dumps(trial.to_json()), self._clock()
        await self._store.write(adjustments.decide_trial, stored.key, state, now, body)
        return decision

    async def _runs(self, program: AdjustedProgram) -> OfferedRuns:
        runs = await self._store.read(adjustments.program_runs, *program)
        return [(run, await self._store.read(adjustments.offered_run, run.run, program.uid)) for run in runs]

    def _has_settled(self, run: ProgramRun) -> bool:
        return run.state is not None and run.state not in _DISCOUNTED and run.end + SETTLE_S <= self._clock()

    async def _before(
        self, trial: AdjustmentTrial, program: AdjustedProgram, runs: OfferedRuns
    ) -> Sequence[RunFigures]:
        """Return the figures of runs for comparison with the runs of a trial.

        A trial tests adjusted values of a program. The returned runs are completed and used the values that
        were in force before the trial.
        """
        same = [
            run for run, offer in runs if run.state == _COMPLETED and effective_values(offer) == trial.base
        ]
        figures = await self._figures(same[-MAX_BEFORE:], program.uid)
        nodes = trial.before[0].nodes
        return [one for one in figures if one.nodes == nodes] or trial.before[:1]

    async def _figures(self, runs: Sequence[ProgramRun], uid: int) -> list[RunFigures]:
        """Return time, energy and progress of the runs.

        Runs whose records are no longer stored are left out.
        """
        figures = []
        for run in runs:
            try:
                figures.append((await self._diagnosis.observed(run.run, uid)).figures)
            except NotFoundError:
                continue
        return figures


def _is_control(
    trial: AdjustmentTrial, stored: StoredTrial, run: ProgramRun, offer: OfferedRun | None
) -> bool:
    """Return whether a run is a control run of a trial of adjustments.

    A control run started after the trial began, but used the values from before the trial.
    """
    is_later = run.start > stored.created and run.state == _COMPLETED
    return is_later and effective_values(offer) == trial.base


def _never_requested(trial: AdjustmentTrial, stored: StoredTrial, ended: OfferedRuns) -> TrialDecision | None:
    """Return the decision to end a trial because the program never requests the adjusted values.

    A trial tests adjusted values of a program in its next runs. The trial ends if a later run completed
    without requesting the values. The result is None if there is no such run.
    """
    if trial.sbatch_options:
        return None
    for run, offer in ended:
        if offer is None and run.start > stored.created and run.state == _COMPLETED:
            names = ", ".join(sorted(own_values(trial)))
            reason = f"run {run.run.job_id} did not request {names}: see slurm_energy.adjusted"
            return TrialDecision(TrialVerdict.UNUSED, reason)
    return None
