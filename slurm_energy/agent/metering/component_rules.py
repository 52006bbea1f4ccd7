"""Rules that classify how jobs used a hardware component in a time interval.

The rules answer three questions. Is the use of the component by each job known? For which jobs is the
part of the component's energy not measured but only assumed? Did no job use the component? All
functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection

from slurm_energy.agent.metering.attribution import BY_CPU_TIME, MONITORED_QUANTITIES, OTHER, gpu_index
from slurm_energy.agent.metering.idle_power import QUIET_BUSY_SHARE
from slurm_energy.agent.metering.occupancy import CpuTimeDelta, MonitoredDelta, OccupancyInterval


def assumed_jobs(name: str, open_time: OccupancyInterval) -> Collection[str]:
    """Return the jobs whose part of a component's energy can only be assumed, not measured.

    This applies to a job if other jobs may have used the same component at the same time.

    Args:
        name: name of the component.
        open_time: the interval, with the resources that each job had and used.
    """
    if not name.startswith("gpu["):
        return open_time.since.keys()
    index = gpu_index(name)
    holders = open_time.holders(index)
    return {
        job
        for job in holders & open_time.since.keys()
        if len(holders) > 1
        or open_time.gpu_ns[job][index]
        < 0.999e9 * (open_time.length_s - max(0.0, open_time.since[job] - open_time.start))
    }


def has_use(name: str, cpu_time: CpuTimeDelta, monitored: MonitoredDelta) -> bool:
    """Return whether it is known how much each job used a component.

    The energy of the component is divided among the jobs in proportion to this use. The result is also
    True for components whose energy is not divided by CPU time.

    Args:
        name: name of the component.
        cpu_time: CPU time of the jobs in the interval that ends now.
        monitored: use of monitored quantities, as counted by the processor, in the interval that ends
            now.
    """
    if name not in BY_CPU_TIME:
        return True
    is_monitored = MONITORED_QUANTITIES[name] in monitored.uses
    return cpu_time.complete and (monitored.complete or not is_monitored)


def is_quiet(name: str, open_time: OccupancyInterval) -> bool:
    """Return whether a component did no work for jobs in an interval.

    A GPU did no work if it was allocated to no job. Another component did no work if the CPUs were almost
    idle.

    Args:
        name: name of the component.
        open_time: use of the node by jobs in the interval.
    """
    if name.startswith("gpu["):
        return not open_time.holders(gpu_index(name))
    held = any(any(held.values()) for held in open_time.gpu_ns.values())
    if open_time.busy_ns is None or (name == OTHER and held):
        return False
    return open_time.busy_ns <= QUIET_BUSY_SHARE * open_time.capacity_ns
