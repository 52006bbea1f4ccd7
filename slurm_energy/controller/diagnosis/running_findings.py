"""HTTP route and metric for the findings of the running jobs of all nodes.

The findings come from the last live report of each node.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.live_reports import LiveReports, NodeState, RunningRecord
from slurm_energy.diagnosis.live_finding import LiveFinding, merged
from slurm_energy.openmetrics.exposition import MetricFamily
from slurm_energy.protocol.live_reports import FINDINGS_PATH
from slurm_energy.protocol.query_parameters import refuse_unknown

RunKey = tuple[str, int, int]
"""Identity of a run of a job: cluster, job id and number of requeues."""


@dataclass(frozen=True, slots=True)
class JobWithFindings:
    """A running job with at least one finding.

    Attributes:
        cluster, job_id, restart_count: identity of the job's run; `restart_count` is the number of requeues.
        uid, user: uid and login name of the job's owner.
        start_s: start of the job, Unix seconds.
        nodes: nodes that reported a finding.
        findings: the findings, the most expensive first.
    """

    cluster: str
    job_id: int
    restart_count: int
    uid: int
    user: str
    start_s: float
    nodes: tuple[str, ...]
    findings: tuple[LiveFinding, ...]

    def to_json(self, now_s: float) -> dict[str, Any]:
        """Return the job as a JSON object.

        Args:
            now_s: present Unix time.
        """
        names = ("cluster", "job_id", "restart_count", "user")
        return {
            **{name: getattr(self, name) for name in names},
            "elapsed_s": round(max(0.0, now_s - self.start_s), 1),
            "nodes": list(self.nodes),
            "findings": [finding.to_json() for finding in self.findings],
        }


class RunningFindings:
    """Findings of running jobs.

    Args:
        live: receiver that keeps the last live report of each node.
        clock: returns Unix time in seconds.
    """

    def __init__(self, live: LiveReports, clock: Callable[[], float] = time.time) -> None:
        self._live, self._clock = live, clock

    @property
    def routes(self) -> RouteGroup:
        """The HTTP route that this object handles."""
        return RouteGroup(costly={FINDINGS_PATH: self.inquire})

    def jobs(
        self, is_visible: Callable[[NodeState, RunningRecord], bool] = lambda *_: True
    ) -> list[JobWithFindings]:
        """Return the running jobs with findings that are visible, sorted by cluster and job id."""
        found: dict[RunKey, list[tuple[NodeState, RunningRecord]]] = {}
        for state, record in self._records():
            if is_visible(state, record):
                found.setdefault((state.cluster, record.job_id, record.restart_count), []).append(
                    (state, record)
                )
        return [_job(found[key]) for key in sorted(found)]

    def running(self) -> frozenset[RunKey]:
        """Return the runs of jobs that the live reports of the nodes name, with or without findings."""
        return frozenset(
            (state.cluster, record.job_id, record.restart_count)
            for state in self._live.nodes()
            for record in state.records
        )

    def elapsed_s(self, job: JobWithFindings) -> float:
        """Return the seconds since the start of a job."""
        return max(0.0, self._clock() - job.start_s)

    async def inquire(self, query: dict[str, str], rights: Rights) -> Mapping[str, Any]:
        """Return the running jobs for which the diagnosis has found a cause of lost time or energy.

        Only jobs that the caller may see are returned.

        Raises:
            UsageError: the request has parameters.
        """
        refuse_unknown(query, ())
        now_s = self._clock()
        jobs = self.jobs(await self._live.visibility(rights))
        return {**rights.described(), "time": now_s, "jobs": [job.to_json(now_s) for job in jobs]}

    def families(self) -> Iterator[MetricFamily]:
        """Yield the metric that counts running jobs by kind of finding (cause of lost time or energy)."""
        family = MetricFamily(
            "jobs_with_finding", "Running jobs with a finding of this kind.", labels=("finding",)
        )
        counts = Counter(finding.kind.value for job in self.jobs() for finding in job.findings)
        for kind, count in sorted(counts.items()):
            family.add(float(count), kind)
        yield family

    def _records(self) -> Iterator[tuple[NodeState, RunningRecord]]:
        for state in self._live.nodes():
            for record in state.records:
                if record.findings and not record.is_step:
                    yield state, record


def _job(found: Iterable[tuple[NodeState, RunningRecord]]) -> JobWithFindings:
    states, records = zip(*found, strict=True)
    first: RunningRecord = records[0]
    return JobWithFindings(
        cluster=states[0].cluster,
        job_id=first.job_id,
        restart_count=first.restart_count,
        uid=first.uid,
        user=first.user,
        start_s=min(record.start_s for record in records),
        nodes=tuple(state.node for state in states),
        findings=merged(record.findings for record in records),
    )
