"""States of all nodes in Slurm, read with one sinfo command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.slurm.command import Runner

_COMMAND = ("sinfo", "--all", "--noheader", "--Node", "--format=%N|%T|%v|%P")
_MARKS: Final = "*~#!%$@^-+"
"""Marks that sinfo appends to a state: not responding, powered down, powering up, ..."""
_OFF_MARKS: Final = frozenset("~#!%@^")
_NOT_UP: Final = ("down", "future", "power", "inval", "reboot", "cloud")
_BUSY: Final = frozenset(("allocated", "mixed", "completing"))


@dataclass(frozen=True, slots=True)
class NodeInSlurm:
    """A node as Slurm knows it.

    Attributes:
        name: Slurm's name of the node.
        state: state as sinfo prints it, such as `idle`, `mixed*` or `down~`.
        version: release of the node's slurmd; an empty value means unknown.
        partition: the default partition if the node belongs to it, else the first partition of the node.
    """

    name: str
    state: str
    version: str
    partition: str

    @property
    def is_expected_up(self) -> bool:
        """Whether Slurm expects the node to be up.

        This is false if the node is down, powered off or reserved for the future.
        """
        return not self.state.startswith(_NOT_UP) and not _OFF_MARKS.intersection(self.state)

    @property
    def is_busy(self) -> bool:
        """Whether jobs run on the node."""
        return self.state.rstrip(_MARKS) in _BUSY


def read_slurm_nodes(run: Runner) -> Mapping[str, NodeInSlurm]:
    """Return all nodes by name.

    Args:
        run: function that executes a command and returns the output of the command.

    Raises:
        UnavailableError: sinfo is missing or slurmctld does not answer.
    """
    return parse_slurm_nodes(run(_COMMAND))


def parse_slurm_nodes(text: str) -> Mapping[str, NodeInSlurm]:
    """Parse the output of the sinfo command. The output has one line for each pair of node and partition.

    Lines of another form are skipped. Only administrators choose the names, and no name contains a vertical
    bar.
    """
    nodes: dict[str, NodeInSlurm] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 4 or not fields[0]:
            continue
        name, state, version, partition = fields
        if name not in nodes or partition.endswith("*"):
            version = "" if version in ("N/A", "(null)", "unknown") else version
            nodes[name] = NodeInSlurm(name, state.lower(), version, partition.removesuffix("*"))
    return nodes
