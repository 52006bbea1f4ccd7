"""Sockets, cores and hardware threads of nodes, read with one sinfo command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command

_OPTIONS: Final = ("partition", "nodelist")
_TEXT = re.compile(r"(?P<cores>[1-9]\d{0,5})(x(?P<threads>[1-8]))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """Cores of one node.

    Attributes:
        cores: physical cores on all sockets.
        threads_per_core: hardware threads of each core.
        sockets: number of processor sockets.
    """

    cores: int
    threads_per_core: int = 1
    sockets: int = 1


def parse_topology(text: str, name: str) -> NodeTopology:
    """Parse `CORES` or `CORESxTHREADS`, for example `28x2` for 28 cores with 2 hardware threads each.

    Args:
        text: number of cores, and the number of hardware threads per core if given.
        name: name of the option, for the error.

    Raises:
        UsageError: the text has another form.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{name}: '{shown(text)}'", todo="write CORES or CORESxTHREADS_PER_CORE, such as 28x2"
        )
    return NodeTopology(int(match["cores"]), int(match["threads"] or 1))


def read_topology(options: Mapping[str, str | None], run: Runner = run_command) -> NodeTopology:
    """Return the topology of the nodes on which a job with these sbatch options may run.

    Args:
        options: sbatch options by long name; `partition` and `nodelist` select the nodes.
        run: function that executes a command and returns the output of the command.

    Raises:
        UsageError: the nodes differ, so that no single choice of thread counts fits all of them.
        NotFoundError: Slurm does not know the node.
        UnavailableError: sinfo is missing or slurmctld does not answer.
    """
    chosen = [
        f"--{name.replace('nodelist', 'nodes')}={options[name]}" for name in _OPTIONS if options.get(name)
    ]
    output = run(["sinfo", "--noheader", "--Node", "--format=%X %Y %Z", *chosen])
    rows = [line.split() for line in output.splitlines()]
    shapes = {tuple(map(int, row)) for row in rows if len(row) == 3 and all(map(str.isdecimal, row))}
    if not shapes:
        raise NotFoundError("nodes of the job", "Slurm names none", "check --partition and --nodelist")
    if len(shapes) > 1:
        raise UsageError(
            "nodes of the job",
            f"have {len(shapes)} different numbers of cores",
            "name nodes of one kind with --partition or --nodelist, or give --machine CORESxTHREADS",
        )
    sockets, cores, threads = shapes.pop()
    return NodeTopology(sockets * cores, threads, sockets)
