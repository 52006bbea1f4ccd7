"""PNG chart of the energy and time of different ways to run a training job (alternatives).

matplotlib is imported on use.
"""

from __future__ import annotations

import math
from pathlib import Path

from slurm_energy.errors import EnergyError, UnavailableError, install_extra
from slurm_energy.oracle.configuration_sweep import Sweep


def write_png(sweep: Sweep, title: str, path: Path) -> None:
    """Write a chart with one point per alternative of a job, and a line through the Pareto front.

    The best alternative of each objective is labelled.

    Raises:
        UnavailableError: matplotlib is not installed.
        EnergyError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("--plot", "matplotlib is not installed", install_extra("plots")) from None
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    hours = sweep.objectives["time"] / 3600
    kilojoules = sweep.objectives["energy"] / 1e3
    groups: dict[str, list[int]] = {}
    for index, (hardware, gpus, batch, _) in enumerate(sweep.rows):
        groups.setdefault(f"{gpus:g} x {hardware.name}, batch {batch:g}", []).append(index)
    for label, indices in groups.items():
        axes.plot(hours[indices], kilojoules[indices], "o", markersize=5, alpha=0.8, label=label)
    front = sorted((float(hours[i]), float(kilojoules[i])) for i in sweep.front.nonzero()[0])
    axes.plot(*zip(*front, strict=True), color="#17202c", linewidth=1, linestyle="--", label="Pareto front")
    bests: dict[int, list[str]] = {}
    for name, index in sweep.best.items():
        bests.setdefault(index, []).append(name)
    for index, names in bests.items():
        cap = sweep.rows[index][3]
        limit = "no limit" if math.isinf(cap) else f"{cap:g} W"
        at = (float(hours[index]), float(kilojoules[index]))
        axes.annotate(f"{', '.join(names)}: {limit}", at, (6, 6), textcoords="offset points", fontsize=8)
    axes.set_xlabel("time, hours")
    axes.set_ylabel("energy of the GPUs, kJ")
    axes.grid(color="#e4e8ee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(groups) <= 12:
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None
