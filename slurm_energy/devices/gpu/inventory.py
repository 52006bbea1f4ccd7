"""What any library of a GPU maker finds on a node: one shape for NVML and AMD SMI. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_energy.devices.driver import EnergyCounter, Knob, ThrottleSensor
from slurm_energy.devices.hardware import GpuInfo


@dataclass(frozen=True, slots=True)
class GpuDevices:
    """GPUs with their counters, knobs and sensors; everything empty on a node without that maker's GPUs.

    `notes` are oddities, one line each; `reason` says why the library cannot be used, empty if it can.
    """

    gpus: list[GpuInfo]
    counters: list[EnergyCounter]
    knobs: list[Knob]
    throttle_sensors: list[ThrottleSensor]
    close: Callable[[], None]
    notes: list[str] = field(default_factory=list)
    reason: str = ""
