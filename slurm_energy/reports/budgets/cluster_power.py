"""Text lines of `senergy top --cluster`, made from the response to `GET /v1/budget`.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from slurm_energy.quantities import format_duration
from slurm_energy.reports.budgets.budget_table import job_lines, limit_text, node_lines, notes
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.plots.text_plot import Glyphs, share_bar
from slurm_energy.reports.table import TableLayout, fit

Row = Mapping[str, Any]
_BAR: Final = 30
_NAME: Final = 12
_LAYOUT: Final = TableLayout(header=True, delimiter=None, trailing=False)
_HEALTHY: Final = ("reporting", "off")


def cluster_screen(response: Row, clock: str, glyphs: Glyphs, max_rows: int | None = None) -> list[str]:
    """Return the lines of the whole screen: budgets, running jobs, nodes.

    Args:
        response: response to `GET /v1/budget` with nodes and jobs.
        clock: time of day, as text.
        glyphs: characters for bars.
        max_rows: maximum number of jobs and of nodes; None means all.
    """
    nodes, jobs = response.get("nodes") or [], response.get("jobs") or []
    lines = [_headline(response, nodes, clock), ""]
    budgets = response.get("budgets") or []
    if response.get("mode") == "off" and not nodes:  # the response then has no budget, configured or not
        why = "no budget is computed: budget.mode is off, or there is no table [[budgets]]"
        return [*lines, why, "nodes report their power and jobs to this screen only under a budget"]
    lines += [_budget_line(row, glyphs) for row in budgets] or ["no budget is configured"]
    lines += ["note: " + note for note in notes(response)]
    lines += ["", *_jobs(jobs, max_rows)]
    if response.get("scope", "all") != "all":
        lines.append("jobs of other users are not shown: only operators see them")
    return [*lines, "", *_nodes(nodes, max_rows)]


def _headline(response: Row, nodes: Sequence[Row], clock: str) -> str:
    measured = [node["measured_watts"] for node in nodes if node.get("measured_watts") is not None]
    power = with_unit(sum(measured), "W") if measured else "unknown power"
    parts = [f"{power} on {len(measured)} of {len(nodes)} nodes", f"mode {response.get('mode', '?')}", clock]
    if (decided := response.get("decided_unix_s")) is not None:
        age_s = max(0.0, response.get("unix_s", decided) - decided)
        parts.append(f"decided {format_duration(age_s)} ago")
    return "  ".join(parts)


def _budget_line(row: Row, glyphs: Glyphs) -> str:
    limit, measured, committed = (row.get(f"{key}_watts") for key in ("limit", "measured", "committed"))
    share = None if not limit or measured is None else min(1.0, measured / limit)
    text = f"{with_unit(measured, 'W')} of {limit_text(limit)}"
    details = [f"committed {with_unit(committed, 'W')}"]
    if row.get("capped_watts"):
        details.append(f"capped {with_unit(row['capped_watts'], 'W')}")
    if row.get("held_jobs"):
        details.append(f"jobs waiting: {row['held_jobs']}")
    bar = share_bar(share, _BAR, glyphs)
    return f"{fit(str(row.get('name')), _NAME, True)} {bar} {fit(text, 22, True)} {', '.join(details)}"


def _jobs(jobs: Sequence[Row], max_rows: int | None) -> list[str]:
    if not jobs:
        return ["no running job to show"]
    order = sorted(jobs, key=lambda job: (-(job.get("committed_watts") or 0.0), job.get("job_id") or 0))
    return [*job_lines(order[:max_rows], _LAYOUT), *_more(order, max_rows, "jobs")]


def _nodes(nodes: Sequence[Row], max_rows: int | None) -> list[str]:
    """Return the table of nodes as text.

    Nodes in an unhealthy state come first, and healthy nodes follow. The unhealthy nodes are sorted by
    descending power, and so are the healthy nodes.
    """
    if not nodes:
        return ["no node to show"]
    order = sorted(
        nodes,
        key=lambda node: (
            node.get("state") in _HEALTHY,
            -(node.get("measured_watts") or 0.0),
            str(node.get("node")),
        ),
    )
    return [*node_lines(order[:max_rows], _LAYOUT), *_more(order, max_rows, "nodes")]


def _more(rows: Sequence[Row], max_rows: int | None, name: str) -> list[str]:
    hidden = 0 if max_rows is None else len(rows) - max_rows
    return [f"... and {hidden} more {name}"] if hidden > 0 else []
