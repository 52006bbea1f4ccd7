"""Comparison of the model's values with published measurements: the table in docs/lab-physics.md.

`python -m slurm_energy_lab.model.comparison` prints the table. The model itself does not use the published
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from slurm_energy_lab.model.node import NodeModel
from slurm_energy_lab.model.profile import NodeProfile
from slurm_energy_lab.model.profile_file import load_profile
from slurm_energy_lab.model.requests import FrequencyRequest, KernelRequest, KernelResult

XEON, EPYC, RTX, H100 = "xeon-8358", "epyc-7513-a100", "xeon-4210-rtx6000", "xeon-h100"
_LONG_S = 1e5


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One published measurement, and the function that computes the model's value for it.

    Attributes:
        profile: name of the node profile.
        what: measured quantity and the conditions of the measurement.
        unit: unit of the values.
        low: minimum published value.
        high: maximum published value.
        source: table or document that contains the measurement.
        model: function that returns the model's value for a profile.
    """

    profile: str
    what: str
    unit: str
    low: float
    high: float
    source: str
    model: Callable[[NodeProfile], float]


def run_kernel(
    profile: NodeProfile,
    request: KernelRequest,
    *,
    governor: str = "performance",
    max_khz: int | None = None,
    gpu_limit_watts: float | None = None,
    gpu_clock_mhz: int | None = None,
) -> KernelResult:
    """Run one compute kernel on a new model of a node and return its result.

    Args:
        profile: the node's hardware profile.
        request: request to run the kernel.
        governor: cpufreq governor of all CPUs.
        max_khz: maximum frequency of all CPUs; None for the hardware's maximum.
        gpu_limit_watts: power limit of all GPUs; None for the default limit.
        gpu_clock_mhz: locked graphics clock of all GPUs; None means that clocks are not locked.
    """
    node, cpufreq = NodeModel(profile), profile.cpufreq
    top = cpufreq.cpuinfo_max_khz if max_khz is None else max_khz
    node.set_cpufreq_all(FrequencyRequest(governor, cpufreq.min_khz, top, epp=cpufreq.epp))
    if profile.gpu is not None:
        clocks = None if gpu_clock_mhz is None else (gpu_clock_mhz, gpu_clock_mhz)
        limit = profile.gpu.default_limit_watts if gpu_limit_watts is None else gpu_limit_watts
        for index in range(profile.gpu.count):
            node.set_gpu(index, limit, clocks)
    run_id = node.submit(request, 0.0)
    node.advance(_LONG_S)
    result = node.result(run_id)
    assert result is not None
    return result


def _idle(component: str) -> Callable[[NodeProfile], float]:
    return lambda profile: NodeModel(profile).power_watts(component)


def _cpu(
    kernel: str, component: str = "cpu[0]", cores: int | None = None, max_khz: int | None = None
) -> Callable[[NodeProfile], float]:
    def watts(profile: NodeProfile) -> float:
        cpus = tuple(range(profile.cpu.cores_per_package if cores is None else cores))
        request = KernelRequest(kernel, "cpu", cpus=cpus)
        result = run_kernel(profile, request, max_khz=max_khz)
        return result.energy_joules[component] / result.seconds

    return watts


def _gpu(
    kernel: str, component: str = "gpu[0]", clock_mhz: int | None = None
) -> Callable[[NodeProfile], float]:
    def watts(profile: NodeProfile) -> float:
        request = KernelRequest(kernel, "gpu", gpus=() if component == "node" else (0,))
        result = run_kernel(profile, request, gpu_clock_mhz=clock_mhz)
        return result.energy_joules[component] / result.seconds

    return watts


def gain_percent(profile: NodeProfile, kernel: str, limit_watts: float, delay_exponent: float) -> float:
    """Return the percentage by which a power limit on all GPUs reduces node energy x time^exponent.

    Args:
        profile: the node's profile.
        kernel: the kernel that runs on the GPUs.
        limit_watts: power limit of each GPU.
        delay_exponent: exponent of the time: 0 for the energy, 1 for the energy-delay product.
    """
    uncapped = run_kernel(profile, KernelRequest(kernel, "gpu"))
    capped = run_kernel(profile, KernelRequest(kernel, "gpu"), gpu_limit_watts=limit_watts)
    scores = [run.energy_joules["node"] * math.pow(run.seconds, delay_exponent) for run in (uncapped, capped)]
    return 100.0 * (1.0 - scores[1] / scores[0])


def _gain(kernel: str, limit_watts: float, delay_exponent: float) -> Callable[[NodeProfile], float]:
    return lambda profile: gain_percent(profile, kernel, limit_watts, delay_exponent)


_GEMM_WATTS = "thesis, Table 3.16: joules / seconds"
_HALF = "thesis, Table 3.26, half of both packages"
PUBLISHED_FIGURES: tuple[PublishedFigure, ...] = (
    PublishedFigure(XEON, "idle, package", "W", 47.6, 52.2, "thesis, Table 3.13", _idle("cpu[0]")),
    PublishedFigure(XEON, "idle, DRAM of a package", "W", 9.4, 10.0, "thesis, Table 3.13", _idle("dram[0]")),
    PublishedFigure(XEON, "gemm on 1 core, package", "W", 102.5, 102.5, _GEMM_WATTS, _cpu("gemm", cores=1)),
    PublishedFigure(XEON, "gemm on 4 cores, package", "W", 119.4, 119.4, _GEMM_WATTS, _cpu("gemm", cores=4)),
    PublishedFigure(
        XEON, "gemm on 16 cores, package", "W", 194.0, 194.0, _GEMM_WATTS, _cpu("gemm", cores=16)
    ),
    PublishedFigure(XEON, "gemm on 32 cores, package", "W", 236.3, 241.2, _HALF, _cpu("gemm")),
    PublishedFigure(XEON, "gemm, DRAM", "W", 26.2, 34.4, _HALF, _cpu("gemm", "dram[0]")),
    PublishedFigure(XEON, "monte_carlo, package", "W", 131.0, 246.7, _HALF, _cpu("monte_carlo")),
    PublishedFigure(XEON, "dist, package", "W", 129.6, 228.9, _HALF, _cpu("dist")),
    PublishedFigure(XEON, "stencil, package", "W", 132.9, 182.0, _HALF, _cpu("stencil")),
    PublishedFigure(XEON, "spmv, package", "W", 224.5, 224.5, _GEMM_WATTS, _cpu("spmv")),
    PublishedFigure(XEON, "triad, package", "W", 130.6, 240.0, _HALF, _cpu("triad")),
    PublishedFigure(XEON, "triad, DRAM", "W", 28.3, 45.2, _HALF, _cpu("triad", "dram[0]")),
    PublishedFigure(
        XEON, "triad at 0.8 GHz, package", "W", 144.5, 144.5, _HALF, _cpu("triad", max_khz=800000)
    ),
    PublishedFigure(XEON, "dist at 0.8 GHz, package", "W", 140.4, 140.4, _HALF, _cpu("dist", max_khz=800000)),
    PublishedFigure(EPYC, "idle, package", "W", 55.5, 57.7, "thesis, Table 3.13", _idle("cpu[0]")),
    PublishedFigure(EPYC, "gemm on 1 core, package", "W", 73.4, 73.4, _GEMM_WATTS, _cpu("gemm", cores=1)),
    PublishedFigure(EPYC, "gemm on 4 cores, package", "W", 94.3, 94.3, _GEMM_WATTS, _cpu("gemm", cores=4)),
    PublishedFigure(
        EPYC, "gemm on 16 cores, package", "W", 120.4, 120.4, _GEMM_WATTS, _cpu("gemm", cores=16)
    ),
    PublishedFigure(EPYC, "gemm on 32 cores, package", "W", 155.9, 161.5, "thesis, Table 3.25", _cpu("gemm")),
    PublishedFigure(
        EPYC, "monte_carlo, package", "W", 133.3, 173.9, "thesis, Table 3.25", _cpu("monte_carlo")
    ),
    PublishedFigure(EPYC, "dist, package", "W", 124.5, 137.9, "thesis, Table 3.25", _cpu("dist")),
    PublishedFigure(EPYC, "stencil, package", "W", 138.0, 140.6, "thesis, Table 3.25", _cpu("stencil")),
    PublishedFigure(EPYC, "triad, package", "W", 123.8, 142.0, "thesis, Table 3.25", _cpu("triad")),
    PublishedFigure(
        EPYC, "triad, DRAM (estimate)", "W", 23.2, 28.7, "thesis, Table 3.25", _cpu("triad", "dram[0]")
    ),
    PublishedFigure(
        EPYC, "triad at 1.5 GHz", "W", 91.8, 96.7, "thesis, Table 3.25", _cpu("triad", max_khz=1500000)
    ),
    PublishedFigure(EPYC, "idle, GPU", "W", 48.9, 57.0, "thesis, Table 3.7", _idle("gpu[0]")),
    PublishedFigure(EPYC, "GPU gemm", "W", 350.5, 413.5, "thesis, Tables 3.17 and 3.27", _gpu("gemm")),
    PublishedFigure(
        EPYC, "GPU gemm at 1005 MHz", "W", 238.4, 257.1, "thesis, Table 3.27", _gpu("gemm", clock_mhz=1005)
    ),
    PublishedFigure(EPYC, "GPU triad", "W", 234.9, 282.7, "thesis, Tables 3.17 and 3.27", _gpu("triad")),
    PublishedFigure(
        EPYC, "GPU triad at 810 MHz", "W", 172.1, 172.1, "thesis, Table 3.27", _gpu("triad", clock_mhz=810)
    ),
    PublishedFigure(EPYC, "GPU dist", "W", 228.7, 308.4, "thesis, Table 3.17", _gpu("dist")),
    PublishedFigure(EPYC, "GPU monte_carlo", "W", 171.0, 310.5, "thesis, Table 3.17", _gpu("monte_carlo")),
    PublishedFigure(EPYC, "GPU stencil", "W", 232.8, 271.6, "thesis, Tables 3.17 and 3.27", _gpu("stencil")),
    PublishedFigure(EPYC, "GPU spmv", "W", 108.7, 219.5, "thesis, Tables 3.17 and 3.27", _gpu("spmv")),
    PublishedFigure(
        EPYC, "host package, GPU busy", "W", 57.1, 75.3, "thesis, Table 3.17", _gpu("gemm", "cpu[0]")
    ),
    PublishedFigure(
        RTX,
        "train, node energy saved at 160 W",
        "%",
        25.39,
        25.39,
        "power-capping, Table 1",
        _gain("train", 160, 0),
    ),
    PublishedFigure(
        RTX,
        "train, node EDP gained at 170 W",
        "%",
        17.32,
        17.32,
        "power-capping, Table 1",
        _gain("train", 170, 1),
    ),
    PublishedFigure(
        H100,
        "train on 8 GPUs, node",
        "W",
        5489.0,
        7100.0,
        "MLPerf Training v4.0, 1-node runs",
        _gpu("train", "node"),
    ),
)


def table() -> str:
    """Return the table that compares model and measurements, in Markdown."""
    lines = ["| profile | situation | model | published | deviation | source |", "|---|---|---|---|---|---|"]
    for case in PUBLISHED_FIGURES:
        value = case.model(load_profile(case.profile))
        nearest = min(max(value, case.low), case.high)
        published = f"{case.low:g}" if case.low == case.high else f"{case.low:g} to {case.high:g}"
        away = "within" if value == nearest else f"{100 * (value / nearest - 1):+.0f} %"
        lines.append(
            f"| {case.profile} | {case.what} | {value:.1f} {case.unit} | {published} {case.unit} "
            f"| {away} | {case.source} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
