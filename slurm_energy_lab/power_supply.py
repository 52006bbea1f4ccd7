"""Emulated power supplies of nodes: programs that switch nodes for Slurm, and the delivered energy.

Slurm calls the programs as SuspendProgram, ResumeProgram, prolog and epilog. The programs write each change
of a node's state to a log. From this log, the module computes the energy that a meter at the wall outlet
would measure, including the time while the node is off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

OFF, BOOT, ON, STOP, BUSY, FREE = "off", "boot", "on", "stop", "busy", "free"

_HEAD: Final = """\
#!/bin/sh
exec >>{folder}/power.errors 2>&1
export SLURM_CONF={conf} PATH={search}
note() {{ echo "$(date +%s.%N) $1 $2" >>{folder}/power.log; }}
runs() {{
    [ -n "$1" ] && [ -r "/proc/$1/stat" ] && [ "$(cut -d' ' -f3 "/proc/$1/stat" 2>/dev/null)" != Z ]
}}
wait_for_end() {{ while runs "$(cat {folder}/stopping.$1 2>/dev/null)"; do sleep 0.1; done; }}
"""
_SUSPEND: Final = """\
for node in $(scontrol show hostnames "$1"); do
    note stop "$node"
    pid=$(cat {folder}/slurmd.$node.pid 2>/dev/null)
    echo "$pid" >{folder}/stopping.$node
    runs "$pid" && kill "$pid"
    (sleep {shutdown_s}; note off "$node") &
done
wait # slurmctld 24.11 ends what its program leaves behind
"""
_RESUME: Final = """\
for node in $(scontrol show hostnames "$1"); do
    [ -e {folder}/broken.$node ] && {{ note broken "$node"; continue; }}
    note boot "$node"
    (sleep {boot_s}; wait_for_end "$node"; slurmd -b -N "$node" -f {conf}; note on "$node") &
done
wait
"""


_POWER: Final = """\
#!/bin/sh
export SLURM_CONF={conf} PATH={search}
touch {folder}/power.log
for node in $(scontrol show hostnames "$1"); do
    case $(awk -v node="$node" '$3 == node {{ state = $2 }} END {{ print state }}' {folder}/power.log) in
    off) echo "$node {off_watts}" ;;
    boot) echo "$node {boot_watts}" ;;
    stop) echo "$node {shutdown_watts}" ;;
    busy) echo "$node {busy_watts}" ;;
    *) echo "$node {idle_watts}" ;;
    esac
done
"""


@dataclass(frozen=True, slots=True)
class SupplyModel:
    """Power and durations of the states of an emulated node.

    Attributes:
        idle_watts: power while the node is on without a job.
        busy_watts: power while a job runs.
        off_watts: power while the node is off.
        boot_s, boot_watts: duration and power of booting.
        shutdown_s, shutdown_watts: duration and power of shutting down.
    """

    idle_watts: float
    busy_watts: float
    off_watts: float
    boot_s: float
    boot_watts: float
    shutdown_s: float
    shutdown_watts: float


def write_programs(folder: Path, conf: Path, search: str, model: SupplyModel) -> None:
    """Write the programs `suspend`, `resume`, `power-prolog`, `power-epilog` and `power` to a folder.

    `power` prints the present power of the nodes in its argument, a host list.

    Args:
        folder: folder of the programs, in which slurmd writes its PID as `slurmd.NODE.pid`.
        conf: path of slurm.conf.
        search: value of PATH for the programs.
        model: durations of booting and shutting down.
    """
    values = asdict(model) | {
        "folder": folder,
        "conf": conf,
        "search": search,
    }
    texts = {
        "suspend": _SUSPEND,
        "resume": _RESUME,
        "power-prolog": f'note {BUSY} "$SLURMD_NODENAME"\n',
        "power-epilog": f'note {FREE} "$SLURMD_NODENAME"\n',
    }
    programs = {name: _HEAD + text for name, text in texts.items()} | {"power": _POWER}
    for name, text in programs.items():
        path = folder / name
        path.write_text(text.format(**values))
        path.chmod(0o755)


def read_changes(folder: Path) -> list[tuple[float, str, str]]:
    """Return the logged changes of the nodes' power states, in order of time.

    Each change has a Unix time, the new state, and the name of the node.
    """
    log = folder / "power.log"
    rows = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return sorted((float(time), state, node) for time, state, node in rows)


def delivered_joules(
    changes: Iterable[tuple[float, str, str]],
    nodes: Iterable[str],
    model: SupplyModel,
    start: float,
    end: float,
) -> float:
    """Return the energy that all nodes drew between two times.

    Before its first change, a node is on and idle.

    Args:
        changes: changes as returned by `read_changes`.
        nodes: names of the nodes.
        model: power of the states.
        start: begin in Unix seconds.
        end: end in Unix seconds.
    """
    watts = {
        OFF: model.off_watts,
        BOOT: model.boot_watts,
        STOP: model.shutdown_watts,
        BUSY: model.busy_watts,
        ON: model.idle_watts,
        FREE: model.idle_watts,
    }
    total = 0.0
    for _, spans in _spans(changes, nodes, end).items():
        for begin, until, state in spans:
            total += watts[state] * max(0.0, min(until, end) - max(begin, start))
    return total


def _spans(
    changes: Iterable[tuple[float, str, str]], nodes: Iterable[str], end: float
) -> Mapping[str, list[tuple[float, float, str]]]:
    by_node: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for time, state, node in changes:
        by_node[node].append((time, state))
    return {node: list(_node_spans(by_node[node], end)) for node in nodes}


def _node_spans(changes: list[tuple[float, str]], end: float) -> Iterator[tuple[float, float, str]]:
    since, state = float("-inf"), ON
    for time, new in changes:
        if new not in (OFF, BOOT, ON, STOP, BUSY, FREE) or (state == BOOT and new == OFF):
            continue  # a boot that began before the end of the shutdown
        yield since, time, state
        since, state = time, new
    yield since, end, state
