"""The agent's work at the end of jobs.

The settings that a job changed are restored, and its energy records are written. Then the agent's
stored state of the job (session) is removed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

from slurm_energy.agent.jobs import job_records
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.signals.observation import node_observation, observation_json
from slurm_energy.agent.state.checkpoints import CheckpointWriter
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices

log = logging.getLogger(__name__)


class JobFinalizer:
    """Restores the settings of ended jobs and writes their energy records.

    Args:
        devices: the node's hardware.
        settings: restores settings.
        checkpoints: writes records.

    Attributes:
        sessions: ended jobs whose settings are not restored yet, or whose records are not written yet.
    """

    def __init__(
        self, devices: NodeDevices, settings: SettingsManager, checkpoints: CheckpointWriter
    ) -> None:
        self.sessions: list[Session] = []
        self._devices = devices
        self._settings = settings
        self._checkpoints = checkpoints

    def restore_settings(self, session: Session) -> None:
        """Restore the settings that a job changed. Store the results in the job's session.

        The session is the state that the agent stores about the job.
        """
        results = self._settings.restore(session.owner)
        by_key = {result.key: result for result in (*session.restored, *results)}
        # Entries may have been closed before, by senergyd --restore or just before a crash.
        missing = [o for o in session.outcomes if o.key not in by_key and not o.failed]
        session.restored = [*by_key.values(), *self._settings.check_restored(missing)]

    def repair(self, running: Iterable[Session]) -> None:
        """Restore settings of jobs that no longer run, and retry failed settings of running jobs."""
        for session in self.sessions:
            if self._settings.has_settings(session.owner):
                self.restore_settings(session)
        self._settings.repair([session.owner for session in (*running, *self.sessions)])

    def end_step(self, session: Session, name: str, sampled_s: float, now_s: float) -> None:
        """Write the record of a Slurm step.

        If the write fails, `complete` writes this record together with the record of the job.

        Args:
            session: session (state on this node) of the job.
            name: Slurm's name of the step.
            sampled_s: time of the step's last sample in seconds since boot.
            now_s: present time in seconds since boot.
        """
        step = session.steps[name]
        if step.is_container:
            session.steps_ended_at = now_s
        if self._checkpoints.spool_record(job_records.step_record(session, step, session.unix_at(sampled_s))):
            del session.steps[name]

    def complete(self) -> None:
        """Write the records of ended jobs, and remove these jobs from the table of sessions.

        A failed write is retried by the next call.
        """
        if not self.sessions or not self._checkpoints.save_accounts():
            return  # a removed session file may hold the only current energy accounts
        self.sessions = [session for session in self.sessions if not self._completed(session)]

    def _completed(self, session: Session) -> bool:
        if self._settings.has_settings(session.owner) or (session.outcomes and not session.restored):
            self.restore_settings(session)  # or a crash prevented saving the results
        end = session.end_unix if session.end_unix is not None else session.start_unix
        for name, step in list(session.steps.items()):
            record = job_records.step_record(session, step, end)
            notes = (*record.notes, "the end of the step was not reported")
            if self._checkpoints.spool_record(dataclasses.replace(record, notes=notes)):
                del session.steps[name]
        trace = None
        if session.trace is not None and session.trace.is_plot:
            trace = session.trace.encode(session.unix_at(session.trace.start))
        record = job_records.job_record(session, self._devices.knobs)
        if session.steps or not self._checkpoints.spool_record(record, trace, _observation(session)):
            return False
        joules = "unknown" if record.energy_joules is None else f"{record.energy_joules:.1f} J"
        log.info("job %s ended: %s in %.1f s", session.owner, joules, record.elapsed_s)
        self._checkpoints.remove_when_synced([session])
        return True


def _observation(session: Session) -> dict[str, Any] | None:
    observed = node_observation(session.node, session.recording, session.step_reports, session.unix_at)
    return observation_json(observed)
