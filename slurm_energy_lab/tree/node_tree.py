"""Puts the tree of one node together."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy_lab.realtime_model import Silicon
from slurm_energy_lab.tree.amd_energy import add_amd_energy
from slurm_energy_lab.tree.cpufreq import CpufreqFiles
from slurm_energy_lab.tree.cpuinfo import add_cpuinfo
from slurm_energy_lab.tree.dmi import add_dmi
from slurm_energy_lab.tree.entries import Tree
from slurm_energy_lab.tree.hsmp import add_hsmp
from slurm_energy_lab.tree.hwmon import PowerMeter, add_hwmon
from slurm_energy_lab.tree.job_cgroups import JobGroups
from slurm_energy_lab.tree.msr import add_msrs
from slurm_energy_lab.tree.nvidia import add_nvidia
from slurm_energy_lab.tree.pm_counters import add_pm_counters
from slurm_energy_lab.tree.powercap import add_powercap
from slurm_energy_lab.tree.proc_stat import add_proc_stat
from slurm_energy_lab.tree.rapl_registers import RaplRegisters
from slurm_energy_lab.tree.topology import add_topology


@dataclass(frozen=True, slots=True)
class Firmware:
    """What differs between nodes of one profile.

    Attributes:
        node: node name.
        energy_offset_joules: what the RAPL counters stand at in the beginning.
        rapl_locked: the firmware has locked the package limits.
        gpu_persistence: persistence mode is on from the start.
        counter_range_joules: after how much the RAPL counters wrap; None: as the profile's units have it.
        pm_counters: the blade controller shows HPE Cray's pm_counters.
    """

    node: str
    energy_offset_joules: float = 0.0
    rapl_locked: bool = False
    gpu_persistence: bool = True
    pm_counters: bool = False
    counter_range_joules: float | None = None


@dataclass(frozen=True, slots=True)
class NodeTree:
    """The tree, and the parts of it that somebody else has to drive."""

    tree: Tree
    cpufreq: CpufreqFiles
    meter: PowerMeter
    groups: JobGroups


def build_tree(silicon: Silicon, firmware: Firmware) -> NodeTree:
    """Build every emulated file of a node."""
    tree = Tree()
    add_topology(tree, silicon.profile)
    cpufreq = CpufreqFiles(tree, silicon)
    registers = RaplRegisters(
        silicon, firmware.energy_offset_joules, firmware.rapl_locked, firmware.counter_range_joules
    )
    if not silicon.profile.rapl.amd_energy:
        add_powercap(tree, registers)
    add_msrs(tree, registers)
    meter = PowerMeter(silicon)
    add_hwmon(tree, silicon, meter)
    if silicon.profile.rapl.amd_energy:
        add_amd_energy(tree, silicon)
    if silicon.profile.memory.dmi:
        add_dmi(tree, silicon.profile.memory)
    if silicon.profile.rapl.hsmp_max_watts is not None:
        add_hsmp(tree, silicon)
    if firmware.pm_counters:
        add_pm_counters(tree, silicon)
    add_nvidia(tree, silicon, firmware.node, firmware.gpu_persistence)
    add_cpuinfo(tree, silicon)
    add_proc_stat(tree, silicon)
    return NodeTree(tree, cpufreq, meter, JobGroups(tree, silicon, firmware.node, silicon.clock))
