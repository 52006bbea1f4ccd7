"""Pure functions about one component in an interval: known use, assumed shares and quiet time."""

from __future__ import annotations

from slurm_energy.agent.metering.attribution import BY_CPU_TIME, MONITORED_QUANTITIES, OTHER, gpu_index
from slurm_energy.agent.metering.idle_power import QUIET_BUSY_SHARE
from slurm_energy.agent.metering.occupancy import CpuTimeDelta, MonitoredDelta, OccupancyInterval


def is_assumed(name: str, job: str, open_time: OccupancyInterval) -> bool:
    """Return whether a job's share of a component is an assumption, because other jobs may use it too.

    Args:
        name: the component.
        job: unique name of the job.
        open_time: the interval.
    """
    if not name.startswith("gpu["):
        return True
    index = gpu_index(name)
    share_ns = open_time.gpu_ns.get(job, {}).get(index, 0)
    there_s = open_time.length_s - max(0.0, open_time.since[job] - open_time.start)
    return share_ns > 0 and (len(open_time.holders(index)) > 1 or share_ns < 0.999e9 * there_s)


def has_use(name: str, cpu_time: CpuTimeDelta, monitored: MonitoredDelta) -> bool:
    """Return whether the use by which the energy of a component is divided is known up to now.

    Args:
        name: the component.
        cpu_time: CPU time up to now.
        monitored: what the processor counted up to now.
    """
    if name not in BY_CPU_TIME:
        return True
    is_monitored = MONITORED_QUANTITIES[name] in monitored.uses
    return cpu_time.complete and (monitored.complete or not is_monitored)


def is_quiet(name: str, open_time: OccupancyInterval) -> bool:
    """Return whether no job used the component `name` in the interval `open_time`."""
    if name.startswith("gpu["):
        return not open_time.holders(gpu_index(name))
    held = any(any(held.values()) for held in open_time.gpu_ns.values())
    if open_time.busy_ns is None or (name == OTHER and held):
        return False
    return open_time.busy_ns <= QUIET_BUSY_SHARE * open_time.capacity_ns
