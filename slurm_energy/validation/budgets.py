"""Checks of the sections `budget` and `budgets`: the scope and the limit of each budget."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from slurm_energy.budget.limit_files import configured_limit
from slurm_energy.budget.limit_sources import NO_LIMIT, CalendarLimit
from slurm_energy.config import BudgetTable
from slurm_energy.config.budget_tables import SCOPES, SOURCES
from slurm_energy.config.findings import Finding
from slurm_energy.config.loader import suggest_name, table_label
from slurm_energy.errors import ConfigError, UsageError, install_extra
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.trusted_files import read_trusted
from slurm_energy.validation.budget_admission import check_admission
from slurm_energy.validation.budget_nodes import NodesOfSlurm
from slurm_energy.validation.check_context import CheckContext, DaemonRole

_SIGNAL_KEYS: Final = ("signal_interval_s", "max_age_s", "fallback_watts", "accept_watts")
_POLLS_PER_LEASE: Final = 3.0
_EVER: Final = (-math.inf, math.inf)


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about budgets. Budgets are checked even if `budget.mode` is `off`."""
    yield from _check_section(context)
    tables, slurm_nodes = context.config.budgets, NodesOfSlurm.of(context.host.slurm)
    for position, table in enumerate(tables):
        section = table_label("budgets", position)
        yield from _check_name(context, section, table, tables[:position])
        scope_findings = list(_check_scope(context, section, table))
        yield from scope_findings or _check_members(context, section, table, slurm_nodes)
        yield from _check_source(context, section, table, slurm_nodes)
    yield from _check_coverage(context)
    if tables and context.config.budget.mode == "enforce":
        yield from check_admission(context)


def _check_section(context: CheckContext) -> Iterator[Finding]:
    settings, tables = context.config.budget, context.config.budgets
    if settings.mode != "off" and not tables:
        yield context.warning("budget", "mode", f"'{settings.mode}' has no effect", "add a table [[budgets]]")
    if settings.mode == "off" and tables:
        yield context.warning("budgets", "", "has no effect: budget.mode is 'off'", 'write mode = "observe"')
    least_s = max(_POLLS_PER_LEASE * settings.poll_s, settings.period_s)
    if settings.lease_s < least_s:
        why = f"{settings.lease_s:g} s end before {_POLLS_PER_LEASE:g} polls or a control period have passed"
        yield context.error("budget", "lease_s", why, f"write {least_s:g} or more")
    if settings.poll_s > settings.period_s:
        why = f"{settings.poll_s:g} s is longer than budget.period_s, {settings.period_s:g} s"
        yield context.error("budget", "poll_s", why, f"write {settings.period_s:g} or less")
    for hostlist in settings.node_reserve_watts:
        try:
            expand_hostlist(hostlist, "node list")
        except UsageError as error:
            yield context.error("budget", "node_reserve_watts", error.what, error.todo)
    if settings.mode != "off" and context.role is not DaemonRole.NODE:
        yield from _check_numpy(context)


def _check_numpy(context: CheckContext) -> Iterator[Finding]:
    try:
        import numpy  # noqa: F401
    except ImportError:
        why, todo = "numpy is not installed", install_extra("scheduling")
        if context.role is DaemonRole.CONTROLLER:
            yield context.error("budget", "mode", why, f'{todo}, or mode = "off"')
        else:
            yield context.unchecked("budget", "mode", why, todo)


def _check_name(
    context: CheckContext, section: str, table: BudgetTable, before: Sequence[BudgetTable]
) -> Iterator[Finding]:
    if not table.name:
        if not context.is_set(section, "name"):
            yield context.error(section, "name", "is missing", 'write name = "site"')
        return
    # Names become parts of Slurm's names of licenses and reservations, which have no dash.
    name = _slurm_form(table.name)
    same = next((other for other in before if _slurm_form(other.name) == name), None)
    if same is not None:
        yield context.error(section, "name", f"another budget has the name '{same.name}'")


def _slurm_form(name: str) -> str:
    return name.lower().replace("-", "_")


def _check_scope(context: CheckContext, section: str, table: BudgetTable) -> Iterator[Finding]:
    scopes = list(table.scopes)
    if not scopes:
        if context.is_set(section, "cluster") and not table.cluster:
            yield context.error(section, "cluster", "false covers nothing", "write true, or another scope")
        elif not any(context.is_set(section, key) for key in SCOPES):
            todo = f"write one of {', '.join(SCOPES)}"
            yield context.error(section, "", "does not say what the budget covers", todo)
    elif len(scopes) > 1:
        why = f"'{scopes[0]}' and '{scopes[1]}' both say what the budget covers"
        yield context.error(section, scopes[1], why, "write a table for each of them")
    elif table.nodes:
        try:
            expand_hostlist(table.nodes, "nodes")
        except UsageError as error:
            yield context.error(section, "nodes", error.what.removeprefix("nodes: "), error.todo)


def _check_members(
    context: CheckContext, section: str, table: BudgetTable, nodes: NodesOfSlurm
) -> Iterator[Finding]:
    slurm = context.host.slurm
    key, value = table.scope
    if key == "partition" and slurm.partitions and value not in slurm.partitions:
        why = f"partition '{value}' is not in {slurm.path}"
        yield context.warning(section, key, why, suggest_name(value, sorted(slurm.partitions)))
    if key == "nodes" and nodes.names:
        missing = sorted(set(expand_hostlist(value)) - nodes.names)
        if missing:
            yield context.warning(section, key, f"node '{missing[0]}' is not in {slurm.path}")
    if key == "user" and context.role is None and not context.host.knows_user(value):
        yield context.warning(section, key, f"this host does not know user '{value}'")


def _check_source(
    context: CheckContext, section: str, table: BudgetTable, slurm_nodes: NodesOfSlurm
) -> Iterator[Finding]:
    sources = table.sources
    if not sources:
        if not any(context.is_set(section, key) for key in SOURCES):
            yield context.error(section, "", "has no limit", f"write one of {', '.join(SOURCES)}")
        return
    if len(sources) > 1:
        why = f"'{sources[0]}' and '{sources[1]}' both give the limit"
        yield context.error(section, sources[1], why, "keep one of them, or write two tables")
        return
    if table.signal and table.fallback_watts is None:
        if context.is_set(section, "fallback_watts"):
            return
        why = "is missing: it applies while the signal is lost"
        yield context.error(section, "fallback_watts", why, "write a limit that is always safe")
        return
    if not table.signal:
        for key in _SIGNAL_KEYS:
            if context.is_set(section, key):
                yield context.warning(section, key, "has no effect without signal")
    elif table.max_age_s < table.signal_interval_s:
        why = f"{table.max_age_s:g} s is shorter than signal_interval_s: the signal would often be lost"
        yield context.error(section, "max_age_s", why, f"write {2 * table.signal_interval_s:g} or more")
    yield from _check_limit(context, section, table, slurm_nodes)


def _check_limit(
    context: CheckContext, section: str, table: BudgetTable, slurm_nodes: NodesOfSlurm
) -> Iterator[Finding]:
    """Yield findings about the configured limit of a power budget.

    There is a finding if the calendar of the limit is invalid. There is also a finding if the lowest limit
    is below the power that the nodes under the budget always need.
    """
    key = table.sources[0]
    text = None
    if table.calendar is not None:
        if not table.calendar.exists() and context.role is not DaemonRole.CONTROLLER:
            why = f"{table.calendar} does not exist on this host; the controller needs it"
            yield context.warning(section, key, why)
            return
        try:
            text = read_trusted(table.calendar).decode()
        except PermissionError as error:
            yield context.unchecked(section, key, f"{table.calendar}: {error.strerror}", "run this as root")
            return
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "is not UTF-8"
            yield context.error(section, key, f"{table.calendar}: {reason}")
            return
        except ConfigError as error:
            yield context.error(section, key, f"{error.what}: {error.why}", error.todo)
            return
    zone_name = context.config.budget.timezone
    try:
        limit = configured_limit(table, ZoneInfo(zone_name) if zone_name else None, text)
    except ValueError as error:
        yield context.error(section, key, f"{table.calendar or table.name}: {error}")
        return
    if isinstance(limit, CalendarLimit):
        yield from _check_calendar_times(context, section, limit)
    lowest = min(entry["watts"] for entry in table.schedule) if table.schedule else limit.lowest(*_EVER)
    key = "fallback_watts" if key == "signal" else key
    required = _required_watts(context, table, slurm_nodes)
    idle = context.idle_watts.get((table.name, *table.scope))
    if required is not None and lowest < required:
        why = f"{lowest:g} W is below the {required:g} W that its nodes need beside processors and GPUs"
        todo = f"write {math.ceil(required)} or more, or correct budget.node_reserve_watts"
        yield context.error(section, key, why, todo)
    elif idle is not None and lowest < idle:
        why = f"{lowest:g} W is below the {idle:.0f} W that it draws without any job, as senergyctld reports"
        yield context.error(section, key, why, f"write {math.ceil(idle)} or more")


def _check_calendar_times(context: CheckContext, section: str, limit: CalendarLimit) -> Iterator[Finding]:
    """Yield a warning if a calendar of power limits does not cover the present time.

    This is the case if the first row of the calendar is in the future, or if the last row is already in
    force.
    """
    now = time.time()
    if limit.begin_unix_s > now:
        why = f"gives no limit before its first row, {_date(limit.begin_unix_s)}"
        yield context.warning(section, "calendar", why, "add a row for the time before")
    elif limit.end_unix_s < now and limit.limit_at(now) != NO_LIMIT:
        why = f"its last row, {_date(limit.end_unix_s)}, stays in force"
        yield context.warning(section, "calendar", why, "add coming rows, or an empty limit to end it")


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="minutes")


def _required_watts(context: CheckContext, table: BudgetTable, slurm_nodes: NodesOfSlurm) -> float | None:
    """Return the minimum power in watts that all nodes under a budget draw together.

    The configuration states the minimum power. None is returned if it does not.
    """
    key, value = table.scope
    if not table.scopes or key not in ("cluster", "partition", "nodes"):
        return None
    if key == "nodes":
        try:
            nodes = frozenset(expand_hostlist(value))
        except UsageError:
            return None
    else:
        nodes = slurm_nodes.names if key == "cluster" else slurm_nodes.of_partition(value)
    reserve = 0.0
    for hostlist, watts in context.config.budget.node_reserve_watts.items():
        try:
            reserve += watts * len(nodes.intersection(expand_hostlist(hostlist)))
        except UsageError:
            continue  # _check_section reports it
    return reserve + table.constant_watts or None


def _check_coverage(context: CheckContext) -> Iterator[Finding]:
    """Yield a warning for each budget that has no effect because another constant limit is always lower."""
    seen: dict[tuple[str, str], str] = {}
    whole = [table.watts for table in context.config.budgets if table.cluster and table.watts is not None]
    for position, table in enumerate(context.config.budgets):
        section = table_label("budgets", position)
        if len(table.scopes) != 1:
            continue
        other = seen.setdefault(table.scope, table.name)
        if other != table.name:
            why = f"covers the same as budget '{other}': the lower limit applies"
            yield context.warning(section, table.scope[0], why)
        if not table.cluster and table.watts is not None and whole and table.watts > min(whole):
            why = f"{table.watts:g} W never limits: the cluster has {min(whole):g} W"
            yield context.warning(section, "watts", why)
