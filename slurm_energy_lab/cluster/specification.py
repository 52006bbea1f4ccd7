"""What a lab consists of: its specification by the user, and its stored state (lab.json)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy_lab.cluster.nodes_file import DEFAULT_PROFILES, NodeSpec, from_profiles
from slurm_energy_lab.interconnect.links import LinkSpec

PRIORITIES = ("off", "plugin", "portable")


@dataclass(frozen=True)
class LabSpec:
    """Specification of the lab that a user requests.

    Attributes:
        nodes: the nodes to emulate.
        slurm: lines `Key=Value` for slurm.conf. A line replaces the existing line with the same key.
        energy: tables to merge into energy.toml, for example `{"agent": {"sampling_hz": 10.0}}`.
        accounting: whether slurmdbd and its database run.
        priority: component that orders the queue. With `off`, Slurm itself orders the queue. With `plugin`,
            the plugin in slurmctld uses the order in senergyctld's table. With `portable`, senergyctld calls
            scontrol.
        slurm_energy: whether Slurm loads acct_gather_energy/senergy, so that Slurm's own accounting contains
            energy.
        product: whether slurm-energy runs. If not, the lab is plain Slurm on emulated hardware.
        cpu_share: number of real cores that all emulated CPUs of a node share; None means the emulator's
            default.
        links: latency and bandwidth of the network between tasks on different nodes. If None, the tasks use
            the host's network.
        users: raw fair shares in Slurm by user name. The users must exist on this machine. These users, in
            addition to root, get a Slurm account.
    """

    nodes: tuple[NodeSpec, ...] = field(default_factory=lambda: from_profiles(DEFAULT_PROFILES))
    slurm: tuple[str, ...] = ()
    energy: Mapping[str, Any] = field(default_factory=dict)
    accounting: bool = True
    product: bool = True
    priority: str = "off"
    slurm_energy: bool = False
    cpu_share: float | None = None
    links: LinkSpec | None = None
    users: Mapping[str, int] = field(default_factory=lambda: {"nobody": 1})

    def __post_init__(self) -> None:
        """Validate the specification.

        Raises:
            UsageError: the value of `priority` is unknown, or the plugin is requested without accounting.
        """
        if self.priority not in PRIORITIES:
            raise UsageError(f"priority '{self.priority}'", "unknown", f"one of {', '.join(PRIORITIES)}")
        if self.priority == "plugin" and not self.accounting:
            raise UsageError("priority 'plugin'", "slurmctld updates site factors only with slurmdbd")


@dataclass(frozen=True)
class LabRecord:
    """Content of lab.json: specification and state of a lab (cluster of emulated nodes).

    Attributes:
        spec: specification of the lab that the user requested.
        ports: TCP port by daemon; the key of a node's slurmd is `slurmd.NAME`.
        complete: whether the start of the lab was completed.
        started: Unix time in seconds at which the start of the lab began.
        starter: id of the process that started the lab.
    """

    spec: LabSpec
    ports: Mapping[str, int]
    started: float
    starter: int
    complete: bool = False

    def write(self, path: Path) -> None:
        """Replace the file lab.json atomically."""
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(asdict(self), indent=1, default=str) + "\n")
        os.replace(aside, path)  # noqa: PTH105


def read_record(path: Path) -> LabRecord | None:
    """Return the record of a lab; None if the file lab.json is missing or invalid."""
    try:
        data = json.loads(path.read_text())
        spec = data.pop("spec")
        nodes = tuple(NodeSpec(**node) for node in spec.pop("nodes"))
        spec["slurm"] = tuple(spec["slurm"])
        links = spec.pop("links", None)
        spec["links"] = LinkSpec(**links) if links else None
        return LabRecord(spec=LabSpec(nodes=nodes, **spec), **data)
    except (OSError, ValueError, KeyError, TypeError):
        return None
