"""Starting point of tuning: the settings that the site or a publication names for a device and a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.config import Config, EdpEntry
from slurm_energy.devices.hardware import NodeHardware
from slurm_energy.policies import edp_table
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.policies.scope import JobScope

SITE: Final = "site"
PUBLISHED: Final = "published"


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Operating point from which tuning starts, with its origin.

    Attributes:
        point: values of the tuned knobs.
        source: `site` if an entry of energy.toml names a value of the point, otherwise `published`.
        text: origin of the values, as text for users.
    """

    point: OperatingPoint
    source: str
    text: str


def starting_point(
    objective: str, model: str | None, hardware: NodeHardware, scope: JobScope, config: Config
) -> StartingPoint | None:
    """Return the settings from which the tuning of a job starts; None if none are known.

    The settings come from the table `edp`, which contains the settings with the best energy-delay product.
    Only jobs with the objective `edp` use this table. The table has separate entries for GPUs and CPUs:

    - The GPU entry is used if all GPUs of the job have the same product name.
    - The CPU entry was measured with programs that compute on CPUs. It is therefore not used if
      the job requested GPUs and a GPU entry is used.

    Args:
        objective: `edp`, `ed2p` or `energy`.
        model: value of --energy-model; None if the job gave none.
        hardware: hardware of the node.
        scope: part of the node that is allocated to the job.
        config: configuration with the site's entries.
    """
    if objective != "edp":
        return None
    products = {gpu.name for gpu in hardware.gpus if gpu.index in scope.gpus}
    gpu = (
        edp_table.gpu_entry(config, hardware.cpu_model, products.pop(), model) if len(products) == 1 else None
    )
    cpu = None
    if not (scope.gpu_job and gpu):
        node_gpus = [device.name for device in hardware.gpus]
        cpu = edp_table.cpu_entry(config, hardware.cpu_model, node_gpus, model)
    entries = [entry for entry in (gpu, cpu) if entry is not None]
    if not entries:
        return None
    point = OperatingPoint(
        gpu_limit_watts=gpu.gpu_cap_watts if gpu else None,
        gpu_clock_mhz=gpu.gpu_clock_mhz if gpu else None,
        package_limit_watts=cpu.package_cap_watts if cpu else None,
        cpu_max_mhz=cpu.max_frequency_mhz if cpu else None,
    )
    return StartingPoint(point, *_origin(entries))


def _origin(entries: Sequence[EdpEntry]) -> tuple[str, str]:
    """Return the origin of a starting point, i.e. of the settings with which tuning begins.

    The result is the kind of source (published or from this site) and a text that names the sources.

    Args:
        entries: the table entries whose settings the starting point combines.
    """
    published = all(entry in edp_table.PUBLISHED for entry in entries)
    texts = dict.fromkeys(entry.source or "an [[edp]] entry of the site" for entry in entries)
    return PUBLISHED if published else SITE, "; ".join(texts)
