"""Settings with the best known energy-delay product (EDP).

The settings come from published measurements and from the site's entries.

An entry of the table PUBLISHED applies only to the program that was measured. A job names its program by
--energy-model. The settings of the entry may increase the EDP of another program. For example, the frequency
bound of 2100 MHz was best for one matrix product on a Platinum
8358. Another matrix product had a 94 % higher EDP under this bound than without it.

The thesis measured each compute kernel under two frameworks. An entry uses the framework with the larger
gain. For the compute kernels spmv, stencil and triad (Table 3.27), the GPU measurements under TensorFlow are
used. Under JAX these kernels drew only about 50-110 W of the 400 W that the GPU may draw. Such measurements
do not show which power cap is good.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_energy.config import Config, EdpEntry
from slurm_energy.devices.product_names import matches_cpu, matches_gpu


def _cpu(cpu: str, model: str, max_frequency_mhz: float, source: str) -> EdpEntry:
    return EdpEntry(cpu=cpu, model=model, max_frequency_mhz=max_frequency_mhz, source=source)


def _gpu(gpu: str, model: str, gpu_cap_watts: float, source: str) -> EdpEntry:
    return EdpEntry(gpu=gpu, model=model, gpu_cap_watts=gpu_cap_watts, source=source)


PUBLISHED: tuple[EdpEntry, ...] = (
    _cpu("Platinum 8358", "dist", 800, "thesis, Table 3.20: EDP +32.3 %"),
    _cpu("Platinum 8358", "gemm", 2100, "thesis, Table 3.19: EDP +16.7 %"),
    _cpu("Platinum 8358", "monte_carlo", 2400, "thesis, Table 3.19: EDP +0.7 %"),
    _cpu("Platinum 8358", "stencil", 1500, "thesis, Table 3.20: EDP +12.7 %"),
    _cpu("Platinum 8358", "triad", 800, "thesis, Table 3.20: EDP +31.8 %"),
    _cpu("EPYC 7513", "dist", 1500, "thesis, Table 3.22: EDP +22.5 %"),
    _cpu("EPYC 7513", "gemm", 3300, "thesis, Table 3.21: EDP +3.9 %"),
    _cpu("EPYC 7513", "monte_carlo", 2700, "thesis, Table 3.21: EDP +10.8 %"),
    _cpu("EPYC 7513", "stencil", 1800, "thesis, Table 3.22: EDP +14.6 %"),
    _cpu("EPYC 7513", "triad", 1500, "thesis, Table 3.22: EDP +25.5 %"),
    _gpu("A100-SXM4", "dist", 200, "thesis, Table 3.23: EDP +37.4 %"),
    _gpu("A100-SXM4", "gemm", 300, "thesis, Table 3.23: EDP +34.2 %"),
    _gpu("A100-SXM4", "monte_carlo", 200, "thesis, Table 3.23: EDP +37.4 %"),
    _gpu("A100-SXM4", "spmv", 350, "thesis, Table 3.24: EDP +24.2 %"),
    _gpu("A100-SXM4", "stencil", 200, "thesis, Table 3.24: EDP +29.9 %"),
    _gpu("A100-SXM4", "triad", 200, "thesis, Table 3.24: EDP +23.9 %"),
    _gpu("Quadro RTX 6000", "xception", 170, "power-capping, Table 1: EDP +17.32 % with 8 GPUs"),
)


def cpu_entry(
    config: Config, cpu_model: str, gpu_names: Sequence[str], workload: str | None
) -> EdpEntry | None:
    """Return the entry of the EDP table whose CPU settings apply to a node.

    None means that no entry applies. An entry that names a GPU applies only to nodes that have a GPU of that
    name.

    Args:
        config: configuration with the site's entries.
        cpu_model: model name of the processor.
        gpu_names: product names of the node's GPUs.
        workload: value of --energy-model; None if the job gave none.
    """
    candidates = [
        entry
        for entry in _entries(config)
        if (entry.max_frequency_mhz or entry.package_cap_watts)
        and matches_cpu(entry.cpu, cpu_model)
        and (not entry.gpu or any(matches_gpu(entry.gpu, name) for name in gpu_names))
    ]
    return _most_specific(candidates, workload)


def gpu_entry(config: Config, cpu_model: str, gpu_name: str, workload: str | None) -> EdpEntry | None:
    """Return the configured entry whose GPU settings apply to a GPU; None if no entry applies.

    An entry states GPU settings for a kind of GPU. An entry that also names a processor applies only to
    nodes with this processor.

    Args:
        config: configuration with the entries.
        cpu_model: model name of the node's processor.
        gpu_name: product name of the GPU.
        workload: value of --energy-model; None if the job gave none.
    """
    candidates = [
        entry
        for entry in _entries(config)
        if (entry.gpu_cap_watts or entry.gpu_clock_mhz)
        and matches_gpu(entry.gpu, gpu_name)
        and matches_cpu(entry.cpu, cpu_model)
    ]
    return _most_specific(candidates, workload)


def _entries(config: Config) -> tuple[EdpEntry, ...]:
    return (*config.edp, *PUBLISHED)


def _most_specific(entries: Sequence[EdpEntry], workload: str | None) -> EdpEntry | None:
    """Return the most specific of the entries that fit a workload; None if no entry fits.

    An entry for this workload precedes an entry for any workload. If this does not decide, an entry that
    names a device precedes an entry that names no device. The third criterion is the origin: entries of
    the site precede the published entries (PUBLISHED). Among the remaining entries, the first entry with
    the longest device name is returned.

    Args:
        entries: entries that fit the hardware.
        workload: value of --energy-model; None if the job gave none.
    """
    candidates = [e for e in entries if not e.model or e.model.lower() == (workload or "").lower()]
    ranked = [
        ((bool(e.model), bool(e.cpu or e.gpu), e not in PUBLISHED, len(e.cpu) + len(e.gpu), -index), e)
        for index, e in enumerate(candidates)
    ]
    return max(ranked, key=lambda item: item[0])[1] if ranked else None
