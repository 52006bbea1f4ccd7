"""Tables of `senergy grid` as text.

The tables show carbon intensity and price over time, the state of the fetched series, and the yearly factors
of countries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.yearly_factors import YearlyFactor
from slurm_energy.quantities import JOULES_PER_KWH, format_duration
from slurm_energy.reports.acct.fields import Field, Style
from slurm_energy.reports.table import TableLayout, parse_columns, table_lines
from slurm_energy.reports.time_spec import format_time

LISTING: Final = "senergy grid show --helpformat lists all"
MAX_ROWS: Final = 48
_STEPS_S: Final = (3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400, 30 * 86400)


@dataclass(frozen=True, slots=True)
class GridRow:
    """Carbon intensity and price of electricity during a time span.

    If a value is unknown in a part of the span, a configured fallback value may replace it there.

    Attributes:
        start: start in Unix time.
        end: end in Unix time.
        grams_per_kwh: mean carbon intensity; None if unknown in a part of the span.
        fallback_share: fraction of the span in which the fallback replaces an unknown carbon intensity.
        price_per_kwh: mean price; None if unknown in a part of the span.
        price_fallback_share: fraction of the span in which the fallback replaces an unknown price.
    """

    start: float
    end: float
    grams_per_kwh: float | None
    fallback_share: float
    price_per_kwh: float | None
    price_fallback_share: float


def grid_rows(factors: GridFactors, start: float, end: float) -> list[GridRow]:
    """Return carbon intensity and price per hour, or per longer interval if the time window is long."""
    steps = (step for step in _STEPS_S if (end - start) / step <= MAX_ROWS)
    step_s = next(steps, _STEPS_S[-1])
    rows: list[GridRow] = []
    first = start // 3600 * 3600
    while first < end and len(rows) < 10 * MAX_ROWS:
        span = max(first, start), min(first + step_s, end)
        grams, grams_share = _mean(factors.carbon, *span)
        price, price_share = _mean(factors.price, *span)
        rows.append(GridRow(*span, grams, grams_share, price, price_share))
        first += step_s
    return rows


def _mean(factor: GridFactor | None, start: float, end: float) -> tuple[float | None, float]:
    if factor is None:
        return None, 0.0
    amount = factor.amount([(start, end, JOULES_PER_KWH)])
    return amount.amount, amount.fallback_share


def _share(share: float) -> str:
    return "" if share == 0 else f"{100 * share:.0f}%"


def grid_fields(currency: str) -> tuple[Field[GridRow], ...]:
    """Return the columns of `senergy grid show`."""
    return (
        Field("Start", 19, "time", lambda row: row.start, "start of the span", left=True),
        Field("End", 19, "time", lambda row: row.end, "end of the span", left=True),
        Field(
            "Carbon",
            13,
            "text",
            lambda row: None if row.grams_per_kwh is None else f"{row.grams_per_kwh:.1f}",
            "mean carbon intensity of electricity, CO2 equivalents",
            unit="g/kWh",
            expected=lambda _: True,
        ),
        Field(
            "Fallback",
            8,
            "text",
            lambda row: _share(row.fallback_share),
            "part of the span in which the carbon intensity is the fallback",
        ),
        Field(
            "Price",
            16,
            "text",
            lambda row: None if row.price_per_kwh is None else f"{row.price_per_kwh:.4f}",
            "mean price of electricity",
            unit=f"{currency}/kWh",
            expected=lambda _: True,
        ),
        Field(
            "PriceFallback",
            13,
            "text",
            lambda row: _share(row.price_fallback_share),
            "part of the span in which the price is the fallback",
        ),
    )


def show_lines(
    rows: Sequence[GridRow], factors: GridFactors, layout: TableLayout, columns: str | None
) -> Iterator[str]:
    """Yield the lines of the table of `senergy grid`: carbon intensity and price over time.

    Without `columns`, the table shows the configured quantities.
    """
    fields = grid_fields(factors.currency)
    if columns is None:
        names = ["Start"]
        names += ["Carbon", "Fallback"] if factors.carbon else []
        names += ["Price", "PriceFallback"] if factors.price else []
        columns = ",".join(names)
    style = Style.parsable() if layout.delimiter else Style()
    yield from table_lines(rows, parse_columns(fields, columns, "-o", LISTING), style, layout)


def headline(factors: GridFactors) -> list[str]:
    """Return lines with the sources of carbon intensity and price, and the PUE."""
    lines = []
    for name, factor in (("carbon intensity", factors.carbon), ("price", factors.price)):
        if factor is None:
            lines.append(f"{name}: not configured")
            continue
        sources = " or, where it is unknown, ".join(source.text for source in factor.sources)
        lines.append(f"{name}: {sources}")
    lines.append(f"PUE: {'not configured' if factors.pue is None else f'{factors.pue:g}'}")
    if factors.embodied is not None:
        embodied = factors.embodied
        lines.append(
            f"embodied: {embodied.node_kg:g} kg per node, {embodied.gpu_kg:g} kg per GPU, "
            f"over {embodied.lifetime_years:g} years"
        )
    return lines


def series_lines(series: Iterable[Mapping[str, Any]], now: float) -> Iterator[str]:
    """Yield a line about each fetched series: its newest value, and its last error."""
    for one in series:
        newest, name = one.get("newest_end"), f"{one['quantity']} {one['provider']} {one['zone']}"
        if newest is None:
            age = "no values yet"
        elif newest >= now:
            age = f"values up to {format_time(newest)}"
        else:
            age = f"values up to {format_time(newest)}, {format_duration(now - newest)} ago"
        failures = int(one.get("failures") or 0)
        repeated = f" ({failures} times)" if failures > 1 else ""
        error = f"; {one['error']}{repeated}" if one.get("error") else ""
        yield f"{name}: {age}{error}"


_FACTOR_FIELDS: Final[tuple[Field[YearlyFactor], ...]] = (
    Field("Country", 7, "text", lambda row: row.country, "ISO 3166-1 code", left=True),
    Field("Name", 32, "text", lambda row: row.name, "name", left=True),
    Field("Carbon", 13, "text", lambda row: f"{row.grams_per_kwh:.1f}", "yearly mean", unit="g/kWh"),
    Field("Year", 5, "text", lambda row: str(row.year), "year of the mean"),
)


def factor_lines(factors: Sequence[YearlyFactor], layout: TableLayout) -> Iterator[str]:
    """Yield the table of yearly factors by country."""
    columns = parse_columns(_FACTOR_FIELDS, "all", "-o", "")
    yield from table_lines(factors, columns, Style(), layout)
