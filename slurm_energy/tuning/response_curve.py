"""Response curves: relative time and power of a workload at operating points of one kind of hardware."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.quantities import is_number, shown

MAX_POINTS = 256
TIME_RATIOS = (0.7, 20.0)
"""Plausible time ratios. A limit does not make a program much faster; beyond 20 a sensor is faulty."""
POWER_RATIOS = (0.05, 1.5)
"""Plausible power ratios."""
_MAX_NAME = 256


class CurveSource(StrEnum):
    """Origin of a point of a response curve, from the most trusted to the least trusted origin.

    A response curve states the relative time and power of a program at different settings.
    """

    EARLIER_RUNS = "earlier runs"
    THIS_RUN = "this run"
    CHARACTERISATION = "characterisation"
    SITE = "site"
    PUBLISHED = "published"
    ORACLE = "oracle"
    PHYSICAL_MODEL = "physical model"
    GENERIC_PRIOR = "generic prior"


@dataclass(frozen=True, slots=True)
class ResponsePoint:
    """Relative time and power at one operating point. The untuned job has the ratios 1 and 1.

    Attributes:
        point: power limits and clock bounds to which the ratios belong.
        time_ratio: time per unit of work, divided by the time of the untuned job.
        power_ratio: mean power, divided by the mean power of the untuned job.
        time_error: standard error of `time_ratio`; None if unknown.
        source: origin of the ratios, for example a measurement or a prediction.
        count: number of independent measurements (runs or measurement windows); 0 for a prediction.
        measured_unix_s: Unix time of the latest measurement; None for a prediction.
    """

    point: OperatingPoint
    time_ratio: float
    power_ratio: float
    source: CurveSource
    time_error: float | None = None
    count: int = 0
    measured_unix_s: float | None = None

    @property
    def is_plausible(self) -> bool:
        """Whether the ratios are in a range that is possible for a real job."""
        return (
            TIME_RATIOS[0] <= self.time_ratio <= TIME_RATIOS[1]
            and POWER_RATIOS[0] <= self.power_ratio <= POWER_RATIOS[1]
            and (self.time_error is None or self.time_error < 1.0)
        )

    def to_json(self) -> dict[str, Any]:
        """Return a point of a response curve as a dict for JSON.

        The point states time and power of a program at one set of hardware settings.
        """
        return {**dataclasses.asdict(self), "point": self.point.to_json(), "source": self.source.value}

    @classmethod
    def from_json(cls, data: Any) -> ResponsePoint:
        """Build a point from a dict that `to_json` returned.

        Raises:
            UsageError: a key is missing or unknown, or a value is out of range.
        """
        try:
            values = {
                **data,
                "point": OperatingPoint.from_json(data["point"]),
                "source": CurveSource(data["source"]),
            }
            made = cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"response point: {shown(str(error), 200)}") from None
        numbers = (made.time_ratio, made.power_ratio)
        optional = (made.time_error, made.measured_unix_s)
        if not (
            all(is_number(number) and number > 0 for number in numbers)
            and all(number is None or (is_number(number) and number >= 0) for number in optional)
            and type(made.count) is int
            and made.count >= 0
        ):
            raise UsageError("response point: a number is out of range")
        return made


@dataclass(frozen=True, slots=True)
class ResponseCurve:
    """Response of one workload on one kind of hardware: how tuning changes its time and power.

    Attributes:
        hardware: kind of hardware, see `hardware_kind`.
        workload: fingerprint of the batch script, `--energy-model`, or the class of a reference kernel.
        points: measured time and power at several operating points (sets of hardware settings), at most
            one entry per operating point.
    """

    hardware: str
    workload: str
    points: tuple[ResponsePoint, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the curve as a dict for JSON."""
        points = [point.to_json() for point in self.points]
        return {"hardware": self.hardware, "workload": self.workload, "points": points}

    @classmethod
    def from_json(cls, data: Any) -> ResponseCurve:
        """Build a response curve from a dict that `to_json` returned.

        Raises:
            UsageError: a key is missing, or a value has the wrong type or is out of range.
        """
        if not isinstance(data, dict):
            raise UsageError("response curve: not a JSON object")
        names = [data.get(key) for key in ("hardware", "workload")]
        points = data.get("points")
        if not all(isinstance(name, str) and len(name) <= _MAX_NAME and name.isprintable() for name in names):
            raise UsageError("response curve: hardware or workload is not a short printable text")
        if not isinstance(points, list) or len(points) > MAX_POINTS:
            raise UsageError(f"response curve: points is not a list of at most {MAX_POINTS} points")
        return cls(str(names[0]), str(names[1]), tuple(ResponsePoint.from_json(item) for item in points))

    def plausible(self) -> ResponseCurve:
        """Return the response curve without implausible points.

        If several points describe the same operating point, only the last one is kept.
        """
        points = {item.point: item for item in self.points if item.is_plausible}
        return dataclasses.replace(self, points=tuple(points.values()))


def hardware_kind(cpu_product: str, gpu_products: Iterable[str]) -> str:
    """Return the kind of hardware of a job: its GPU product, or its processor if the job has no GPU.

    Args:
        cpu_product: product name of the processor.
        gpu_products: product names of the job's GPUs; the names of different products are joined.
    """
    return " + ".join(sorted(set(gpu_products))) or cpu_product
