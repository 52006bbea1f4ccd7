"""Checks that slurm.conf contains what power budgets need to delay the start of jobs.

Power budgets need a license, the job_submit module and the backfill scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from slurm_energy.config.budget_tables import BudgetTable
from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext

_COUNT: Final = re.compile(r"[0-9]{1,10}")
_LICENSE_SCHEDULERS: Final = ("", "sched/backfill")


def check_admission(context: CheckContext) -> Iterator[Finding]:
    """Check slurm.conf for the settings that power budgets need to delay jobs by licenses.

    Yield a finding for each setting that is missing.
    """
    settings, slurm = context.config.budget, context.host.slurm
    if settings.admission != "licenses" or slurm.missing:
        return
    total = _license_total(slurm.last("Licenses") or "", settings.license)
    highest = max((_highest(table) for table in context.config.budgets if table.cluster), default=None)
    if total is None:
        advice = f"{highest:.0f}" if highest is not None else "N"
        yield context.warning(
            "budget",
            "admission",
            f"Licenses in {slurm.path} has no '{settings.license}', so that jobs do not wait for power",
            f"write Licenses={settings.license}:{advice}, at least the highest limit; better the nameplate "
            'power of the cluster; or admission = "hold"',
        )
    elif highest is not None and total < highest:
        yield context.warning(
            "budget",
            "license",
            f"Licenses={settings.license}:{total} in {slurm.path} is lower than the limit {highest:.0f} W",
            "write the nameplate power of the cluster",
        )
    plugins = (slurm.last("JobSubmitPlugins") or "").split(",")
    if not any(plugin.strip().removeprefix("job_submit/") == "lua" for plugin in plugins):
        why = f"JobSubmitPlugins in {slurm.path} has no lua, so that jobs request no watts"
        yield context.warning("budget", "admission", why, "write JobSubmitPlugins=lua, see docs/budgets.md")
    scheduler = slurm.last("SchedulerType") or ""
    if scheduler not in _LICENSE_SCHEDULERS:
        why = f"{scheduler} in {slurm.path} does not plan licenses"
        yield context.warning("budget", "admission", why, "write SchedulerType=sched/backfill")
    elif "bf_licenses" not in (slurm.last("SchedulerParameters") or "").split(","):
        why = f"SchedulerParameters in {slurm.path} has no bf_licenses: large jobs may wait forever"
        yield context.warning("budget", "admission", why, "add bf_licenses to SchedulerParameters")


def _license_total(text: str, name: str) -> int | None:
    """Return the total of a license in the value of `Licenses`.

    None means that the license is missing or has no valid count.
    """
    for item in text.split(","):
        license_name, _, count = item.strip().partition(":")
        if license_name == name:
            return int(count) if _COUNT.fullmatch(count) else None if count else 1
    return None


def _highest(table: BudgetTable) -> float:
    """Return the highest limit in watts that the configuration states for a budget at any time."""
    values = [float(entry["watts"]) for entry in table.schedule]
    return max([table.watts or 0.0, table.fallback_watts or 0.0, *values])
