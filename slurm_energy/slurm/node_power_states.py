"""Power states of all nodes as slurmctld knows them, and commands that change them.

The commands make Slurm power nodes down and up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.hostlist import fold_hostlist

_FIELD: Final = re.compile(
    r"(?:^| )(NodeName|CPUTot|ActiveFeatures|Gres|State|Weight|Partitions|BootTime|SlurmdStartTime"
    r"|LastBusyTime)=([^ ]*)"
)
_FREE_TEXT: Final = re.compile(r"(?:^| )(?:Reason|Comment|Extra|InstanceId|InstanceType)=")
_MAX_TIME_DIGITS: Final = 12
_BUSY: Final = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_OFF: Final = frozenset({"POWERED_DOWN", "POWER_SAVE"})
_STOPPING: Final = frozenset({"POWERING_DOWN", "POWER_DOWN"})
_BOOTING: Final = frozenset({"POWERING_UP", "POWER_UP"})
_HARMLESS: Final = frozenset({"IDLE", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})


@dataclass(frozen=True, slots=True)
class NodePowerStatus:
    """A node as slurmctld sees it, with its power state.

    Attributes:
        name: NodeName.
        words: words of the state, such as `IDLE` and `POWERED_DOWN`.
        partitions: partitions of the node.
        kind: text that is equal for nodes with the same hardware, features and weight.
        boot_unix_s: time of the last boot in Unix seconds; None means unknown.
        slurmd_unix_s: time of the start of slurmd in Unix seconds; None means unknown.
        last_busy_unix_s: end of the last job in Unix seconds; None means unknown.
    """

    name: str
    words: frozenset[str]
    partitions: frozenset[str] = frozenset()
    kind: str = ""
    boot_unix_s: float | None = None
    slurmd_unix_s: float | None = None
    last_busy_unix_s: float | None = None

    @property
    def is_off(self) -> bool:
        """Whether the node is powered down."""
        return bool(self.words & _OFF)

    @property
    def is_stopping(self) -> bool:
        """Whether the node is powering down or will be powered down."""
        return bool(self.words & _STOPPING)

    @property
    def is_booting(self) -> bool:
        """Whether the node is powering up."""
        return bool(self.words & _BOOTING)

    @property
    def is_busy(self) -> bool:
        """Whether resources of the node are allocated to jobs."""
        return bool(self.words & _BUSY)

    @property
    def is_down(self) -> bool:
        """Whether the node has failed, for example by exceeding ResumeTimeout."""
        return bool(self.words & {"DOWN", "ERROR", "FAIL", "FAILING", "UNKNOWN", "FUTURE"})

    @property
    def hindrance(self) -> str:
        """Names of the node states that forbid to power the node down or up, in lower case.

        The text is empty if no state forbids a change.
        """
        harmless = _HARMLESS | _BUSY | _OFF | _STOPPING | _BOOTING
        # A node that is off does not respond.
        if self.is_off or self.is_booting:
            harmless |= {"NOT_RESPONDING"}
        return ", ".join(sorted(self.words - harmless)).lower()


def read_power_states(run: Runner = run_command) -> list[NodePowerStatus]:
    """Return the power states of all nodes, read from slurmctld with one command.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    return parse_power_states(run(["scontrol", "--oneliner", "show", "node"]))


def parse_power_states(text: str) -> list[NodePowerStatus]:
    """Parse the output of `scontrol -o show node`, with times in Unix seconds.

    Free text, such as a comment, at the end of an output line is cut off. A line break in free text can forge
    a second output line for a node. Therefore a node with two lines gets the state `AMBIGUOUS`, and callers
    do not change its power state.
    """
    nodes = []
    for line in text.split("\n"):
        values = dict(reversed(_FIELD.findall(_FREE_TEXT.split(line)[0])))
        if values.get("NodeName"):
            nodes.append(_status(values))
    times = Counter(node.name for node in nodes)
    first = {node.name: node for node in reversed(nodes)}
    return [
        node if times[name] == 1 else NodePowerStatus(name, frozenset({"AMBIGUOUS"}))
        for name, node in reversed(first.items())
    ]


def _status(values: dict[str, str]) -> NodePowerStatus:
    state = values.get("State", "").upper()
    words = {word for word in re.split(r"[+]", state.rstrip("*~#!%$@^-")) if word}
    if state.endswith("*"):
        words.add("NOT_RESPONDING")
    partitions = frozenset(values.get("Partitions", "").split(",")) - {""}
    kind = [values.get(name, "") for name in ("CPUTot", "Gres", "ActiveFeatures", "Weight")]
    return NodePowerStatus(
        values["NodeName"],
        frozenset(words),
        partitions,
        " ".join([*kind, ",".join(sorted(partitions))]),
        _unix_s(values.get("BootTime", "")),
        _unix_s(values.get("SlurmdStartTime", "")),
        _unix_s(values.get("LastBusyTime", "")),
    )


def _unix_s(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) <= _MAX_TIME_DIGITS and int(text) > 0 else None


def power_down(names: Sequence[str], run: Runner = run_command) -> None:
    """Make Slurm power idle nodes down.

    The state `power_down` exists in all releases. Unlike `power_down_asap`, this state does not drain nodes.
    A job that starts at this moment runs, more jobs may follow, and no node stays locked.

    Raises:
        UnavailableError: slurmctld does not answer or refuses.
    """
    _update(names, "POWER_DOWN", run)


def power_up(names: Sequence[str], run: Runner = run_command) -> None:
    """Make Slurm boot nodes that are powered down.

    Raises:
        UnavailableError: slurmctld does not answer or refuses.
    """
    _update(names, "POWER_UP", run)


def _update(names: Sequence[str], state: str, run: Runner) -> None:
    if names:
        run(["scontrol", "update", f"NodeName={fold_hostlist(names)}", f"State={state}"])
