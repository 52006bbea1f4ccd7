"""Output of `senergy sweep`.

The output is a progress bar, the commands of a dry run, a table, JSON, CSV, or plots.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.cli.output import emit, emit_fitted, emit_json, emit_verbatim, note
from slurm_energy.cli.sweep_preset import refused_lines
from slurm_energy.errors import UnavailableError, install_extra

if TYPE_CHECKING:
    from slurm_energy.cli.sweep_preset import SweepDesign
    from slurm_energy.sweep.runner import SweepLimits
    from slurm_energy.sweep.state import SweepState
    from slurm_energy.sweep.submission import Submitter
    from slurm_energy.tuning.sweep.result import SweepResult
    from slurm_energy.tuning.sweep.runs import SweepSchedule

_REPORT_INTERVAL_S: Final = 30.0
_BAR_WIDTH: Final = 24


class ProgressBar:
    """Progress of a sweep (runs of one job at several settings) on standard error.

    On a terminal, the progress is shown as a bar. Otherwise a line is printed at intervals.

    Args:
        state: state of the sweep.
        limits: maximum number of repetitions, and maximum number of jobs at the same time.
    """

    def __init__(self, state: SweepState, limits: SweepLimits) -> None:
        self._state = state
        self._limits = limits
        self._on_terminal = sys.stderr.isatty()
        self._text = ""
        self._next_s = 0.0

    def report(self, schedule: SweepSchedule) -> None:
        """Print the number of finished runs and running jobs."""
        done = sum(not run.is_in_flight for run in self._state.runs)
        text = f"{done} of {max(done, self._total(schedule))} runs, {len(self._state.in_flight)} in flight"
        for word, points in (("dominated", schedule.dominated), ("failed", schedule.failed)):
            if points:
                text += f", {len(points)} points {word}"
        if self._on_terminal:
            self._draw(done / max(1, self._total(schedule)), text)
        elif text != self._text and (time.monotonic() >= self._next_s or schedule.is_complete):
            print(f"senergy: {text}", file=sys.stderr, flush=True)
            self._text, self._next_s = text, time.monotonic() + _REPORT_INTERVAL_S

    def end(self) -> None:
        """End the line of the bar."""
        if self._on_terminal and self._text:
            print(file=sys.stderr, flush=True)

    def _draw(self, share: float, text: str) -> None:
        filled = round(min(1.0, share) * _BAR_WIDTH)
        width = shutil.get_terminal_size().columns - 1
        line = f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {text}"[:width].ljust(
            min(width, len(self._text))
        )
        print(f"\r{line}", end="", file=sys.stderr, flush=True)
        self._text = line.rstrip()

    def _total(self, schedule: SweepSchedule) -> int:
        """Return the number of runs that the sweep will have in total.

        A point of the sweep is a combination of settings. The sweep drops a point that fails, or that is
        slower and needs more energy than another point. The result assumes that no further point is dropped.
        """
        dropped = len(schedule.dominated | schedule.failed)
        active = len(self._state.points) - dropped
        ended = sum(run.point in schedule.dominated | schedule.failed for run in self._state.runs)
        return active * self._limits.repetitions + ended


def print_commands(submitter: Submitter, design: SweepDesign, args: argparse.Namespace) -> None:
    """Print the sbatch command of each sweep point, with environment variables, as for a shell.

    If the sweep uses a preset (a named set of settings), also print when the settings take effect, and
    how many combinations of settings were left out.
    """
    points = submitter.state.points
    lines = []
    for index, point in enumerate(points):
        variables = [f"{name}={shlex.quote(value)}" for name, value in submitter.environment(point).items()]
        command = submitter.command(point, f"{submitter.state.name}-{index}")
        lines.append(" ".join([*variables, shlex.join(command)]))
    if args.json:
        document = {"points": [dict(point.settings) for point in points], "commands": lines}
        emit_json(document | _preset_json(design))
        return
    emit(lines)
    if design.preset is not None:
        note(f"preset {design.preset.name}: {design.preset.summary}")
        note(f"it takes effect only if {design.preset.needs}")
    _note_refused(design)
    print(f"senergy: {len(points)} points, up to {len(points) * args.repeat} jobs", file=sys.stderr)


def check_plots() -> None:
    """Check before a sweep that plots of the result can be drawn.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnavailableError("--plots", "matplotlib is not installed", install_extra("plots"))


def _preset_json(design: SweepDesign) -> dict[str, Any]:
    """Return the JSON keys that describe the preset of a sweep; empty if the sweep uses no preset."""
    if design.preset is None or design.configurations is None:
        return {}
    return {"preset": design.preset.name, "refused": dict(design.configurations.refused)}


def _note_refused(design: SweepDesign) -> None:
    for line in refused_lines(design.configurations.refused if design.configurations else {}):
        note(line)


def print_result(result: SweepResult, design: SweepDesign, args: argparse.Namespace) -> None:
    """Print the result of a sweep as a table, CSV or JSON, and write the plots."""
    from slurm_energy.reports import sweep_table

    if args.json:
        emit_json(result.to_json() | _preset_json(design))
    elif args.csv:
        emit_verbatim(sweep_table.csv_text(result).splitlines())
    else:
        emit_fitted(sweep_table.table_lines(result))
        emit_fitted(["", *sweep_table.best_lines(result)])
        if requested := list(sweep_table.request_lines(result, args.best)):
            emit_verbatim(["", *requested])
    _note_refused(design)
    if result.reference.summary is None:
        note("the reference has no measurement, so there are no gains")
    if {"partial", "modelled"} & set(result.qualities):
        note(f"quality of the energy figures: {', '.join(result.qualities)}")
    if result.unmeasured:
        missing = ", ".join(result.unmeasured)
        note(f"the energy lacks {missing}, so it understates the cost of slower runs (senergy doctor)")
    if args.plots:
        from slurm_energy.cli.output_files import report_written
        from slurm_energy.reports.plots.sweep_png import write_plots

        for path in write_plots(result, args.plots):
            report_written(path)
