"""Text output of `senergy budget show`, `plan`, `set` and `explain`.

The input is the controller's responses. All functions are pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from slurm_energy.quantities import format_duration
from slurm_energy.reports.acct.fields import Field, Style
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.table import TableLayout, parse_columns, table_lines
from slurm_energy.reports.time_spec import format_time

Row = Mapping[str, Any]

LISTING: Final = "senergy budget show --helpformat lists all"
WIDTH: Final = 100
_SLOWDOWN: Final[Mapping[bool | None, str]] = {True: "kept", False: "exceeded", None: "-"}
_SOURCES: Final = {
    "watts": "constant",
    "schedule": "schedule",
    "calendar": "calendar",
    "signal": "signal",
    "set": "set live",
}


def scope_text(row: Row) -> str:
    """Return the scope of a budget as text: `cluster`, or for example `partition gpu`."""
    return f"{row.get('scope', '?')} {row.get('scope_value') or ''}".strip()


def limit_text(watts: float | None) -> str:
    """Return a power limit with its unit as text for a message, or `no limit` if it is None."""
    return "no limit" if watts is None else with_unit(watts, "W")


def _watts(key: str) -> Callable[[Row], str | None]:
    def value(row: Row) -> str | None:
        watts = row.get(key)
        return None if watts is None else f"{watts:.0f}"

    return value


def _number(name: str, width: int, key: str, doc: str) -> Field[Row]:
    unit = "W" if key.endswith("_watts") else ""
    value = _watts(key) if unit else lambda row: None if row.get(key) is None else str(row[key])
    return Field(name, width, "text", value, doc, unit=unit, expected=lambda _: True)


def _text(name: str, width: int, value: Callable[[Row], str | None], doc: str) -> Field[Row]:
    return Field(name, width, "text", value, doc, left=True)


def _limit(row: Row) -> str:
    return "none" if row.get("limit_watts") is None else f"{row['limit_watts']:.0f}"


def _next_limit(row: Row) -> str | None:
    plan = row.get("plan") or []
    return _limit({"limit_watts": plan[0]["watts"]}) if plan else None


def _next_time(row: Row) -> float | None:
    plan = row.get("plan") or []
    return plan[0]["unix_s"] if plan else None


BUDGET_FIELDS: Final[tuple[Field[Row], ...]] = (
    _text("Budget", 12, lambda row: row.get("name"), "name of the budget"),
    _text("Covers", 18, scope_text, "cluster, or partition, nodes, account, user or QOS with its name"),
    Field("Limit", 10, "text", _limit, "limit now; none: no limit", unit="W"),
    _number("Measured", 11, "measured_watts", "measured power"),
    _number("Committed", 12, "committed_watts", "power that cannot be exceeded at the limits in force"),
    _number("Capped", 9, "capped_watts", "power that the limits take from devices"),
    _number("Headroom", 11, "headroom_watts", "power that new jobs may add now; unknown without a limit"),
    _number("Fixed", 9, "fixed_watts", "part of the committed power that no limit controls"),
    _number("Idle", 9, "idle_watts", "power without any job; no limit can be lower"),
    _number("Floor", 9, "floor_watts", "lowest committed power at which all running jobs keep their floors"),
    _number(
        "Shortfall", 12, "shortfall_watts", "power above the limit although all devices have their floors"
    ),
    _number("Nodes", 6, "nodes", "nodes under the budget"),
    _number("Silent", 6, "silent_nodes", "nodes that do not report"),
    _number("Distrusted", 10, "distrusted_nodes", "nodes whose reports contradict each other"),
    Field(
        "Held",
        8,
        "text",
        lambda row: None if row.get("held_jobs") is None else str(row["held_jobs"]),
        "pending jobs that wait for power; for budgets of the cluster",
    ),
    _text("Source", 9, lambda row: _SOURCES.get(str(row.get("source")), "?"), "origin of the limit"),
    Field("NextLimit", 12, "text", _next_limit, "limit after the next step", unit="W"),
    Field("NextStep", 19, "time", _next_time, "time of the next step"),
)
DEFAULT_COLUMNS: Final = "Budget,Covers,Limit,Measured,Committed,Capped,Nodes,Held,Source"

_NODE_FIELDS: Final[tuple[Field[Row], ...]] = (
    _text("Node", 16, lambda row: row.get("node"), "node"),
    _text("State", 11, lambda row: row.get("state"), "state"),
    _number("Measured", 11, "measured_watts", "measured power"),
    _number("Committed", 12, "committed_watts", "power that the limits permit"),
    _number("Maximum", 11, "max_watts", "power without limits"),
    _text("Jobs", 20, lambda row: ",".join(map(str, row.get("job_ids") or [])), "jobs"),
)

_JOB_FIELDS: Final[tuple[Field[Row], ...]] = (
    _number("Job", 10, "job_id", "job"),
    _text("User", 10, lambda row: row.get("user"), "user"),
    _text("Partition", 10, lambda row: row.get("partition"), "partition"),
    _number("Nodes", 6, "nodes", "number of nodes"),
    _number("Measured", 11, "measured_watts", "measured power"),
    _number("Committed", 12, "committed_watts", "power that the limits permit"),
    _number("Wanted", 11, "wanted_watts", "expected power without limits"),
    _text("Budget", 12, lambda row: row.get("budget") or "-", "budget that determines the limits"),
    _text("Slowdown", 8, lambda row: _SLOWDOWN[row.get("keeps_slowdown")], "slowdown limit of the job"),
)


def budget_lines(response: Row, layout: TableLayout, columns: str | None = None) -> list[str]:
    """Return the table of power budgets as lines of text.

    Args:
        response: response to `GET /v1/budget`.
        layout: whether the columns have fixed widths or are separated by a delimiter.
        columns: columns as in --format; None means the default columns.

    Raises:
        UsageError: a column does not exist.
    """
    chosen = parse_columns(BUDGET_FIELDS, columns or DEFAULT_COLUMNS, "--format", LISTING)
    return list(table_lines(response.get("budgets") or [], chosen, _style(layout), layout))


def node_lines(rows: Sequence[Row], layout: TableLayout) -> list[str]:
    """Return a text table of the nodes in a response to `GET /v1/budget`."""
    return _whole_table(rows, _NODE_FIELDS, layout)


def job_lines(rows: Sequence[Row], layout: TableLayout) -> list[str]:
    """Return the lines of a table of the running jobs in a response to `GET /v1/budget`."""
    return _whole_table(rows, _JOB_FIELDS, layout)


def _whole_table(rows: Sequence[Row], fields: tuple[Field[Row], ...], layout: TableLayout) -> list[str]:
    columns = parse_columns(fields, "all", "--format", LISTING)
    return list(table_lines(rows, columns, _style(layout), layout))


def _style(layout: TableLayout) -> Style:
    return Style() if layout.delimiter is None else Style.parsable()


def headline(response: Row) -> str:
    """Return one line: the mode of power budgets, and the age of the latest budget decision."""
    mode, decided = response.get("mode", "?"), response.get("decided_unix_s")
    effect = {"off": "budgets are not computed", "observe": "nodes and jobs keep their settings"}
    age = "no decision yet"
    if decided is not None:
        age = f"decided {format_duration(max(0.0, response.get('unix_s', decided) - decided))} ago"
    parts = [str(mode), effect.get(str(mode), ""), str(response.get("distribution", "")), age]
    return "Power budgets: " + ", ".join(part for part in parts if part)


def notes(response: Row) -> Iterator[str]:
    """Yield notes about the budgets that the table of budgets does not show.

    The notes are about faults, limits that operators have set, limits that cannot be kept, and nodes that do
    not report, are not trusted or measure no power.
    """
    for row in response.get("budgets") or []:
        name = f"budget {row.get('name')}"
        if row.get("problem"):
            yield f"{name}: {row['problem']}"
        if override := row.get("override"):
            yield f"{name}: {_override_text(override)}; configured: {limit_text(row.get('configured_watts'))}"
        if row.get("shortfall_watts"):
            power = with_unit(row["shortfall_watts"], "W")
            yield f"{name}: {power} above the limit with all devices at their floors: no job starts"
        for key, text in (("silent_nodes", "silent"), ("distrusted_nodes", "distrusted")):
            if row.get(key):
                count = f"{row[key]} of {row.get('nodes')} nodes {text}"
                yield f"{name}: {count}, counted at the power that they may draw"
        if row.get("unmeasured_nodes"):
            count = f"{row['unmeasured_nodes']} of {row.get('nodes')} nodes report no power"
            yield f"{name}: {count}, counted at budget.node_reserve_watts; if unset, at 0 W or a guess"


def _override_text(override: Row) -> str:
    end = override.get("until_unix_s")
    until = "until the next change" if end is None else f"until {format_time(end)}"
    reason = f" ({override['reason']})" if override.get("reason") else ""
    return f"{limit_text(override.get('watts'))} set by {override.get('by', '?')} {until}{reason}"


def plan_lines(response: Row) -> list[str]:
    """Return the present and planned limits of all power budgets as lines of text.

    There is one line per limit, in order of time.
    """
    begin = float(response.get("unix_s") or 0.0)
    steps = [
        (step["unix_s"], row, step["watts"])
        for row in response.get("budgets") or []
        for step in [{"unix_s": begin, "watts": row.get("limit_watts")}, *(row.get("plan") or [])]
    ]
    width = max([6, *(len(str(row.get("name"))) for _, row, _ in steps)])
    lines = [f"{'From':<19} {'Budget':<{width}} {'Limit(W)':>12}"]
    for time, row, watts in sorted(steps, key=lambda step: step[0]):
        figure = "none" if watts is None else f"{watts:.0f}"
        floor = row.get("floor_watts")
        is_below = watts is not None and floor is not None and watts < floor
        below = f"  below the floor, {floor:.0f} W" if is_below else ""
        lines.append(f"{format_time(time):<19} {row.get('name') or '?':<{width}} {figure:>12}{below}")
    return lines


def change_line(response: Row) -> str:
    """Return the response to `POST /v1/budget/set` in one line."""
    end = response.get("until_unix_s")
    until = f" until {format_time(end)}" if end is not None else ""
    return (
        f"budget {response.get('budget')}: {limit_text(response.get('limit_watts'))}{until}, "
        f"was {limit_text(response.get('previous_watts'))}"
    )


def explanation_lines(response: Row) -> list[str]:
    """Return the response to `GET /v1/budget/explain` as lines: the explanation, then its figures."""
    job_id = response.get("job_id")
    lines = textwrap.wrap(f"Job {job_id}: {response.get('explanation')}", WIDTH, subsequent_indent="  ")
    for detail in response.get("details") or []:
        lines += textwrap.wrap(detail, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    figures = [
        f"{name} {with_unit(response[key], 'W')}"
        for name, key in (
            ("expected without limits", "wanted_watts"),
            ("committed", "committed_watts"),
            ("requested as licenses", "license_watts"),
        )
        if response.get(key) is not None
    ]
    if response.get("keeps_slowdown") is not None:
        figures.append("slowdown limit " + ("kept" if response["keeps_slowdown"] else "exceeded"))
    if figures:
        lines.append("  " + ", ".join(figures))
    if (decided := response.get("decided_unix_s")) is not None:
        lines.append(f"  decided {format_time(decided)}")
    return lines
