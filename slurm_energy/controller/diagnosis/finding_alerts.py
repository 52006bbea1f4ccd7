"""Alerts about findings of running jobs. Each alert is sent once; the site limits the alerts per hour."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from slurm_energy.config.diagnosis_section import ALL_KINDS, DiagnosisConfig
from slurm_energy.controller.diagnosis.alert_delivery import FindingAlert, run_command, send_mail
from slurm_energy.controller.diagnosis.running_findings import JobWithFindings, RunKey, RunningFindings
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog

INTERVAL_S: Final = 30.0
_HOUR_S: Final = 3600.0
_MEMORY_S: Final = 600.0
"""Time for which a job without live reports is remembered: its node may have lost the connection."""

_AlertKey = tuple[RunKey, str]


class FindingAlerts:
    """Sender of alerts about findings (causes of lost time or energy) of running jobs.

    A run of a job causes at most one alert for each kind of finding. An alert whose delivery fails is not
    sent again.

    Args:
        config: function that returns section `diagnosis` of the current configuration.
        findings: the findings of the running jobs.
        failures: log of failures; a repeated failure is logged once.
        clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        config: Callable[[], DiagnosisConfig],
        findings: RunningFindings,
        failures: RepeatedFailureLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._findings, self._failures, self._clock = config, findings, failures, clock
        self._sent: dict[_AlertKey, float] = {}
        self._times: deque[tuple[float, int]] = deque()

    async def loop(self) -> None:
        """Send alerts periodically until cancelled."""
        while True:
            await self.send()
            await asyncio.sleep(INTERVAL_S)

    async def send(self) -> int:
        """Send the alerts that are due, one after another. Return the number of alerts."""
        config, count = self._config(), 0
        if not config.alerts or not (config.alert_mail or config.alert_command):
            return 0
        for alert in self._in_turns(self._due(config)):
            if not self._take(config, alert.job.uid):
                self._failures.report(
                    "diagnosis.alerts", f"more than {config.alerts_per_hour} in an hour; the others wait"
                )
                return count
            self._sent[_key(alert.job, alert)] = self._clock()
            await asyncio.to_thread(self._deliver, alert, config)
            count += 1
        self._failures.clear("diagnosis.alerts", "no alert waits")
        return count

    def _due(self, config: DiagnosisConfig) -> Iterator[FindingAlert]:
        """Yield the alerts about findings of jobs that are due and were not sent yet."""
        self._forget_ended_jobs()
        for job in self._findings.jobs():
            elapsed_s = self._findings.elapsed_s(job)
            for finding in job.findings:
                alert = FindingAlert(job, finding, elapsed_s)
                is_due = elapsed_s >= config.alert_after_s and _is_wanted(alert, config)
                if is_due and _key(job, alert) not in self._sent:
                    yield alert

    def _forget_ended_jobs(self) -> None:
        """Forget the alerts about jobs that no live report has named for a while.

        The alerts about a running job are remembered even if its finding has disappeared for the present.
        """
        now_s, running = self._clock(), self._findings.running()
        for key, seen_s in list(self._sent.items()):
            if key[0] in running:
                self._sent[key] = now_s
            elif now_s - seen_s > _MEMORY_S:
                del self._sent[key]

    def _in_turns(self, alerts: Iterable[FindingAlert]) -> list[FindingAlert]:
        """Return alerts in an order that alternates between users.

        Alerts of users with the fewest alerts in this hour come first. The jobs of one user thus cannot use
        up the alerts of an hour while alerts of other users wait.
        """
        now_s = self._clock()
        while self._times and now_s - self._times[0][0] > _HOUR_S:
            self._times.popleft()
        counts = Counter(uid for _, uid in self._times)
        turns = []
        for alert in alerts:
            turns.append((counts[alert.job.uid], alert))
            counts[alert.job.uid] += 1
        return [alert for _, alert in sorted(turns, key=lambda turn: turn[0])]

    def _take(self, config: DiagnosisConfig, uid: int) -> bool:
        """Return whether another alert to users is permitted now.

        A permitted alert is counted for the owner of the job.
        """
        if len(self._times) >= config.alerts_per_hour:
            return False
        self._times.append((self._clock(), uid))
        return True

    def _deliver(self, alert: FindingAlert, config: DiagnosisConfig) -> None:
        ways = (
            ("diagnosis.alert_mail", config.alert_mail, send_mail),
            ("diagnosis.alert_command", config.alert_command, run_command),
        )
        for subject, is_configured, deliver in ways:
            if not is_configured:
                continue
            try:
                deliver(alert, config)
            except EnergyError as error:
                self._failures.report(subject, f"an alert was not delivered: {error}")
            else:
                self._failures.clear(subject)


def _key(job: JobWithFindings, alert: FindingAlert) -> _AlertKey:
    return (job.cluster, job.job_id, job.restart_count), alert.finding.kind.value


def _is_wanted(alert: FindingAlert, config: DiagnosisConfig) -> bool:
    share = alert.finding.time_share
    is_kind = ALL_KINDS in config.alerts or alert.finding.kind.value in config.alerts
    return is_kind and share is not None and 100 * share >= config.alert_share
