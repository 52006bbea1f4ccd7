"""Best known settings by energy-delay product: which table entry counts for which device and workload."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_energy.config import Config, EdpEntry
from slurm_energy.devices.product_names import matches_cpu, matches_gpu
from slurm_energy.policies.edp_defaults import DEFAULTS


def cpu_entry(
    config: Config, cpu_model: str, gpu_names: Sequence[str], workload: str | None
) -> EdpEntry | None:
    """Return the entry whose CPU settings count on this processor, None if there is none.

    An entry that names a GPU is only for nodes that have one of that name.
    """
    fitting = [
        entry
        for entry in _entries(config)
        if (entry.max_frequency_mhz or entry.package_cap_watts)
        and matches_cpu(entry.cpu, cpu_model)
        and (not entry.gpu or any(matches_gpu(entry.gpu, name) for name in gpu_names))
    ]
    return _most_specific(fitting, workload)


def gpu_entry(config: Config, cpu_model: str, gpu_name: str, workload: str | None) -> EdpEntry | None:
    """Return the entry whose GPU settings count on this GPU, None if there is none.

    An entry that names a processor is only for nodes with that one.
    """
    fitting = [
        entry
        for entry in _entries(config)
        if (entry.gpu_cap_watts or entry.gpu_clock_mhz)
        and matches_gpu(entry.gpu, gpu_name)
        and matches_cpu(entry.cpu, cpu_model)
    ]
    return _most_specific(fitting, workload)


def _entries(config: Config) -> tuple[EdpEntry, ...]:
    return (*config.edp, *DEFAULTS)


def _most_specific(entries: Sequence[EdpEntry], workload: str | None) -> EdpEntry | None:
    """Return the entry that counts: workload before device, device before none, the site's before ours.

    Of one author's entries the longer device name wins, then the first.
    """
    fitting = [e for e in entries if not e.model or e.model.lower() == (workload or "").lower()]
    ranked = [
        ((bool(e.model), bool(e.cpu or e.gpu), e not in DEFAULTS, len(e.cpu) + len(e.gpu), -index), e)
        for index, e in enumerate(fitting)
    ]
    return max(ranked, key=lambda item: item[0])[1] if ranked else None
