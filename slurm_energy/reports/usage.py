"""Energy and power of jobs and steps, summed over their nodes. All reports are made from these sums.

The module only computes with records and Slurm's accounting data; it creates no text. A value that is unknown
in all records is None. A sum is marked partial if some of its terms are unknown.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slurm_energy.errors import UsageError
from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.records import ComponentEnergy, EnergyRecord, Quality
from slurm_energy.reports.stored_records import parse_stored_record

COMPONENTS = ("cpu", "dram", "gpu", "other", "node")
MEASURED_COMPONENTS = ("cpu", "dram", "gpu")
EXPECTED_COMPONENTS = ("cpu", "dram", "other")
_ADDED_KEYS = ("job", "trace")  # by the controller, to those of the record
_ARRAY_OR_HETEROGENEOUS_ID = re.compile(r"(?P<base>\d+)[_+](?P<number>\d+)", re.ASCII)
_WORST_FIRST = (Quality.PARTIAL, Quality.MODELLED, Quality.MEASURED)


@dataclass(frozen=True, slots=True)
class JobInfo:
    """Data of a job from Slurm's accounting. None means unknown, perhaps only for now.

    Attributes:
        display_id: job id as Slurm shows it, e.g. `12_3` or `14+0`.
        name, account, partition, user, state: name, Slurm account, partition, user and state of the job, as
            sacct prints them.
        submit, start, end: times of submission, start and end in Unix seconds.
        nodes: number of allocated nodes.
        requested: requested resources as sacct prints them, e.g. `cpu=4,gres/gpu:a100=2,node=1`.
        exit_code: exit code and signal of the job as sacct prints them, e.g. `1:0`.
        step_exit_code: highest exit code of the job's steps, in the same form as `exit_code`.
    """

    display_id: str | None = None
    name: str | None = None
    account: str | None = None
    partition: str | None = None
    user: str | None = None
    state: str | None = None
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    nodes: int | None = None
    requested: str | None = None
    exit_code: str | None = None
    step_exit_code: str | None = None

    @classmethod
    def from_json(cls, data: Any) -> JobInfo:
        """Return the accounting data in the `job` object of a controller response.

        Unknown keys are ignored.

        Args:
            data: the `job` object; None means that nothing is known about the job.
        """
        return cls(**{key: data[key] for key in cls.__slots__ if key in data}) if data else cls()


@dataclass(frozen=True, slots=True)
class AccountedRecord:
    """An energy record as the controller returns it.

    Attributes:
        record: the record of one job or step on one node.
        job: the job's accounting data.
        trace: the power trace; None if not requested or not available.
    """

    record: EnergyRecord
    job: JobInfo = field(default_factory=JobInfo)
    trace: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, data: Any) -> AccountedRecord:
        """Return the record in one element of the list `records` of a response of the controller.

        Raises:
            UsageError: this release does not understand the record.
        """
        if not isinstance(data, dict):
            raise UsageError("controller's answer: a record is not a JSON object")
        record = parse_stored_record(data, _ADDED_KEYS)
        return cls(record, JobInfo.from_json(data.get("job")), data.get("trace"))


@dataclass(frozen=True, slots=True)
class JobUsage:
    """A job, or one of its steps, on all its nodes.

    Attributes:
        records: records of the job or step, one per node, ordered by node name. Never empty.
        job: data from Slurm's accounting.
        steps: Slurm steps of the job; empty if this is a step.
        traces: power trace per node, as defined in docs/reference/protocol.md.
        earlier_runs: earlier runs of the job, each of which ended with a requeue; empty if they were not
            requested.
    """

    records: tuple[EnergyRecord, ...]
    job: JobInfo
    steps: tuple[JobUsage, ...] = ()
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)
    earlier_runs: tuple[JobUsage, ...] = ()

    @property
    def first(self) -> EnergyRecord:
        """The record of the first node, for values that are the same on all nodes.

        Such values are ids, user, energy policy and flags.
        """
        return self.records[0]

    @property
    def display_id(self) -> str:
        """The id as Slurm writes it, with the step: `12_3`, `14+0.batch`."""
        base = self.job.display_id or str(self.first.job_id)
        return base if self.first.step is None else f"{base}.{self.first.step}"

    @property
    def raw_id(self) -> str:
        """The numeric job id, followed by the step if this is a Slurm step."""
        step = self.first.step
        return str(self.first.job_id) if step is None else f"{self.first.job_id}.{step}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that delivered a record."""
        return tuple(record.node for record in self.records)

    @property
    def missing_nodes(self) -> int | None:
        """Number of allocated nodes without a record; None if Slurm's count is unknown, as for all steps."""
        if self.job.nodes is None or self.first.step is not None:
            return None
        return max(0, self.job.nodes - len(self.records))

    @property
    def start(self) -> float:
        """Earliest start of all records of the job, in Unix seconds."""
        return min(record.start for record in self.records)

    @property
    def end(self) -> float:
        """Latest end of the records, Unix seconds."""
        return max(record.end for record in self.records)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the earliest start to the latest end of the records."""
        return self.end - self.start

    @property
    def cpus(self) -> int | None:
        """Number of CPUs on all nodes; None if unknown."""
        counts = [record.cpus for record in self.records if record.cpus is not None]
        return sum(counts) if counts else None

    @property
    def energy_joules(self) -> float | None:
        """Energy of all nodes and components in joules; None if unknown."""
        return _sum_known(record.energy_joules for record in self.records)

    def component_joules(self, component: str) -> float | None:
        """Return the joules of one component, summed over all nodes; None if unknown.

        Args:
            component: `cpu`, `dram`, `gpu` (all GPUs), `gpu[2]`, `other` or `node`.
        """
        return _sum_known(
            c.energy_joules for c in self.components if component in (c.name, component_type(c.name))
        )

    @property
    def components(self) -> tuple[ComponentEnergy, ...]:
        """The component energies from all records of the job or step."""
        return tuple(c for record in self.records for c in record.components)

    @property
    def component_types(self) -> tuple[str, ...]:
        """Component types to report, in a fixed order, including types without a known energy."""
        present = {component_type(component.name) for component in self.components} | set(
            self.unknown_components
        )
        return tuple(component for component in COMPONENTS if component in present)

    @property
    def incomplete_components(self) -> tuple[str, ...]:
        """Types of components whose energy is incomplete.

        The components can be measured, but on some node their counters returned no value.
        """
        without_energy = {component_type(c.name) for c in self.components if c.energy_joules is None}
        return tuple(component for component in COMPONENTS if component in without_energy)

    @property
    def unknown_components(self) -> tuple[str, ...]:
        """Component types missing from the total of some node, because the node cannot measure them.

        Each node has processors, memory and other parts (boards, fans, power supply). If a meter measures the
        whole node, no component of the node is missing.
        """
        missing = {
            component
            for record in self.records
            if not any(c.name == "node" and c.energy_joules is not None for c in record.components)
            for component in EXPECTED_COMPONENTS
            if component not in {c.name for c in record.components}
        }
        return tuple(
            component
            for component in COMPONENTS
            if component in missing or component in self.incomplete_components
        )

    @property
    def mean_watts(self) -> float | None:
        """Mean power of all nodes together in watts: energy divided by elapsed time. None if unknown."""
        energy = self.energy_joules
        return energy / self.elapsed_s if energy is not None and self.elapsed_s > 0 else None

    @property
    def peak_watts(self) -> float | None:
        """Sum of the nodes' peak watts; None if unknown.

        For several nodes this is an upper bound, because their peaks need not coincide.
        """
        return _sum_known(record.peak_watts for record in self.records)

    @property
    def edp_joule_seconds(self) -> float | None:
        """Energy-delay product in J s: energy times elapsed time. None if unknown. Source: thesis 2.1."""
        energy = self.energy_joules
        return None if energy is None else energy * self.elapsed_s

    @property
    def ed2p_joule_seconds2(self) -> float | None:
        """Energy times the square of the elapsed time, in J s^2. None if unknown. Source: thesis 2.1."""
        energy = self.energy_joules
        return None if energy is None else energy * self.elapsed_s**2

    @property
    def energy_kwh(self) -> float | None:
        """Energy of all nodes and components in kWh; None if unknown."""
        energy = self.energy_joules
        return None if energy is None else energy / JOULES_PER_KWH

    @property
    def seconds_above_cap(self) -> float | None:
        """Seconds above the power cap, on the node that exceeded it for the longest time.

        The value is None if there is no cap.
        """
        return _max_known(record.seconds_above_cap for record in self.records)

    @property
    def budget_capped_seconds(self) -> float | None:
        """Seconds in which a power budget lowered limits of devices, on the node with the most such seconds.

        The value is None if there is no budget.
        """
        return _max_known(record.budget_capped_seconds for record in self.records)

    @property
    def throttled_seconds(self) -> float | None:
        """Seconds in which a device was throttled, on the node with the most such seconds.

        The value is None if throttling is unknown.
        """
        return _max_known(record.throttled_seconds for record in self.records)

    @property
    def uncertain_seconds(self) -> float:
        """Seconds in which a counter may have missed a wrap, on the node with the most such seconds."""
        return max(record.uncertain_seconds for record in self.records)

    @property
    def quality(self) -> Quality | None:
        """Quality of the job's energy: the worst quality of its components; None if it is unknown.

        The quality is `partial` if a node or a measurable component is missing. Components that cannot be
        measured, such as `dram` or `other` on many nodes, do not make the total partial. They are listed in
        `unknown_components`.
        """
        if self.energy_joules is None:
            return None
        if self.missing_nodes or any(
            component in MEASURED_COMPONENTS for component in self.incomplete_components
        ):
            return Quality.PARTIAL
        if any(record.energy_joules is None for record in self.records):
            return Quality.PARTIAL
        return worst_quality(c.quality for c in self.components if c.energy_joules is not None)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the interfaces that measured the known energies of the job, e.g. `nvml`, `powercap`."""
        names = (c.source for c in self.components if c.energy_joules is not None and c.source)
        return tuple(sorted({source.split(":")[0] for source in names}))


def component_type(component: str) -> str:
    """Return the type of a component: `gpu` for `gpu[3]`, and the name itself otherwise."""
    return component.split("[")[0]


def worst_quality(qualities: Iterable[Quality]) -> Quality | None:
    """Return the worst of the given quality marks of energy values; None if there are none."""
    present = set(qualities)
    return next((quality for quality in _WORST_FIRST if quality in present), None)


def summarise(answers: Iterable[AccountedRecord], *, duplicates: bool = False) -> list[JobUsage]:
    """Group the controller's records into jobs with their steps.

    Args:
        answers: records of jobs and Slurm steps on nodes, in any order.
        duplicates: whether to return every run of a requeued job; otherwise only the last one.

    Returns:
        One `JobUsage` per cluster, job id and run, ordered by job id (array tasks by number), then run. If a
        run has only records of steps, its steps are returned.
    """
    runs = _runs(answers)
    last: dict[tuple[str, int], _Run] = {}
    for run in runs:
        last[run.cluster, run.job_id] = max(run, last.get((run.cluster, run.job_id), run))
    rows: list[JobUsage] = []
    for run in sorted(runs, key=lambda run: (_job_order(run, runs[run]), run)):
        if duplicates or run == last[run.cluster, run.job_id]:
            rows += _rows(runs[run])
    return rows


def _job_order(run: _Run, answers: Sequence[AccountedRecord]) -> tuple[int, int]:
    """Return the sort key of a run.

    The key is the job id. For array tasks and components of heterogeneous jobs, the key consists of the job
    id of the array or heterogeneous job, and the number of the task or component.
    """
    display_id = next((answer.job.display_id for answer in answers if answer.job.display_id), "")
    match = _ARRAY_OR_HETEROGENEOUS_ID.fullmatch(display_id)
    return (int(match["base"]), int(match["number"])) if match else (run.job_id, 0)


class _Run(NamedTuple):
    """Identity of one run of a job.

    Attributes:
        cluster: name of the cluster.
        job_id: numeric job id.
        submit: submission in Unix seconds. This time distinguishes jobs with the same id, which occur if
            Slurm's ids restarted.
        restart_count: how often the job was requeued before.
    """

    cluster: str
    job_id: int
    submit: float
    restart_count: int


def _runs(answers: Iterable[AccountedRecord]) -> dict[_Run, list[AccountedRecord]]:
    """Group energy records by run of a job. A requeued job has several runs.

    If Slurm's accounting data of a record are missing, the record belongs to the newest job with the same
    job id.
    """
    runs: dict[_Run, list[AccountedRecord]] = defaultdict(list)
    newest: dict[tuple[str, int], float] = {}
    with_submit: list[AccountedRecord] = []
    without_submit: list[AccountedRecord] = []
    for answer in answers:
        (without_submit if answer.job.submit is None else with_submit).append(answer)
    for answer in [*with_submit, *without_submit]:
        record = answer.record
        job = (record.cluster, record.job_id)
        submit = newest.get(job, 0.0) if answer.job.submit is None else answer.job.submit
        newest[job] = max(submit, newest.get(job, 0.0))
        runs[_Run(*job, submit, record.restart_count)].append(answer)
    return runs


def _rows(answers: Sequence[AccountedRecord]) -> list[JobUsage]:
    groups: dict[str | None, list[AccountedRecord]] = defaultdict(list)
    for answer in answers:
        groups[answer.record.step].append(answer)
    whole = groups.pop(None, None)
    steps = sorted((_usage(group) for group in groups.values()), key=_step_order)
    if whole is None:
        return steps
    return [dataclasses.replace(_usage(whole), steps=tuple(steps))]


def _usage(answers: Sequence[AccountedRecord]) -> JobUsage:
    ordered = sorted(answers, key=lambda answer: answer.record.node)
    job = next((a.job for a in ordered if a.job != JobInfo()), JobInfo())
    traces = {a.record.node: a.trace for a in ordered if a.trace}
    return JobUsage(tuple(a.record for a in ordered), job, (), traces)


def _step_order(usage: JobUsage) -> tuple[int, int, str]:
    """Return the sort key of a Slurm step: batch, extern, interactive, then the numbered steps.

    The order is that of sacct.
    """
    step = usage.first.step or ""
    names = ("batch", "extern", "interactive")
    rank = names.index(step) if step in names else len(names)
    return rank, int(step) if step.isdecimal() else 0, step


def _sum_known(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return math.fsum(known_values) if known_values else None


def _max_known(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
