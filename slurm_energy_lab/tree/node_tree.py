"""Construction of the complete file tree of one emulated node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.amd_energy import add_amd_energy
from slurm_energy_lab.tree.cpufreq import CpufreqFiles
from slurm_energy_lab.tree.cpuinfo import add_cpuinfo
from slurm_energy_lab.tree.dmi import add_dmi
from slurm_energy_lab.tree.entries import Tree
from slurm_energy_lab.tree.hsmp import add_hsmp
from slurm_energy_lab.tree.hwmon import AcpiPowerMeter, add_hwmon
from slurm_energy_lab.tree.job_cgroups import JobCgroups
from slurm_energy_lab.tree.msr import add_msrs
from slurm_energy_lab.tree.nvidia import add_nvidia
from slurm_energy_lab.tree.pm_counters import add_pm_counters
from slurm_energy_lab.tree.powercap import add_powercap
from slurm_energy_lab.tree.proc_stat import add_proc_stat
from slurm_energy_lab.tree.process_groups import ProcessGroups
from slurm_energy_lab.tree.rapl_registers import RaplRegisters
from slurm_energy_lab.tree.resctrl import ResctrlFiles
from slurm_energy_lab.tree.topology import add_topology


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Properties that may differ between nodes with the same hardware profile.

    Attributes:
        node: node name.
        energy_offset_joules: initial value of the RAPL counters.
        rapl_locked: whether the firmware has locked the package limits.
        gpu_persistence: whether the GPUs' persistence mode is on from the start.
        pm_counters: whether the node has HPE Cray's pm_counters.
        counter_range_joules: energy after which the RAPL counters wrap; None means the range that follows
            from the profile's units.
    """

    node: str
    energy_offset_joules: float = 0.0
    rapl_locked: bool = False
    gpu_persistence: bool = True
    pm_counters: bool = False
    counter_range_joules: float | None = None


@dataclass(frozen=True, slots=True)
class NodeTree:
    """The emulated file tree of a node, and the objects that the emulator updates.

    Attributes:
        tree: the file tree.
        cpufreq: the cpufreq files.
        meter: the ACPI power meter.
        groups: the cgroups of jobs.
        resctrl: the resctrl file system; None if the profile has no resctrl.
    """

    tree: Tree
    cpufreq: CpufreqFiles
    meter: AcpiPowerMeter
    groups: JobCgroups
    resctrl: ResctrlFiles | None


def build_tree(
    realtime_model: RealtimeModel,
    firmware: NodeOptions,
    processes: ProcessGroups | None = None,
    caller: Callable[[], int] = lambda: 0,
) -> NodeTree:
    """Build the tree of all emulated files of a node.

    Args:
        realtime_model: the node's model.
        firmware: properties of this node besides its hardware profile.
        processes: resctrl groups of processes; None means the processes of this machine.
        caller: function that returns the id of the process whose request is served. It returns 0 for a
            process in the PID namespace of the emulator.
    """
    tree = Tree()
    add_topology(tree, realtime_model.profile)
    cpufreq = CpufreqFiles(tree, realtime_model)
    registers = RaplRegisters(
        realtime_model, firmware.energy_offset_joules, firmware.rapl_locked, firmware.counter_range_joules
    )
    if not realtime_model.profile.rapl.amd_energy:
        add_powercap(tree, registers)
    add_msrs(tree, registers)
    meter = AcpiPowerMeter(realtime_model)
    add_hwmon(tree, realtime_model, meter)
    if realtime_model.profile.rapl.amd_energy:
        add_amd_energy(tree, realtime_model)
    if realtime_model.profile.memory.dmi:
        add_dmi(tree, realtime_model.profile.memory)
    if realtime_model.profile.rapl.hsmp_max_watts is not None:
        add_hsmp(tree, realtime_model)
    if firmware.pm_counters:
        add_pm_counters(tree, realtime_model)
    add_nvidia(tree, realtime_model, firmware.node, firmware.gpu_persistence)
    add_cpuinfo(tree, realtime_model)
    add_proc_stat(tree, realtime_model)
    resctrl = None
    if realtime_model.profile.resctrl is not None:
        resctrl = ResctrlFiles(tree, realtime_model, processes or ProcessGroups(), caller)
    groups = JobCgroups(tree, realtime_model, firmware.node, realtime_model.clock)
    return NodeTree(tree, cpufreq, meter, groups, resctrl)
