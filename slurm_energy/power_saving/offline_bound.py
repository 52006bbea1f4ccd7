"""Upper bound on the energy that can be saved by powering idle nodes down.

The bound assumes that all future job starts are known and that no job is delayed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_energy.power_saving.demand_forecast import Floats
from slurm_energy.power_saving.node_energy import NodeEnergy


def clairvoyant_saving_joules(
    energy: NodeEnergy, times_s: Floats, busy_nodes: Floats, nodes: int, end_s: float
) -> float:
    """Return the saving in joules if nodes are off in each idle gap that is long enough to save energy.

    No job is delayed.

    Each job is assumed to use the node that became idle last. The idle gaps are then as unequal as possible.
    Unequal gaps maximize the saving. A gap at the start or at the end needs a shutdown. A gap at the end
    needs no boot.

    Args:
        energy: power and duration of the nodes' power states.
        times_s: times in seconds at which the number of busy nodes changes, ascending, shape (t,).
        busy_nodes: number of busy nodes from each time on, shape (t,).
        nodes: number of nodes.
        end_s: end of the last interval in seconds.
    """
    saving = 0.0
    ends_s = np.append(times_s[1:], end_s)
    for level in range(nodes):
        for start_s, stop_s in _gaps(times_s, ends_s, busy_nodes <= level + 1e-9):
            saving += _gap_saving_joules(energy, stop_s - start_s, is_last=stop_s >= end_s)
    return saving


def _gaps(times_s: Floats, ends_s: Floats, is_idle: NDArray[np.bool_]) -> list[tuple[float, float]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_idle, [False]]).astype(np.int8)))
    return [
        (float(times_s[first]), float(ends_s[last - 1]))
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]


def _gap_saving_joules(energy: NodeEnergy, gap_s: float, *, is_last: bool) -> float:
    boot_s = 0.0 if is_last else energy.boot_s
    off_s = gap_s - energy.shutdown_s - boot_s
    if off_s < 0:
        return 0.0
    spent = energy.shutdown_s * energy.shutdown_watts + off_s * energy.off_watts + boot_s * energy.boot_watts
    return max(0.0, gap_s * energy.idle_watts - spent)
