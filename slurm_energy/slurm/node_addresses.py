"""Host names and addresses of Slurm's nodes: one `sinfo` for the whole cluster."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_energy.slurm.command import Runner

_COMMAND = ("sinfo", "--all", "--noheader", "--Node", "--format=%N|%n|%o")


def read_node_addresses(run: Runner) -> Mapping[str, frozenset[str]]:
    """Return NodeHostName and NodeAddr by node name, as slurm.conf or slurmd gave them.

    Raises:
        UnavailableError: sinfo is missing or slurmctld does not answer.
    """
    return parse_node_addresses(run(_COMMAND))


def parse_node_addresses(text: str) -> Mapping[str, frozenset[str]]:
    """Read what sinfo prints: a line per node and partition; a line of another form is passed over.

    Only administrators choose these names, and none of them holds a vertical bar.
    """
    found: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 3 and words[0]:
            found[words[0]] = found.get(words[0], frozenset()) | frozenset(filter(None, words[1:]))
    return found
