"""A running Slurm step of a job, as plain data that can be written to disk."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.metering.job_meter import JobMeter
from slurm_energy.devices.cpu.process_tree import JobCpuTime
from slurm_energy.known_fields import build_from

EXTERN = "extern"
"""Slurm's name of the step that contains the whole job."""


def is_container(step: str) -> bool:
    """Return whether a Slurm step is the batch, extern or interactive step of its job."""
    return step in ("batch", EXTERN, "interactive")


@dataclass(slots=True)
class JobStep:
    """A running Slurm step.

    Attributes:
        name: Slurm's name of the step.
        start_unix: Unix time of the step's start in seconds.
        meter_at_start: copy of the job's energy meter at the step's start.
        energy_uj: microjoules of the step by component, see `step_energy`.
        cpu_ticks: CPU time of the step's processes at the last division of energy, in clock ticks. Unlike
            `cpu_time`, this value is kept over restarts of the agent.
        cpu_time: CPU time of the step's processes at the last division of energy; None before the first
            division.
        pid: process id of the step's slurmstepd; None if not reported.
        shared: whether another Slurm step of the job ran at the same time.
        process_seen: whether the step's slurmstepd was seen alive.
        record_id: id of the energy record that will be written for the step.
    """

    name: str
    start_unix: float
    meter_at_start: JobMeter
    pid: int | None = None
    shared: bool = False
    process_seen: bool = False
    energy_uj: dict[str, int] = field(default_factory=dict)
    cpu_time: JobCpuTime | None = None
    cpu_ticks: int = 0
    record_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def is_container(self) -> bool:
        """Whether the step is the batch, extern or interactive step.

        A step of these kinds lasts until the job ends, and other steps run beside it.
        """
        return is_container(self.name)

    def dump(self) -> dict[str, Any]:
        """Return the step as a dict that JSON can hold, without `cpu_ticks`.

        Release 0.1 refuses a step with an unknown key, so the state directory stores `cpu_ticks` apart.
        """
        data = {**flat_fields(self), "meter_at_start": self.meter_at_start.dump(), "cpu_time": None}
        del data["cpu_ticks"]
        return data

    @classmethod
    def load(cls, data: dict[str, Any]) -> JobStep:
        """Return the step that `dump` turned into `data`."""
        return build_from(cls, {**data, "meter_at_start": build_from(JobMeter, data["meter_at_start"])})


def flat_fields(item: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance as a dict, without copying their values.

    `dataclasses.asdict` copies deeply, which is slow for hundreds of settings.
    """
    return {name: getattr(item, name) for name in item.__slots__}
