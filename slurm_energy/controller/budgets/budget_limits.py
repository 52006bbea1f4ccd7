"""Limits of all configured power budgets at each time.

The limits come from the configuration, calendar files, external signals, and live limits that operators have
set.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from slurm_energy.accounting.budgets import LimitOverride
from slurm_energy.budget.limit_files import configured_limit, parse_calendar, parse_signal
from slurm_energy.budget.limit_sources import LimitSource, LimitStep, OverriddenLimit, SignalLimit
from slurm_energy.config import BudgetTable, Config
from slurm_energy.controller.budgets.budget_signals import SignalLocation, SignalText
from slurm_energy.controller.budgets.facts import BudgetInForce, BudgetScope, ScopeKind
from slurm_energy.errors import ConfigError, EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.quantities import shown
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.trusted_files import read_trusted

SAFE_HOURS: Final = 24.0
"""Hours ahead: the safe limits of nodes fit the lowest limit in this time."""
FALL_HORIZON_S: Final = 3600.0
"""Time ahead in which the fall of a limit shortens the leases of nodes. No lease is longer than this time."""
_CALENDAR_AGE_S: Final = 10.0
_MAX_TEXT: Final = 160


@dataclass(slots=True)
class _Limit:
    """A configured budget, with the source from which its limit is determined now.

    Attributes:
        table: the table of the budget in the configuration.
        source: the configured limit, and the last value of the budget's signal if it has one.
        problem: fault of the signal or calendar of the budget; an empty value means that there is no fault.
        signal: last text that was read from the signal, accepted or refused.
        calendar: last text that was read from the calendar file.
    """

    table: BudgetTable
    source: LimitSource
    problem: str = ""
    signal: SignalText | None = None
    calendar: str | None = None

    def adopt_value(self, earlier: LimitSource) -> None:
        """Take over the signal's value in force before a reload, if the new configuration accepts it.

        The value in force is the last valid value of the signal. It cannot be derived from the last text of
        the signal, because this text may be malformed.
        """
        if not isinstance(self.source, SignalLimit) or not isinstance(earlier, SignalLimit):
            return
        min_watts, max_watts = self.table.accept_watts
        if earlier.watts is not None and min_watts <= earlier.watts <= max_watts:
            self.source = replace(self.source, watts=earlier.watts, written_unix_s=earlier.written_unix_s)


class BudgetLimits:
    """The limits of all configured budgets.

    Args:
        config: the configuration.
        failures: log of failures; a repeated failure is logged once.
        clock: returns monotonic seconds, for the age of calendars.

    Raises:
        ConfigError: a calendar cannot be read.
    """

    def __init__(
        self, config: Config, failures: RepeatedFailureLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures, self._clock = failures, clock
        self._parents: Mapping[str, str] = {}
        self._overrides: Mapping[str, LimitOverride] = {}
        self._calendars_read_s = clock()
        zone = config.budget.timezone
        self._zone: tzinfo | None = ZoneInfo(zone) if zone else None
        self._limits = {table.name: self._configured(table) for table in config.budgets}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the budgets in the order of the configuration."""
        return tuple(self._limits)

    @property
    def signals(self) -> dict[str, SignalLocation]:
        """Files or URLs from which the limit signals of budgets are read, by name of the budget."""
        tables = [limit.table for limit in self._limits.values() if limit.table.signal]
        return {table.name: SignalLocation(table.signal, table.signal_interval_s) for table in tables}

    @property
    def needs_accounts(self) -> bool:
        """Whether the power budgets need Slurm's tree of accounts, because one applies to an account."""
        return any(limit.table.account for limit in self._limits.values())

    def adopt(self, earlier: BudgetLimits) -> None:
        """Take over the state of the object that was used before a reload of the configuration.

        The state consists of live limits (limits set by an operator), signals, and the tree of accounts.
        """
        self._parents, self._overrides = earlier._parents, earlier._overrides
        former, texts = earlier.signals, dict[str, SignalText]()
        for name, location in self.signals.items():
            if former.get(name) != location:
                continue
            limit, before = self._limits[name], earlier._limits[name]
            limit.adopt_value(before.source)
            if before.signal is not None:
                texts[name] = before.signal
        self.set_signals(texts)  # a text that the earlier configuration refused may be valid now

    def set_overrides(self, overrides: Mapping[str, LimitOverride]) -> None:
        """Store the limits that operators have set at run time (live limits), by name of the budget."""
        self._overrides = {name: one for name, one in overrides.items() if name in self._limits}

    def set_parents(self, parents: Mapping[str, str]) -> None:
        """Set the parent account of each account."""
        self._parents = parents

    def set_signals(self, texts: Mapping[str, SignalText]) -> None:
        """Set the limits of budgets from the texts that were read from their signals.

        A signal is a file or URL that states the limit of a budget. If a text is malformed or implausible,
        the last value of its signal stays in force.

        Args:
            texts: last text of each signal, by name of the budget.
        """
        for name, text in texts.items():
            limit = self._limits.get(name)
            if limit is None or not isinstance(limit.source, SignalLimit) or limit.signal == text:
                continue
            limit.signal = text
            try:
                value = parse_signal(text.text, limit.table.accept_watts)
            except ValueError as error:
                limit.problem = shown(f"signal: {error}", _MAX_TEXT)
                self._failures.report(f"budget '{name}'", limit.problem)
                continue
            written = text.unix_s if value.unix_s is None else min(value.unix_s, text.unix_s)
            limit.source = replace(limit.source, watts=value.watts, written_unix_s=written)
            limit.problem = ""
            self._failures.clear(f"budget '{name}'")

    def read_calendars(self) -> None:
        """Read calendar files that may have changed. The call blocks.

        If a file is bad, the last limits of its budget stay in force.
        """
        if self._clock() - self._calendars_read_s < _CALENDAR_AGE_S:
            return
        self._calendars_read_s = self._clock()
        for name, limit in self._limits.items():
            if limit.table.calendar is None:
                continue
            try:
                text = _calendar_text(limit.table)
                if text != limit.calendar:
                    limit.source, limit.calendar = parse_calendar(text, self._zone), text
            except (EnergyError, ValueError) as error:
                limit.problem = shown(f"calendar: {error}", _MAX_TEXT)
                self._failures.report(f"budget '{name}'", f"{limit.problem}; the last one stays in force")
            else:
                limit.problem = ""
                self._failures.clear(f"budget '{name}'")

    def source(self, name: str) -> LimitSource:
        """Return a power budget's limit as a function of time.

        If an operator has set a live limit, it replaces the configured limit as long as it is in force.
        """
        configured, override = self._limits[name].source, self._overrides.get(name)
        if override is None:
            return configured
        return OverriddenLimit(configured, override.watts, override.end or math.inf)

    def in_force(self, unix_s: float, reaction_s: float) -> list[BudgetInForce]:
        """Return the budgets with their limits now.

        Args:
            unix_s: time now in Unix seconds.
            reaction_s: time that nodes need to apply a lower limit, in seconds. If a limit falls within this
                time, the lower value applies already.
        """
        return [self._in_force(name, unix_s, reaction_s) for name in self._limits]

    def steps(self, name: str, unix_s: float, hours: float) -> tuple[LimitStep, ...]:
        """Return the changes of a budget's limit in the next hours."""
        return self.source(name).steps(unix_s, unix_s + hours * 3600.0)

    def table(self, name: str) -> BudgetTable:
        """Return the table of a budget in the configuration."""
        return self._limits[name].table

    def override(self, name: str, unix_s: float) -> LimitOverride | None:
        """Return the limit that an administrator has set live for a budget, at a time.

        None means that the budget has no live limit at that time.
        """
        override = self._overrides.get(name)
        ended = override is not None and override.end is not None and override.end <= unix_s
        return None if ended else override

    def configured_watts(self, name: str, unix_s: float) -> float:
        """Return the configured limit of a budget; infinity means no limit.

        A live limit, which an administrator sets while senergyctld runs, is ignored.
        """
        return self._limits[name].source.limit_at(unix_s)

    def problem(self, name: str, unix_s: float) -> str:
        """Return the fault of the source of a budget's limit in one line of text.

        The source is a signal or a calendar. The text is empty if there is no fault.
        """
        limit = self._limits[name]
        if isinstance(limit.source, SignalLimit) and limit.source.is_lost(unix_s):
            return limit.problem or "the signal is lost"
        return limit.problem

    def _in_force(self, name: str, unix_s: float, reaction_s: float) -> BudgetInForce:
        table, source = self._limits[name].table, self.source(name)
        steps = source.steps(unix_s, unix_s + FALL_HORIZON_S)
        soon = [step.watts for step in steps if step.unix_s <= unix_s + reaction_s]
        limit_watts = min([source.limit_at(unix_s), *soon])
        falls = [step.unix_s - unix_s for step in steps if step.watts < limit_watts]
        return BudgetInForce(
            name=name,
            scope=self._scope(table),
            limit_watts=limit_watts,
            falls_in_s=min(falls, default=math.inf),
            lowest_watts=source.lowest(unix_s, unix_s + SAFE_HOURS * 3600.0),
            floor_percent=table.floor_percent,
            constant_watts=table.constant_watts,
        )

    def _scope(self, table: BudgetTable) -> BudgetScope:
        key, value = table.scope
        kind = ScopeKind(key)
        if kind is ScopeKind.CLUSTER:
            return BudgetScope(kind)
        if kind is ScopeKind.NODES:
            return BudgetScope(kind, frozenset(expand_hostlist(value)))
        if kind is ScopeKind.ACCOUNT:  # Slurm converts the names of accounts and QOS to lower case
            return BudgetScope(kind, accounts_below(value.lower(), self._parents))
        return BudgetScope(kind, frozenset({value.lower() if kind is ScopeKind.QOS else value}))

    def _configured(self, table: BudgetTable) -> _Limit:
        text = _calendar_text(table) if table.calendar is not None else None
        try:
            return _Limit(table, configured_limit(table, self._zone, text), calendar=text)
        except ValueError as error:
            raise ConfigError(f"budgets '{table.name}'", str(error)) from None


def accounts_below(account: str, parents: Mapping[str, str]) -> frozenset[str]:
    """Return an account and all accounts below it."""
    names = {account}
    while more := {name for name, parent in parents.items() if parent in names} - names:
        names |= more
    return frozenset(names)


def node_reserves(config: Config) -> dict[str, float]:
    """Return for each node the configured power of all parts other than CPU packages and GPUs.

    Power budgets reserve this power.
    """
    return {
        node: watts
        for hostlist, watts in config.budget.node_reserve_watts.items()
        for node in expand_hostlist(hostlist)
    }


def _calendar_text(table: BudgetTable) -> str:
    assert table.calendar is not None
    subject = f"budgets '{table.name}': calendar {table.calendar}"
    try:
        return read_trusted(table.calendar).decode()
    except OSError as error:
        raise ConfigError(subject, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise ConfigError(subject, "is not UTF-8") from None
