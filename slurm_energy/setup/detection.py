"""Values of energy.toml that follow from slurm.conf, the controller and the hardware of this host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.errors import EnergyError
from slurm_energy.setup.configuration import CONTROLLER_PORT, DetectedValues, controller_url
from slurm_energy.setup.shared_configuration import request_shared, shared_keys, shared_tables
from slurm_energy.setup.site import SlurmSite


def detected_values(
    site: SlurmSite, given: Mapping[tuple[str, str], Any], *, is_node: bool
) -> DetectedValues:
    """Return the values of energy.toml for a host. The file is suitable for every host of the cluster.

    Args:
        site: the Slurm cluster of this host.
        given: values that the administrator chose; these values take precedence over detected ones.
        is_node: whether to describe the hardware of this host at the head of the file.
    """
    values = slurm_values(site)
    shared: Mapping[str, Any] = {}
    notes = [f"Slurm: {site.conf}"]
    if not site.is_controller:
        try:
            shared = request_shared(
                values["cluster", "controller_url"],
                values.get(("cluster", "controller_users"), ["root", "slurm"]),
                values.get(("cluster", "munge_socket")),
            )
        except (EnergyError, KeyError) as error:
            notes.append(f"Policies and bounds: defaults, because senergyctld did not answer: {error}")
        else:
            notes.append("Policies and bounds: as senergyctld used them when this file was written")
    if is_node:
        notes += hardware_notes()
    urls = values.get(("cluster", "controller_url"), [])
    is_shared = "://" in str(given.get(("controller", "database"), ""))
    if len(urls) == 1 or (urls and site.is_controller and not is_shared):
        values["cluster", "controller_url"] = urls[0]  # a SQLite file can serve one controller only
    return DetectedValues(
        values | shared_keys(shared) | dict(given), notes=notes, tables=shared_tables(shared)
    )


def slurm_values(site: SlurmSite) -> dict[tuple[str, str], Any]:
    """Return the values of configuration keys of slurm-energy that follow from slurm.conf."""
    values: dict[tuple[str, str], Any] = {("cluster", "name"): site.cluster_name}
    if site.controllers:
        values["cluster", "controller_url"] = list(
            dict.fromkeys(controller_url(one.address) for one in site.controllers)
        )
    values["controller", "listen"] = f"0.0.0.0:{CONTROLLER_PORT}"
    if site.slurm_user not in ("root", "slurm"):
        values["cluster", "controller_users"] = ["root", "slurm", site.slurm_user]
    options = dict(word.partition("=")[::2] for word in site.value("authinfo").split(","))
    if socket := options.get("socket"):
        values["cluster", "munge_socket"] = Path(socket)
    return values


def hardware_notes(root: Path = Path("/")) -> list[str]:
    """Return notes on the hardware of this host, one line each."""
    try:
        devices = discover(root)
    except EnergyError as error:
        return [f"Hardware: {error}"]
    try:
        return _hardware_lines(devices, root)
    finally:
        devices.close()


def _hardware_lines(devices: NodeDevices, root: Path) -> list[str]:
    hardware = devices.hardware
    drivers = {
        path.read_text().strip() for path in root.glob("sys/devices/system/cpu/cpufreq/*/scaling_driver")
    }
    counters = [*devices.counters, *devices.node_counters]
    gpus = Counter(gpu.name for gpu in hardware.gpus)
    return [
        f"CPU: {hardware.cpu_model or 'unknown'}, {hardware.cpu_count} CPUs",
        f"Frequencies: {', '.join(sorted(drivers)) or 'cannot be set'}",
        f"GPUs: {', '.join(f'{count} x {name}' for name, count in gpus.items()) or 'none'}",
        f"Energy counters: {', '.join(sorted({one.source for one in counters})) or 'none'}",
        f"Settings: {', '.join(sorted({knob.name for knob in devices.knobs.values()})) or 'none'}",
        f"BMC: {'yes' if any(root.glob('dev/ipmi*')) else 'none seen'}; its power: section node_power",
    ]
