"""Text output of `senergy quota`, from responses of the controller.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from slurm_energy.grid.amount_text import percent_text, resource_text
from slurm_energy.reports.acct.fields import Field, Style
from slurm_energy.reports.table import TableLayout, parse_columns, table_lines
from slurm_energy.reports.time_spec import format_time

Row = Mapping[str, Any]
LISTING: Final = "senergy quota show --helpformat lists all"


def _amount(key: str) -> Callable[[Row], str | None]:
    def value(row: Row) -> str | None:
        return resource_text(str(row.get("resource")), row.get(key), str(row.get("unit"))) or None

    return value


def _percent(key: str) -> Callable[[Row], str | None]:
    return lambda row: percent_text(row.get(key)).removesuffix(" %") or None


def _number(key: str) -> Callable[[Row], str | None]:
    return lambda row: None if row.get(key) is None else f"{row[key]:.6g}"


def _left(row: Row) -> str | None:
    if row.get("used") is None:
        return None
    left = max(0.0, float(row["amount"]) - float(row["used"]))
    return resource_text(str(row.get("resource")), left, str(row.get("unit")))


def _text(name: str, width: int, key: str, doc: str) -> Field[Row]:
    return Field(name, width, "text", lambda row: row.get(key) or "", doc, left=True)


QUOTA_FIELDS: Final[tuple[Field[Row], ...]] = (
    _text("Account", 12, "account", "Slurm account; the accounts below it count too"),
    _text("User", 10, "user", "user within the account; empty: all users together"),
    _text("Resource", 8, "resource", "energy, cost or carbon"),
    _text("Period", 8, "period", "time for which the amount is granted"),
    Field("Amount", 14, "text", _amount("amount"), "granted amount"),
    Field("Used", 14, "text", _amount("used"), "amount used in this period", expected=lambda _: True),
    Field("Left", 14, "text", _left, "amount left in this period", expected=lambda _: True),
    Field("UsedPct", 7, "text", _percent("used_percent"), "used part in percent", expected=lambda _: True),
    Field("WarnPct", 7, "text", _percent("warn_percent"), "part from which jobs go after those of others"),
    Field("HoldPct", 7, "text", _percent("hold_percent"), "part from which jobs are held or go last"),
    _text("Level", 8, "level", "within, warning or hold; outside: not in its period; unknown: no figures"),
    Field("Start", 19, "time", lambda row: row.get("start"), "start of the period"),
    Field("End", 19, "time", lambda row: row.get("end"), "end of the period"),
    Field("AmountRaw", 18, "text", _number("amount"), "granted amount in UnitRaw"),
    Field("UsedRaw", 18, "text", _number("used"), "amount used in UnitRaw", expected=lambda _: True),
    _text("UnitRaw", 8, "unit", "J, g, or the currency"),
    _text("Basis", 40, "basis", "provider, zone and time step of the factor, and the PUE"),
    _text("SetBy", 10, "set_by", "administrator who set the quota"),
    _text("Reason", 30, "reason", "reason of the administrator"),
)
DEFAULT_COLUMNS: Final = "Account,User,Resource,Period,Amount,Used,UsedPct,WarnPct,HoldPct,Level,End"


def quota_lines(rows: Sequence[Row], layout: TableLayout, columns: str | None) -> Iterator[str]:
    """Yield the table of quotas."""
    style = Style.parsable() if layout.delimiter else Style()
    chosen = parse_columns(QUOTA_FIELDS, columns or DEFAULT_COLUMNS, "-o", LISTING)
    yield from table_lines(rows, chosen, style, layout)


def quota_notes(response: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Yield notes on quotas.

    The notes state the basis of cost and carbon, and the effect of each quota level that was reached.
    """
    yield from dict.fromkeys(f"{row['resource']}: {row['basis']}" for row in rows if row.get("basis"))
    levels = {row.get("level") for row in rows}
    ranked = response.get("priority_mode") in ("plugin", "portable")
    if "warning" in levels:
        yield (
            "over the warning level: jobs go after those of others"
            if ranked
            else "over the warning level: no effect, because priority.mode changes no order"
        )
    if "hold" in levels:
        if response.get("hold"):
            yield "over the hold level: pending jobs are held"
        else:
            effect = "pending jobs go last" if ranked else "no effect: quota.hold is false"
            yield f"over the hold level: {effect}"


def change_lines(changes: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each change of a quota."""
    for change in changes:
        yield f"{format_time(change['time'])}  {change['actor']:<10}  {change['why']}"
