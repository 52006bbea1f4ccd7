"""The step `deploy` of a study, which changes the configuration of the site.

It puts the stages of a deployment in force, switches between days with and without the changes, and undoes
the deployment.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EnergyError, UnavailableError, UsageError
from slurm_energy.setup.services import UnitManager, execute
from slurm_energy.setup.site_file import read_site_file
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.manifest import StepState
from slurm_energy.study.ownership import require_own_study
from slurm_energy.study.rollout.assignment import AssignmentDesign
from slurm_energy.study.rollout.deploy_plan import StageRequest, planned_state
from slurm_energy.study.rollout.deployment import ConfigurationSwitch, DeploymentState, deployment_of
from slurm_energy.study.rollout.key_change import KeyChange
from slurm_energy.study.rollout.site_configuration import (
    ConfigurationStep,
    SiteConfiguration,
    check_combination,
)
from slurm_energy.study.rollout.stages import DeploymentTarget, StageKeys, stage_keys
from slurm_energy.study.step_run import RESULT_NAME, StepRun

STEP: Final = "deploy"
_JOURNAL: Final = "journal"
_UNITS: Final = ("senergyctld.service", "senergyd.service")
Apply = Callable[[Sequence[str]], list[str]]
"""Function that brings a changed configuration into force, and returns the steps that remain to be done."""


def apply_configuration(command: Sequence[str]) -> list[str]:
    """Bring a changed configuration into force. Return the steps that the administrator must take.

    Args:
        command: program of the site that distributes the file and reloads the daemons; an empty value means
            that the active systemd units of this host are reloaded.

    Raises:
        UnavailableError: the program or a reload failed.
    """
    if command:
        result = execute(command)
        if result.status:
            last = (result.output.strip().splitlines() or [""])[-1]
            raise UnavailableError(" ".join(command), f"exit status {result.status} {last}".strip())
        return []
    units = UnitManager()
    active = [unit for unit in _UNITS if units.is_running and units.is_active(unit)]
    for unit in active:
        units.call("reload", unit)
    if not active:
        return ["no daemon of slurm-energy runs here as a unit: reload senergyctld and senergyd by hand"]
    return ["reload senergyd on the nodes, if they have a copy of this energy.toml"]


class Deployment:
    """The deployment of a study: a change of the site's configuration in several stages.

    Args:
        study: directory of the study.
        now_s: Unix time. It determines whether the treated or the control group is in force, and it is
            logged with each switch.
        apply: function that brings a changed configuration into force.
    """

    def __init__(
        self, study: StudyDirectory, now_s: float | None = None, apply: Apply = apply_configuration
    ) -> None:
        self._study = study
        self._now_s = time.time() if now_s is None else now_s
        self._apply = apply
        self.remarks: list[str] = []

    def state(self) -> DeploymentState | None:
        """Return the state of the deployment; None if nothing was deployed."""
        if not (self._study.folder(STEP) / RESULT_NAME).exists():
            return None
        try:
            # The step may have been interrupted between result and manifest. The undo must still work.
            return deployment_of(self._study.result(STEP, unchanged=False))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            path = self._study.folder(STEP) / RESULT_NAME
            raise UsageError(f"{path}", f"is damaged: {error!r}", "restore it from a backup") from None

    def preview(self, request: StageRequest) -> ConfigurationStep:
        """Return how a stage of a deployment would change energy.toml; write nothing.

        In a switchback, the change applies only on the days drawn for treatment.

        Raises:
            EnergyError: as `begin_stage` does.
        """
        require_own_study(self._study.path)
        self._study.require(STEP)
        keys = self._treated_keys(self._planned(request))
        self.remarks += keys.remarks
        step = self._site(request.configuration).plan(keys.changes)
        self._check(step)
        return step

    def begin_stage(self, request: StageRequest, command: str) -> DeploymentState:
        """Put a stage of a deployment in force.

        In a switchback, random days are treated days or control days. The stage starts with the kind of day
        that the plan assigns to the present time.

        After an interruption, the same request completes the stage.

        Args:
            request: requested stage, with options.
            command: command line of the step, which the manifest records.

        Raises:
            UsageError: the step `choose` is missing or stale, or options of the request contradict each
                other.
            EnergyError: the configuration cannot be changed.
        """
        self.preview(request)  # a refused request must not mark the deployment in force as failed
        self.remarks.clear()
        with self._study.running(STEP, command, seed=request.seed) as run:
            before, state = self.state(), self._planned(request)
            digest = read_site_file(request.configuration).digest
            keys = self._keys(state)
            self.remarks += keys.remarks
            run.finish(state.document())  # before the change, so that its completion draws no other arms
            try:
                state = self._switched(state, keys.changes, f"stage {request.stage}")
            except EnergyError:
                if before is not None and read_site_file(request.configuration).digest == digest:
                    run.finish(before.document())
                raise
            run.finish(state.document())
        return state

    def tick(self, command: str) -> DeploymentState:
        """Put the configuration into force that the experiment has planned for the present time.

        In a switchback, periods with the change (treatment) and periods without the change (control)
        alternate at random. After the last period, the site's own configuration is restored.

        Args:
            command: command line of the step, which the manifest records.

        Raises:
            UsageError: the deployment is not a switchback.
        """
        with self._study.locked("deploy --tick"):
            state = self.state()
            if state is None:
                todo = f"senergy study deploy {self._study.path} --stage shadow"
                raise UsageError(f"{self._study.path}", "nothing was deployed", todo)
            if not state.is_active:
                return state
            assignment = state.assignment
            if assignment is None or assignment.design is not AssignmentDesign.SWITCHBACK:
                raise UsageError("--tick", "there is no switchback", "--stage all --design switchback")
            is_over = self._now_s >= assignment.periods[-1].end_s
            reason = "the switchback has ended" if is_over else "arm of the period"
            state = self._switched(state, self._keys(state).changes, reason)
            self._save(state, command)
            return state

    def undo(self, reason: str, command: str) -> DeploymentState | None:
        """Restore the site's own configuration, even if a step of the study is stale or has failed.

        Args:
            reason: reason for the log.
            command: command line of the step, which the manifest records.

        Returns:
            State of the deployment; None means that nothing was deployed.
        """
        with self._study.locked("deploy --undo"):
            state = self.state()
            if state is None:
                return None
            state = self._switched(replace(state, stopped=reason), (), reason)
            self._save(state, command)
            return state

    def _check(self, step: ConfigurationStep) -> None:
        """Check the configuration file that a planned change would write."""
        folder = self._study.folder(STEP)
        folder.mkdir(exist_ok=True)
        check_combination(step, folder)

    def _planned(self, request: StageRequest) -> DeploymentState:
        choice, objective = self._study.result("choose"), self._study.objective()
        return planned_state(request, choice, objective, self.state(), self._now_s)

    def _is_treated_now(self, state: DeploymentState) -> bool:
        assignment = state.assignment
        if not state.is_active:
            return False
        if assignment is None or assignment.design is not AssignmentDesign.SWITCHBACK:
            return state.stage.applies
        period = assignment.period_at(self._now_s)
        return period is not None and period.is_treated

    def _keys(self, state: DeploymentState) -> StageKeys:
        """Return the changes of the site's configuration that must be in force now.

        The result is empty if the deployment of the study was undone. It is also empty in a period in which
        the site runs without the changes, for comparison.
        """
        if not state.is_active or (state.stage.applies and not self._is_treated_now(state)):
            return StageKeys(())
        return self._treated_keys(state)

    def _treated_keys(self, state: DeploymentState) -> StageKeys:
        """Return the configuration keys that put the current stage of the deployment in force.

        A deployment brings the energy measures of a study into force in several stages.
        """
        assignment = state.assignment
        by_users = assignment is not None and assignment.design is AssignmentDesign.USERS
        users = assignment.treated if assignment is not None and by_users else ()
        target = DeploymentTarget(state.partitions, state.other_partitions, users, state.power_share)
        return stage_keys(state.alternative, state.stage, target, self._own_values(Path(state.configuration)))

    def _own_values(self, path: Path) -> dict[str, Any]:
        """Return the parsed energy.toml of the site, without the changes by the study."""
        own = self._site(path).plan(()).data or b""
        try:
            return tomllib.loads(own.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"{path}", f"not TOML: {error}", "senergy config check") from None

    def _site(self, path: Path) -> SiteConfiguration:
        return SiteConfiguration(path, self._study.folder(STEP) / _JOURNAL)

    def _switched(self, state: DeploymentState, changes: Sequence[KeyChange], reason: str) -> DeploymentState:
        """Write changes to the configuration file, bring them into force and log the change.

        Args:
            state: state of the deployment.
            changes: changes of configuration keys.
            reason: reason for the change, for the log.

        Returns:
            The state with the change added to its log. If the last entry of the log already describes this
            configuration, `state` is returned unchanged.
        """
        path = Path(state.configuration)
        before = read_site_file(path).digest
        self.remarks += self._site(path).carry_out(changes)
        digest = read_site_file(path).digest
        last = state.switches[-1] if state.switches else None
        stage = str(state.stage) if state.is_active else ""
        treated = self._is_treated_now(state)
        is_logged = last is not None and (last.sha256, last.stage, last.is_treated) == (
            digest,
            stage,
            treated,
        )
        if digest != before or not is_logged:
            self.remarks += self._apply(state.apply_command)
        if is_logged:
            return state
        return state.with_switch(ConfigurationSwitch(self._now_s, stage, treated, digest, reason))

    def _save(self, state: DeploymentState, command: str) -> None:
        """Store the state of a running deployment in the study's directory.

        The caller must hold the study's lock.
        """
        run = StepRun(self._study.folder(STEP), resumed=True)
        run.finish(state.document())
        entry = replace(
            self._study.manifest.steps[STEP],
            state=StepState.DONE,
            ended=self._now_s,
            command=command,
            outputs=run.outputs,
            error="",
        )
        self._study.save(self._study.manifest.with_step(STEP, entry))
        run.clear_partial()
