"""Text output of `senergy prio`.

The output is the table of pending jobs, the weights of the score, or the details of one job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_energy.quantities import format_duration, shown
from slurm_energy.reports.acct.fields import Field, Style, find_in
from slurm_energy.reports.figure_format import figure, plain, with_unit
from slurm_energy.reports.queue import sprio_format
from slurm_energy.reports.queue.deferral_text import deferral_lines
from slurm_energy.reports.queue.queue_fields import (
    FIELDS,
    LISTING,
    Job,
    default_format,
    state,
    term_fields,
    term_names,
    term_of,
    unit_text,
)
from slurm_energy.reports.table import TableLayout, fit, parse_columns, table_lines
from slurm_energy.reports.time_spec import format_time

_STALE_CYCLES = 4
_COLUMNS = TableLayout(rule=False)
_NUMBER = re.compile(r"(\d{1,18})", re.ASCII)
_MODES = {
    "off": "priority.mode is off: no order is computed; 'shadow' computes an order and changes nothing",
    "shadow": "shadow mode: this order is not set in Slurm",
}


def queue_lines(
    jobs: Sequence[Job],
    style: Style,
    *,
    columns: str | None = None,
    long: bool = False,
    norm: bool = False,
    layout: TableLayout = _COLUMNS,
) -> list[str]:
    """Return a table with one row per pending job.

    Args:
        jobs: jobs in the order of display.
        style: format of times and numbers.
        columns: columns as in --format, in the notation of this command or of sprio; None means the defaults.
        long: whether to show more columns by default.
        norm: whether to show the terms of the score before weighting.
        layout: whether the columns have fixed widths or are separated by a delimiter.

    Raises:
        UsageError: a column does not exist.
    """
    fields = [*FIELDS, *term_fields(jobs, norm=norm)]
    if columns and columns.lstrip().startswith("%"):
        chosen = sprio_format.parse(fields, columns, "--format", LISTING)
    else:
        chosen = parse_columns(fields, columns or default_format(jobs, long=long), "--format", LISTING)
    return list(table_lines(jobs, chosen, style, layout))


def sort(jobs: Sequence[Job], keys: str) -> list[Job]:
    """Return the jobs sorted by columns. Unknown values come last.

    Args:
        jobs: pending jobs as in the response to `GET /v1/priority`.
        keys: names of columns, separated by commas. A leading `-` means descending order. `-WATTS,user` puts
            the highest power first and sorts jobs of equal power by user.

    Raises:
        UsageError: a column does not exist.
    """
    ordered: list[Job] = list(jobs)
    fields = [*FIELDS, *term_fields(jobs)]
    for key in reversed([part.strip() for part in keys.split(",") if part.strip()]):
        field = _sort_field(fields, key.lstrip("+-"))
        with_value = [(value, job) for job in ordered if (value := field.value(job)) not in (None, "")]
        with_value.sort(key=lambda pair: _sort_key(pair[0]), reverse=key.startswith("-"))
        ordered = [
            *(job for _, job in with_value),
            *(job for job in ordered if field.value(job) in (None, "")),
        ]
    return ordered


def _sort_field(fields: Sequence[Field[Job]], name: str) -> Field[Job]:
    if sprio_format.is_letter(name):
        return sprio_format.field_of_letter(fields, name, f"--sort: '{name}'", LISTING)
    return find_in(fields, name, "--sort", LISTING)


def _sort_key(value: Any) -> Any:
    """Return a sort key for natural order: `12_3` before `12_10` before `100`."""
    if not isinstance(value, str):
        return value
    return [int(part) if index % 2 else part for index, part in enumerate(_NUMBER.split(value))]


def weights_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the scheduling policy, its weights and the bound on waiting as lines, as `sprio -w` does.

    Args:
        answer: response to `GET /v1/priority`.
    """
    jobs = answer.get("jobs") or []
    configured = answer.get("weights") or {}
    weights = {
        name: next((w for job in jobs if (w := term_of(job, name).get("weight")) is not None), None)
        for name in term_names(jobs)
    }
    weights = {**configured, **weights}
    names = list(weights)
    lines = [
        f"policy {answer.get('policy')}, mode {answer.get('mode')}, "
        f"age_weight {plain(answer.get('age_weight'), 6)} per s, "
        f"wait_bound {format_duration(answer.get('wait_bound_s'))}"
    ]
    if names:
        widths = [max(10, len(name)) for name in names]
        cells = ["-" if weights[name] is None else figure(weights[name]) for name in names]
        for first, values in (("TERM", [name.upper() for name in names]), ("Weights", cells)):
            row = (fit(value, width, False) for value, width in zip(values, widths, strict=True))
            lines.append(f"{first:<12} " + " ".join(row))
    return lines


def note_lines(answer: Mapping[str, Any], now: float) -> list[str]:
    """Return notes on why the table may not be valid, for example that the order is outdated.

    Args:
        answer: response to `GET /v1/priority`.
        now: current time in Unix seconds.
    """
    mode, computed = str(answer.get("mode")), answer.get("computed")
    age_s = None if computed is None else now - float(computed)
    notes = [_MODES[mode]] if mode in _MODES else []
    if answer.get("error"):
        notes.append(f"the last ranking failed: {shown(str(answer['error']), 200)}")
    if mode != "off" and age_s is None:
        notes.append("no ranking has been computed yet")
    elif mode != "off" and age_s is not None and age_s > _STALE_CYCLES * (answer.get("interval_s") or 15.0):
        notes.append(f"computed {format_duration(age_s)} ago: see senergy status")
    return [f"note: {note}" for note in notes]


def absence_lines(jobs: Iterable[Job], accounts: Iterable[str], partitions: Iterable[str]) -> list[str]:
    """Return a note for each requested account and partition that has no job in the response."""
    rows = [(str(job.get("account")), str(job.get("partition")).split(",")) for job in jobs]
    present = {account for account, _ in rows}, {name for _, names in rows for name in names}
    notes = [f"under account {shown(name)}" for name in accounts if name not in present[0]]
    notes += [f"in partition {shown(name)}" for name in partitions if name not in present[1]]
    return [f"note: none of the requested jobs is {note}" for note in notes]


def job_lines(job: Job, neighbours: Iterable[Job], answer: Mapping[str, Any], style: Style) -> list[str]:
    """Return the details of one pending job as lines of text for `senergy prio`.

    Args:
        job: entry of the job in the response.
        neighbours: jobs directly before and after the job in the queue; may include the job itself.
        answer: response to `GET /v1/priority`, for values common to all jobs.
        style: format of times.
    """
    position = f"place {job['place']} of {job['ranked_jobs']}" if job.get("place") else "not ranked"
    identity = ", ".join(
        str(job[key]) for key in ("name", "user", "account", "partition", "qos") if job.get(key)
    )
    lines = [
        f"job {job['display_id']} ({_clean(identity)}): {position}, policy {answer.get('policy')}",
        _clean(str(job.get("why") or "")),
        "",
        *_facts(job, style),
        "",
        *_terms(job),
        *_shapes(job),
    ]
    neighbourhood = sorted(
        {item["job_id"]: item for item in (*neighbours, job) if item.get("place")}.values(),
        key=lambda item: (item["place"], item["job_id"]),
    )
    if len(neighbourhood) > 1:
        lines += ["", "neighbouring jobs", *_neighbour_lines(job, neighbourhood, style)]
    return lines


def _facts(job: Job, style: Style) -> list[str]:
    predicted = job.get("predicted") or {}
    factor = "none" if job.get("site_factor") is None else job["site_factor"]
    slurm = f"site factor {factor}, priority {job.get('priority')}, nice {job.get('nice')}, {state(job)}"
    times = f"submitted {format_time(job.get('submit'), style.time_format, style.now)}"
    times += f", waited {format_duration(job.get('wait_s'))}"
    if job.get("deadline") is not None:
        times += f", deadline {format_time(job['deadline'], style.time_format, style.now)}"
    basis = f" ({_clean(str(predicted['basis']))})" if predicted.get("basis") else ""
    return [
        f"score      {_score(job)}",
        f"slurm      {slurm}",
        f"times      {times}",
        *deferral_lines(job, style),
        f"predicted  {_predicted_text(predicted)}",
        f"source     {predicted.get('source') or 'unknown'}{basis}",
        *_adjusted_lines(predicted),
    ]


def _adjusted_lines(predicted: Mapping[str, Any]) -> list[str]:
    """Return a line that explains why a predicted time was raised.

    The reasons are a lower bound of the time and the user's misprediction factor (the ratio of actual to
    predicted time of past jobs). The result is empty if the time was not raised.

    Args:
        predicted: predictions of the job in the controller's response.
    """
    if predicted.get("misprediction_factor") is None:
        return []
    source_time, bound = format_duration(predicted.get("source_time_s")), predicted.get("lower_bound_s")
    bound_text = f", lower bound {format_duration(bound)}" if bound else ""
    factor = figure(predicted["misprediction_factor"])
    return [f"adjusted   {source_time} by the source{bound_text}, misprediction factor {factor}"]


def _score(job: Job) -> str:
    if not job.get("place"):
        return "none"
    return f"{figure(job.get('score')) or 'none: cannot start now'}, tier {job.get('tier')}"


def _predicted_text(predicted: Mapping[str, Any]) -> str:
    watts, joules = (
        with_unit(predicted.get("power_watts"), "W"),
        with_unit(predicted.get("energy_joules"), "J"),
    )
    edp = with_unit(predicted.get("edp_js"), "J s")
    return f"{format_duration(predicted.get('time_s')) or 'unknown'}, {watts}, {joules}, EDP {edp}"


def _terms(job: Job) -> list[str]:
    terms = job.get("terms") or []
    if not terms:
        return []
    lines = [f"{'term':<12} {'value':>14} {'weight':>10} {'contribution':>13}"]
    for term in terms:
        cells = ["-" if (v := term.get(key)) is None else figure(v) for key in ("weight", "contribution")]
        value = unit_text(term.get("value"), term.get("unit") or "")
        lines.append(f"{term['name']:<12} {value:>14} {cells[0]:>10} {cells[1]:>13}")
    return lines


def _shapes(job: Job) -> list[str]:
    shapes = job.get("shapes") or []
    if len(shapes) < 2 and not any(offered.get("work_shares") for offered in shapes):
        return []
    heading = f"  {'shape':<20} {'time':>11} {'power':>9} {'energy':>9} {'EDP':>11} fits now"
    lines = ["", heading]
    for offered in shapes:
        lines.append(
            f"{'*' if offered.get('chosen') else ' '} {fit(_clean(offered['text']), 20, True)} "
            f"{format_duration(offered.get('time_s')):>11} {with_unit(offered.get('power_watts'), 'W'):>9} "
            f"{with_unit(offered.get('energy_joules'), 'J'):>9} "
            f"{with_unit(offered.get('edp_js'), 'J s'):>11} {'yes' if offered.get('fits') else 'no'}"
        )
        if shares := offered.get("work_shares"):
            parts = ", ".join(f"{_clean(kind)} {100 * share:.0f} %" for kind, share in shares.items())
            lines.append(f"    work of a balanced program: {parts}")
    return [*lines, "* chosen by the policy"]


def _neighbour_lines(job: Job, jobs: Sequence[Job], style: Style) -> list[str]:
    rows = queue_lines(jobs, style)
    marks = [" ", *("*" if item["job_id"] == job["job_id"] else " " for item in jobs)]
    return [f"{mark} {row}" for mark, row in zip(marks, rows, strict=True)]


def _clean(text: str) -> str:
    return text if text.isprintable() else shown(text, len(text) * 10)
