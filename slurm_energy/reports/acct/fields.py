"""Catalogue of the columns of `senergy acct`: the name, width, meaning and value of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from slurm_energy.errors import UsageError
from slurm_energy.quantities import format_duration, shown
from slurm_energy.records import Quality
from slurm_energy.reports.figure_format import DisplayUnits, figure, plain
from slurm_energy.reports.labels.settings import applied_part, short_settings
from slurm_energy.reports.time_spec import format_time
from slurm_energy.reports.usage import JobUsage
from slurm_energy.slurm.hostlist import fold_hostlist
from slurm_energy.spelling import suggestion

Value = str | float | None
ValueFormat = Literal["text", "scaled", "number", "figure", "duration", "time", "slurm_time"]
Overflow = Literal["cut", "widen", "date", "cut_date", "hash"]
Row = TypeVar("Row")
UNKNOWN = "unknown"
PLAIN = DisplayUnits(convert=False)


@dataclass(frozen=True, slots=True)
class Style:
    """Conventions for writing the values of a table as text.

    Attributes:
        units: decimal prefixes and units of the numbers.
        time_format: format of times, as in `SLURM_TIME_FORMAT`.
        now: current time, for relative times; None if not needed.
        unknown: text of a cell whose value is unknown; empty in output for programs. A cell stays empty if
            the column does not apply to its row.
    """

    units: DisplayUnits = DisplayUnits()
    time_format: str = ""
    now: datetime | None = None
    unknown: str = UNKNOWN

    @classmethod
    def parsable(
        cls, units: DisplayUnits = PLAIN, time_format: str = "", now: datetime | None = None
    ) -> Style:
        """Return the style for output that programs read: one unit per column, and unknown values empty."""
        return cls(units if units.fixed else PLAIN, time_format, now, unknown="")


def always(_: object) -> bool:
    """Return True for every job.

    A column uses this function to state that each of its rows should have a value.
    """
    return True


def never(_: object) -> bool:
    """Return False for every row.

    Some columns do not apply to every row, so that a missing value is normal. Pass this function as the
    argument `expected` of such a column.
    """
    return False


@dataclass(frozen=True, slots=True)
class Field(Generic[Row]):
    """A column of a table in which all rows have the same type, for example jobs or Slurm steps.

    Attributes:
        name: name in CamelCase, which is also the header.
        width: default number of characters.
        value_format: how the value is written. `scaled` values get a decimal prefix in tables; `number` and
            `figure` values never do. A `slurm_time` is a text of Unix seconds or a word of sacct such as
            `Unknown`.
        value: function that returns the value of a row. It returns None if the row has no value.
        doc: meaning of the column, as users read it.
        left: whether the column is left-justified by default.
        additive: whether a sum over jobs is meaningful.
        unit: unit of the value, without a prefix.
        expected: function that returns whether a row should have a value. It decides what the value None
            means. For a row that should have a value, None means unknown. For any other row, None means that
            the column does not apply to the row.
        overflow: treatment of a text that is longer than the column. `cut`: its end is replaced by `+`;
            `widen`: the row becomes wider; `date`: the end is dropped, also in output for programs;
            `cut_date`: the end is dropped; `hash`: the column is filled with `#`.
        slurm: whether this is a column of sacct. Its header is cut to the width, as in sacct.
        total: function that returns the text for this column below all rows. If it is None, an additive
            column shows its sum there, and any other column shows nothing.
    """

    name: str
    width: int
    value_format: ValueFormat
    value: Callable[[Row], Value]
    doc: str
    left: bool = False
    additive: bool = False
    unit: str = ""
    expected: Callable[[Row], bool] = never
    overflow: Overflow = "cut"
    slurm: bool = False
    total: Callable[[Sequence[Row]], str] | None = None

    def header(self, style: Style) -> str:
        """Return the name of the column.

        The unit is added if the cells of the column have no unit.
        """
        if not self.unit or (self.value_format == "scaled" and not style.units.fixed):
            return self.name
        return f"{self.name}({style.units.name(self.unit) if self.value_format == 'scaled' else self.unit})"

    def text(self, row: Row, style: Style) -> str:
        """Return the value of this column in a row as text.

        The text is empty if the column does not apply to the row.
        """
        value = self.value(row)
        return style.unknown if value is None and self.expected(row) else self.write(value, style)

    def write(self, value: Value, style: Style) -> str:
        """Return a value of this field as text; empty for None."""
        if self.value_format == "slurm_time" and isinstance(value, str) and value.isdecimal():
            return format_time(float(value), style.time_format, style.now)
        if value is None or isinstance(value, str):
            return value or ""
        if self.value_format == "scaled":
            return style.units.text(value, self.unit)
        if self.value_format == "figure":
            return figure(value)
        if self.value_format == "duration":
            return format_duration(value)
        if self.value_format == "time":
            return format_time(value, style.time_format, style.now)
        return plain(value, 6 if self.name == "kWh" else 3)


def _job_only(value: Callable[[JobUsage], Value]) -> Callable[[JobUsage], Value]:
    """Return a function that returns `value` for jobs and None for Slurm steps, as sacct does."""
    return lambda usage: value(usage) if usage.first.step is None else None


def _requested_watts(key: str) -> Callable[[JobUsage], Value]:
    def value(usage: JobUsage) -> Value:
        return requested_cap(usage, key)

    return value


def requested_cap(usage: JobUsage, key: str) -> float | None:
    """Return a power cap that the job requested, in watts; None if the job requested no cap.

    Args:
        usage: job with its energy records.
        key: `cap_watts` (per node) or `gpu_cap_watts` (per GPU).
    """
    requested = usage.first.requested
    text = requested.get(key) or requested.get(key.rpartition("_")[0])
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _quality(usage: JobUsage) -> str | None:
    quality: Quality | None = usage.quality
    return None if quality is None else str(quality)


def _allocated_nodes(usage: JobUsage) -> int:
    allocated = usage.job.nodes if usage.first.step is None else None
    return allocated or len(usage.records)


def _step_or_job_name(usage: JobUsage) -> str | None:
    return usage.job.name if usage.first.step is None else usage.first.step


def _with_raw_column(
    name: str,
    widths: tuple[int, int],
    value: Callable[[JobUsage], Value],
    doc: str,
    unit: str,
    *,
    additive: bool = False,
    expected: Callable[[JobUsage], bool] = always,
) -> tuple[Field[JobUsage], Field[JobUsage]]:
    """Return two columns of one value: one with decimal prefixes, and one in the base unit (suffix `Raw`).

    The arguments are those of `Field`; `widths` contains the width of each column.
    """
    options: dict[str, Any] = {"additive": additive, "unit": unit, "expected": expected}
    return (
        Field(name, widths[0], "scaled", value, f"{doc}, {unit}", **options),
        Field(f"{name}Raw", widths[1], "number", value, f"{name} as a plain number, {unit}", **options),
    )


def _energy(
    name: str, widths: tuple[int, int], component: str, doc: str
) -> tuple[Field[JobUsage], Field[JobUsage]]:
    return _with_raw_column(
        name,
        widths,
        lambda usage: usage.component_joules(component),
        f"energy of {doc}",
        "J",
        additive=True,
        expected=lambda usage: component in usage.component_types,
    )


def _watt_hours(usage: JobUsage) -> Value:
    return None if usage.energy_kwh is None else 1000 * usage.energy_kwh


FIELDS: tuple[Field[JobUsage], ...] = (
    Field("Account", 10, "text", lambda u: u.job.account, "account of the job"),
    Field("AllocCPUS", 10, "number", lambda u: u.cpus, "CPUs on all nodes"),
    Field(
        "Applied",
        7,
        "text",
        _job_only(lambda u: applied_part(u.records)),
        "extent to which the policy was applied: all, part, none",
    ),
    *_with_raw_column(
        "AvePower", (10, 12), lambda u: u.mean_watts, "mean power of all nodes, energy over elapsed time", "W"
    ),
    Field(
        "BudgetCapped",
        12,
        "duration",
        lambda u: u.budget_capped_seconds,
        "time in which a power budget lowered limits, maximum over nodes",
    ),
    Field(
        "Cap",
        8,
        "scaled",
        _requested_watts("cap_watts"),
        "node power cap that the job requested, W",
        unit="W",
    ),
    Field("Cluster", 10, "text", lambda u: u.first.cluster, "cluster name"),
    *_with_raw_column(
        "ConsumedEnergy",
        (14, 17),
        lambda u: u.energy_joules,
        "energy of all nodes and components",
        "J",
        additive=True,
    ),
    *_energy("CPUEnergy", (10, 13), "cpu", "the processors"),
    *_energy("DRAMEnergy", (10, 13), "dram", "the memory"),
    *_with_raw_column(
        "ED2P", (13, 14), lambda u: u.ed2p_joule_seconds2, "energy times elapsed time squared", "J*s^2"
    ),
    *_with_raw_column("EDP", (10, 14), lambda u: u.edp_joule_seconds, "energy times elapsed time", "J*s"),
    Field("Elapsed", 10, "duration", lambda u: u.elapsed_s, "time from first start to last end"),
    Field("ElapsedRaw", 10, "number", lambda u: u.elapsed_s, "elapsed time in seconds", unit="s"),
    Field("End", 19, "time", lambda u: u.end, "end of the last node's record"),
    Field(
        "GPUCap",
        8,
        "scaled",
        _requested_watts("gpu_cap_watts"),
        "power cap per GPU that the job requested, W",
        unit="W",
    ),
    *_energy("GPUEnergy", (10, 13), "gpu", "all GPUs"),
    Field(
        "JobID",
        12,
        "text",
        lambda u: u.display_id,
        "job id with array task or component, and step",
        left=True,
    ),
    Field("JobIDRaw", 12, "text", lambda u: u.raw_id, "numeric job id, and step", left=True),
    Field("JobName", 10, "text", _step_or_job_name, "name of the job or step"),
    Field(
        "kWh",
        10,
        "number",
        lambda u: u.energy_kwh,
        "energy of all nodes and components, kWh",
        additive=True,
        expected=always,
    ),
    Field("Model", 12, "text", lambda u: u.first.model, "workload named by --energy-model"),
    Field("NNodes", 8, "number", _allocated_nodes, "allocated nodes"),
    *_energy("NodeEnergy", (10, 13), "node", "the nodes according to their own meters"),
    Field("NodeList", 15, "text", lambda u: fold_hostlist(u.nodes), "nodes that delivered a record"),
    Field(
        "NRecords",
        8,
        "number",
        lambda u: len(u.records),
        "number of nodes that delivered a record; NNodes when complete",
    ),
    *_energy("OtherEnergy", (11, 14), "other", "the remaining components of the nodes"),
    Field("Partition", 10, "text", _job_only(lambda u: u.job.partition or u.first.partition), "partition"),
    *_with_raw_column("PeakPower", (10, 12), lambda u: u.peak_watts, "sum of the nodes' peak power", "W"),
    Field(
        "Policy", 11, "text", lambda u: u.first.policy, "energy policy; Applied shows how much of it was set"
    ),
    Field(
        "Quality",
        8,
        "text",
        _quality,
        "worst quality of the figures: measured, modelled, partial or unknown",
        expected=always,
    ),
    Field("Restarts", 8, "number", lambda u: u.first.restart_count, "number of requeues by Slurm"),
    Field(
        "Settings",
        24,
        "text",
        lambda u: short_settings(u.records),
        "power settings applied, failed ones with !",
    ),
    Field("SLUID", 14, "text", lambda u: u.first.sluid, "Slurm's unique id of the job, from 25.11 on"),
    Field("Source", 16, "text", lambda u: "+".join(u.sources), "interfaces from which the figures were read"),
    Field("Start", 19, "time", lambda u: u.start, "start of the first node's record"),
    Field("State", 10, "text", _job_only(lambda u: u.job.state), "state of the job in Slurm's accounting"),
    Field("Submit", 19, "time", lambda u: u.job.submit, "time of submission"),
    Field("Tag", 12, "text", lambda u: u.first.tag, "text given by --energy-tag"),
    Field("Throttled", 10, "duration", lambda u: u.throttled_seconds, "throttled time, maximum over nodes"),
    Field(
        "TimeAboveCap",
        12,
        "duration",
        lambda u: u.seconds_above_cap,
        "time above the cap, maximum over nodes",
    ),
    Field("UID", 6, "number", lambda u: u.first.uid, "owner's numeric id"),
    Field(
        "Uncertain",
        10,
        "duration",
        lambda u: u.uncertain_seconds,
        "time in which a counter may have missed a wrap, maximum over nodes",
    ),
    Field(
        "Unknown",
        12,
        "text",
        lambda u: ",".join(u.unknown_components),
        "components without a measuring interface",
    ),
    Field(
        "Wh",
        10,
        "number",
        _watt_hours,
        "energy of all nodes and components, Wh",
        additive=True,
        expected=always,
    ),
    Field("User", 9, "text", _job_only(lambda u: u.job.user or u.first.user), "owner"),
)


def find_in(fields: Sequence[Field[Row]], name: str, flag: str, listing: str) -> Field[Row]:
    """Return the column named `name`, or the first column whose name starts with `name`, ignoring case.

    Args:
        fields: columns that the command can show.
        name: text given by the user.
        flag: option that contained the text, for the error message.
        listing: command that lists all columns, for the error message.

    Raises:
        UsageError: the name of no column starts with `name`. The message suggests similar names.
    """
    lower_name = name.lower()
    exact = [field for field in fields if field.name.lower() == lower_name]
    if match := exact or [
        field for field in fields if lower_name and field.name.lower().startswith(lower_name)
    ]:
        return match[0]
    names = [field.name for field in fields if not field.name.endswith("Raw")]
    hint = suggestion(name, names) or listing
    raise UsageError(f"{flag}: unknown field '{shown(name)}'", todo=hint)
