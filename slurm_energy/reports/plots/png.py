"""PNG plot of the power of one job over time. matplotlib is imported at the first use."""

from __future__ import annotations

import math
from pathlib import Path

from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError, install_extra
from slurm_energy.quantities import format_duration
from slurm_energy.reports.acct.fields import requested_cap
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.labels.advice import COMPONENT_NAMES
from slurm_energy.reports.labels.terminal_label import combined_trace
from slurm_energy.reports.plots.axis import time_label, time_ticks, value_ticks, watt_label
from slurm_energy.reports.usage import JobUsage

_POINTS = 400
_COLORS = {"cpu": "#3e74d6", "dram": "#1d9e86", "gpu": "#e0832b", "other": "#8a95a5", "node": "#5a6675"}


def write_png(job: JobUsage, path: Path) -> None:
    """Write a plot of the power of a job's components, stacked, over time.

    Raises:
        UnavailableError: matplotlib is not installed.
        EnergyError: the file cannot be written.
        NotFoundError: the job has no power trace.
    """
    trace = combined_trace(job, _POINTS)
    if trace is None:
        is_measured = job.energy_joules is not None
        raise NotFoundError(
            f"job {job.display_id}",
            "it has no stored power trace",
            "traces are deleted after their retention time" if is_measured else "its energy is unknown too",
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("--png", "matplotlib is not installed", install_extra("plots")) from None
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    times = [(i + 0.5) * trace.interval_s for i in range(trace.length)]
    times[0], times[-1] = 0.0, trace.duration_s
    parts = [part for part in trace.watts if part != "node"] or list(trace.watts)
    layers = [[0.0 if math.isnan(w) else w for w in trace.watts[part]] for part in parts]
    axes.stackplot(
        times,
        *layers,
        labels=[COMPONENT_NAMES.get(part, part) for part in parts],
        colors=[_COLORS.get(part, "#a3663a") for part in parts],
        alpha=0.85,
    )
    top = max((sum(column) for column in zip(*layers, strict=True)), default=1.0)
    cap = requested_cap(job, "cap_watts")
    if cap:
        axes.axhline(
            cap * len(job.traces), color="#17202c", linestyle=(0, (5, 4)), linewidth=1.2, label="cap"
        )
        top = max(top, cap * len(job.traces) * 1.02)
    x_ticks, y_ticks = time_ticks(trace.duration_s, 8), value_ticks(max(top, 1.0))
    axes.set_xticks(x_ticks, [time_label(t, trace.duration_s) for t in x_ticks])
    axes.set_yticks(y_ticks, [watt_label(w, y_ticks[-1]) for w in y_ticks])
    axes.set_xlim(0, trace.duration_s)
    axes.set_ylim(0, y_ticks[-1])
    axes.grid(axis="y", color="#e4e8ee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.12), ncols=6, frameon=False)
    figure.suptitle(_headline(job), x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None


def _headline(job: JobUsage) -> str:
    name = f" {job.job.name}" if job.job.name else ""
    return (
        f"Job {job.display_id}{name}, policy {job.first.policy}: {with_unit(job.energy_joules, 'J')} in"
        f" {format_duration(job.elapsed_s)}, mean {with_unit(job.mean_watts, 'W')}"
    )
