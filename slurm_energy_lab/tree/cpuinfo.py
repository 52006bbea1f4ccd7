"""/proc/cpuinfo of the emulated processors."""

from __future__ import annotations

import dataclasses

from slurm_energy_lab.model import CpuProfile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree

PATH = "/proc/cpuinfo"
_MONITORING_FLAGS = "cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local"


def add_cpuinfo(tree: Tree, realtime_model: RealtimeModel) -> None:
    """Add /proc/cpuinfo to a file tree.

    The field `cpu MHz` of this file is the current frequency of each core.
    """
    cpu = realtime_model.profile.cpu
    if realtime_model.profile.resctrl is not None:
        cpu = dataclasses.replace(cpu, flags=f"{cpu.flags} {_MONITORING_FLAGS}")
    base_khz = realtime_model.profile.cpufreq.base_khz
    parts = [_before_and_after_mhz(cpu, number, base_khz) for number in range(cpu.cpus)]

    def render() -> bytes:
        with realtime_model.now() as model:
            khz = [model.effective_khz(number) for number in range(cpu.cpus)]
        return "".join(
            f"{head}{value / 1000:.3f}{tail}" for (head, tail), value in zip(parts, khz, strict=True)
        ).encode()

    tree.add(PATH, File(render, size=0))


def _before_and_after_mhz(cpu: CpuProfile, number: int, base_khz: int) -> tuple[str, str]:
    core = cpu.core_of(number) % cpu.cores_per_package
    cache_kib = max(cache.size_kib for cache in cpu.caches)
    apic = (cpu.package_of(number) * cpu.cores_per_package + core) * cpu.threads_per_core
    apic += number // cpu.cores
    head = {
        "processor": number,
        "vendor_id": cpu.vendor,
        "cpu family": cpu.family,
        "model": cpu.model,
        "model name": cpu.model_name,
        "stepping": cpu.stepping,
        "microcode": cpu.microcode,
    }
    tail = {
        "cache size": f"{cache_kib} KB",
        "physical id": cpu.package_of(number),
        "siblings": cpu.cores_per_package * cpu.threads_per_core,
        "core id": core,
        "cpu cores": cpu.cores_per_package,
        "apicid": apic,
        "initial apicid": apic,
        "fpu": "yes",
        "fpu_exception": "yes",
        "cpuid level": 27 if cpu.vendor == "GenuineIntel" else 16,
        "wp": "yes",
        "flags": cpu.flags,
        "bugs": "",
        "bogomips": f"{base_khz / 500:.2f}",
        "clflush size": 64,
        "cache_alignment": 64,
        "address sizes": cpu.address_bits,
        "power management": "",
    }
    return _lines(head) + "cpu MHz\t\t: ", "\n" + _lines(tail) + "\n"


def _lines(values: dict[str, object]) -> str:
    tabs = {name: "\t" * max(0, 2 - len(name) // 8) for name in values}
    return "".join(f"{name}{tabs[name]}: {value}\n".replace(": \n", ":\n") for name, value in values.items())
