"""Application of the settings of jobs to the hardware of the node.

The settings of a job are applied when the job starts. They are applied again when its CPUs become known,
when the job has to share the node, or when its caps change.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping

from slurm_energy.agent.jobs import planner
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.state.checkpoints import CheckpointWriter
from slurm_energy.config import Config
from slurm_energy.control import knob_keys
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.control.transaction import SettingOutcome
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.policies import PolicyRequest

log = logging.getLogger(__name__)


class SettingsApplier:
    """Object that plans and applies the settings of jobs.

    Args:
        devices: the node's hardware.
        settings: applies settings and records the original values in the settings journal.
        checkpoints: writes the plan to disk before it is applied.
        config: returns the current configuration.
    """

    def __init__(
        self,
        devices: NodeDevices,
        settings: SettingsManager,
        checkpoints: CheckpointWriter,
        config: Callable[[], Config],
    ) -> None:
        self._devices = devices
        self._settings = settings
        self._checkpoints = checkpoints
        self._config = config

    def apply(self, session: Session, request: PolicyRequest) -> list[SettingOutcome]:
        """Plan and apply the settings that a job requests. Return the outcome of each setting.

        Settings that only an earlier plan of the job contained are restored to their original values.
        """
        journal = self._settings.journal
        plan, values = planner.plan(session, request, self._devices, journal, self._config())
        dropped = {setting.key for setting in session.plan} - {setting.key for setting in plan.settings}
        session.policy, session.plan = plan.policy, plan.settings
        session.power_monitor.cap_watts, session.power_monitor.gpu_cap_watts = (
            plan.cap_watts,
            plan.gpu_cap_watts,
        )
        for note in plan.notes:
            session.note(note)
        if dropped:
            self._settings.restore(session.owner, dropped)
        if plan.settings:
            self._checkpoints.save(session)
        if dropped:
            values = {}  # restoring other settings may have changed the values
        outcomes = self._settings.apply(session.owner, plan.settings, values)
        session.merge_outcomes(outcomes)
        failed: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.failed:
                failed.setdefault(outcome.note, []).append(outcome.key)
        for note, keys in failed.items():
            log.warning("job %s: %s: %s", session.owner, knob_keys.join_keys(keys), note)
        return outcomes

    def replan(self, session: Session) -> None:
        """Compute and apply the settings of a running job once more.

        Call this method when the CPUs of the job become known, or when the job has to share the node.
        """
        before = session.policy, session.plan, list(session.notes)
        outcomes = self.apply(session, planner.request_again(session, self._config()))
        session.policy = before[0]
        log.info("job %s: CPUs changed, %d settings planned again", session.owner, len(outcomes))
        if outcomes or before != (session.policy, session.plan, session.notes):
            self._checkpoints.save(session)

    def set_caps(self, session: Session, caps: Mapping[str, float | None]) -> dict[str, int]:
        """Change the power caps of a running job.

        Args:
            session: session (state on this node) of the job.
            caps: values of `cap_watts` and `gpu_cap_watts`. None removes a cap. A cap that is absent from
                the mapping stays unchanged.

        Returns:
            How many settings were `applied` and how many `failed`.
        """
        request = dataclasses.replace(
            planner.request_again(session, self._config()),
            policy=planner.capping_policy(session.policy, self._config()),
            cap_watts=caps.get("cap_watts", session.power_monitor.cap_watts),
            gpu_cap_watts=caps.get("gpu_cap_watts", session.power_monitor.gpu_cap_watts),
        )
        policy = session.policy
        outcomes = self.apply(session, request)
        session.policy = policy
        note = planner.caps_note(session.power_monitor.cap_watts, session.power_monitor.gpu_cap_watts)
        session.note(note)
        self._checkpoints.save(session)
        log.info("job %s: %s", session.owner, note)
        failed = sum(outcome.failed for outcome in outcomes)
        return {"applied": len(outcomes) - failed, "failed": failed}
