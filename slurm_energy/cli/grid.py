"""Command `senergy grid`: carbon intensity and price of electricity over time.

The command also shows the sources of the values and the yearly factors of countries.
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import (
    add_field_options,
    add_parsable_options,
    emit,
    emit_fitted,
    emit_json,
    emit_verbatim,
    note,
)
from slurm_energy.cli.output_files import check_writable, write_file
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError
from slurm_energy.quantities import shown

HELP = "carbon intensity and price of electricity, by which energy becomes emissions and cost"

EPILOG = """\
[carbon] and [price] in the configuration name the sources; see docs/carbon-and-price.md. A time without a
value of the source has the fallback (a yearly factor or a constant); the column Fallback shows for which part
of the span. Without a fallback the value is unknown.

times: as in senergy acct, for example now-7days, 18:00, 2026-12-24T08:00

examples:
  senergy grid show
  senergy grid show -S now-7days --png week.png
  senergy grid show --zone FR --json
  senergy grid fetch
  senergy grid export carbon -S 2026-01-01 -E 2026-02-01 -o january.csv
  senergy grid factors DE FR
  senergy grid check /etc/slurm/energy/price.csv --quantity price
"""

_QUANTITIES = ("carbon", "price")
_OTHER_QUANTITY = {
    "carbon": "if it contains prices, add --quantity price",
    "price": "if it contains carbon intensities, write --quantity carbon",
}


def configure(parser: CommandParser) -> None:
    """Add the actions and their options to `senergy grid`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|fetch|export|factors|check")
    show = actions.add_parser("show", help="values over time, and the state of their sources")
    _add_window(show)
    show.add_argument("--zone", metavar="ZONE", default="", help="another zone of carbon.other_zones")
    show.add_argument("--png", metavar="FILE", type=Path, help="write a PNG plot instead (needs matplotlib)")
    output = show.add_argument_group("output")
    output.add_argument("-o", "--format", metavar="FIELD[%WIDTH],...", help="columns; %%-20 left-justified")
    add_field_options(output)
    output.add_argument("-n", "--noheader", action="store_true", help="no header, no notes")
    add_parsable_options(output)
    actions.add_parser("fetch", help="query the providers now (operators only)")
    export = actions.add_parser("export", help="write a series as CSV, as carbon.file and price.file have it")
    export.add_argument("quantity", metavar="carbon|price", choices=_QUANTITIES, help="series")
    _add_window(export)
    export.add_argument("--zone", metavar="ZONE", default="", help="another zone of carbon.other_zones")
    export.add_argument("-o", "--output", metavar="FILE", type=Path, help="file (default: standard output)")
    factors = actions.add_parser("factors", help="yearly carbon intensities by country, with their year")
    factors.add_argument("countries", metavar="COUNTRY", nargs="*", help="ISO 3166-1 codes (default: all)")
    check = actions.add_parser("check", help="check a CSV file, and show what it contains")
    check.add_argument("file", metavar="FILE", type=Path, help="file")
    check.add_argument(
        "--quantity", choices=_QUANTITIES, default="carbon", help="what it contains (default: carbon)"
    )
    for name in ("show", "fetch", "factors", "check"):
        actions.choices[name].add_argument("--json", action="store_true", help="print JSON")
    for action in actions.choices.values():
        connection.add_config_option(action)


def _add_window(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-S", "--starttime", metavar="TIME", default="now-24hours", help="default: now-24hours"
    )
    parser.add_argument("-E", "--endtime", metavar="TIME", default="now", help="default: now")


def run(args: argparse.Namespace) -> int:
    """Execute the action and print its result."""
    actions = {"show": _show, "fetch": _fetch, "export": _export, "factors": _factors, "check": _check}
    actions[args.action](args)
    return EXIT_OK


def _window(args: argparse.Namespace) -> tuple[float, float]:
    from slurm_energy.reports.time_spec import parse_time

    now = datetime.now()
    start, end = parse_time(args.starttime, now, "-S"), parse_time(args.endtime, now, "-E")
    if end <= start:
        raise UsageError("-E", "is not after -S", "give other times")
    return start, end


def _answer(args: argparse.Namespace, start: float, end: float) -> dict[str, Any]:
    from slurm_energy.protocol.grid_requests import GRID_PATH, GridQuery

    query = GridQuery.from_query(GridQuery(start, end, args.zone).parameters())
    return connection.connect(args).get(GRID_PATH, query.parameters())


def _show(args: argparse.Namespace) -> None:
    from slurm_energy.protocol.grid_requests import factors_of
    from slurm_energy.reports import grid_table
    from slurm_energy.reports.table import TableLayout, check_columns, field_lines

    if args.helpformat:
        emit(field_lines(grid_table.grid_fields("EUR"), with_meaning=args.verbose))
        return
    check_columns(grid_table.grid_fields("EUR"), args.format, "-o", grid_table.LISTING)
    start, end = _window(args)
    if args.png:
        check_writable(args.png)
    answer = _answer(args, start, end)
    factors = factors_of(answer)
    if args.png:
        from slurm_energy.reports.plots.grid_png import write_grid_png

        write_grid_png(factors, start, end, args.png)
    if args.json:
        emit_json({"start": start, "end": end, **answer})
    if args.png or args.json:
        return
    if factors.carbon is None and factors.price is None:
        todo = "set carbon.country, or see docs/carbon-and-price.md"
        raise NotFoundError("carbon intensity and price", "neither is configured", todo)
    layout = TableLayout(not args.noheader, "|" if args.parsable else None, args.parsable == "p")
    plain = args.noheader or args.parsable
    if not plain:
        emit_fitted([*grid_table.headline(factors), ""])
    lines = grid_table.show_lines(grid_table.grid_rows(factors, start, end), factors, layout, args.format)
    emit_fitted(lines, delimited=bool(args.parsable))
    if not plain:
        for line in grid_table.series_lines(answer.get("series") or [], time.time()):
            note(line)


def _fetch(args: argparse.Namespace) -> None:
    from slurm_energy.protocol.grid_requests import FETCH_PATH
    from slurm_energy.reports.grid_table import series_lines

    answer = connection.connect(args).post(FETCH_PATH, {})
    if args.json:
        emit_json(answer)
        return
    lines = list(series_lines(answer.get("series") or [], time.time()))
    if not lines:
        todo = "set carbon.provider or price.provider"
        raise NotFoundError("fetch", "no provider is configured that is queried over the network", todo)
    emit(lines)


def _export(args: argparse.Namespace) -> None:
    from slurm_energy.grid.csv_series import write_csv
    from slurm_energy.grid.units import GridQuantity
    from slurm_energy.protocol.grid_requests import factors_of

    start, end = _window(args)
    if args.output:
        check_writable(args.output)
    factors = factors_of(_answer(args, start, end))
    factor = factors.carbon if args.quantity == "carbon" else factors.price
    series = factor.series if factor is not None else None
    if series is None or series.is_constant or not series.samples:
        why = "has no values in this time" if series is not None else "is not configured"
        raise NotFoundError(args.quantity, why, "see: senergy grid show")
    text = "".join(write_csv(series, GridQuantity(args.quantity), factors.currency))
    if args.output:
        write_file(args.output, text)
    else:
        emit_verbatim(text.splitlines())


def _factors(args: argparse.Namespace) -> None:
    from slurm_energy.grid.yearly_factors import known_countries, yearly_factor
    from slurm_energy.reports.grid_table import factor_lines
    from slurm_energy.reports.table import TableLayout

    chosen = []
    for country in args.countries:
        factor = yearly_factor(country)
        if factor is None:
            todo = "list them: senergy grid factors"
            raise NotFoundError(f"country '{shown(country)}'", "has no yearly factor", todo)
        chosen.append(factor)
    rows = chosen or known_countries()
    if args.json:
        keys = ("country", "name", "grams_per_kwh", "year")
        emit_json({"factors": [{key: getattr(row, key) for key in keys} for row in rows]})
        return
    emit_fitted(factor_lines(rows, TableLayout()))
    note("source: Our World in Data (Ember, Energy Institute), CC BY 4.0; see docs/carbon-and-price.md")


def _check(args: argparse.Namespace) -> None:
    from slurm_energy.grid.csv_series import UnitError, iso_time, read_csv
    from slurm_energy.grid.series import GridSeries, SeriesSource
    from slurm_energy.grid.units import GridQuantity

    currency = connection.configuration(args).price.currency
    try:
        with args.file.open(encoding="utf-8-sig", newline="") as file:
            samples = read_csv(file, str(args.file), GridQuantity(args.quantity), currency)
    except OSError as error:
        raise UsageError(str(args.file), error.strerror or str(error)) from None
    except UnitError as error:
        raise UsageError(error.what, error.why, _OTHER_QUANTITY[args.quantity]) from None
    series = GridSeries(SeriesSource("csv"), samples)
    unit = "g/kWh" if args.quantity == "carbon" else f"{currency}/kWh"
    facts = {
        "values": len(series.samples),
        "start": iso_time(series.samples[0][0]),
        "end": iso_time(series.samples[-1][1]),
        "step_s": series.resolution_s,
        "minimum": min(series.values),
        "maximum": max(series.values),
        "unit": unit,
    }
    if args.json:
        emit_json(facts)
        return
    emit(
        [
            f"{args.file}: {facts['values']} values from {facts['start']} to {facts['end']}, "
            f"{facts['minimum']:g} to {facts['maximum']:g} {unit}"
        ]
    )
