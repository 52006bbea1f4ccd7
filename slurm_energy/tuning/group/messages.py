"""Messages between the agents of a job on several nodes and the coordinator of its group.

An agent sends a `GroupPoll` and gets a `GroupDecision`. All times are seconds on the controller's clock.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.known_fields import known_fields
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.quantities import is_number, shown
from slurm_energy.tuning.candidates import CpuHardware, GpuHardware
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow
from slurm_energy.tuning_record import check_tuning

GROUP_PATH: Final = "/v1/tuning/group"
MAX_CANDIDATES: Final = 128
MAX_NODES: Final = 4096
_MAX_NAME: Final = 256
_MAX_NUMBERS: Final = 256
_MIN_POLL_S, _MAX_POLL_S = 0.05, 60.0
_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(OperatingPoint))


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Message in which an agent states the operating points that its node can have.

    The coordinator of a job on several nodes receives the message.

    Attributes:
        candidates: operating points from which the search may choose. The untuned point is not listed.
        gpu: the job's GPUs on the node; None if there are no GPUs whose power limit can be lowered.
        cpu: the job's processors on the node; None if the frequency of processors is not tuned.
        start: operating point to try first; None means that the search chooses the first point.
        pinned: whether the job stays at `start`.
    """

    candidates: tuple[OperatingPoint, ...]
    gpu: GpuHardware | None = None
    cpu: CpuHardware | None = None
    start: OperatingPoint | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class GroupPoll:
    """State of one node of a job, which the node's agent sends to the coordinator of the job.

    Attributes:
        node: Slurm's name of the node.
        job_id, restart_count: job id and restart count, which identify the run of the job.
        nodes: number of nodes of the job.
        objective: `edp`, `ed2p` or `energy`.
        slowdown_limit: maximum relative increase of the time; None for no limit.
        epoch: number of the last change that the node has applied; -1 if the agent does not know the number.
        point: operating point in force on the node; None if the agent does not know the point.
        switch_at_s: time of the next change that the agent has stored; None if no change is stored.
        offer: operating points that the node supports. The offer is sent only if the coordinator requests
            it; None in other polls.
        window: latest measurement window at the operating point of `epoch`; None without a new window.
        refused: names of fields of `OperatingPoint` that have no effect on the node.
        is_leaving: whether the job has ended on the node.
    """

    node: str
    job_id: int
    restart_count: int
    nodes: int
    objective: str
    slowdown_limit: float | None = None
    epoch: int = -1
    point: OperatingPoint | None = None
    switch_at_s: float | None = None
    offer: NodeOffer | None = None
    window: ProgressWindow | None = None
    refused: tuple[str, ...] = ()
    is_leaving: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the request to the coordinator as a dict for JSON. Values that are None are left out."""
        return _without_none(_json(self))

    @classmethod
    def from_json(cls, data: Any) -> GroupPoll:
        """Build an agent's request to the coordinator (poll) from a dict that `to_json` returned.

        Raises:
            UsageError: a key is unknown or missing, or a value is out of range.
        """
        values = _known(data, cls)
        try:
            offer, point, window = values.get("offer"), values.get("point"), values.get("window")
            values["offer"] = None if offer is None else _offer(offer)
            values["point"] = None if point is None else OperatingPoint.from_json(point)
            values["window"] = None if window is None else _window(window)
            values["refused"] = tuple(map(str, values.get("refused", ())))
            made = cls(**values)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise UsageError(f"poll of a tuning group: {shown(str(error), 200)}") from None
        made._check()
        return made

    def _check(self) -> None:
        counts = (self.job_id, self.restart_count, self.nodes)
        fits = (
            isinstance(self.node, str)
            and 0 < len(self.node) <= _MAX_NAME
            and self.node.isprintable()
            and all(type(count) is int and 0 <= count < 1 << 53 for count in counts)
            and 2 <= self.nodes <= MAX_NODES
            and self.objective in ("edp", "ed2p", "energy")
            and _is_optional(self.slowdown_limit, 0.0, 10.0)
            and type(self.epoch) is int
            and -1 <= self.epoch < 1 << 53
            and _is_optional(self.switch_at_s, -1e15, 1e15)
            and set(self.refused) <= _FIELDS
            and type(self.is_leaving) is bool
        )
        if not fits:
            raise UsageError("poll of a tuning group: a value is out of range")


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """Instruction of the coordinator to an agent.

    Attributes:
        coordinator: random name of the coordinator. A new name means that the coordinator's clock may have
            changed.
        time_s: time of the decision on the controller's clock.
        epoch: number of the change in force. An agent that has not applied this change applies it at once.
        point: operating point of `epoch`.
        next_point: operating point of the next change; None means that no change is planned.
        switch_at_s: time of the next change, which the agent stores; None means that no change is planned.
        go: whether the next change takes place. If not, the agent keeps `point` at `switch_at_s`.
        phase: current phase of the search, for example `reference`, `probe` or `hold`.
        poll_s: seconds until the agent polls again.
        needs_offer: whether the next poll must list the operating points that the node can have (the agent's
            offer).
        summary: result of the search so far, in the form of the job record's key `tuning`.
    """

    coordinator: str
    time_s: float
    epoch: int
    point: OperatingPoint
    next_point: OperatingPoint | None = None
    switch_at_s: float | None = None
    go: bool = False
    phase: str = "reference"
    poll_s: float = 1.0
    needs_offer: bool = False
    summary: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a dict for JSON. Absent values are left out."""
        return _without_none(_json(self)) | {"summary": dict(self.summary)}

    @classmethod
    def from_json(cls, data: Any) -> GroupDecision:
        """Build a decision from a dict that `to_json` returned. Unknown keys are ignored.

        Raises:
            UsageError: a key is missing, or a value is out of range.
        """
        if not isinstance(data, dict):
            raise UsageError("decision of a tuning group: not a JSON object")
        values = known_fields(cls, data)
        try:
            values["point"] = OperatingPoint.from_json(values["point"])
            if values.get("next_point") is not None:
                values["next_point"] = OperatingPoint.from_json(values["next_point"])
            made = cls(**values)
        except (TypeError, KeyError) as error:
            raise UsageError(f"decision of a tuning group: {shown(str(error), 200)}") from None
        fits = (
            isinstance(made.coordinator, str)
            and len(made.coordinator) <= _MAX_NAME
            and is_number(made.time_s)
            and type(made.epoch) is int
            and 0 <= made.epoch < 1 << 53
            and _is_optional(made.switch_at_s, -1e15, 1e15)
            and type(made.go) is bool
            and isinstance(made.phase, str)
            and len(made.phase) <= _MAX_NAME
            and is_number(made.poll_s)
            and _MIN_POLL_S <= made.poll_s <= _MAX_POLL_S
            and isinstance(made.summary, dict)
        )
        if not fits:
            raise UsageError("decision of a tuning group: a value is out of range")
        check_tuning({"mode": "on", "objective": "edp", **made.summary})
        return made


def _json(message: GroupPoll | GroupDecision) -> dict[str, Any]:
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    for name in ("point", "next_point"):
        if values.get(name) is not None:
            values[name] = values[name].to_json()
    if values.get("offer") is not None:
        offer: NodeOffer = values["offer"]
        values["offer"] = _without_none(
            {
                "candidates": [point.to_json() for point in offer.candidates],
                "gpu": offer.gpu and dataclasses.asdict(offer.gpu),
                "cpu": offer.cpu and _cpu_json(offer.cpu),
                "start": offer.start and offer.start.to_json(),
                "pinned": offer.pinned,
            }
        )
    if values.get("window") is not None:
        window: ProgressWindow = values["window"]
        finite = {} if math.isfinite(window.relative_error) else {"relative_error": None}
        fields = dataclasses.asdict(window) | {"point": window.point.to_json()} | finite
        if not window.spans_cycles:
            del fields["spans_cycles"]  # a controller of the previous release does not know it
        values["window"] = fields
    if "refused" in values:
        values["refused"] = list(values["refused"])
    return values


def _cpu_json(cpu: CpuHardware) -> dict[str, Any]:
    """Return the description of the processors as a dict for JSON.

    The field `boosts` is left out, because a controller of the previous release does not know it. The
    controller does not need the field. It also receives the possible operating points of the node, and
    they already contain a frequency bound if such a bound switches boost off.
    """
    values = dataclasses.asdict(cpu)
    del values["boosts"]  # a controller of the previous release does not know it
    return values


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _known(data: Any, cls: type[Any]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError("poll of a tuning group: not a JSON object")
    return known_fields(cls, data)


def _offer(data: Any) -> NodeOffer:
    candidates = data["candidates"]
    if not isinstance(candidates, list) or len(candidates) > MAX_CANDIDATES:
        raise ValueError(f"more than {MAX_CANDIDATES} candidates")
    gpu, cpu, start = data.get("gpu"), data.get("cpu"), data.get("start")
    return NodeOffer(
        tuple(OperatingPoint.from_json(item) for item in candidates),
        None if gpu is None else _hardware(GpuHardware, gpu),
        None if cpu is None else _hardware(CpuHardware, cpu),
        None if start is None else OperatingPoint.from_json(start),
        data.get("pinned") is True,
    )


def _hardware(cls: type[Any], data: Any) -> Any:
    """Build an object that describes hardware in a message about tuning, from its JSON form.

    The fields of the object are positive numbers or lists of positive numbers.
    """
    lists = [value for value in data.values() if isinstance(value, list)]
    numbers = [value for value in data.values() if value is not None and not isinstance(value, list)]
    numbers += [number for values in lists for number in values]
    if len(numbers) > _MAX_NUMBERS or not all(is_number(number) and 0 < number < 1e9 for number in numbers):
        raise ValueError("a number of the hardware is out of range")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


def _window(data: Any) -> ProgressWindow:
    error = data.get("relative_error")
    made = ProgressWindow(
        **{
            **data,
            "point": OperatingPoint.from_json(data["point"]),
            "source": ProgressSource(data["source"]),
            "relative_error": math.inf if error is None else error,
            "spans_cycles": data.get("spans_cycles") is True,
        }
    )
    numbers = (made.start_s, made.duration_s, made.units_per_s, made.watts)
    optional = (made.gpu_watts, made.package_watts)
    fits = (
        all(is_number(number) and abs(number) <= 1e15 for number in numbers)
        and made.duration_s > 0
        and made.watts >= 0
        and (error is None or (is_number(error) and error >= 0))
        and all(_is_optional(number, 0.0, 1e15) for number in optional)
    )
    if not fits:
        raise ValueError("a number of the window is out of range")
    return made


def _is_optional(value: Any, low: float, high: float) -> bool:
    return value is None or (is_number(value) and low <= value <= high)
