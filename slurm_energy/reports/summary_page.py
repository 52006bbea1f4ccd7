"""Text and JSON output of `senergy experiment`.

The output has totals of jobs by group, in the layout of sreport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy import __version__
from slurm_energy.quantities import JOULES_PER_KWH, format_duration
from slurm_energy.reports.figure_format import percent, plain, with_unit
from slurm_energy.reports.summary import COMPLETED, DEADLINE, UNKNOWN, Summary
from slurm_energy.reports.table import delimited, fit
from slurm_energy.reports.time_spec import format_time

FORMAT_VERSION = 1
_RULE = "-" * 80


@dataclass(frozen=True, slots=True)
class Report:
    """Totals of the jobs in a time window.

    Attributes:
        start, end: the window in Unix seconds; None means an open end.
        by: criterion of the groups.
        groups: totals by group name. The empty name stands for jobs without a value.
        total: totals of all jobs.
    """

    start: float | None
    end: float | None
    by: str
    groups: Mapping[str, Summary]
    total: Summary


def document(report: Report) -> dict[str, Any]:
    """Return the document of `senergy experiment --json`."""
    return {
        "meta": {"format": FORMAT_VERSION, "senergy": __version__},
        "window": {"start": report.start, "end": report.end},
        "by": report.by,
        "total": report.total.to_json(),
        "groups": [{"name": name or None, **group.to_json()} for name, group in report.groups.items()],
    }


def lines(
    report: Report, *, header: bool = True, delimiter: str | None = None, trailing: bool = False
) -> list[str]:
    """Return the table of a report with its header and notes, as lines.

    Args:
        report: report to show.
        header: whether to print the title and the column names.
        delimiter: text between values; None means columns of fixed width.
        trailing: whether the delimiter also follows the last value.
    """
    columns = _columns(report, parsable=delimiter is not None)
    rows = [(name or "(none)", group) for name, group in report.groups.items()]
    body = [[write(name, group) for _, _, write in columns] for name, group in rows]
    if len(rows) > 1:
        body.append([write("TOTAL", report.total) for _, _, write in columns])
    if delimiter is not None:
        names = [[name for name, _, _ in columns]] if header else []
        end = delimiter if trailing else ""
        return [delimited(row, delimiter) + end for row in [*names, *body]]
    title = [*_title(report), *_names(columns)] if header else []
    notes = _notes(report.total) if header else []
    return [*title, *(_line(row, columns) for row in body), *notes]


_Column = tuple[str, int, Callable[[str, Summary], str]]


def _columns(report: Report, *, parsable: bool) -> list[_Column]:
    """Return heading, width and formatting function of each column of the summary of an experiment.

    Each column has a fixed unit. If `parsable` is true, unknown values are empty.
    """
    total = report.total.energy_joules
    unknown = "" if parsable else UNKNOWN

    def energy(_: str, group: Summary) -> str:
        joules = group.energy_joules
        return unknown if joules is None else _kwh(joules / JOULES_PER_KWH, parsable)

    def edp(_: str, group: Summary) -> str:
        value = group.edp_js
        if value is None:  # undefined without a completed job
            return unknown if group.completed else ""
        return plain(value) if parsable else f"{value:.3e}"

    def watts(_: str, group: Summary) -> str:
        return unknown if group.mean_watts is None else plain(group.mean_watts, 3 if parsable else 0)

    return [
        ("GPU" if report.by == "gpu" else report.by.capitalize(), 14, lambda name, _: name),
        ("Jobs", 6, lambda _, group: str(group.jobs)),
        ("Done", 6, lambda _, group: str(group.completed)),
        ("EnergykWh", 11, energy),
        ("Share%", 6, lambda _, group: percent(group.energy_joules, total).removesuffix(" %")),
        ("MeanW", 8, watts),
        ("Jobs/h", 8, lambda _, group: _two_decimals(group.jobs_per_hour)),
        ("Makespan", 11, lambda _, group: format_duration(group.makespan_s)),
        ("MeanJCT", 10, lambda _, group: format_duration(group.mean_jct_s)),
        ("P95JCT", 10, lambda _, group: format_duration(group.p95_jct_s)),
        ("MeanWait", 10, lambda _, group: format_duration(group.mean_wait_s)),
        ("P95Wait", 10, lambda _, group: format_duration(group.p95_wait_s)),
        ("EDP(J*s)", 9, edp),
    ]


def _kwh(kwh: float, parsable: bool) -> str:
    """Return an energy in kWh as text. In a table, the text has as many decimals as fit into the column."""
    if parsable:
        return plain(kwh, 9)
    return f"{kwh:.{6 if kwh < 100 else 3 if kwh < 100_000 else 0}f}"


def _title(report: Report) -> list[str]:
    start = "the beginning" if report.start is None else format_time(report.start)
    end = "now" if report.end is None else format_time(report.end)
    return [
        _RULE,
        f"Energy by {report.by}: jobs that ended from {start} to {end}",
        "JCT: end - submission of completed jobs; EDP: energy x mean JCT; MeanW: energy / makespan",
        _RULE,
    ]


def _names(columns: Sequence[_Column]) -> list[str]:
    dashes = " ".join("-" * width for _, width, _ in columns)
    return [_line([name for name, _, _ in columns], columns), dashes]


def _line(values: Sequence[str], columns: Sequence[_Column]) -> str:
    cells = (
        fit(value, width, index == 0)
        for index, (value, (_, width, _)) in enumerate(zip(values, columns, strict=True))
    )
    return " ".join(cells).rstrip()


def _notes(total: Summary) -> list[str]:
    notes = []
    if total.unknown_energy:
        notes.append(f"{_jobs(total.unknown_energy)} without known energy, not included in the sums")
    if waiting := total.states.get(UNKNOWN, 0):
        notes.append(f"{_jobs(waiting)} without a final state in Slurm's accounting so far")
    if late := total.states.get(DEADLINE, 0):
        notes.append(f"{_jobs(late)} ended at the deadline (jobs that never started have no record)")
    others = {k: v for k, v in total.states.items() if k not in (COMPLETED, UNKNOWN, DEADLINE)}
    if others:
        notes.append("not completed: " + ", ".join(f"{v} {k}" for k, v in sorted(others.items())))
    if total.lost_joules > 0:
        notes.append(f"{with_unit(total.lost_joules, 'J')} of the energy was used by runs that were requeued")
    return ["", *(f"note: {note}" for note in notes)] if notes else []


def _two_decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
