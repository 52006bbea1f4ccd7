"""Columns of `senergy acct` whose values are not in energy records.

The columns are savings, emissions, cost, and the energy that Slurm itself measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from slurm_energy.grid.footprint import DEFAULT_CURRENCY, Footprint
from slurm_energy.reports.acct.fields import Field, Value, never
from slurm_energy.reports.acct.rows import AcctRow
from slurm_energy.reports.table import Column
from slurm_energy.tuning.sweep.metrics import energy_delay_sum

EDS_FACTOR: Final = 2.0
"""Performance loss ratio k of the column EDS. Source: power-capping, Table 1, which has two values."""
_BASELINE: Final = ("Saved", "SavedEnergy", "SavedEnergyRaw", "EDS", "UntunedRuns")
_FOOTPRINT: Final = (
    *("CO2e", "CO2eRaw", "CO2eIT", "CO2eITRaw", "Cost", "CostIT", "FacilityEnergy", "FacilityEnergyRaw"),
    *("GridBasis", "PUE", "EmbodiedCO2e", "EmbodiedCO2eRaw"),
)
_MONEY: Final = ("Cost", "CostIT")


def needs_baseline(columns: Iterable[Column[AcctRow]]) -> bool:
    """Return whether any of the columns needs the untuned runs of the job's program for comparison."""
    return any(column.field.name in _BASELINE for column in columns)


def needs_footprint(columns: Iterable[Column[AcctRow]]) -> bool:
    """Return whether any of the columns shows emissions or cost."""
    return any(column.field.name in _FOOTPRINT for column in columns)


def in_currency(columns: Sequence[Column[AcctRow]], rows: Iterable[AcctRow]) -> list[Column[AcctRow]]:
    """Return the table columns, with the currency of the rows as the unit of the cost columns."""
    currency = next((row.footprint.currency for row in rows if row.footprint), DEFAULT_CURRENCY)
    return [
        dataclasses.replace(column, field=dataclasses.replace(column.field, unit=currency))
        if column.field.name in _MONEY
        else column
        for column in columns
    ]


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _gpu_share(row: AcctRow) -> Value:
    if row.usage is None or "gpu" not in row.usage.component_types:
        return None
    ratio = _ratio(row.usage.component_joules("gpu"), row.usage.energy_joules)
    return None if ratio is None else 100 * ratio


def _saved_joules(row: AcctRow) -> Value:
    energy = row.energy_joules
    return None if row.baseline is None or energy is None else row.baseline.energy_joules - energy


def _saved_percent(row: AcctRow) -> Value:
    saved = _saved_joules(row)
    whole = None if row.baseline is None else row.baseline.energy_joules
    ratio = _ratio(saved if isinstance(saved, float) else None, whole)
    return None if ratio is None else 100 * ratio


def _energy_delay_sum(row: AcctRow) -> Value:
    if row.usage is None or row.baseline is None or not row.baseline.elapsed_s:
        return None
    ratio = _ratio(row.usage.energy_joules, row.baseline.energy_joules)
    return (
        None
        if ratio is None
        else energy_delay_sum(row.usage.elapsed_s / row.baseline.elapsed_s, ratio, EDS_FACTOR)
    )


def incomplete_sums(columns: Sequence[Column[AcctRow]], jobs: Sequence[AcctRow]) -> dict[str, int]:
    """Return the columns whose sum leaves out jobs with an unknown value, with the number of these jobs.

    The column Quality marks incomplete sums of energy. If it is shown, only columns of emissions and cost are
    returned, because these may be unknown for a known energy.

    Args:
        columns: columns of the table.
        jobs: rows of the jobs in the sum.
    """
    with_quality = any(column.field.name == "Quality" for column in columns)
    counts = {}
    for field in (column.field for column in columns if column.field.additive):
        if with_quality and field.name not in _FOOTPRINT:
            continue
        unknown = sum(field.value(row) is None and _has_value(row, field) for row in jobs)
        if unknown and any(field.value(row) is not None for row in jobs):
            counts[field.name] = unknown
    return counts


def _has_value(row: AcctRow, field: Field[AcctRow]) -> bool:
    """Return whether a row should have a value in a column, even if the value is unknown.

    A started job without a record has emissions and cost, but their values are unknown: `footprint` is None.
    """
    return field.expected(row) or (field.name in _FOOTPRINT and row.usage is None and row.awaited)


def _of_footprint(value: Callable[[Footprint], Value]) -> Callable[[AcctRow], Value]:
    return lambda row: None if row.footprint is None else value(row.footprint)


def _with_carbon(row: AcctRow) -> bool:
    """Return whether a row has emissions: the site has configured a carbon intensity."""
    return row.footprint is not None and row.footprint.carbon is not None


def _with_price(row: AcctRow) -> bool:
    """Return whether a row has a cost: the site has configured a price."""
    return row.footprint is not None and row.footprint.cost is not None


def _without_pue(amount: float | None, footprint: Footprint) -> float | None:
    """Return emissions or cost of the computers alone, without the overhead of the data centre.

    The PUE adds this overhead; the function divides it out.
    """
    return None if amount is None else amount / (footprint.pue or 1.0)


def _facility_joules(footprint: Footprint) -> Value:
    return None if footprint.pue is None else footprint.facility_joules


def _basis(footprint: Footprint) -> Value:
    return footprint.basis or None


def _with_raw(
    name: str,
    widths: tuple[int, int],
    value: Callable[[AcctRow], Value],
    doc: str,
    unit: str,
    expected: Callable[[AcctRow], bool] = never,
) -> tuple[Field[AcctRow], Field[AcctRow]]:
    """Return two output columns of one value: scaled with decimal prefixes, and in the base unit.

    The name of the second column ends in `Raw`.
    """
    options: dict[str, Any] = {"unit": unit, "additive": True, "expected": expected}
    return (
        Field(name, widths[0], "scaled", value, f"{doc}, {unit}", **options),
        Field(f"{name}Raw", widths[1], "number", value, f"{name} as a plain number, {unit}", **options),
    )


def _cell_of(name: str) -> Callable[[AcctRow], Value]:
    return lambda row: row.cells.get(name)


ROW_FIELDS: Final[tuple[Field[AcctRow], ...]] = (
    *_with_raw(
        "CO2e",
        (10, 12),
        _of_footprint(lambda footprint: footprint.grams),
        "emissions of the energy, including the PUE if it is configured; GridBasis names the source",
        "g",
        _with_carbon,
    ),
    *_with_raw(
        "CO2eIT",
        (10, 12),
        _of_footprint(lambda footprint: _without_pue(footprint.grams, footprint)),
        "emissions of the energy of the computers alone, without the PUE",
        "g",
        _with_carbon,
    ),
    *_with_raw(
        "EmbodiedCO2e",
        (12, 15),
        _of_footprint(lambda footprint: footprint.embodied_grams),
        "share of the emissions of making the reserved hardware, not part of CO2e",
        "g",
    ),
    Field(
        "Cost",
        10,
        "figure",
        _of_footprint(lambda footprint: footprint.cost_amount),
        "cost of the energy, including the PUE if it is configured; GridBasis names the source",
        unit=DEFAULT_CURRENCY,
        additive=True,
        expected=_with_price,
    ),
    Field(
        "CostIT",
        10,
        "figure",
        _of_footprint(lambda footprint: _without_pue(footprint.cost_amount, footprint)),
        "cost of the energy of the computers alone, without the PUE",
        unit=DEFAULT_CURRENCY,
        additive=True,
        expected=_with_price,
    ),
    *_with_raw(
        "FacilityEnergy",
        (14, 17),
        _of_footprint(_facility_joules),
        "energy that the site draws for the job: ConsumedEnergy times the PUE",
        "J",
    ),
    Field(
        "GridBasis",
        40,
        "text",
        _of_footprint(_basis),
        "provider, zone and time resolution of carbon intensity and price, and the PUE",
    ),
    Field(
        "PUE",
        6,
        "number",
        _of_footprint(lambda footprint: footprint.pue),
        "power usage effectiveness of the site: energy of the site over that of its computers",
    ),
    Field(
        "EDS",
        8,
        "figure",
        _energy_delay_sum,
        f"energy-delay sum with k = {EDS_FACTOR:g}, 1 for the program's untuned runs; less is better",
    ),
    Field("GPUShare", 8, "number", _gpu_share, "share of the GPUs in the energy, %", unit="%"),
    Field(
        "Saved",
        8,
        "number",
        _saved_percent,
        "energy saved against the mean of the program's untuned runs, %; negative: more was used",
        unit="%",
    ),
    Field(
        "SavedEnergy",
        11,
        "scaled",
        _saved_joules,
        "energy saved against the mean of the program's untuned runs, J",
        unit="J",
        additive=True,
    ),
    Field(
        "SavedEnergyRaw",
        14,
        "number",
        _saved_joules,
        "SavedEnergy as a plain number, J",
        unit="J",
        additive=True,
    ),
    Field(
        "SlurmEnergy",
        14,
        "text",
        _cell_of("ConsumedEnergy"),
        "ConsumedEnergy of sacct: the energy in Slurm's own accounting, J",
    ),
    Field(
        "SlurmEnergyRaw",
        17,
        "text",
        _cell_of("ConsumedEnergyRaw"),
        "ConsumedEnergyRaw of sacct: the energy in Slurm's own accounting as a plain number, J",
        overflow="widen",
    ),
    Field(
        "UntunedRuns",
        11,
        "number",
        lambda row: None if row.baseline is None else row.baseline.runs,
        "number of untuned runs of the program with which Saved, SavedEnergy and EDS compare",
    ),
)
