"""Generator of random hardware profiles, for tests on unknown hardware.

Each profile describes a node. Its coefficients are random within physical ranges. The result has the form of
a profile file. The seed and the choice of GPUs determine the result.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_TEMPLATES = {"GenuineIntel": "xeon-8358", "AuthenticAMD": "epyc-7513-a100"}
"""Shipped profiles from which a node of each vendor takes identity, flags and register units."""
_DRIVERS = {
    "GenuineIntel": ("intel_pstate", "intel_cpufreq", "acpi-cpufreq"),
    "AuthenticAMD": ("acpi-cpufreq", "amd-pstate", "amd-pstate-epp"),
}
_CORES = (8, 12, 16, 24, 32, 48, 64)
_GPU_COUNTS = (1, 2, 4, 8)
_GPU_WATTS = (75, 1000)
_FREQUENCY_STEP_KHZ = 100_000
_CLOCK_STEP_MHZ = 15

Table = dict[str, Any]


def draw(seed: int, gpus: bool, shipped_data: Callable[[str], Table]) -> Table:
    """Return a node profile with random coefficients, as the data of a profile file.

    The ranges are those of servers from about 2016 to 2026; docs/lab-physics.md lists them. All values are
    consistent. A matrix product on all cores draws about the TDP of the package. A matrix product on a GPU
    would draw between 0.75 and 1.3 times the default power limit; above the limit, the GPU is throttled.

    Args:
        seed: seed of the random numbers.
        gpus: whether the node has GPUs.
        shipped_data: function that returns the data of a shipped profile. `draw` may change these data.
    """
    numbers = random.Random(f"{seed}/{'gpu' if gpus else 'cpu'}")
    vendor = numbers.choice(sorted(_TEMPLATES))
    data = shipped_data(_TEMPLATES[vendor])
    name = f"random-{'gpu' if gpus else 'cpu'}-{seed}"
    frequencies = _draw_frequencies(numbers, data, vendor)
    _draw_cpu(numbers, data, frequencies)
    data["cpu"]["model_name"] = f"{vendor} Drawn Processor {seed}"
    _draw_memory(numbers, data)
    data.pop("gpu", None)
    if gpus:
        data["gpu"] = _draw_gpu(numbers, name, seed, data["cpu"])
    base_watts = numbers.uniform(40, 200) + 20 * (data["gpu"]["count"] if gpus else 0)
    data["other"] = {"base_watts": _short(base_watts), "loss_share": _short(numbers.uniform(0.03, 0.12))}
    description = f"drawn at random with seed {seed}: {data['cpu']['packages']} packages"
    if gpus:
        description += f", {data['gpu']['count']} GPUs"
    return {**data, "name": name, "description": description}


def _draw_frequencies(numbers: random.Random, data: Table, vendor: str) -> tuple[int, int, int]:
    """Choose the cpufreq driver and the frequencies of a random node.

    Return minimum, base and maximum frequency in kHz.
    """
    step = _FREQUENCY_STEP_KHZ
    min_khz = numbers.randrange(8, 16) * step
    base_khz = numbers.randrange(19, 31) * step
    max_khz = int(base_khz * numbers.uniform(1.15, 1.6) / step) * step
    table = [base_khz + 1000, *range(base_khz, min_khz - 1, -step)]
    if vendor == "AuthenticAMD":  # few P-states
        table = [base_khz, (base_khz + min_khz) // 2 // step * step, min_khz]
    data["cpufreq"] = {
        "driver": numbers.choice(_DRIVERS[vendor]),
        "min_khz": min_khz,
        "base_khz": base_khz,
        "max_khz": max_khz,
        "table_khz": table,
        "governor": "performance",
        "transition_latency_ns": 0,
    }
    return min_khz, base_khz, max_khz


def _draw_cpu(numbers: random.Random, data: Table, frequencies: tuple[int, int, int]) -> None:
    """Draw random values for the CPUs of a hardware profile.

    The values are the topology, voltages, power and bandwidth of the packages.
    """
    min_khz, base_khz, max_khz = frequencies
    cpu = data["cpu"]
    cores = numbers.choice(_CORES)
    packages = numbers.choice((1, 2))
    all_cores_khz = int(base_khz + (max_khz - base_khz) * numbers.uniform(0.2, 0.9)) // 1000 * 1000
    bandwidth = cores * numbers.uniform(3e9, 7e9) + 4e10
    tdp_watts = round(min(400.0, max(65.0, cores * numbers.uniform(4.0, 8.0))))
    cpu |= {
        "packages": packages,
        "cores_per_package": cores,
        "threads_per_core": numbers.choice((1, 2)),
        "numa_nodes": packages,
        "turbo_bins": [[max(1, cores // 4), max_khz], [cores, all_cores_khz]],
        "flops_per_cycle": numbers.choice((16, 32, 64)),
        "core_bytes_per_s": _short(bandwidth / cores * numbers.uniform(1.3, 4.0)),
        "core_memory_cycles_share": _short(numbers.uniform(0.2, 0.5)),
        "package_bytes_per_s": _short(bandwidth),
        "tdp_watts": tdp_watts,
        "idle_watts": _short(tdp_watts * numbers.uniform(0.12, 0.30)),
        "awake_watts": _short(tdp_watts * numbers.uniform(0.05, 0.20)),
        "uncore_joules_per_byte": _short(numbers.uniform(5e-11, 2.2e-10)),
        "voltage_floor": _short(numbers.uniform(0.65, 0.80)),
        "voltage_max": _short(numbers.uniform(1.05, 1.30)),
        "voltage_knee_khz": int(min_khz + (max_khz - min_khz) * numbers.uniform(0.1, 0.5)),
    }
    _draw_core_watts(numbers, cpu, all_cores_khz, max_khz)
    for cache in cpu["caches"]:
        cache["shared_cores"] = cores if cache["level"] == 3 else 1
    for limit in data["rapl"]["constraints"]:
        factor = 1.0 if limit["name"] == "long_term" else 1.2
        limit["limit_watts"] = limit["max_watts"] = tdp_watts * factor


def _draw_core_watts(numbers: random.Random, cpu: Table, all_cores_khz: int, max_khz: int) -> None:
    """Choose the power of a core of a random node profile.

    The power is chosen so that a matrix product on all cores needs 90 to 110 % of the TDP of the package.
    It is divided at random into leakage and dynamic power.
    """
    part = (all_cores_khz - cpu["voltage_knee_khz"]) / (max_khz - cpu["voltage_knee_khz"])
    volts = cpu["voltage_floor"] + (cpu["voltage_max"] - cpu["voltage_floor"]) * max(0.0, part)
    leakage_share = numbers.uniform(0.08, 0.30)
    loaded_watts = cpu["tdp_watts"] * numbers.uniform(0.90, 1.10) - cpu["idle_watts"] - cpu["awake_watts"]
    relative = leakage_share + (1.0 - leakage_share) * all_cores_khz / max_khz
    core_watts = loaded_watts / cpu["cores_per_package"] / relative / (volts / cpu["voltage_max"]) ** 2
    cpu["core_leakage_watts"] = _short(core_watts * leakage_share)
    cpu["core_dynamic_watts"] = _short(core_watts * (1.0 - leakage_share))


def _draw_memory(numbers: random.Random, data: Table) -> None:
    data["memory"] |= {
        "idle_watts": _short(numbers.uniform(4.0, 20.0)),
        "joules_per_byte": _short(numbers.uniform(8e-11, 2.2e-10)),
    }


def _draw_gpu(numbers: random.Random, name: str, seed: int, cpu: Table) -> Table:
    low, high = _GPU_WATTS
    default_watts = 5 * round(low * (high / low) ** numbers.random() / 5)
    top_mhz = numbers.randrange(1200, 2900, _CLOCK_STEP_MHZ)
    bottom_mhz = 210 + top_mhz % _CLOCK_STEP_MHZ
    idle_watts, awake_watts = (default_watts * numbers.uniform(*span) for span in ((0.06, 0.15), (0.1, 0.28)))
    bytes_per_s = default_watts * numbers.uniform(3e9, 6e9)
    memory_watts = default_watts * numbers.uniform(0.08, 0.25)
    gemm_watts = default_watts * numbers.uniform(0.75, 1.30)
    count = numbers.choice(_GPU_COUNTS)
    most_host_watts = 0.5 * cpu["tdp_watts"] * cpu["packages"] / count
    memory_mhz = numbers.randrange(1200, 9000)
    return {
        "name": f"NVIDIA Drawn D{seed}",
        "count": count,
        "uuid_seed": name,
        "arch": "ampere",
        "compute_capability": [8, 0],
        "driver_version": "550.54.14",
        "cuda_version": "12.4",
        "pci_device_id": 0x20B0,
        "memory_mb": numbers.choice((16, 24, 40, 80, 141)) * 1024,
        "min_limit_watts": 5 * round(default_watts * numbers.uniform(0.20, 0.67) / 5),
        "max_limit_watts": 5 * round(default_watts * numbers.choice((1.0, 1.0, 1.1)) / 5),
        "default_limit_watts": default_watts,
        "graphics_clocks": {"highest_mhz": top_mhz, "lowest_mhz": bottom_mhz, "step_mhz": _CLOCK_STEP_MHZ},
        "memory_clocks_mhz": [memory_mhz, memory_mhz // 2][: numbers.choice((1, 2))],
        "idle_graphics_mhz": bottom_mhz,
        "flops_per_s": _short(default_watts * numbers.uniform(4e10, 1e11)),
        "bytes_per_s": _short(bytes_per_s),
        "bandwidth_knee_mhz": round(top_mhz * numbers.uniform(0.30, 0.85)),
        "idle_watts": _short(idle_watts),
        "awake_watts": _short(awake_watts),
        "dynamic_watts": _short(gemm_watts - idle_watts - awake_watts),
        "joules_per_byte": _short(memory_watts / bytes_per_s),
        "voltage_floor": _short(numbers.uniform(0.62, 0.82)),
        "voltage_max": _short(numbers.uniform(0.95, 1.10)),
        "voltage_knee_mhz": round(top_mhz * numbers.uniform(0.45, 0.85)),
        "host_watts": _short(min(most_host_watts, numbers.uniform(2.0, 40.0))),
    }


def _short(value: float) -> float:
    """Return a value with four significant digits."""
    return float(f"{value:.4g}")
