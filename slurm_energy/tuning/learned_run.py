"""Response of a program to hardware settings, as measured in one finished run of a job.

An operating point is a set of hardware settings. The response is read from the job's energy records.

There are two results, and a run yields one of them or both. The first result is the time and power at
several operating points, relative to the same run without tuning. The second result is the time and
power of the whole run at one operating point. Records come from nodes, which are not trusted.
Therefore implausible values are dropped, and the owner of the run is never taken from a record.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.control.knob_keys import split_key
from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.quantities import is_number
from slurm_energy.records import AppliedSetting, EnergyRecord, JobDevice, is_budget_limited
from slurm_energy.tuning.response_curve import CurveSource, ResponsePoint, hardware_kind

CHARACTERISATION_TAG: Final = "senergy-characterise/"
WORKLOAD_CLASSES: Final = ("compute", "memory", "host")
MIN_RUN_S: Final = 10.0
"""Minimum duration of a run whose time and power as a whole are compared. Shorter runs mostly start up."""
MIN_TUNED_RUN_S: Final = 150.0
"""Minimum duration of a tuned run whose time and power are compared. Its first 10 to 20 s are untuned."""
MAX_POINTS: Final = 64
_MAX_COUNT: Final = 10_000
_LIMIT_TOLERANCE: Final = 1.02
_COMPANIONS: Final = ("persistence", "enabled", "time_window")
_VARIANT = re.compile(r"\+[0-9a-f]{8}$", re.ASCII)  # see sweep.state.variant_tag
_RANGE = re.compile(r"\d{1,9}(?:\.\d+)?-(?P<high>\d{1,9}(?:\.\d+)?) MHz", re.ASCII)
_WATTS = re.compile(r"(?P<watts>\d{1,9}(?:\.\d+)?) W", re.ASCII)


@dataclass(frozen=True, slots=True)
class LearnedLimitRange:
    """Range of power limits of one GPU: from the minimum to the limit in force before the job."""

    min_watts: float
    default_watts: float


@dataclass(frozen=True, slots=True)
class LearnedRun:
    """Measurements in a finished run that show how its program responds to operating points.

    Attributes:
        hardware: kind of hardware, see `response_curve.hardware_kind`.
        fingerprint: digest of the batch script; None if unknown.
        model: value of `--energy-model`; None if not given.
        tag: value of `--energy-tag`; None if not given.
        shape: nodes, GPUs and CPUs. Whole runs are compared only with whole runs of the same shape.
        end_unix_s: Unix time at which the run ended.
        job: job id in the form that users write.
        point: operating point of the whole run; None if the point changed during the run or is unknown.
        seconds, watts: duration and mean power of the whole run on all nodes; None if `point` is None.
        points: points measured against the run's own untuned reference.
        untuned_watts: mean power of the untuned job; None if unknown.
        gpu_watts: mean power of the GPU with the highest mean power in the whole run; None if this power
            or `watts` is unknown.
        gpus: number of GPUs on all nodes.
        gpu_limits: power limits of a GPU; None if the limits are unknown or the job has no GPUs.
        exploration: whether the operating point of the run was chosen in order to learn the response.
    """

    hardware: str
    shape: str
    end_unix_s: float
    job: str
    fingerprint: str | None = None
    model: str | None = None
    tag: str | None = None
    point: OperatingPoint | None = None
    seconds: float | None = None
    watts: float | None = None
    points: tuple[ResponsePoint, ...] = ()
    untuned_watts: float | None = None
    gpu_watts: float | None = None
    gpus: int = 0
    gpu_limits: LearnedLimitRange | None = None
    exploration: bool = False

    @property
    def workload(self) -> str | None:
        """Name under which the learned response of the program is stored.

        The name is the fingerprint of the batch script. If the fingerprint is unknown, the name is that of
        the model. If the model is unknown too, there is no name, and the value is None. A variant of the
        program in a sweep, for example with another batch size, has a separate name.
        """
        name, variant = self.fingerprint or self.model, _VARIANT.search(self.tag or "")
        return name + variant[0] if name is not None and variant is not None else name

    @property
    def untuned_gpu_watts(self) -> float | None:
        """Mean power of one GPU of the untuned job; None if unknown."""
        return self.gpu_watts if self.point == UNTUNED else None

    def to_json(self) -> str:
        """Return the run as JSON text."""
        values = {
            **dataclasses.asdict(self),
            "point": None if self.point is None else self.point.to_json(),
            "points": [point.to_json() for point in self.points],
        }
        return json.dumps({key: value for key, value in values.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> LearnedRun:
        """Build a run from the text that `to_json` returned.

        Raises:
            UsageError: a value is malformed.
        """
        try:
            values = json.loads(text)
            limits, point = values.get("gpu_limits"), values.get("point")
            return cls(
                **{
                    **values,
                    "point": None if point is None else OperatingPoint.from_json(point),
                    "points": tuple(map(ResponsePoint.from_json, values.get("points", ()))),
                    "gpu_limits": None if limits is None else LearnedLimitRange(**limits),
                }
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError("stored run", str(error)[:200]) from None


def learned_run(
    records: Sequence[EnergyRecord],
    *,
    job: str,
    nodes: int,
    energy_joules: float | None,
    seconds: float,
    fingerprint: str | None = None,
) -> LearnedRun | None:
    """Return what tuning can learn from a finished run of a job.

    The result is None if nothing can be learned.

    Args:
        records: records of the whole job, one per node. Records of some nodes may be missing.
        job: job id in the form that users write.
        nodes: number of nodes of the job.
        energy_joules: energy on all nodes; None if unknown.
        seconds: duration of the run.
        fingerprint: digest of the batch script. Only the records of one node contain this digest.
    """
    if not records:
        return None
    first = records[0]
    devices = [device for record in records for device in record.devices]
    gpus = [device for device in devices if device.name.startswith("gpu")]
    processors = {device.product for device in devices if device.name == "cpu"}
    hardware = hardware_kind(" + ".join(sorted(processors)), [gpu.product for gpu in gpus])
    if not hardware:
        return None
    tuning = next(
        (record.tuning for record in records if record.tuning and record.tuning.get("points")), None
    )
    tuning = tuning or next((record.tuning for record in records if record.tuning), None)
    gpu_count = sum(len(record.gpus) for record in records) * max(1, nodes) // len(records)
    cpus = sum(record.cpus or 0 for record in records)
    limits = _limit_range(gpus)
    watts = energy_joules / seconds if energy_joules and seconds >= MIN_RUN_S else None
    point = _whole_run_point(records, limits) if watts is not None else None
    if point != UNTUNED and seconds < MIN_TUNED_RUN_S and any(record.tuning for record in records):
        point = None
    untuned = watts if point == UNTUNED else _reference_watts(tuning)
    run = LearnedRun(
        hardware=hardware,
        shape=f"{nodes} nodes, {gpu_count} GPUs, {cpus} CPUs",
        end_unix_s=max(record.end for record in records),
        job=job,
        fingerprint=fingerprint or first.fingerprint,
        model=first.model,
        tag=first.tag,
        point=point,
        seconds=None if point is None else seconds,
        watts=None if point is None else watts,
        points=_measured_points(tuning, first, limits),
        untuned_watts=untuned,
        gpu_watts=None if point is None else _gpu_watts(records),
        gpus=gpu_count,
        gpu_limits=limits,
        exploration=bool(tuning and tuning.get("exploration")),
    )
    return run if run.point is not None or run.points else None


def workload_class(tag: str | None) -> str | None:
    """Return the class of the reference kernel that a job's tag names; None for other jobs."""
    name = (tag or "").removeprefix(CHARACTERISATION_TAG)
    return name if name != tag and name in WORKLOAD_CLASSES else None


def _limit_range(gpus: Collection[JobDevice]) -> LearnedLimitRange | None:
    """Return the range of power limits that is common to all GPUs; None if the range of a GPU is unknown."""
    known = [(gpu.min_cap_watts, gpu.max_cap_watts) for gpu in gpus]
    if not known or any(not low or not high for low, high in known):
        return None
    low, high = max(low or 0.0 for low, _ in known), min(high or 0.0 for _, high in known)
    return LearnedLimitRange(low, high) if low <= high else None


def _measured_points(
    tuning: Mapping[str, Any] | None, record: EnergyRecord, limits: LearnedLimitRange | None
) -> tuple[ResponsePoint, ...]:
    """Return the operating points (settings) that were measured in this run with plausible results.

    The tuning data of the job also contain points from other sources, for example from earlier runs.
    These points are left out, so that no measurement counts several times.
    """
    measured: dict[OperatingPoint, ResponsePoint] = {}
    for data in (tuning or {}).get("points") or ():
        try:
            point = ResponsePoint.from_json(data)
        except UsageError:
            continue
        if point.source is CurveSource.THIS_RUN and _is_plausible(point, limits):
            measured[point.point] = dataclasses.replace(
                point,
                source=CurveSource.EARLIER_RUNS,
                count=min(max(1, point.count), _MAX_COUNT),
                measured_unix_s=record.end,
            )
    return tuple(list(measured.values())[:MAX_POINTS])


def _is_plausible(point: ResponsePoint, limits: LearnedLimitRange | None) -> bool:
    watts = point.point.gpu_limit_watts
    settable = (
        watts is None
        or limits is None
        or (limits.min_watts / _LIMIT_TOLERANCE <= watts <= limits.default_watts * _LIMIT_TOLERANCE)
    )
    return settable and point.is_plausible


def _reference_watts(tuning: Mapping[str, Any] | None) -> float | None:
    reference = (tuning or {}).get("reference") or {}
    watts: Any = reference.get("watts")
    return float(watts) if is_number(watts) and watts > 0 else None


def _whole_run_point(
    records: Sequence[EnergyRecord], limits: LearnedLimitRange | None
) -> OperatingPoint | None:
    """Return the operating point (settings) of a job's nodes if it was constant during the whole run.

    Return None if it is unknown. It is also unknown if a power budget limited the job, because the limits
    of the budget are not recorded.
    """
    if any(is_budget_limited(record.budget_capped_seconds, record.elapsed_s) for record in records):
        return None
    points = {_point_of(record) for record in records}
    point = points.pop() if len(points) == 1 else None
    if point is None or point == UNTUNED or limits is None:
        return point
    watts = point.gpu_limit_watts
    if watts is None or watts < limits.default_watts:
        return point
    return dataclasses.replace(point, gpu_limit_watts=None)  # the limit in force is no other point


def _point_of(record: EnergyRecord) -> OperatingPoint | None:
    tuning = record.tuning
    if tuning and tuning.get("mode") == "on":
        chosen = tuning.get("chosen")
        if tuning.get("probes") or tuning.get("reference") or chosen is None:
            return None
        try:
            return OperatingPoint.from_json(chosen)
        except UsageError:
            return None
    return point_of_settings(record.applied)


def point_of_settings(applied: Sequence[AppliedSetting]) -> OperatingPoint | None:
    """Return the operating point that corresponds to the settings that were applied to a job.

    An operating point is a set of settings that tuning can change. The result is None in three cases: a
    setting failed, a setting has different values on different devices, or a setting cannot be part of an
    operating point. A governor, for example, cannot.

    Args:
        applied: settings as in a record, with values such as `250 W` and `800-2400 MHz`.
    """
    values: dict[str, Any] = {}
    for setting in applied:
        name, domain = split_key(setting.setting)
        knob = name.rpartition(".")[2]
        if knob in _COMPANIONS:
            continue
        key, value = _knob_value(knob, domain, setting.applied or "")
        if value is None or values.setdefault(key, value) != value:
            return None
    try:
        return OperatingPoint.from_json(values)
    except UsageError:
        return None


def _knob_value(knob: str, domain: str, text: str) -> tuple[str, Any]:
    """Return the field of `OperatingPoint` that corresponds to a hardware setting, and its value.

    The value is None if it is unknown.

    Args:
        knob: name of the setting.
        domain: device of the setting, for example a GPU.
        text: value of the setting as text.
    """
    if knob == "power_limit":
        watts = _WATTS.fullmatch(text)
        key = "gpu_limit_watts" if domain.startswith("gpu") else "package_limit_watts"
        return key, float(watts["watts"]) if watts and float(watts["watts"]) > 0 else None
    if knob in ("locked_clocks", "frequency"):
        clocks = _RANGE.fullmatch(text)
        key = "gpu_clock_mhz" if knob == "locked_clocks" else "cpu_max_mhz"
        return key, float(clocks["high"]) if clocks and float(clocks["high"]) > 0 else None
    if knob in ("epp", "power_profile"):
        return "cpu_epp" if knob == "epp" else "gpu_power_profile", text or None
    if knob == "boost":
        return "boost", {"0": False, "1": True}.get(text)
    return knob, None


def _gpu_watts(records: Sequence[EnergyRecord]) -> float | None:
    """Return the mean power of the GPU that draws most; None if a GPU's power is unknown.

    The result is also None if there are no GPUs.
    """
    watts = [
        None if part.energy_joules is None else part.energy_joules / record.elapsed_s
        for record in records
        for part in record.components
        if part.name.startswith("gpu[") and record.elapsed_s > 0
    ]
    known = [one for one in watts if one is not None]
    return max(known) if known and len(known) == len(watts) else None
