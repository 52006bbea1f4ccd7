"""Text output of `senergy share`: tree of Slurm accounts and users with the energy that they used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from slurm_energy.quantities import format_duration
from slurm_energy.reports.acct.fields import Field, Style
from slurm_energy.reports.table import TableLayout, parse_columns, table_lines

Row = Mapping[str, Any]
"""An account (`user` is None) or an association in the response to `GET /v1/shares`."""

LISTING: Final = "senergy share --helpformat lists all"
_LONG_ONLY: Final = ("UsagePerShare", "GPUHours")


def _account(row: Row) -> str:
    """Return the name that a row of the page of fair shares shows in the column "Account".

    The name is indented by the level of the account in the tree of accounts. In a row for a user, the
    name is indented by one more level.
    """
    return f" {row['account']}" if row.get("user") is not None else str(row["account"])


def _kwh(row: Row) -> str | None:
    joules = row.get("energy_joules")
    return None if joules is None else f"{joules / 3.6e6:.3f}"


def _part(key: str, digits: int = 6) -> Any:
    return lambda row: None if row.get(key) is None else f"{row[key]:.{digits}f}"


def _shares(row: Row) -> str | None:
    raw = row.get("shares")
    return raw if raw is None or isinstance(raw, str) else f"{raw:g}"


def _gpu_hours(row: Row) -> str | None:
    seconds = row.get("gpu_seconds")
    return None if seconds is None else f"{seconds / 3600:.2f}"


def _field(name: str, width: int, value: Any, doc: str, *, left: bool = False) -> Field[Row]:
    return Field(name, width, "text", value, doc, left=left)


FIELDS: Final[tuple[Field[Row], ...]] = (
    _field("Account", 20, _account, "account; its users are indented one level further", left=True),
    _field("User", 10, lambda row: row.get("user"), "user; empty for the whole account"),
    _field("RawShares", 10, _shares, "shares as configured in Slurm"),
    _field("NormShares", 11, _part("norm_shares"), "shares as a fraction of the cluster"),
    _field("EnergykWh", 12, _kwh, "decayed energy, kWh"),
    _field("EnergyShare", 11, _part("energy_share"), "fraction of all decayed energy"),
    Field(
        "UsagePerShare",
        13,
        "scaled",
        lambda row: row.get("usage_to_share_ratio_joules"),
        "decayed energy relative to the share, J",
        unit="J",
    ),
    _field("GPUHours", 10, _gpu_hours, "decayed GPU hours"),
    _field("FairShare", 10, _part("fair_share_factor"), "2^(-energy share / norm shares)"),
)


def select_rows(
    rows: Iterable[Row],
    *,
    accounts: Collection[str] | None,
    users: Collection[str] | None,
    users_only: bool,
) -> list[Row]:
    """Return the requested rows in the order of the controller's response.

    Args:
        rows: rows of the response, one per account and per user.
        accounts: names of accounts; None means all.
        users: login names; None means all. This selection does not affect rows of accounts.
        users_only: whether to omit the rows of accounts.
    """

    def is_selected(row: Row) -> bool:
        if accounts is not None and row["account"] not in accounts:
            return False
        if row.get("user") is None:
            return not users_only
        return users is None or row["user"] in users

    return [row for row in rows if is_selected(row)]


def lines(rows: Sequence[Row], layout: TableLayout, *, columns: str | None = None, long: bool) -> list[str]:
    """Return the table as lines, one per row, with a header if the layout has one.

    Args:
        rows: rows to show, one per account or user.
        layout: whether the columns have fixed widths or are separated by a delimiter.
        columns: columns as in --format; None means the default columns.
        long: whether to show more columns by default.

    Raises:
        UsageError: a column does not exist.
    """
    fields = [field for field in FIELDS if long or field.name not in _LONG_ONLY]
    text = columns or ",".join(field.name for field in fields)
    style = Style() if layout.delimiter is None else Style.parsable()
    return list(table_lines(rows, parse_columns(FIELDS, text, "--format", LISTING), style, layout))


def notes(answer: Mapping[str, Any], now: float) -> list[str]:
    """Return notes on why the numbers may not be valid, for example that they are outdated.

    Args:
        answer: response to `GET /v1/shares`.
        now: current time in Unix seconds.
    """
    if answer.get("computed") is None:
        return ["note: usage has not been computed yet: see priority.mode and senergy status"]
    age, half = (
        format_duration(max(0.0, now - answer["computed"])),
        format_duration(answer.get("half_life_s")),
    )
    return [f"note: as of {age} ago; the weight of used energy halves every {half}"]
