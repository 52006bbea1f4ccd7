"""Rows of `senergy acct`: a job or step in Slurm's accounting, together with its energy.

All functions are pure. The rows and their order come from sacct. Each row is joined with the energy record
of the same cluster, job, run and step. Without slurmdbd, the rows come from the energy records themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.grid.footprint import Footprint
from slurm_energy.protocol.untuned_runs import ComparableProgram, UntunedRuns
from slurm_energy.reports.usage import JobUsage
from slurm_energy.slurm.sacct import seconds_of
from slurm_energy.slurm.tres import gpus_of_run, parse_tres

CLOCK_SKEW_S: Final = 300.0
"""Maximum difference between the clocks of a node and of Slurm's controller."""
_NOT_STARTED: Final = ("PENDING", "CONFIGURING")
_STARTED_STATES: Final = ("RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT")
_NO_NODES: Final = ("", "None assigned")
_UNTUNED_POLICY: Final = "monitor"


@dataclass(frozen=True, slots=True)
class AcctRow:
    """A job or step in the output of `senergy acct`.

    Attributes:
        cells: values of sacct's fields as text, by field name. Times are Unix seconds or words such as
            `Unknown`.
        usage: energy records of the job or step; None if no record exists, or the caller may not see the
            records.
        hidden: whether the caller may not see the energy.
        baseline: data of untuned runs of the same program; None if unknown, or not requested.
        footprint: emissions and cost of the energy; None if unknown, or not requested.
    """

    cells: Mapping[str, str]
    usage: JobUsage | None = None
    hidden: bool = False
    baseline: UntunedRuns | None = None
    footprint: Footprint | None = None

    @property
    def is_step(self) -> bool:
        """Whether the row is a step."""
        return "." in self.cells.get("JobIDRaw", "")

    @property
    def state(self) -> str:
        """The state of the job as one word, for example `CANCELLED` instead of `CANCELLED by 1000`."""
        return self.cells.get("State", "").partition(" ")[0]

    @property
    def running(self) -> bool:
        """Whether the job or step has started and not ended."""
        return self.state in _STARTED_STATES

    @property
    def unfinished(self) -> bool:
        """Whether the job or step is running or has not started."""
        return self.running or self.state in _NOT_STARTED

    @property
    def started(self) -> bool:
        """Whether Slurm has started the job or step on at least one node."""
        if self.state in _NOT_STARTED or self.cells.get("NodeList", "") in _NO_NODES:
            return False
        return seconds_of(self.cells, "Start") is not None

    @property
    def awaited(self) -> bool:
        """Whether the energy of this job or step should be shown.

        This is true if the job or step has started and is not hidden from the user.
        """
        return self.started and not self.hidden

    @property
    def energy_joules(self) -> float | None:
        """Energy of all nodes and components in joules; None if unknown."""
        return None if self.usage is None else self.usage.energy_joules


def program_of(usage: JobUsage | None) -> ComparableProgram | None:
    """Return the program of a job, for a comparison with untuned runs of the same program.

    None means that the job is not comparable. This is the case for steps, jobs without power settings, jobs
    without a script, and jobs for which the record of a node is missing. The resources of the program are
    determined as in `accounting.history.run_history`.
    """
    if usage is None or usage.first.step is not None or not usage.job.user or usage.missing_nodes:
        return None
    if usage.first.policy == _UNTUNED_POLICY:
        return None
    fingerprint = next((record.fingerprint for record in usage.records if record.fingerprint), None)
    if fingerprint is None:
        return None
    requested = parse_tres(usage.job.requested)
    return ComparableProgram(
        user=usage.job.user,
        fingerprint=fingerprint,
        name=usage.job.name or None,
        nodes=requested.nodes or usage.job.nodes,
        cpus=requested.cpus,
        gpus=gpus_of_run(usage.job.requested, sum(len(record.gpus) for record in usage.records)),
        gpu_kind=requested.gpu_kind,
    )


@dataclass(frozen=True, slots=True)
class VisibleJobs:
    """The jobs whose energy the caller may see, as the controller describes them in a response.

    Attributes:
        uid: uid of the caller.
        scope: jobs that the caller may see: `all`, the jobs of some `accounts`, or only the caller's `own`
            jobs.
        accounts: accounts that the caller coordinates.
    """

    uid: int
    scope: str
    accounts: frozenset[str] = frozenset()

    @classmethod
    def from_response(cls, response: Mapping[str, Any], uid: int) -> VisibleJobs:
        """Return the visible jobs as a response of the controller describes them."""
        accounts = response.get("accounts") or ()
        return cls(uid, str(response.get("scope", "all")), frozenset(map(str, accounts)))

    def includes(self, uid: str, account: str) -> bool:
        """Return whether the user who asks may see the energy of a job.

        Args:
            uid: the owner's uid as sacct prints it; empty if unknown.
            account: the job's account.
        """
        return self.scope == "all" or uid == str(self.uid) or account in self.accounts


def joined(
    rows: Iterable[Mapping[str, str]], usages: Sequence[JobUsage], visible: VisibleJobs
) -> list[AcctRow]:
    """Return the rows of sacct with their energy.

    Args:
        rows: rows of sacct, with `sacct.IDENTITY_FIELDS`; the steps of a job follow their job.
        usages: all runs of the jobs, as `usage.summarise` returns them with `duplicates=True`.
        visible: the jobs whose energy the caller may see.
    """
    join = _Join(usages)
    # sacct prints the owner for jobs only.
    owners: dict[str, str] = {}
    result = []
    for cells in rows:
        uid = owners.setdefault(cells["DBIndex"], cells["UID"])
        usage = join.usage_of(cells)
        hidden = usage is None and not visible.includes(uid, cells["Account"])
        result.append(AcctRow(cells, usage, hidden))
    return result


class _Join:
    """Index that finds the energy records of a job or step for a row of sacct."""

    def __init__(self, usages: Sequence[JobUsage]) -> None:
        self._jobs: dict[tuple[str, str], list[JobUsage]] = {}
        self._steps: dict[tuple[str, str, str], list[JobUsage]] = {}
        self._runs: dict[str, JobUsage] = {}
        for usage in usages:
            job = (usage.first.cluster, str(usage.first.job_id))
            if usage.first.step is None:
                self._jobs.setdefault(job, []).append(usage)
            for step in usage.steps if usage.first.step is None else (usage,):
                self._steps.setdefault((*job, step.first.step or ""), []).append(step)

    def usage_of(self, cells: Mapping[str, str]) -> JobUsage | None:
        """Return the energy records that belong to a row of sacct, which describes a job or a step."""
        job_id, _, step = cells["JobIDRaw"].partition(".")
        if not step:
            run = _run_of(cells, self._jobs.get((cells["Cluster"], job_id), []))
            if run is not None:
                self._runs[cells["DBIndex"]] = run
            return run
        run = self._runs.get(cells["DBIndex"])
        own = () if run is None else (item for item in run.steps if item.first.step == step)
        return next(iter(own), None) or _nearest(cells, self._steps.get((cells["Cluster"], job_id, step), []))


def _run_of(cells: Mapping[str, str], runs: Sequence[JobUsage]) -> JobUsage | None:
    """Return the run of a job that a row of sacct describes.

    A record that the controller has linked to Slurm's accounting contains the time of submission. This time
    identifies the run, because it differs between the runs of a job. If no record is linked, the run that is
    nearest in time to the row is returned.
    """
    submit = seconds_of(cells, "Submit")
    linked = [run for run in runs if run.job.submit is not None and run.job.submit == submit]
    return _nearest(cells, linked or [run for run in runs if run.job.submit is None])


def _nearest(cells: Mapping[str, str], usages: Sequence[JobUsage]) -> JobUsage | None:
    """Return the records of the run that is nearest in time to a row of sacct.

    The result is None if every run is further away than the permitted skew of clocks.
    """
    start, end = seconds_of(cells, "Start"), seconds_of(cells, "End")
    if start is None:
        start = seconds_of(cells, "Submit") or 0.0

    def distance_s(usage: JobUsage) -> float:
        late_s = 0.0 if end is None else usage.start - end
        return max(start - usage.end, late_s, 0.0)

    near = [usage for usage in usages if distance_s(usage) <= CLOCK_SKEW_S]
    return min(near, key=lambda usage: (distance_s(usage), abs(usage.start - start)), default=None)
