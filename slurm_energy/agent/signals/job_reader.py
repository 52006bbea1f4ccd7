"""Readings of one job's signals from control groups, processes, CPU clocks and memory traffic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.agent.metering.monitoring_groups import PREFIX
from slurm_energy.devices.cpu.cpu_time import JobProcesses
from slurm_energy.devices.cpu.group_signals import GroupSensor, group_sensor
from slurm_energy.devices.cpu.job_groups import JobGroups, find_job_groups
from slurm_energy.devices.cpu.job_tasks import processes_of_group
from slurm_energy.devices.cpu.process_signals import ProcessSensor
from slurm_energy.devices.cpu.processor_signals import CpuClockSensor
from slurm_energy.devices.cpu.resctrl import TRAFFIC, MonitoringFiles
from slurm_energy.devices.cpu.run_delay import SIGNAL as WAITING_TASKS
from slurm_energy.devices.cpu.run_delay import RunDelaySensor
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.signal_sensor import RateMeter, SignalReading
from slurm_energy.devices.sysfs import read_optional

FIRST_SEARCH_PAUSE_S, MAX_SEARCH_PAUSE_S = 0.9, 9.5
"""Control groups and processes of a job are searched at growing intervals."""
_FROM_PROCESSES: Final = {
    "cpu": frozenset({"cpu_busy_cores"}),
    "memory": frozenset({"memory_used_bytes", "page_faults_per_s"}),
    "io": frozenset({"block_read_bytes_per_s", "block_write_bytes_per_s"}),
    "pressure": frozenset({WAITING_TASKS}),
}
"""Signals for which the processes are read where the control groups do not count a resource."""
_KIBI: Final = 1024
_MON_GROUPS: Final = "mon_groups"


@dataclass(frozen=True, slots=True)
class SampledJob:
    """A running job whose signals are sampled.

    Attributes:
        key: job id and restart count.
        owner: name of the job in the ledger. The names of the job's monitoring groups contain this name.
        processes: known processes of the job.
        gpus: indices of the job's GPUs.
        shared_gpus: GPUs of the job that other running jobs use too.
        cpus: number of the job's CPUs; None if unknown.
        cpu_list: CPUs of the job; None if unknown.
        has_node: whether the job has the whole node.
        is_private: whether the activity of other jobs must stay hidden. If so, a signal is left out if its
            value may include activity of other jobs.
    """

    key: tuple[int, int]
    owner: str
    processes: JobProcesses
    gpus: tuple[int, ...]
    shared_gpus: frozenset[int]
    cpus: int | None
    cpu_list: tuple[int, ...] | None
    has_node: bool
    is_private: bool = False


class JobReader:
    """Sensors of one job. A sensor is opened once the job's control groups (cgroups) or processes are known.

    Args:
        root: directory that contains /sys and /proc.
        monitoring: access to the kernel's monitoring groups (resctrl); None if the node has no monitoring
            groups.
    """

    def __init__(self, root: Path, monitoring: MonitoringFiles | None) -> None:
        self._root = root
        self._traffic = monitoring if monitoring and TRAFFIC in monitoring.quantities else None
        self._groups = JobGroups()
        self._group_sensor: GroupSensor | None = None
        self._missing = frozenset().union(*_FROM_PROCESSES.values())
        self._processes = ProcessSensor(root)
        self._run_delay = RunDelaySensor(root)
        self._clock: CpuClockSensor | None = None
        self._rates = RateMeter()
        self._pids: tuple[int, ...] = ()
        self._search_at_s = 0.0
        self._search_pause_s = FIRST_SEARCH_PAUSE_S
        self._memory_bytes: int | None = None

    def must_search(self, now_s: float, job: SampledJob) -> bool:
        """Return whether the present reading should include a search for the job's cgroups and processes.

        Searches are repeated at intervals until nothing is missing. A search is due at once when the job's
        first Slurm step has started.
        """
        if not self._missing:
            return False
        is_first = bool(job.processes.pids) and not self._pids
        return is_first or now_s >= self._search_at_s

    def search(self, now_s: float, job: SampledJob, node: str) -> bool:
        """Search for the job's cgroups and their processes.

        Returns:
            Whether the caller has to find the job's processes in the tree of all processes.
        """
        self._pids = job.processes.pids
        self._search_at_s = now_s + self._search_pause_s
        self._search_pause_s = min(2 * self._search_pause_s, MAX_SEARCH_PAUSE_S)
        if self._group_sensor is None:
            self._groups = find_job_groups(self._root, node, job.processes)
            self._group_sensor = group_sensor(self._groups)
            counted = frozenset() if self._group_sensor is None else self._group_sensor.resources()
            lacking = [signals for name, signals in _FROM_PROCESSES.items() if name not in counted]
            self._missing = frozenset().union(*lacking)
        if not self._missing:
            return False
        folders = [self._groups.unified, *self._groups.by_controller.values()]
        folder = next((one for one in folders if one is not None), None)
        self.set_processes(processes_of_group(Path(folder)) if folder is not None else ())
        return not self._processes.pids

    def set_processes(self, pids: Iterable[int]) -> None:
        """Set the processes of the job, which the caller found in the tree of all processes."""
        self._processes.pids = self._run_delay.pids = frozenset(pids)

    def read(self, now_s: float, job: SampledJob) -> list[SignalReading]:
        """Return the mean values of the job's signals since the previous call.

        Only signals of the job itself are read, not those of the node.

        Args:
            now_s: present time in seconds since boot.
            job: the job.
        """
        readings = {reading.signal: reading for reading in self._from_groups(now_s)}
        readings |= {reading.signal: reading for reading in self._traffic_reading(now_s, job)}
        if job.cpus is not None:
            readings["cpu_allocated_cores"] = SignalReading(
                "cpu_allocated_cores", "", float(job.cpus), "slurm"
            )
        if job.has_node and "memory_limit_bytes" not in readings and (size := self._node_memory()):
            readings["memory_limit_bytes"] = SignalReading(
                "memory_limit_bytes", "", float(size), "proc:meminfo (whole node)"
            )
        for reading in self._clocks(now_s, job):
            readings[reading.signal] = reading
        return list(readings.values())

    def close(self) -> None:
        """Close all files."""
        for sensor in (self._group_sensor, self._clock):
            if sensor is not None:
                sensor.close()

    def _from_groups(self, now_s: float) -> list[SignalReading]:
        """Return the signals of the job's cgroups.

        Signals that the cgroups do not provide are read from the job's processes.
        """
        readings = [] if self._group_sensor is None else self._group_sensor.read(now_s)
        if not self._missing:
            return readings
        missing = self._missing - {reading.signal for reading in readings}
        if WAITING_TASKS in missing:
            readings += self._run_delay.read(now_s)
        if missing - {WAITING_TASKS}:
            readings += [one for one in self._processes.read(now_s) if one.signal in missing]
        return readings

    def _clocks(self, now_s: float, job: SampledJob) -> list[SignalReading]:
        if self._clock is None and job.cpu_list:
            self._clock = CpuClockSensor(self._root, job.cpu_list)
        return [] if self._clock is None else self._clock.read(now_s)

    def _traffic_reading(self, now_s: float, job: SampledJob) -> Iterator[SignalReading]:
        """Yield the traffic between memory and the job's processors."""
        if self._traffic is None:
            return
        try:
            total = sum(self._group_traffic(job, control) for control in self._traffic.control_groups())
        except DeviceError:
            self._rates.forget()
            return
        rate = self._rates.per_second(TRAFFIC, total, now_s)
        if rate is not None and total:
            yield SignalReading("memory_bandwidth_bytes_per_s", "", rate, "resctrl")

    def _group_traffic(self, job: SampledJob, control: str) -> int:
        """Return the bytes of memory traffic that a job has caused in one resctrl control group.

        For a job with the whole node, the result is the count of the control group. For other jobs, the
        result is the count of the job's monitoring group in the control group.

        Raises:
            DeviceError: a count is not available now.
        """
        assert self._traffic is not None
        group = control
        if not job.has_node:
            folder = f"{control}/{_MON_GROUPS}" if control else _MON_GROUPS
            if PREFIX + job.owner not in self._traffic.entries(folder):
                return 0
            group = f"{folder}/{PREFIX}{job.owner}"
        counts = self._traffic.read(group)[TRAFFIC].values()
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            raise DeviceError(group, "a count is not available")
        return sum(known)

    def _node_memory(self) -> int | None:
        """Return the memory of the node in bytes; None if unknown."""
        if self._memory_bytes is None:
            first = (read_optional(self._root / "proc/meminfo") or "").partition("\n")[0].split()
            is_total = len(first) == 3 and first[0] == "MemTotal:" and first[1].isdigit()
            self._memory_bytes = int(first[1]) * _KIBI if is_total else 0
        return self._memory_bytes or None
