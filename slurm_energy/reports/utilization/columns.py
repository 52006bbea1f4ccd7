"""Columns of the tables of `senergy report`.

Names, widths and abbreviations are those of sreport. Columns of energy also have a unit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.utilization.grammar import ReportKind, ReportRequest
from slurm_energy.reports.utilization.units import PercentMode, ReportUnits
from slurm_energy.reports.utilization.usage import Amounts, UsageDocument
from slurm_energy.spelling import suggestion

MAX_WIDTH: Final = 4096
_MIN_USED_WIDTH: Final = 8
_PERCENT_WIDTH: Final = 9
_WIDER_FROM: Final = 10**8


class Tres(StrEnum):
    """A quantity that a report can show, such as energy or CPU time."""

    CPU = "cpu"
    ENERGY = "energy"
    GPU = "gres/gpu"
    CO2E = "co2e"
    COST = "cost"
    ENERGY_CPU = "energy/cpu"
    ENERGY_DRAM = "energy/dram"
    ENERGY_GPU = "energy/gpu"
    ENERGY_OTHER = "energy/other"

    @property
    def is_energy(self) -> bool:
        """Whether the quantity is an energy."""
        return self in _ENERGIES

    @property
    def is_time(self) -> bool:
        """Whether the quantity is a time."""
        return self in (Tres.CPU, Tres.GPU)

    def amount(self, amounts: Amounts) -> float | None:
        """Return the amount in microjoules, seconds, grams or currency units; None if unknown."""
        if component := _COMPONENT_OF.get(self):
            return amounts.component_uj.get(component)
        return _AMOUNT_OF[self](amounts)


_AMOUNT_OF: Final[Mapping[Tres, Callable[[Amounts], float | None]]] = {
    Tres.CPU: operator.attrgetter("cpu_seconds"),
    Tres.ENERGY: operator.attrgetter("energy_uj"),
    Tres.GPU: operator.attrgetter("gpu_seconds"),
    Tres.CO2E: operator.attrgetter("co2e_grams"),
    Tres.COST: operator.attrgetter("cost"),
}
_COMPONENT_OF: Final = {tres: tres.removeprefix("energy/") for tres in Tres if tres.startswith("energy/")}
_ENERGIES: Final = frozenset((Tres.ENERGY, *_COMPONENT_OF))


def parse_tres(text: str) -> tuple[Tres, ...]:
    """Return the quantities that a value of -T names; `ALL` stands for all.

    Raises:
        UsageError: a quantity is unknown.
    """
    chosen: list[Tres] = []
    for name in (part.strip().lower() for part in text.split(",")):
        if name == "all":
            return tuple(Tres)
        if name == "gpu":
            name = Tres.GPU
        if name not in [*Tres]:
            todo = suggestion(name, [*Tres]) or f"write some of {', '.join(Tres)}, or ALL"
            raise UsageError(f"-T: '{shown(name)}' is not a quantity of these reports", todo=todo)
        if Tres(name) not in chosen:
            chosen.append(Tres(name))
    return tuple(chosen)


class Source(StrEnum):
    """Kind of content that a column of `senergy report` shows.

    A column that shows a dimension, such as account or user, has no kind.
    """

    CLUSTER = "cluster"
    PROPER = "proper"
    START = "start"
    TRES_NAME = "tres"
    USED = "used"
    AMOUNT = "amount"
    PART = "part"
    JOBS = "jobs"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column of `senergy report`.

    Attributes:
        name: name of the column in `format=`.
        min_length: minimum number of characters of an abbreviated name.
        header: header of the column, without the unit.
        width: width in characters; a column of amounts is widened if an amount needs more.
        source: a value of `Source`, or the name of a dimension such as `account`, whose values the column
            shows.
        tres: quantity that the column shows; None if the column does not show one fixed quantity.
        part: index in `Line.parts` of the amounts to show; None means the amounts of the whole line.
        fixed: whether the user requested the width.
        left: whether the text is left-justified.
    """

    name: str
    min_length: int
    header: str
    width: int
    source: str
    tres: Tres | None = None
    part: int | None = None
    fixed: bool = False
    left: bool = False

    @property
    def is_number(self) -> bool:
        """Whether the column contains amounts or counts, which are numbers."""
        return self.source in (Source.USED, Source.AMOUNT, Source.PART, Source.JOBS, Source.SHARE)


def _amount(name: str, min_length: int, header: str, tres: Tres) -> ReportColumn:
    return ReportColumn(name, min_length, header, _MIN_USED_WIDTH, Source.AMOUNT, tres)


_CLUSTER: Final = ReportColumn("Cluster", 2, "Cluster", 9, Source.CLUSTER)
_START: Final = ReportColumn("Start", 1, "Start", 19, Source.START)
_ENERGY: Final = (
    _amount("Energy", 1, "Energy", Tres.ENERGY),
    _amount("EnergyCPU", 7, "EnergyCPU", Tres.ENERGY_CPU),
    _amount("EnergyDRAM", 7, "EnergyDRAM", Tres.ENERGY_DRAM),
    _amount("EnergyGPU", 7, "EnergyGPU", Tres.ENERGY_GPU),
    _amount("EnergyOther", 7, "EnergyOther", Tres.ENERGY_OTHER),
    _amount("CO2e", 3, "CO2e", Tres.CO2E),
    _amount("Cost", 4, "Cost", Tres.COST),
    ReportColumn("Share", 2, "Share", 8, Source.SHARE, Tres.ENERGY),
)
_COMMON: Final = (
    ReportColumn("Accounts", 2, "Account", 15, "account"),
    _CLUSTER,
    ReportColumn("GpuKind", 2, "GPU Kind", 15, "gpu_kind"),
    ReportColumn("Jobs", 1, "Jobs", 8, Source.JOBS),
    ReportColumn("Login", 1, "Login", 9, "user"),
    ReportColumn("Partition", 2, "Partition", 15, "partition"),
    ReportColumn("Policy", 2, "Policy", 15, "policy"),
    ReportColumn("Proper", 2, "Proper Name", 15, Source.PROPER),
    ReportColumn("QOS", 1, "QOS", 15, "qos"),
    _START,
    ReportColumn("Tag", 2, "Tag", 15, "tag"),
    ReportColumn("TresName", 5, "TRES Name", 14, Source.TRES_NAME),
    ReportColumn("UsedGPU", 5, "GPU Used", _MIN_USED_WIDTH, Source.AMOUNT, Tres.GPU),
    ReportColumn("Used", 1, "Used", _MIN_USED_WIDTH, Source.USED, Tres.CPU),
    *_ENERGY,
)
# In reports about users one letter is enough for sreport's own columns.
_USER: Final = (
    *(replace(c, min_length=1) for c in _COMMON if c.name in ("Accounts", "Cluster", "Login", "Proper")),
    *_COMMON,
)
_PARTS: Final = (
    ReportColumn("Allocated", 2, "Allocated", 12, Source.PART, Tres.ENERGY, 0),
    _CLUSTER,
    ReportColumn("Idle", 1, "Idle", 12, Source.PART, Tres.ENERGY, 1),
    ReportColumn("Unattributed", 1, "Unattributed", 12, Source.PART, Tres.ENERGY, 2),
    ReportColumn("Reported", 3, "Reported", 12, Source.PART, Tres.ENERGY),
    ReportColumn("TresName", 5, "TRES Name", 14, Source.TRES_NAME),
    _START,
    *_ENERGY,
)
_SIZES: Final = (
    ReportColumn("Account", 1, "Account", 9, "account"),
    ReportColumn("Acct", 4, "Account", 9, "account"),
    _CLUSTER,
    _START,
)
_NOT_HERE: Final = {
    "Down": "the time for which nodes are down is known to sreport only",
    "PlannedDown": "the time for which nodes are down is known to sreport only",
    "Planned": "the time for which nodes wait for a job is known to sreport only",
    "OverCommitted": "the time for which nodes wait for a job is known to sreport only",
    "TresCount": "the controller does not count resources",
    "CPUCount": "the controller does not count resources",
    "WCKey": "the controller does not know wckeys",
}
_DEFAULT: Final = {
    ReportKind.UTILIZATION: "Cluster,Allocated,Idle,Unattributed,Reported",
    ReportKind.ACCOUNT_BY_USER: "Cluster,Accounts,Login,Proper,Used,Energy",
    ReportKind.USER_BY_ACCOUNT: "Cluster,Login,Proper,Accounts,Used,Energy",
    ReportKind.TOP_USAGE: "Cluster,Login,Proper,Accounts,Used,Energy",
    ReportKind.ACCOUNT_BY_QOS: "Cluster,Accounts,QOS,Used,Energy",
    ReportKind.BY_PARTITION: "Cluster,Partition,Used,Energy",
    ReportKind.BY_POLICY: "Cluster,Policy,Used,Energy",
    ReportKind.BY_TAG: "Cluster,Tag,Used,Energy",
    ReportKind.BY_GPU_KIND: "Cluster,GpuKind,Used,UsedGPU,Energy",
    ReportKind.SIZES_BY_ACCOUNT: "Cluster,Account",
}


def fields_of(kind: ReportKind) -> Sequence[ReportColumn]:
    """Return the columns that `format=` of a report may name."""
    if kind is ReportKind.UTILIZATION:
        return _PARTS
    if kind is ReportKind.TOP_USAGE:
        return _USER
    return _SIZES if kind is ReportKind.SIZES_BY_ACCOUNT else _COMMON


def report_columns(
    request: ReportRequest, document: UsageDocument | None, *, with_tres: bool
) -> list[ReportColumn]:
    """Return the columns of a report.

    Args:
        request: parsed report with its conditions.
        document: response of senergyctld, which states whether emissions and cost are known; None means that
            emissions and cost are not among the default columns.
        with_tres: whether -T is given. The report then has one line per quantity instead of one column per
            quantity.

    Raises:
        UsageError: a column of `format=` is unknown, or its width is wrong.
    """
    fields = fields_of(request.kind)
    if request.fields:
        return [_requested(fields, text) for text in request.fields]
    names = _DEFAULT[request.kind].split(",")
    if with_tres:
        names = [name for name in names if name not in ("Used", "UsedGPU", "Energy")]
        if request.kind is ReportKind.UTILIZATION:
            names.insert(1, "TresName")
        elif request.kind is not ReportKind.SIZES_BY_ACCOUNT:
            names += ["TresName", "Used"]
    elif document is not None and request.kind is not ReportKind.SIZES_BY_ACCOUNT:
        names += [*(["CO2e"] if document.has_carbon else []), *(["Cost"] if document.currency else [])]
    if len(document.intervals if document else ()) > 1:
        names.insert(1, "Start")
    columns = [next(field for field in fields if field.name == name) for name in names]
    if request.tree and request.kind is ReportKind.ACCOUNT_BY_USER:
        columns = [replace(c, width=20, left=True) if c.source == "account" else c for c in columns]
    return columns


def _requested(fields: Sequence[ReportColumn], text: str) -> ReportColumn:
    name, percent, width = text.partition("%")
    lower = name.lower()
    field = next(
        (one for one in fields if len(name) >= one.min_length and one.name.lower().startswith(lower)), None
    )
    if field is None or not lower:
        raise _unknown_field(fields, name)
    if not percent:
        return field
    digits = width.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 5 and 0 < int(digits) <= MAX_WIDTH):
        raise UsageError(f"format=: bad width in '{shown(text)}'", todo=f"write {field.name}%20 or %-20")
    return replace(field, width=int(digits), left=width.startswith("-"), fixed=True)


def _unknown_field(fields: Sequence[ReportColumn], name: str) -> UsageError:
    for known, why in _NOT_HERE.items():
        if len(name) >= 2 and known.lower().startswith(name.lower()):
            return UsageError(f"format=: {known} is not a column here", why)
    names = [field.name for field in fields]
    todo = suggestion(name, names) or f"write some of {', '.join(names)}"
    return UsageError(f"format=: unknown field '{shown(name)}'", todo=todo)


def used_width(highest: float, percent: PercentMode) -> int:
    """Return the width of a column of CPU time.

    As in sreport, the width is 8, and more for a large number of seconds.
    """
    width, order = _MIN_USED_WIDTH, _WIDER_FROM
    while highest >= order:
        width, order = width + 1, order * 10
    return width + (_PERCENT_WIDTH if percent is PercentMode.BOTH else 0)


def header_of(column: ReportColumn, units: ReportUnits, currency: str) -> str:
    """Return the header of a column.

    The unit is part of the header unless the column shows only percentages.
    """
    if column.tres is None or column.source in (Source.USED, Source.SHARE, Source.PART):
        return f"{column.header}(%)" if column.source == Source.SHARE else column.header
    if units.percent is PercentMode.ONLY or column.tres.is_time:
        return column.header
    return f"{column.header}({unit_of(column.tres, units, currency)})"


def unit_of(tres: Tres, units: ReportUnits, currency: str) -> str:
    """Return the unit of a quantity: a time unit of sreport, a unit of energy, kg or the currency."""
    if tres.is_energy:
        return units.energy
    if tres is Tres.CO2E:
        return "kg"
    return currency or "?" if tres is Tres.COST else units.time
