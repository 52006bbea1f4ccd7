"""Columns that `senergy acct` can print.

The columns are the fields of the installed sacct, and the energy of each job and step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.records import Quality
from slurm_energy.reports.acct.acct_row_fields import ROW_FIELDS
from slurm_energy.reports.acct.fields import FIELDS, Field, Style, Value
from slurm_energy.reports.acct.rows import AcctRow
from slurm_energy.reports.table import Column, parse_columns
from slurm_energy.reports.usage import JobUsage, worst_quality
from slurm_energy.slurm.release import Release
from slurm_energy.slurm.sacct_fields import (
    DATE,
    NEWEST,
    SACCT_FIELDS,
    Overflow,
    SacctField,
    date_overflow,
    explain_missing,
    fields_of,
)

LISTING: Final = "senergy acct --helpformat lists all"
DEFAULT_COLUMNS: Final = (
    *("JobID", "JobName%8", "Policy%10", "State%10", "Elapsed%10", "ConsumedEnergy", "Quality%8"),
    *("AvePower%8", "EDP", "CPUEnergy%9", "GPUEnergy%9", "Applied", "Account", "Partition", "AllocCPUS"),
)
"""Default columns by importance; as many are shown as fit into the width of the terminal."""
BRIEF_FORMAT: Final = "JobID,State,ExitCode,ConsumedEnergy"
BRIEF_FORMAT_OF_RECORDS: Final = "JobID,State,ConsumedEnergy"
"""Columns of --brief for rows from energy records, which have no exit code."""
LONG_FORMAT: Final = (
    "JobID,JobName%20,User,Account,Partition,Policy,Settings,State,NNodes,NodeList,Submit,Start,End,Elapsed,"
    "ConsumedEnergy,CPUEnergy,DRAMEnergy,GPUEnergy,OtherEnergy,GPUShare,AvePower,PeakPower,EDP,ED2P,"
    "TimeAboveCap,Throttled,BudgetCapped,Quality,Source"
)
_OUR_ENERGY: Final = ("ConsumedEnergy", "ConsumedEnergyRaw")
"""Names of sacct under which this command shows the energy of its own records."""


def catalogue(release: Release | None) -> tuple[Field[AcctRow], ...]:
    """Return all columns of `senergy acct`.

    Args:
        release: release of the installed sacct. Fields of sacct come first, in the order of sacct. None if
            the rows come from energy records, which have few of sacct's fields.
    """
    ours = {field.name: field for field in (*map(_of_usage, FIELDS), *ROW_FIELDS)}
    if release is None:
        known = {name: field for name, field in (ours | _CELLS).items() if name not in _SOURCE_OF}
        return tuple(sorted(known.values(), key=lambda field: field.name.lower()))
    theirs = {field.name: _of_sacct(field, date_overflow(release)) for field in fields_of(release)}
    theirs |= {name: ours[name] for name in _OUR_ENERGY}
    others = sorted(ours.keys() - theirs.keys(), key=str.lower)
    return (*theirs.values(), *(ours[name] for name in others))


def parse_format(text: str, release: Release | None, flag: str = "--format") -> list[Column[AcctRow]]:
    """Return the columns that a list such as `JobID%-20,State,EDP` names.

    Abbreviations have the same meaning as in sacct. If an abbreviation fits no
    field of sacct, it may stand for one of our columns that sacct does not have.

    Args:
        text: list of names; `ALL`, `al` and `a` stand for all fields, as in sacct.
        release: release of the installed sacct, see `catalogue`.
        flag: option that contained the text, for the error message.

    Raises:
        UsageError: a field does not exist here, or its width is invalid.
    """
    fields = catalogue(release)
    items = [item.strip() for item in text.split(",")]
    for item in items:
        name = item.partition("%")[0]
        if name and not any(field.name.lower().startswith(name.lower()) for field in fields):
            _explain(name, release, flag)
    columns: list[Column[AcctRow]] = []
    for item in filter(None, items):
        name, percent, width = item.partition("%")
        if name and "all".startswith(name.lower()):
            named = ",".join(field.name + percent + width for field in fields) if percent else "ALL"
            columns += parse_columns(fields, named, flag, LISTING)
        else:
            columns += parse_columns(fields, item, flag, LISTING)
    return columns or parse_columns(fields, text, flag, LISTING)


def default_columns(release: Release | None, width: int | None) -> list[Column[AcctRow]]:
    """Return the default columns.

    Args:
        release: release of the installed sacct, see `catalogue`.
        width: width of the terminal. None means that programs read the output, which then has all default
            columns.
    """
    columns = parse_format(",".join(DEFAULT_COLUMNS), release)
    used, count = -1, 0
    for column in columns:
        used += column.width + 1
        count += width is None or used <= width or count < 2
    return columns[:count]


def sacct_names(columns: Iterable[Column[AcctRow]]) -> list[str]:
    """Return the fields that sacct must print for the given columns."""
    names = (
        _SOURCE_OF.get(column.field.name, column.field.name if column.field.slurm else "")
        for column in columns
    )
    return [name for name in dict.fromkeys(names) if name]


def rows_of_records(jobs: Sequence[JobUsage]) -> list[AcctRow]:
    """Return the rows of the job table for a cluster that does not use Slurm's accounting.

    Each job and each step gives one row. All values come from the energy records.
    """
    return [
        AcctRow({name: _cell(usage, name) for name in _CELLS}, usage)
        for job in jobs
        for usage in (job, *job.steps)
    ]


def _explain(name: str, release: Release | None, flag: str) -> None:
    if release is not None:
        if error := explain_missing(name, release, flag):
            raise error
    elif any(field.name.lower() == name.lower() for field in SACCT_FIELDS):
        why = "only Slurm's accounting has it, and this cluster has no slurmdbd or this host no sacct"
        raise UsageError(f"{flag}: field '{shown(name)}'", why)


def _of_sacct(field: SacctField, of_dates: Overflow) -> Field[AcctRow]:
    """Return the column for a field of sacct.

    Args:
        field: field of sacct that the column shows.
        of_dates: treatment of a time text that does not fit into the column, as in `Field.overflow`.
    """
    return Field(
        field.name,
        abs(field.width),
        "slurm_time" if field.overflow == DATE else "text",
        lambda row: row.cells.get(field.name),
        field.doc,
        left=field.width < 0,
        overflow=of_dates if field.overflow == DATE else field.overflow,
        slurm=True,
    )


def _of_usage(field: Field[JobUsage]) -> Field[AcctRow]:
    """Return a column of `senergy acct` that shows a value of the energy records."""

    def value(row: AcctRow) -> Value:
        return None if row.usage is None else field.value(row.usage)

    def expected(row: AcctRow) -> bool:
        if row.usage is None:
            return row.awaited and field.name in _OF_EVERY_JOB
        return field.expected(row.usage)

    return Field(
        **{f.name: getattr(field, f.name) for f in dataclasses.fields(field)}
        | {"value": value, "expected": expected, "total": _total_quality if field.name == "Quality" else None}
    )


def _total_quality(rows: Sequence[AcctRow]) -> str:
    """Return the quality of the energy summed over the rows.

    The sum is partial if a row's quality is unknown.
    """
    qualities = [
        (row.usage and row.usage.quality) or Quality.PARTIAL for row in rows if row.usage or row.awaited
    ]
    return str(worst_quality(qualities) or "")


_OF_EVERY_JOB: Final = ("ConsumedEnergy", "ConsumedEnergyRaw", "kWh", "Quality", "AvePower", "EDP")
"""Columns in which a job without an energy record is shown as unknown."""


_SOURCE_OF: Final = {"SlurmEnergy": "ConsumedEnergy", "SlurmEnergyRaw": "ConsumedEnergyRaw"}
_USAGE_FIELDS: Final = {field.name: field for field in FIELDS}
_CELLS: Final = {
    field.name: _of_sacct(field, date_overflow(NEWEST))
    for field in SACCT_FIELDS
    if field.name in _USAGE_FIELDS and field.name not in _OUR_ENERGY
}
"""Fields of sacct whose values are known without slurmdbd."""


def _cell(usage: JobUsage, name: str) -> str:
    """Return one value of a job's energy data as text in the notation of sacct."""
    field = _USAGE_FIELDS[name]
    value = field.value(usage)
    if field.value_format == "time" and isinstance(value, (int, float)):
        return f"{value:.0f}"
    return field.text(usage, Style(unknown=""))
