"""Options for the power of the whole node.

The options are read from the section `node_power` of the configuration.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from slurm_energy.config import NodePowerConfig
from slurm_energy.devices.node import ipmi, redfish
from slurm_energy.devices.power_sensor import PowerSensor
from slurm_energy.devices.source_priority import NO_SOURCE, NodePart
from slurm_energy.devices.sources import NodePowerOptions
from slurm_energy.errors import ConfigError
from slurm_energy.trusted_files import check_folder, read_trusted

_SOURCES = {
    "auto": None,
    "none": NO_SOURCE,
    "pm_counters": "pm_counters:node",
    "power_meter": "power_meter:acpi",
    "ipmi": "ipmi:dcmi",
    "redfish": "redfish:power",
    "psys": "powercap:psys",
    "grace-module": "power_meter:grace-module",
}


def node_power_options(config: NodePowerConfig, node: str) -> NodePowerOptions:
    """Return the site's options for the power of a node.

    Args:
        config: section `node_power` of the configuration.
        node: Slurm's name of the node.

    Raises:
        ConfigError: the user name or password file of the BMC is missing, or other users can read the
            password.
    """
    return NodePowerOptions(
        source=_SOURCES[config.source],
        excludes=frozenset(NodePart(part) for part in config.excludes),
        sensor=_bmc_sensor(config, node) if config.bmc and config.source != "none" else None,
        interval_s=config.interval_s,
    )


def _bmc_sensor(config: NodePowerConfig, node: str) -> PowerSensor:
    address = config.bmc.replace("{node}", node)
    if not config.bmc_user or config.bmc_password_file is None:
        raise ConfigError("node_power.bmc", "needs an account", "set bmc_user and bmc_password_file")
    check_private_file(config.bmc_password_file)
    if config.bmc_certificates is not None:
        _check_certificates(config.bmc_certificates)
    if address.startswith("ipmi://"):
        transport = ipmi.Ipmitool(urlsplit(address).netloc, config.bmc_user, config.bmc_password_file)
        return ipmi.power_sensor(transport, config.interval_s)
    service = redfish.RedfishClient(
        address.rstrip("/"),
        config.bmc_user,
        config.bmc_password_file,
        config.bmc_certificates,
        config.bmc_chassis or None,
    )
    return redfish.power_sensor(service, config.interval_s)


def check_private_file(path: Path) -> None:
    """Raise an error if a secret file is accessible to others.

    Only root and the user of this process may read or write the file.

    Raises:
        ConfigError: the file is absent, not a regular file, or accessible to other users.
    """
    try:
        read_trusted(path, secret=True)
    except OSError as error:
        raise ConfigError(str(path), error.strerror or "cannot be read") from None


def _check_certificates(path: Path) -> None:
    """Raise an error if another user could replace a file of trusted certificates.

    These certificates decide which host receives the BMC's password.

    Raises:
        ConfigError: the file is absent, or belongs to a user other than this process's user and root.
    """
    try:
        check_folder(path.parent)
        read_trusted(path.resolve())  # distributions install their bundle behind a link
    except OSError as error:
        raise ConfigError(str(path), error.strerror or "cannot be read") from None
