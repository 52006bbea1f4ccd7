"""Facts about jobs from Slurm's accounting, read with one query for many jobs.

If slurmdbd runs, the facts are read with sacct. Otherwise the facts are read with squeue, which shows
finished jobs only for MinJobAge seconds. All releases from 22.05 on have the fields used here. This module
reads no energy values and stores nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import Command, Runner, run_command
from slurm_energy.slurm.command_output import FixedWidth, squeue_rows

IDS_PER_QUERY = 4000  # about 40 kB of arguments; one argument may have 128 KiB
_CLOCK_SKEW_S = 300.0
_SKEW_WITHOUT_START_S = 10.0
_UNFINISHED: Final = frozenset(
    (
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "RESIZING",
        "STAGE_OUT",
        "SIGNALING",
        "STOPPED",
        "RESV_DEL_HOLD",
        "EXPEDITING",
    )
)
_DISPLAY_ID = re.compile(r"(?P<base>\d+)(?:_(?P<task>\d+)|\+(?P<offset>\d+))?")
# The columns of both sources; the squeue columns of values that it cannot print are empty.
_SACCT: Final = FixedWidth(
    {
        **dict.fromkeys(("JobIDRaw", "JobID"), 64),
        **dict.fromkeys(("Cluster", "Account", "Partition", "User"), 256),
        "State": 64,
        **dict.fromkeys(("Submit", "Start", "End", "ElapsedRaw", "NNodes", "TimelimitRaw"), 24),
        **dict.fromkeys(("ReqTRES", "AllocTRES"), 1024),
        "QOS": 256,
        **dict.fromkeys(("ExitCode", "DerivedExitCode"), 16),
        "JobName": 256,
    }
)
_SQUEUE_OPTIONS: Final = ("-a", "-h", "-t", "all")
_SQUEUE_FIELDS: Final = (
    *(
        "%A",
        "%i",
        "",
        "%a",
        "%P",
        "%u",
        "%T",
        "%V",
        "%S",
        "%e",
        "%M",
        "%D",
        "%l",
        "",
        "%C",
        "%q",
        "",
        "",
        "%j",
    ),
)
_CUT_OFF: Final = "+"
_ACCOUNTING_OFF = "accounting storage is disabled"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One run of a job as Slurm's accounting shows it.

    A field is None if Slurm does not show the value (yet).

    Attributes:
        job_id: Slurm's job id.
        display_id: job id that users see: `12`, array task `12_3`, heterogeneous component `14+0`.
        cluster: ClusterName.
        name: job name.
        account: Slurm account.
        partition: name of the partition.
        user: login name of the owner.
        state: job state, as Slurm writes it.
        submit, start, end: Unix seconds.
        elapsed_s: elapsed time in seconds.
        nodes: number of nodes.
        time_limit_s: time limit in seconds; None also if there is no limit.
        requested: list of requested TRES as sacct prints it (`cpu=4,gres/gpu=2,node=1`); squeue does not show
            it.
        allocated: list of allocated TRES in the same form; from squeue the CPUs only.
        qos: quality of service.
        exit_code: exit code and signal of the batch script or salloc command, `CODE:SIGNAL`, once the job has
            ended; squeue does not show it.
        step_exit_code: the highest exit code of the steps that srun started, in the same form.
    """

    job_id: int
    display_id: str
    cluster: str | None
    name: str
    account: str | None
    partition: str | None
    user: str | None
    state: str
    submit: float | None
    start: float | None
    end: float | None
    elapsed_s: float | None
    nodes: int | None
    time_limit_s: float | None = None
    requested: str | None = None
    allocated: str | None = None
    qos: str | None = None
    exit_code: str | None = None
    step_exit_code: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the job state is final. If so, later queries of the job return the same facts."""
        return self.state.split(" ")[0] not in _UNFINISHED

    @property
    def array_job_id(self) -> int | None:
        """Job id of the array to which the job belongs; None means not an array task."""
        return self._base_if("task")

    @property
    def array_task_id(self) -> int | None:
        """Index of the task in its array; None means not an array task."""
        return self._part("task")

    @property
    def het_job_id(self) -> int | None:
        """Job id of the heterogeneous job to which this job belongs as a component.

        None means that the job is not a component of a heterogeneous job.
        """
        return self._base_if("offset")

    @property
    def het_offset(self) -> int | None:
        """Number of the component in its heterogeneous job; None means not a component."""
        return self._part("offset")

    def _part(self, name: str) -> int | None:
        match = _DISPLAY_ID.fullmatch(self.display_id)
        return int(match[name]) if match and match[name] is not None else None

    def _base_if(self, name: str) -> int | None:
        return self._part("base") if self._part(name) is not None else None


def read_job_facts(job_ids: Collection[int], run: Runner = run_command) -> dict[int, tuple[JobFacts, ...]]:
    """Return the facts about many jobs.

    Args:
        job_ids: job ids, as in SLURM_JOB_ID of a prolog.
        run: function that executes a command and returns the output of the command.

    Returns:
        The runs of each job in the order of their starts, by job id. A job has several runs after a requeue,
        or after Slurm has reused the id. squeue shows only the current run. Ids that Slurm does not know are
        missing.

    Raises:
        UnavailableError: neither slurmdbd nor slurmctld answers.
    """
    requested_ids = set(job_ids)
    runs_by_id: dict[int, list[JobFacts]] = {}
    for facts in _query(sorted(requested_ids), run):
        if facts.job_id in requested_ids:
            runs_by_id.setdefault(facts.job_id, []).append(facts)
    return {job_id: tuple(sorted(runs, key=_run_order)) for job_id, runs in runs_by_id.items()}


def choose_run(runs: Sequence[JobFacts], restart_count: int, start: float) -> JobFacts | None:
    """Return the run of a job to which an energy record belongs.

    Normally this is the run with the restart count of the record. However, the restart count can select
    the wrong run after old runs were purged or job ids were reused. Therefore the start of the record
    must lie within the run. If it does not, the function returns the run during which the record started.

    A start outside the run by up to 5 minutes is accepted, because clocks may differ. If Slurm has no
    start time of the run, only 10 seconds are accepted. (slurmdbd loses the start time if a job ends
    before the message of its start arrives. A job that was cancelled while pending looks the same.)

    Args:
        runs: runs of the job, from `read_job_facts`.
        restart_count: restart count of the record.
        start: start of the record, Unix seconds.

    Returns:
        The run; None means that no run was near the start of the record.
    """
    begun = [facts for facts in runs if facts.start is not None or facts.end is not None]
    if restart_count < len(begun) and _is_near(begun[restart_count], start):
        return begun[restart_count]
    near = [facts for facts in begun if _is_near(facts, start)]
    return min(near, key=lambda facts: _preference(facts, start), default=None)


def overlaps(facts: JobFacts, start: float, end: float) -> bool:
    """Return whether a run of a job may have overlapped the time from `start` to `end` (Unix s).

    The comparison extends the run by 5 minutes at both ends, because the clocks of the hosts may differ.
    """
    began = facts.start if facts.start is not None else facts.submit or 0.0
    return began - _CLOCK_SKEW_S < end and (facts.end is None or facts.end + _CLOCK_SKEW_S > start)


def _query(job_ids: Sequence[int], run: Runner) -> Iterator[JobFacts]:
    for first in range(0, len(job_ids), IDS_PER_QUERY):
        ids = ",".join(map(str, job_ids[first : first + IDS_PER_QUERY]))
        try:
            output = run(_sacct_command(ids))
        except UnavailableError as error:
            if _ACCOUNTING_OFF not in error.why:
                raise
            yield from _from_squeue(run)
            return
        for row in _SACCT.rows(output, "sacct"):
            yield _facts(row)


def _sacct_command(ids: str) -> Command:
    # -a: jobs of all users; -D: also earlier runs; -X: no steps.
    return _SACCT.command(["sacct", "-a", "-D", "-X", "-n", "-o", _SACCT.format, "-j", ids])


def _from_squeue(run: Runner) -> Iterator[JobFacts]:
    # Without -j: squeue would fail for all jobs if one of them has left the queue.
    for row in squeue_rows(_SQUEUE_OPTIONS, _SQUEUE_FIELDS, run):
        state, start, end = row[6], row[8], row[9]
        # squeue prints the expected start of a pending job, and the end of the time limit of a running job.
        row[8] = "" if state == "PENDING" else start
        row[9] = "" if state in _UNFINISHED else end
        row[10] = _clock_seconds(row[10])
        limit = _clock_seconds(row[12])
        row[12] = str(int(limit) // 60) if limit else ""
        row[14] = f"cpu={row[14]}" if state != "PENDING" and row[14].isdecimal() else ""
        yield _facts(row)


def _facts(row: Sequence[str]) -> JobFacts:
    job_id, display_id, cluster, account, partition, user, state, submit, start, end, elapsed, nodes = row[
        :12
    ]
    minutes, requested, allocated, qos, exit_code, step_exit_code, name = row[12:]
    if not job_id.isdecimal():
        raise UnavailableError("Slurm", f"'{job_id[:40]}' is not a job id")
    has_ended = _seconds(end) is not None  # sacct prints 0:0 for running jobs
    return JobFacts(
        job_id=int(job_id),
        display_id=display_id,
        cluster=_text(cluster),
        name=name,
        account=_text(account),
        partition=_text(partition),
        user=_text(user),
        state=state,
        submit=_seconds(submit),
        start=_seconds(start),
        end=_seconds(end),
        elapsed_s=_seconds(elapsed) if _seconds(start) is not None else None,  # sacct says 0
        nodes=int(nodes) if nodes.isdecimal() else None,
        time_limit_s=int(minutes) * 60.0 if minutes.isdecimal() else None,
        requested=_text(requested) if not requested.endswith(_CUT_OFF) else None,
        allocated=_text(allocated) if not allocated.endswith(_CUT_OFF) else None,
        qos=_text(qos),
        exit_code=_text(exit_code) if has_ended else None,
        step_exit_code=_text(step_exit_code) if has_ended else None,
    )


def _text(text: str) -> str | None:
    """Return a name that sacct or squeue printed; None for empty text and for `(null)`."""
    return text if text not in ("", "(null)") else None


def _seconds(text: str) -> float | None:
    """Return the number of seconds in a field; None for `Unknown`, `None`, `N/A` and similar text."""
    return float(text) if text.isdecimal() else None


def _clock_seconds(text: str) -> str:
    """Return squeue's `[days-][hours:]minutes:seconds` as seconds, in text; empty for any other form."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return ""
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return str(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _run_order(facts: JobFacts) -> tuple[float, float]:
    return (facts.submit or 0.0, facts.start or 0.0)


def _is_near(facts: JobFacts, time: float) -> bool:
    allowed_s = _SKEW_WITHOUT_START_S if facts.start is None else _CLOCK_SKEW_S
    return _distance_s(facts, time) <= allowed_s


def _preference(facts: JobFacts, time: float) -> tuple[float, bool, float]:
    return (_distance_s(facts, time), facts.start is None, -(facts.start or 0.0))


def _distance_s(facts: JobFacts, time: float) -> float:
    """Return the distance of a time (Unix seconds) from a run, in seconds; 0 if the time is within the run.

    A run without a start time counts from its submission, and a run without an end time counts as not ended.
    """
    start = facts.start if facts.start is not None else facts.submit or 0.0
    end = facts.end if facts.end is not None else time
    return max(start - time, time - end, 0.0)
