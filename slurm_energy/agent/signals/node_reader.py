"""Reader of all signal sensors of a node, for the jobs whose signals are sampled.

One reading of all sensors is called a pass. The passes run in a separate thread, so a slow sensor
delays neither a hook nor the energy counters. The CPU time of every pass is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.signals.job_reader import JobReader, SampledJob
from slurm_energy.devices.cpu import process_tree
from slurm_energy.devices.cpu.processor_signals import MAX_CPUS
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.signal_sensor import SignalReading

_SHARED_NODE: Final = " (shared node)"
_SHARED_GPU: Final = " (shared GPU)"
_CPU_BUSY: Final = "cpu_busy_percent"


@dataclass(frozen=True, slots=True)
class SignalPass:
    """Result of one reading of all signal sensors of the node (a pass).

    Attributes:
        start: time of the previous pass, in seconds since boot; None for the first pass after a pause.
        end: time of this pass, in seconds since boot.
        readings: readings by job.
        cpu_s: CPU time that the pass took, in seconds.
        duration_s: time that the pass took, in seconds.
    """

    start: float | None
    end: float
    readings: dict[tuple[int, int], list[SignalReading]] = field(default_factory=dict)
    cpu_s: float = 0.0
    duration_s: float = 0.0


class NodeSignalReader:
    """Reader of the signals of the node and of its jobs. All methods run in one thread.

    Args:
        devices: the node's hardware.
        clock: the machine's clock.
    """

    def __init__(self, devices: NodeDevices, clock: Clock) -> None:
        self._devices = devices
        self._clock = clock
        self._jobs: dict[tuple[int, int], JobReader] = {}
        self._active: set[int] = set()
        self._last_s: float | None = None

    def read(self, jobs: Sequence[SampledJob], node: str) -> SignalPass:
        """Read all signals of the jobs on the node once.

        Args:
            jobs: the jobs to read. The readers of all other jobs are closed. If there are no jobs, the next
                call starts anew, as if it were the first call.
            node: Slurm's name of this node.
        """
        cpu_s, began_s = time.thread_time(), time.monotonic()
        self._forget({job.key for job in jobs})
        now_s, before_s = self._clock.boottime(), self._last_s
        self._last_s = now_s if jobs else None
        self._search(jobs, node, now_s)
        own = {job.key: self._jobs[job.key].read(now_s, job) for job in jobs}
        shared = self._read_node(jobs, now_s)
        readings = {job.key: own[job.key] + list(_readings_of(job, shared)) for job in jobs}
        return SignalPass(before_s, now_s, readings, time.thread_time() - cpu_s, time.monotonic() - began_s)

    def close(self) -> None:
        """Close the readers of all jobs."""
        self._forget(set())

    def _forget(self, running: set[tuple[int, int]]) -> None:
        for key in [key for key in self._jobs if key not in running]:
            self._jobs.pop(key).close()

    def _search(self, jobs: Sequence[SampledJob], node: str, now_s: float) -> None:
        """Search for the control groups and processes of those jobs whose next search is due."""
        scanned: dict[int, JobReader] = {}
        pids: dict[int, tuple[int, ...]] = {}
        for job in jobs:
            reader = self._jobs.get(job.key)
            if reader is None:
                reader = self._jobs[job.key] = JobReader(self._devices.root, self._devices.monitoring)
            if reader.must_search(now_s, job) and reader.search(now_s, job, node):
                scanned[job.processes.job_id], pids[job.processes.job_id] = reader, job.processes.pids
        if scanned:
            for job_id, found in process_tree.job_pids(self._devices.root, pids).items():
                scanned[job_id].set_processes(found)

    def _read_node(self, jobs: Sequence[SampledJob], now_s: float) -> list[SignalReading]:
        """Read the sensors of the node and of the GPUs that the jobs use."""
        gpus = {f"gpu[{index}]" for job in jobs for index in job.gpus}
        readings: list[SignalReading] = []
        active: set[int] = set()
        for number, sensor in enumerate(self._devices.signal_sensors if jobs else ()):
            if sensor.part.startswith("gpu[") and sensor.part not in gpus:
                continue
            if number not in self._active:
                sensor.forget()  # the interval since an earlier reading belongs to other jobs
            active.add(number)
            readings += sensor.read(now_s)
        self._active = active
        return readings


def _readings_of(job: SampledJob, readings: Iterable[SignalReading]) -> Iterable[SignalReading]:
    """Yield the signal readings of the node that concern one job.

    Some readings measure hardware that the job shares with other jobs. Such a reading is either marked as
    shared in its source, or left out.
    """
    gpus = {f"gpu[{index}]": index in job.shared_gpus for index in job.gpus}
    if job.is_private:
        gpus = {part: is_shared for part, is_shared in gpus.items() if not is_shared}
    cpus = {f"cpu[{number}]" for number in sorted(job.cpu_list or ())[:MAX_CPUS]}
    for reading in readings:
        if reading.part.startswith("gpu["):
            if reading.part in gpus:
                yield _marked(reading, _SHARED_GPU) if gpus[reading.part] else reading
        elif reading.signal == _CPU_BUSY:
            if reading.part in cpus:
                yield reading
        elif job.has_node or not job.is_private:
            yield reading if job.has_node else _marked(reading, _SHARED_NODE)


def _marked(reading: SignalReading, restriction: str) -> SignalReading:
    return reading._replace(source=reading.source + restriction)
