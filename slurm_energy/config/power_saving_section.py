"""Declaration of the configuration section `[power_saving]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.config.value_checks import between, key, one_of

POWER_SAVING_MODES: Final = ("off", "observe", "on")
_WATTS = between(0, 1e6)
_SECONDS = between(0, 86400)


def _watts_by_node(value: dict[str, float]) -> str | None:
    if "" in value:
        return "must have node lists such as n[1-4] as names"
    return None if all(0 <= watts <= 1e6 for watts in value.values()) else "must be from 0 to 1000000 watts"


def _reserves(value: dict[str, float]) -> str | None:
    return None if all(0 <= nodes <= 1e6 for nodes in value.values()) else "must be 0 or more nodes"


@dataclass(frozen=True, slots=True)
class PowerSavingConfig:
    """Powering idle nodes down and up through Slurm's power saving. See docs/power-saving.md."""

    mode: str = key(
        "off",
        "off; observe: decide and show, but change nothing; on: power nodes down and up through Slurm.",
        one_of(*POWER_SAVING_MODES),
        show="observe",
    )
    risk: float = key(
        0.05,
        "Maximum probability that a node that is powered down is needed before this pays.",
        between(0, 1),
    )
    wake_probability: float = key(
        0.15,
        "Probability of being needed within its boot time from which on a node is powered up ahead; not "
        "below risk.",
        between(0, 1),
    )
    min_saving: float = key(
        0.5,
        "Minimum expected saving, as a multiple of the energy of shutdown and boot.",
        between(0, 1000),
    )
    min_idle_s: float = key(60.0, "Minimum idle time in seconds before a node is powered down.", _SECONDS)
    min_on_s: float = key(300.0, "Minimum time in seconds between boot and power-down.", _SECONDS)
    cycle_s: float = key(60.0, "Seconds between two decisions.", between(1, 3600))
    max_down: int = key(16, "Maximum number of nodes powered down in one cycle.", between(0, 10000))
    max_up: int = key(16, "Maximum number of nodes powered up ahead in one cycle.", between(0, 10000))
    reserve_percent: float = key(
        5.0, "Warm reserve: idle nodes that stay on, in percent of each partition.", between(0, 100)
    )
    reserve_nodes: dict[str, float] = key(
        {}, "Warm reserve in nodes by partition, instead of reserve_percent.", _reserves, show={"debug": 2.0}
    )
    exclude_partitions: list[str] = key([], "Partitions whose nodes are never changed.", show=["debug"])
    exclude_nodes: str = key("", "Nodes that are never changed.", show="login[1-2]")
    idle_watts: dict[str, float] = key(
        {},
        "Power of an idle node by node list. Other nodes: their lowest measured power while idle.",
        _watts_by_node,
        show={"n[1-4]": 150.0},
    )
    off_watts: float = key(
        5.0,
        "Power of a node that is powered down, such as that of its BMC, until it has been measured.",
        _WATTS,
    )
    boot_s: float = key(180.0, "Boot time in seconds, until boots have been measured.", _SECONDS)
    boot_watts: float = key(200.0, "Mean power of a node while it boots, until it has been measured.", _WATTS)
    shutdown_s: float = key(30.0, "Time of a shutdown in seconds, until it has been measured.", _SECONDS)
    shutdown_watts: float = key(
        150.0, "Mean power of a node while it shuts down, until it has been measured.", _WATTS
    )
    boot_socket: Path = key(
        Path("/run/senergyctld/boot.sock"),
        "Socket on which PrologSlurmctld (prolog_slurmctld) waits until the nodes of a job have booted.",
    )
    power_program: Path | None = key(
        None,
        "Program that prints the power of the nodes in its argument, a host list, as lines NODE WATTS. It is "
        "run while nodes are off, boot or shut down. Without it their configured power counts.",
        show="/usr/local/sbin/outlet-power",
    )
    power_program_interval_s: float = key(
        10.0, "Seconds between two runs of power_program; a boot should last several.", between(1, 3600)
    )
    history_days: float = key(
        56.0, "Days of finished jobs from which the demand is forecast.", between(1, 365)
    )
