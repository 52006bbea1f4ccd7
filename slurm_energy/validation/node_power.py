"""Checks of the configuration's section `node_power`.

The section names the source of the node's power and the management controller (BMC).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext

_SCHEMES = {"ipmi": ("ipmi",), "redfish": ("https", "http")}
_BMC_KEYS = ("bmc_user", "bmc_password_file", "bmc_certificates", "bmc_chassis")


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about section `node_power` of the configuration.

    The section states from where the power of the whole node is read, for example from a BMC. The source,
    the BMC's address and the BMC's user account must match.
    """
    settings = context.config.node_power
    if not settings.bmc:
        if any("bmc" in one.node_power for one in context.config.node_types.values()):
            return
        for key in _BMC_KEYS:
            if getattr(settings, key):
                yield context.warning("node_power", key, "has no effect without node_power.bmc")
        return
    url = urlsplit(settings.bmc.replace("{node}", "node"))
    if not url.hostname:
        yield context.error("node_power", "bmc", f"'{settings.bmc}' names no host")
    elif "{node}" not in settings.bmc:
        yield context.warning(
            "node_power",
            "bmc",
            f"'{settings.bmc}' is the same controller for every node",
            "put {node} where the node's name belongs",
        )
    if not settings.bmc_user or settings.bmc_password_file is None:
        yield context.error("node_power", "bmc", "needs an account", "set bmc_user and bmc_password_file")
    schemes = _SCHEMES.get(settings.source)
    if settings.source not in ("auto", *_SCHEMES):
        yield context.warning("node_power", "bmc", f"has no effect: node_power.source is '{settings.source}'")
    elif schemes and url.scheme not in schemes:
        yield context.error(
            "node_power",
            "bmc",
            f"'{settings.bmc}' does not match node_power.source '{settings.source}'",
            f'write {schemes[0]}://..., or source = "auto"',
        )
