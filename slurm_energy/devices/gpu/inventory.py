"""Data class for the GPUs of a node with their counters, knobs and sensors.

A vendor's library finds the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_energy.devices.driver import ActivitySensor, EnergyCounter, Knob, ThrottleSensor
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.devices.signal_sensor import SignalSensor


@dataclass(frozen=True, slots=True)
class GpuDevices:
    """GPUs of one vendor with their devices; all lists are empty on a node without GPUs of that vendor.

    Attributes:
        gpus: descriptions of the GPUs.
        counters: energy counters.
        knobs: knobs of limits, clocks and persistence mode.
        throttle_sensors: sensors of throttling.
        close: function that closes the library.
        activity_sensors: sensors of the work that the GPUs do.
        signal_sensors: sensors of the signals of GPUs.
        notes: peculiarities of this node, one line each.
        reason: why the library cannot be used; empty if it can.
    """

    gpus: list[GpuInfo]
    counters: list[EnergyCounter]
    knobs: list[Knob]
    throttle_sensors: list[ThrottleSensor]
    close: Callable[[], None]
    activity_sensors: list[ActivitySensor] = field(default_factory=list)
    signal_sensors: list[SignalSensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: str = ""
