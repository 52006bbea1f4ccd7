"""Host names and addresses of all nodes, read with one sinfo command."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_energy.slurm.command import Runner

_COMMAND = ("sinfo", "--all", "--noheader", "--Node", "--format=%N|%n|%o")


def read_node_addresses(run: Runner) -> Mapping[str, frozenset[str]]:
    """Return NodeHostName and NodeAddr of each node by NodeName, as slurm.conf or slurmd set them.

    Args:
        run: function that executes a command and returns the output of the command.

    Raises:
        UnavailableError: sinfo is missing or slurmctld does not answer.
    """
    return parse_node_addresses(run(_COMMAND))


def parse_node_addresses(text: str) -> Mapping[str, frozenset[str]]:
    """Parse the output of the sinfo command. The output has one line for each pair of node and partition.

    Lines of another form are skipped. Only administrators choose the names, and no name contains a vertical
    bar.

    Returns:
        NodeHostName and NodeAddr by NodeName.
    """
    addresses: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 3 and fields[0]:
            addresses[fields[0]] = addresses.get(fields[0], frozenset()) | frozenset(filter(None, fields[1:]))
    return addresses
