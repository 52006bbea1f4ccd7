"""Text lines of `senergy top --findings`, made from the response to `GET /v1/findings`.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from slurm_energy.quantities import format_duration
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.safe_text import escape_controls

Row = Mapping[str, Any]
_HEADER: Final = f"{'JOB':>10} {'USER':<12} {'NODES':>5} {'ELAPSED':>10} {'TIME':>6} {'ENERGY':>9}  FINDING"


def findings_screen(response: Row, clock: str) -> list[str]:
    """Return the lines of the whole screen, one per finding. Jobs that waste the most energy come first.

    Args:
        response: response to `GET /v1/findings`.
        clock: time of day, as text.
    """
    jobs: Sequence[Row] = response.get("jobs") or []
    count = f"{len(jobs)} running job{'s' if len(jobs) != 1 else ''} with findings so far"
    lines = [f"{count}  {clock}", ""]
    if jobs:
        lines.append(_HEADER)
        for job in sorted(jobs, key=_joules, reverse=True):
            lines += _job_lines(job)
    else:
        lines.append("no finding: the jobs are well, have just begun, or are not observed")
    if response.get("scope", "all") != "all":
        lines += ["", "jobs of other users are not shown: only operators see them"]
    return lines


def _joules(job: Row) -> float:
    return sum(finding.get("joules_lost") or 0.0 for finding in job.get("findings") or [])


def _job_lines(job: Row) -> list[str]:
    nodes = len(job.get("nodes") or [])
    user = escape_controls(str(job.get("user") or "?"))[:12]
    head = (
        f"{job.get('job_id', '?'):>10} {user:<12} {nodes:>5} {format_duration(job.get('elapsed_s') or 0):>10}"
    )
    lines = []
    for finding in job.get("findings") or []:
        share, joules = finding.get("time_share"), finding.get("joules_lost")
        time = "-" if share is None else f"{100 * share:.0f} %"
        energy = "-" if joules is None else with_unit(joules, "J")
        text = escape_controls(f"{finding.get('kind')}: {finding.get('title')}")
        lines.append(f"{head} {time:>6} {energy:>9}  {text}")
        head = " " * len(head)
    return lines
