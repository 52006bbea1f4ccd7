"""The energy of a node in a period, divided among the node's jobs.

A period is plain data, exchanged as JSON.

Agent and controller exchange periods. Reports over time are computed from periods. In every component of a
period the energy of the jobs, the idle energy and the unattributed energy add up to the measured energy, to
the microjoule. In a time without any period, the node was not measured; the energy of that time is unknown,
not 0.

A release may add keys without a new schema version: readers keep keys that they do not know. If the meaning
of a key changes, the schema version must change too; see `records`.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.known_fields import parameter_names
from slurm_energy.quantities import is_number, shown
from slurm_energy.records import (
    MAX_EXTRA_DEPTH,
    MAX_EXTRA_KEYS,
    Extra,
    NewerSchemaError,
    is_name,
    is_plain_json,
)

PERIOD_SCHEMA_VERSION: Final = 1
MAX_PERIOD_JOBS: Final = 4096
"""Maximum number of jobs in a period. An agent closes a period before it has more."""
MAX_PERIOD_COMPONENTS: Final = 1024
MAX_MICROJOULES: Final = 2**62
"""Maximum of each energy in microjoules. It fits into the integers of every database."""
MAX_UNIX_S: Final = 2**40
_MAX_NAME, _MAX_UID, _MAX_ID = 255, 2**32 - 1, 2**63 - 1
_COMPONENT = re.compile(r"cpu|dram|other|gpu\[\d{1,3}\]")
_GROUPS: Final = ("cpu", "dram", "gpu", "other")
"""Columns of the reports. The energies of all GPUs of a node are added up."""


@dataclass(frozen=True, slots=True)
class PeriodEnergy:
    """Energy of one component in a period, in microjoules.

    Attributes:
        measured_uj: measured energy of the component, which is the sum of the other three attributes. For
            `other`, it is the energy from the meter of the node minus the energy of all other components.
        jobs_uj: sum of the energies of the period's jobs.
        idle_uj: static energy of resources that no job had.
        unattributed_uj: energy of processes outside jobs, and energy that was reported after the end of the
            job that used it.
    """

    measured_uj: int
    jobs_uj: int
    idle_uj: int
    unattributed_uj: int


@dataclass(frozen=True, slots=True)
class PeriodJob:
    """Energy that one run of a job used on a node during a period (usually an hour).

    Attributes:
        job_id: Slurm's job id.
        restart_count: number of earlier requeues.
        uid: owner of the job.
        energy_uj: microjoules by component. A component is absent if its energy is unknown.
    """

    job_id: int
    restart_count: int
    uid: int
    energy_uj: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NodePeriod:
    """Energy of a node from `start` to `end`, in whole Unix seconds (UTC).

    A period usually lasts from one multiple of `agent.period_s` to the next. A period is shorter if the
    agent starts or stops during this time. It is longer if the agent was stopped and the counters
    continued.

    Attributes:
        cluster, node: Slurm's names.
        components: energy by component: `cpu`, `dram`, `gpu[INDEX]` and `other`. A component is absent if
            its energy is unknown.
        jobs: the jobs that used energy.
        late_seconds: maximum time before `start`, in seconds, whose energy this period may contain
            because a meter reported that energy late.
        uncertain_seconds: seconds in which energy may be missing, because a counter was unreadable or may
            have wrapped, or because the energy will be reported late; the maximum over the components.
        period_id: unique id.
        extra: keys of a newer release that this release does not know.
    """

    cluster: str
    node: str
    start: int
    end: int
    components: Mapping[str, PeriodEnergy]
    jobs: tuple[PeriodJob, ...] = ()
    late_seconds: float = 0.0
    uncertain_seconds: float = 0.0
    period_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    extra: Extra = ()

    @property
    def record_id(self) -> str:
        """Id under which this period waits in the agent's spool for its delivery to the controller."""
        return self.period_id

    def to_json(self) -> dict[str, Any]:
        """Return the period as a dict for JSON, with the schema version.

        Keys that only a newer release knows are kept.
        """
        data = {key: getattr(self, key) for key in _SIMPLE_KEYS}
        data["components"] = {name: dataclasses.asdict(energy) for name, energy in self.components.items()}
        data["jobs"] = [{**dataclasses.asdict(job), "energy_uj": dict(job.energy_uj)} for job in self.jobs]
        return {"schema": PERIOD_SCHEMA_VERSION, **data, **dict(self.extra)}

    @classmethod
    def from_json(cls, data: Any) -> NodePeriod:
        """Build a period from a dict that `to_json` returned.

        Raises:
            NewerSchemaError: the schema version is newer than this release reads.
            UsageError: a key is missing or has a bad value, or the energies do not add up.
        """
        if not isinstance(data, dict):
            raise UsageError("energy period: not a JSON object")
        _check_schema(data.get("schema"))
        values = {key: data[key] for key in _SIMPLE_KEYS if key in data}
        for key, check in _CHECKS.items():
            if not check(values.get(key)):
                raise UsageError(f"energy period: bad value for '{key}': {shown(str(values.get(key)), 60)!r}")
        if values["end"] <= values["start"]:
            raise UsageError("energy period: 'end' is not after 'start'")
        known = {*_SIMPLE_KEYS, "schema", "components", "jobs"}
        extra = tuple((key, value) for key, value in data.items() if key not in known)
        if inner := _unknown_inner_keys(data):
            extra = (*(item for item in extra if item[0] != UNKNOWN_KEYS), (UNKNOWN_KEYS, inner))
        _check_extra(extra)
        components, jobs = _components(data.get("components")), _jobs(data.get("jobs"))
        _check_sums(components, jobs)
        return cls(**values, components=components, jobs=jobs, extra=extra)


UNKNOWN_KEYS: Final = "unknown_keys"
"""Key of a stored period for unknown keys: those of its components, by name, and of its jobs, by run."""
_SIMPLE_KEYS: Final = (
    *("cluster", "node", "start", "end"),
    *("late_seconds", "uncertain_seconds", "period_id"),
)


def grouped(energy_uj: Mapping[str, int]) -> dict[str, int | None]:
    """Return microjoules by report column: `cpu`, `dram`, `gpu` (all GPUs), `other` and `total`.

    None stands for unknown energy. `total` is the sum of the known components.

    Args:
        energy_uj: microjoules by component; absent if unknown.
    """
    columns: dict[str, int | None] = dict.fromkeys(_GROUPS)
    for name, energy in energy_uj.items():
        column = name.partition("[")[0]
        columns[column] = (columns[column] or 0) + energy
    return {**columns, "total": sum(energy_uj.values())}


def _check_schema(schema: Any) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise UsageError(f"energy period: schema {str(schema)[:40]!r} is not a version number")
    if schema > PERIOD_SCHEMA_VERSION:
        raise NewerSchemaError(
            f"energy period: schema {str(schema)[:40]} is newer than {PERIOD_SCHEMA_VERSION}",
            todo="upgrade the controller and the login nodes first, then the compute nodes",
        )


def _check_extra(extra: Extra) -> None:
    if len(extra) > MAX_EXTRA_KEYS:
        raise UsageError(f"energy period: more than {MAX_EXTRA_KEYS} unknown keys")
    for key, value in extra:
        if len(key) > _MAX_NAME or not is_plain_json(value, MAX_EXTRA_DEPTH):
            raise UsageError(f"energy period: bad value for unknown key {key[:60]!r}")


def _unknown_inner_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unknown keys inside the JSON objects of a period's components and jobs.

    A period is a report about the energy of a node. An unknown key is one that this release does not know.
    The result is empty if there are no unknown keys.
    """
    components, jobs = data.get("components"), data.get("jobs")
    named = components.items() if isinstance(components, dict) else ()
    runs = [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
    numbered = [(f"{job.get('job_id')}.{job.get('restart_count')}", job) for job in runs]
    unknown = {
        "components": _unknown_keys(PeriodEnergy, named),
        "jobs": _unknown_keys(PeriodJob, numbered),
    }
    return {kind: items for kind, items in unknown.items() if items}


def _unknown_keys(cls: type[Any], items: Iterable[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    names = parameter_names(cls)
    return {
        name: {key: value for key, value in item.items() if key not in names}
        for name, item in items
        if isinstance(item, dict) and not item.keys() <= names
    }


def _is_count(value: Any, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= high


def _is_time(value: Any) -> bool:
    return _is_count(value, MAX_UNIX_S)


def _is_length(value: Any) -> bool:
    return is_number(value) and 0 <= value <= MAX_UNIX_S


def _is_short_name(value: Any) -> bool:
    return value != "" and is_name(value, _MAX_NAME)


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "cluster": _is_short_name,
    "node": _is_short_name,
    "period_id": _is_short_name,
    "start": _is_time,
    "end": _is_time,
    "late_seconds": _is_length,
    "uncertain_seconds": _is_length,
}


def _components(data: Any) -> dict[str, PeriodEnergy]:
    if not isinstance(data, dict) or not 0 < len(data) <= MAX_PERIOD_COMPONENTS:
        raise UsageError("energy period: 'components' is not an object with at least one component")
    components = {}
    for name, energies in data.items():
        if not _COMPONENT.fullmatch(name):
            raise UsageError(f"energy period: unknown component {shown(name)!r}")
        if not isinstance(energies, dict):
            raise UsageError(f"energy period: bad energy of {name}")
        values: dict[str, Any] = {f.name: energies.get(f.name) for f in dataclasses.fields(PeriodEnergy)}
        if not all(_is_count(value, MAX_MICROJOULES) for value in values.values()):
            raise UsageError(f"energy period: bad energy of {name}: {shown(str(values), 120)}")
        energy = PeriodEnergy(**values)
        if energy.measured_uj != energy.jobs_uj + energy.idle_uj + energy.unattributed_uj:
            raise UsageError(f"energy period: the energies of {name} do not add up to the measured energy")
        components[name] = energy
    return components


def _jobs(data: Any) -> tuple[PeriodJob, ...]:
    if not isinstance(data, list) or len(data) > MAX_PERIOD_JOBS:
        raise UsageError(f"energy period: 'jobs' is not a list of at most {MAX_PERIOD_JOBS} jobs")
    jobs = tuple(_job(item) for item in data)
    if len({(job.job_id, job.restart_count) for job in jobs}) < len(jobs):
        raise UsageError("energy period: a job is listed twice")
    return jobs


def _job(data: Any) -> PeriodJob:
    if not isinstance(data, dict):
        raise UsageError("energy period: a job is not a JSON object")
    job_id, restart_count, uid = (data.get(key) for key in ("job_id", "restart_count", "uid"))
    energies = data.get("energy_uj")
    ids = _is_count(job_id, _MAX_ID) and _is_count(restart_count, _MAX_ID) and _is_count(uid, _MAX_UID)
    if not ids or not isinstance(energies, dict):
        raise UsageError(f"energy period: bad job {shown(str(job_id))}")
    for name, energy in energies.items():
        if not (_COMPONENT.fullmatch(name) and _is_count(energy, MAX_MICROJOULES)):
            raise UsageError(f"energy period: bad energy of job {job_id}: {shown(name)!r}")
    return PeriodJob(int(str(job_id)), int(str(restart_count)), int(str(uid)), energies)


def _check_sums(components: Mapping[str, PeriodEnergy], jobs: tuple[PeriodJob, ...]) -> None:
    sums = dict.fromkeys(components, 0)
    for job in jobs:
        for name, energy in job.energy_uj.items():
            if name not in sums:
                raise UsageError(f"energy period: job {job.job_id} has energy of the absent component {name}")
            sums[name] += energy
    for name, total in components.items():
        if total.jobs_uj != sums[name]:
            raise UsageError(f"energy period: the energies of the jobs do not add up to 'jobs_uj' of {name}")
