"""Readings of a job's hardware for the progress tracker: GPU activity and CPU instructions."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from typing import Any, Final

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.devices.cpu.instructions import InstructionCounter
from slurm_energy.devices.cpu.topology import online_cpus
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.driver import Activity, DeviceError
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
"""Minimum interval of readings. A reading costs up to 1 ms, and GPU values are means of up to 1 s."""

Key = tuple[int, int]


class JobSignals:
    """Readings of hardware sensors from which the progress of tuned jobs is detected.

    Args:
        devices: the node's hardware.
    """

    def __init__(self, devices: NodeDevices) -> None:
        self._devices = devices
        self._sensors = {sensor.component: sensor for sensor in devices.activity_sensors}
        self._counters: dict[Key, InstructionCounter] = {}
        self._read_s: dict[Key, float] = {}
        self._failures = RepeatedFailureLog(log)

    def read(self, session: Session, now_s: float) -> dict[str, Any]:
        """Read the hardware of a job and return keyword arguments for `ProgressTracker.sample`.

        The result is empty if the last reading was made very recently.

        Args:
            session: session (state on this node) of the job.
            now_s: time of the sample in seconds since boot.
        """
        if now_s - self._read_s.get(session.key, -math.inf) < _INTERVAL_S:
            return {}
        self._read_s[session.key] = now_s
        activities = [reading for index in session.gpus if (reading := self._activity(index)) is not None]
        return {**_merged(activities), "instructions": self._counter(session).read()}

    def forget(self, key: Key) -> None:
        """Close the hardware counters of a job that has ended."""
        self._read_s.pop(key, None)
        if (counter := self._counters.pop(key, None)) is not None:
            counter.close()

    def _activity(self, index: int) -> Activity | None:
        component = f"gpu[{index}]"
        sensor = self._sensors.get(component)
        if sensor is None:
            return None
        try:
            reading = sensor.read()
        except DeviceError as error:
            self._failures.report(f"activity of {component}", f"cannot be read: {error}")
            return None
        self._failures.clear(f"activity of {component}", "can be read again")
        return reading

    def _counter(self, session: Session) -> InstructionCounter:
        """Return the instruction counter of a job's CPUs.

        The counter counts nothing if it is unknown which CPUs the job has.
        """
        counter = self._counters.get(session.key)
        if counter is None:
            whole = online_cpus(self._devices.root) if session.whole_node else ()
            counter = self._counters[session.key] = InstructionCounter(session.cpu_list or whole)
        return counter


def _merged(activities: list[Activity]) -> dict[str, Any]:
    """Return the mean utilisation and the mean work of the job's GPUs.

    The mean is sufficient because the GPUs of a job wait for each other in each step.
    """
    if not activities:
        return {}
    busy = [activity.utilisation for activity in activities if activity.utilisation is not None]
    work: dict[str, list[float]] = defaultdict(list)
    for activity in activities:
        for kind, amount in activity.work.items():
            work[kind].append(amount)
    return {
        "utilisation": math.fsum(busy) / len(busy) if busy else None,
        "activity": {k: math.fsum(values) / len(activities) for k, values in work.items()},
    }
