"""Messages between the agents and the controller about the power of nodes.

The agent of each node polls the controller. A poll reports the node's devices, power and jobs. The
controller responds with a decision. The decision states a power limit for each device, and the time
for which these limits are valid. It also states the limits to use after this time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from slurm_energy.errors import UsageError
from slurm_energy.known_fields import known_fields
from slurm_energy.quantities import is_number, shown

_T = TypeVar("_T")

BUDGET_PATH: Final = "/v1/budget/poll"
"""Path of the polls on the controller's HTTP server."""
MAX_DEVICES: Final = 256
MAX_NODE_JOBS: Final = 4096
MAX_DEVICE_WATTS: Final = 1e6
MAX_NODE_WATTS: Final = 1e7
LEASE_RANGE_S: Final = (1.0, 86_400.0)
POLL_RANGE_S: Final = (0.05, 3600.0)
_MAX_CURVE_POINTS: Final = 256
_MAX_NAME: Final = 256
_MAX_COUNT: Final = 1 << 53
_DEVICE: Final = re.compile(r"(?:gpu|socket|package-(?:\d{1,4}-die-)?)\d{1,4}", re.ASCII)
_BOOT_ID: Final = re.compile(r"[0-9A-Za-z_.:-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """State of a processor package or GPU in the poll that a node sends to the controller.

    A ceiling is the upper bound that a power budget sets for the power limit of a device.

    Attributes:
        name: `package-N`, `package-N-die-M`, `socketN` or `gpuN`, as in the keys of settings.
        kind: product name.
        min_watts, max_watts: range of the power limit; None if the device has no power limit to set.
        limit_watts: power limit that was read back; None if unknown.
        watts: mean power since the last poll; None if unknown.
        job_ids: jobs that use the device.
        ceiling_watts: ceiling of the power limit as the agent has read it back; None without a ceiling. The
            agent keeps the ceiling whatever the node's jobs request. If a job starts after the agent has
            read the ceiling, the present ceiling may be higher. It is then at most `start_watts` of the
            controller's decision.
    """

    name: str
    kind: str
    min_watts: float | None
    max_watts: float | None
    limit_watts: float | None
    watts: float | None
    job_ids: tuple[int, ...] = ()
    ceiling_watts: float | None = None

    @classmethod
    def from_json(cls, data: Any) -> DeviceReport:
        """Build a report about a device from its JSON form; ignore unknown keys.

        Raises:
            UsageError: a key is missing, or a value is out of range.
        """
        values = _known(data, cls)
        values["job_ids"] = _ids(values.get("job_ids", []))
        made = _build(cls, values)
        optional = (made.min_watts, made.max_watts, made.limit_watts, made.watts, made.ceiling_watts)
        fits = (
            _is_device(made.name)
            and _is_name(made.kind, min_length=0)
            and all(_is_optional(value, MAX_DEVICE_WATTS) for value in optional)
            and (made.min_watts is None) == (made.max_watts is None)
            and (made.min_watts is None or made.max_watts is None or made.min_watts <= made.max_watts)
        )
        return _checked(made, fits, f"device '{shown(str(made.name))}'")


@dataclass(frozen=True, slots=True)
class JobReport:
    """State of a job that runs on the node. The node's poll contains it.

    Attributes:
        job_id, restart_count: job id and restart count of the job.
        slowdown_limit: accepted slowdown as a fraction; None without a slowdown limit.
        requested_watts: power limit of each device that the job itself requests or that tuning has set,
            by device.
        curve: response curve measured in this run (`tuning.ResponseCurve` as JSON); None without a curve.
            `from_json` checks only the form; read the curve with `ResponseCurve.from_json`.
    """

    job_id: int
    restart_count: int
    slowdown_limit: float | None = None
    requested_watts: dict[str, float] = field(default_factory=dict)
    curve: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, data: Any) -> JobReport:
        """Build a report from its JSON form. Unknown keys are ignored.

        Raises:
            UsageError: a key is missing, or a value is out of range.
        """
        made = _build(cls, _known(data, cls))
        points = made.curve.get("points") if isinstance(made.curve, dict) else None
        fits = (
            _is_count(made.job_id)
            and _is_count(made.restart_count)
            and _is_optional(made.slowdown_limit, 1e3)
            and _is_watts_by_device(made.requested_watts)
            and (made.curve is None or (isinstance(points, list) and len(points) <= _MAX_CURVE_POINTS))
        )
        return _checked(made, fits, f"job {shown(str(made.job_id))}")


@dataclass(frozen=True, slots=True)
class NodePoll:
    """Report that the agent of a node sends to the controller.

    Attributes:
        node: Slurm's name of the node.
        boot_id: identifier of the node's boot. A reboot resets power limits.
        number: number of the last decision that was applied and read back; 0 means no decision.
        devices: packages and GPUs.
        node_watts: power of the whole node; None means not measured.
        dram_watts: power of the memory; None means not measured.
        jobs: jobs on the node.
        is_safe: whether the node has fallen back to its safe limits.
    """

    node: str
    boot_id: str
    number: int
    devices: tuple[DeviceReport, ...]
    node_watts: float | None
    dram_watts: float | None
    jobs: tuple[JobReport, ...] = ()
    is_safe: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the node's report about its power as a dict that can be stored as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> NodePoll:
        """Build the report (poll) of a node from a dict that `to_json` returned.

        Unknown keys are ignored.

        Raises:
            UsageError: a key is missing, or a value is out of range.
        """
        values = _known(data, cls)
        devices = _items(values.get("devices"), MAX_DEVICES, "devices")
        jobs = _items(values.get("jobs", []), MAX_NODE_JOBS, "jobs")
        values["devices"] = tuple(DeviceReport.from_json(item) for item in devices)
        values["jobs"] = tuple(JobReport.from_json(item) for item in jobs)
        made = _build(cls, values)
        fits = (
            _is_name(made.node)
            and isinstance(made.boot_id, str)
            and _BOOT_ID.fullmatch(made.boot_id) is not None
            and _is_count(made.number)
            and _is_optional(made.node_watts, MAX_NODE_WATTS)
            and _is_optional(made.dram_watts, MAX_NODE_WATTS)
            and type(made.is_safe) is bool
            and _are_unique(device.name for device in made.devices)
            and _are_unique((job.job_id, job.restart_count) for job in made.jobs)
        )
        return _checked(made, fits, f"node '{shown(str(made.node))}'")


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """Decision of the controller about the power limits of one node.

    Attributes:
        number: number of the decision; 0 means that no budget applies to the node.
        limits_watts: power limit by device; None means that the budgets set no limit. A device that is
            not listed keeps its present limit (ceiling).
        safe_watts: safe limit by device. The agent sets this limit when `lease_s` has passed without a
            decision.
        start_watts: start limit by device, for a job that starts before the next decision.
        lease_s: seconds for which the limits are valid.
        poll_s: seconds until the node asks for the next decision.
    """

    number: int
    limits_watts: dict[str, float | None]
    safe_watts: dict[str, float]
    start_watts: dict[str, float]
    lease_s: float
    poll_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a dict for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> NodeDecision:
        """Build a decision about a node's power from a dict that `to_json` returned.

        Unknown keys are ignored.

        Raises:
            UsageError: a key is missing, or a value is out of range.
        """
        if not isinstance(data, dict):
            raise UsageError("decision on a node's power: not a JSON object")
        made = _build(cls, known_fields(cls, data))
        fits = (
            _is_count(made.number)
            and _is_watts_by_device(made.limits_watts, optional=True)
            and _is_watts_by_device(made.safe_watts)
            and _is_watts_by_device(made.start_watts)
            and _is_within(made.lease_s, LEASE_RANGE_S)
            and _is_within(made.poll_s, POLL_RANGE_S)
        )
        return _checked(made, fits, "decision on a node's power")


def _known(data: Any, cls: type[Any]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError(f"{cls.__name__}: not a JSON object")
    return known_fields(cls, data)


def _build(cls: type[_T], values: dict[str, Any]) -> _T:
    try:
        return cls(**values)
    except TypeError as error:
        raise UsageError(f"{cls.__name__}: {shown(str(error), 200)}") from None


def _checked(made: _T, fits: bool, subject: str) -> _T:
    if not fits:
        raise UsageError(f"{type(made).__name__}: {subject}: a value is out of range")
    return made


def _items(data: Any, max_count: int, name: str) -> list[Any]:
    if not isinstance(data, list) or len(data) > max_count:
        raise UsageError(f"NodePoll: {name}: not a list of at most {max_count}")
    return data


def _ids(data: Any) -> tuple[int, ...]:
    ids = tuple(_items(data, MAX_NODE_JOBS, "job_ids"))
    if not (all(_is_count(item) for item in ids) and _are_unique(ids)):
        raise UsageError("DeviceReport: job_ids: not a list of different job ids")
    return ids


def _are_unique(keys: Iterable[Any]) -> bool:
    keys = list(keys)
    return len(set(keys)) == len(keys)


def _is_device(name: Any) -> bool:
    return isinstance(name, str) and _DEVICE.fullmatch(name) is not None


def _is_name(text: Any, min_length: int = 1) -> bool:
    return isinstance(text, str) and min_length <= len(text) <= _MAX_NAME and text.isprintable()


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT


def _is_within(value: Any, bounds: tuple[float, float]) -> bool:
    return is_number(value) and bounds[0] <= value <= bounds[1]


def _is_optional(value: Any, maximum: float) -> bool:
    return value is None or _is_within(value, (0.0, maximum))


def _is_watts_by_device(values: Any, *, optional: bool = False) -> bool:
    return (
        isinstance(values, dict)
        and len(values) <= MAX_DEVICES
        and all(_is_device(name) for name in values)
        and all(
            (optional and watts is None) or _is_within(watts, (0.0, MAX_DEVICE_WATTS))
            for watts in values.values()
        )
    )
