"""Data about the running jobs of a node, which the node reports for budget decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from slurm_energy.agent.budget.limited_devices import LimitedDevice
from slurm_energy.agent.jobs import planner
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.budget.messages import JobReport
from slurm_energy.config import Config
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.errors import UsageError
from slurm_energy.tuning.response_curve import ResponseCurve, ResponsePoint, hardware_kind

_LIMIT_FIELDS: Final = ("gpu_limit_watts", "package_limit_watts")
_MAX_CURVE_POINTS: Final = 32
_MAX_POLL_POINTS: Final = 512
"""Maximum number of points in all curves of a poll, about 100 kB. The controller refuses longer polls."""


class JobReports:
    """Collector of reports about the jobs on this node.

    Args:
        sessions: returns the sessions of the running jobs.
        journal: settings journal, which contains the power limits that the jobs have requested.
        config: returns the current configuration.
    """

    def __init__(
        self,
        sessions: Callable[[], Iterable[Session]],
        journal: SettingsJournal,
        config: Callable[[], Config],
    ) -> None:
        self._sessions = sessions
        self._journal = journal
        self._config = config
        self._slowdown_limits: dict[tuple[int, int], float | None] = {}

    def collect(self, devices: Iterable[LimitedDevice]) -> tuple[JobReport, ...]:
        """Return one report per running job.

        Args:
            devices: packages and GPUs of the node.
        """
        sessions, limited = list(self._sessions()), list(devices)
        running = {session.key for session in sessions}
        self._slowdown_limits = {key: v for key, v in self._slowdown_limits.items() if key in running}
        reports, free_points = [], _MAX_POLL_POINTS
        for session in sessions:
            curve = response_curve(session)
            points = 0 if curve is None else len(curve["points"])
            if points > free_points:
                curve, points = None, 0
            free_points -= points
            reports.append(
                JobReport(
                    job_id=session.job_id,
                    restart_count=session.restart_count,
                    slowdown_limit=self._slowdown_limit(session),
                    requested_watts=self._requested_watts(session.owner, limited),
                    curve=curve,
                )
            )
        return tuple(reports)

    def _slowdown_limit(self, session: Session) -> float | None:
        if session.key not in self._slowdown_limits:
            request = planner.request_again(session, self._config())
            self._slowdown_limits[session.key] = request.slowdown_limit
        return self._slowdown_limits[session.key]

    def _requested_watts(self, owner: str, devices: Iterable[LimitedDevice]) -> dict[str, float]:
        """Return the power limits that a job or its tuner has requested, in watts by device name.

        Args:
            owner: name of the job or tuner in the journal of settings.
            devices: devices whose power can be limited.
        """
        requested: dict[str, float] = {}
        for device in devices:
            for key in device.limit_keys:
                entry = self._journal.entries.get(key)
                claim = None if entry is None else entry.claims.get(owner)
                if claim is not None:
                    watts = device.watts_of(claim)
                    requested[device.name] = min(watts, requested.get(device.name, watts))
        return requested


def response_curve(session: Session) -> dict[str, Any] | None:
    """Return the response curve that a job's tuner has measured; None if nothing was measured.

    The curve serves to distribute power among jobs. It contains only operating points that change nothing
    but power limits. Other operating points do not help for this purpose.

    Args:
        session: session (state on this node) of the job.
    """
    if session.tuning is None:
        return None
    points = []
    for item in session.tuning.get("points", ()):
        try:
            point = ResponsePoint.from_json(item)
        except UsageError:
            continue
        values = point.point.to_json()
        if point.is_plausible and values and values.keys() <= set(_LIMIT_FIELDS):
            points.append(point)
    if not points:
        return None
    cpu = next((device.product for device in session.devices if device.name == "cpu"), "")
    gpus = [device.product for device in session.devices if device.name != "cpu"]
    workload = session.fingerprint or session.model or ""
    curve = ResponseCurve(hardware_kind(cpu, gpus), workload, tuple(points[-_MAX_CURVE_POINTS:]))
    return curve.to_json()
