"""Periodic computation of how much of each quota is used.

The module applies the effects of the use to the queue.

Missing data never block a job: a quota whose use is unknown has no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from slurm_energy.accounting import quotas
from slurm_energy.accounting.quotas import Quota, QuotaResource
from slurm_energy.accounting.usage import quota_usage
from slurm_energy.config import Config
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import EnergyError, UnavailableError, install_extra
from slurm_energy.grid.factor import GridAmount
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.priority.quota_levels import QuotaStandings, QuotaUse, accounts_below, period_window
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.fair_share import ShareCache, ShareTree, read_shares

if TYPE_CHECKING:
    from slurm_energy.controller.grid.quota_holds import QuotaHolds

_ACCOUNTS_AGE_S: Final = 600.0
_PAUSE_FACTOR: Final = 20.0  # times the duration of a computation: the database is used for 5 % at most
_UPDATES_PER_S: Final = 50.0
_BATCH_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class UsedAmount:
    """Amount of energy, emissions or cost that was used under a quota.

    Attributes:
        amount: amount in the unit of the quota; None means unknown.
        basis: text for the user. It states the origin of the carbon intensity or price, and the PUE (power
            usage effectiveness). It is empty for energy.
    """

    amount: float | None
    basis: str = ""


class QuotaWatch:
    """Periodic task that computes the use of the quotas and applies their effects to the queue.

    Args:
        config: returns the configuration.
        store: the database.
        source: reads carbon intensity and price.
        failures: log of failures; a repeated failure is logged once.
        run: runs Slurm's commands.
        clock: returns Unix time.
        holds: object that holds and releases pending jobs. None means to create an object that uses squeue
            and scontrol when one is needed.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay jobs;
            None means that no other part delays jobs.

    Attributes:
        standings: use of all quotas at the last computation.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        source: GridFactorSource,
        failures: RepeatedFailureLog,
        run: CommandRunner | None = None,
        clock: Callable[[], float] = time.time,
        holds: QuotaHolds | None = None,
        begin_times: BeginTimes | None = None,
    ) -> None:
        self._config, self._store, self._source, self._failures = config, store, source, failures
        self._run, self._clock, self._holds = run or CommandRunner(), clock, holds
        self._begin_times = begin_times
        cluster = config().cluster.name
        self._shares = ShareCache(lambda: read_shares(self._run, cluster), _ACCOUNTS_AGE_S)
        self._tree = ShareTree()
        self._due = asyncio.Event()
        self.standings = QuotaStandings()

    async def loop(self) -> None:
        """Compute the use of quotas and apply the effects periodically until cancelled."""
        try:
            while True:
                began_s = time.monotonic()
                await self.update()
                await self._apply_holds()
                pause_s = _PAUSE_FACTOR * (time.monotonic() - began_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(self._config().quota.interval_s, pause_s)):
                        await self._due.wait()
                self._due.clear()
        except asyncio.CancelledError:  # after an error, the task starts again and needs the commands
            self._run.stop()
            raise

    async def update(self) -> None:
        """Compute how much of each quota is used.

        If the computation fails, no quota has an effect until the next success. If only the prices or carbon
        intensities cannot be read, quotas of energy keep their effect.
        """
        try:
            self.standings = await self._compute()
        except EnergyError as error:
            self.standings = QuotaStandings()
            self._failures.report("quotas", str(error))
        else:
            self._failures.clear("quotas")

    def refresh(self) -> None:
        """Make `loop` compute the use of the quotas at once. Call this after a quota was changed."""
        self._due.set()

    def status(self) -> dict[str, Any]:
        """Return the entries about quotas on the status page."""
        over = [use for use in self.standings.uses if use.level]
        return {
            "quotas": len(self.standings.uses),
            "over_level": len(over),
            "over": [use.sentence for use in over],
            "held_jobs": self._holds.count if self._holds else 0,
        }

    def accounts_of(self, user: str) -> set[str]:
        """Return the accounts in which a user has an association.

        The result is empty if the associations are unknown.
        """
        return {account for account, name in self._tree.users if name == user}

    async def use_of(self, quota: Quota, now: float) -> QuotaUse | None:
        """Return how much of a quota is used.

        None means that the quota has a fixed start and end, and that now is not between them.

        Raises:
            UnavailableError: the database cannot be read.
        """
        config = self._config()
        zone = ZoneInfo(config.quota.timezone) if config.quota.timezone else None
        window = period_window(quota, now, zone)
        if window is None:
            return None
        accounts = accounts_below(quota.account, self._tree.parents)
        span = (window[0], min(now, window[1]))
        parts = await self._store.read(
            quota_usage.energy_parts, config.cluster.name, accounts, quota.user, *span
        )
        if quota.resource is QuotaResource.ENERGY:
            used = UsedAmount(sum(joules or 0.0 for _, _, joules in parts))
        else:
            used = await self._priced(quota, parts, window[0], now)
        return QuotaUse(quota, *window, used.amount, used.basis, accounts)

    async def _compute(self) -> QuotaStandings:
        stored = await self._store.read(quotas.read_quotas, self._config().cluster.name)
        if not stored:
            return QuotaStandings()
        await self._read_accounts()
        now = self._clock()
        uses = [await self.use_of(quota, now) for quota in stored]
        return QuotaStandings(tuple(use for use in uses if use is not None))

    async def _read_accounts(self) -> None:
        """Read Slurm's tree of accounts, so that the quota of an account covers the accounts below it.

        If the tree cannot be read, a quota covers its own account only.
        """
        try:
            self._tree = await asyncio.to_thread(self._shares.current)
        except UnavailableError as error:
            self._failures.report("quotas, accounts", str(error))
        else:
            self._failures.clear("quotas, accounts")

    async def _priced(self, quota: Quota, parts: list[Any], start: float, now: float) -> UsedAmount:
        """Return the emissions or the cost of the energy that was used under a quota.

        If the price or carbon intensity is unknown for a part of the energy, only the rest is counted. The
        amount is then a lower bound. The text `basis` of the result says so. If the prices or carbon
        intensities cannot be read, the amount is unknown.
        """
        subject = f"quotas of {quota.resource}"
        try:
            factors = await self._source.factors(start, now)
        except EnergyError as error:  # a bad file of prices must not disable the other quotas
            self._failures.report(subject, str(error))
            return UsedAmount(None, "price and carbon intensity cannot be read")
        self._failures.clear(subject)
        result = await asyncio.to_thread(factors.footprint, parts)
        amount: GridAmount | None = result.cost if quota.resource is QuotaResource.COST else result.carbon
        if quota.resource is QuotaResource.COST and quota.unit != factors.currency:
            return UsedAmount(None, f"price.currency is {factors.currency}")
        if amount is None or (amount.known_share == 0 and parts):
            return UsedAmount(None, f"no {'price' if quota.resource is QuotaResource.COST else 'factor'}")
        basis = result.cost_basis if quota.resource is QuotaResource.COST else result.carbon_basis
        return UsedAmount(amount.known_amount, "; ".join(filter(None, (basis, result.pue_text))))

    async def _apply_holds(self) -> None:
        hold = self._config().quota.hold
        if self._holds is None and not (hold and self.standings.has_holds):
            return
        try:
            holds = self._holds = self._holds or self._new_holds()
            call: Callable[[], tuple[str, ...]] = (
                (lambda: holds.apply(self.standings, self._clock()))
                if hold
                else (lambda: holds.release_all(self._clock()))
            )
            problems = await asyncio.to_thread(call)
        except EnergyError as error:
            problems = (str(error),)
        if problems:
            self._failures.report("quotas, held jobs", "; ".join(problems))
        else:
            self._failures.clear("quotas, held jobs")

    def _new_holds(self) -> QuotaHolds:
        try:
            from slurm_energy.controller.grid.quota_holds import QuotaHolds
            from slurm_energy.slurm.queue.job_update import JobUpdater
            from slurm_energy.slurm.queue.squeue_source import SqueueSource
        except ImportError:
            todo = f"{install_extra('scheduling')}, or quota.hold = false"
            raise UnavailableError("quotas", "numpy is not installed", todo) from None
        updater = JobUpdater(_UPDATES_PER_S, _BATCH_S)
        return QuotaHolds(SqueueSource(self._run), updater, self._begin_times)


def visible_uses(standings: QuotaStandings, accounts: Mapping[str, bool] | None, user: str) -> list[QuotaUse]:
    """Return the quotas that a user may see.

    Args:
        standings: use of each quota.
        accounts: accounts of the user; the value says whether the user coordinates the account. None means
            that the user may see all quotas.
        user: login name.
    """
    if accounts is None:
        return list(standings.uses)
    return [use for use in standings.uses if _may_see(use, accounts, user)]


def _may_see(use: QuotaUse, accounts: Mapping[str, bool], user: str) -> bool:
    """Return whether a user with the given accounts may see a quota.

    A coordinator of an account has no rights over the accounts above it: the quota of another user in one of
    these is hidden, although the jobs of the coordinated account count towards it.
    """
    if use.quota.user not in ("", user):
        return accounts.get(use.quota.account, False)
    return not use.accounts.isdisjoint(accounts)
