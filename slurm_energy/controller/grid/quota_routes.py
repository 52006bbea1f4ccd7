"""HTTP routes about quotas.

They return the energy, cost and emissions that were used, and the audit trail. Administrators change quotas
with them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from slurm_energy.accounting import quotas
from slurm_energy.accounting.quotas import Quota, QuotaChange, QuotaPeriod, QuotaResource
from slurm_energy.accounting.usage import quota_usage
from slurm_energy.config import Config
from slurm_energy.controller.grid.quota_watch import QuotaWatch, visible_uses
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.name_check import NameCheck
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import ForbiddenError, NotFoundError, UsageError
from slurm_energy.grid.amount_text import resource_text
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.protocol.quota_requests import (
    CHANGES_PATH,
    QUOTA_PATH,
    REMOVE_PATH,
    SET_PATH,
    QuotaKey,
    QuotaOrder,
)

_CHANGES_S = 400 * 86400.0


class QuotaRoutes:
    """Handlers of the routes about quotas. The caller has been identified.

    Args:
        config: returns the configuration.
        store: the database.
        watch: periodic task that computes the use of the quotas.
        names: refuses unknown names of accounts.
        clock: returns Unix time.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        watch: QuotaWatch,
        names: NameCheck,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._store, self._watch, self._clock = config, store, watch, clock
        self._names = names

    @property
    def routes(self) -> RouteGroup:
        """The HTTP routes that this object handles."""
        return RouteGroup(
            costly={QUOTA_PATH: self.show, CHANGES_PATH: self.changes},
            changes={SET_PATH: self.set, REMOVE_PATH: self.remove},
        )

    async def show(self, query: Mapping[str, str], rights: Rights) -> dict[str, Any]:
        """Return the response to `GET /v1/quota`: quotas, each with the amount used so far.

        Operators see all quotas. Other users see the quotas of their accounts, and those of users in
        accounts that they coordinate.
        """
        refuse_unknown(query, ())
        accounts = await self._accounts(rights)
        uses = visible_uses(self._watch.standings, accounts, rights.name or "")
        without_use = await self._without_use(accounts, rights.name or "")
        return {
            **rights.described(),
            "quotas": [use.to_json() for use in uses] + without_use,
            "hold": self._config().quota.hold,
            "priority_mode": self._config().priority.mode,
        }

    async def changes(self, query: Mapping[str, str], rights: Rights) -> dict[str, Any]:
        """Return the response to `GET /v1/quota/changes`: the audit trail of the last 400 days."""
        refuse_unknown(query, ())
        accounts = await self._accounts(rights)
        now = self._clock()
        names = None if accounts is None else sorted(accounts)
        rows = await self._store.read(
            quotas.changes, self._config().cluster.name, now - _CHANGES_S, now + 1.0, names
        )
        coordinated = accounts or {}
        own = ("", rights.name)
        rows = [
            row for row in rows if accounts is None or row.user in own or coordinated.get(row.account, False)
        ]
        return {**rights.described(), "changes": [dataclasses.asdict(row) for row in rows]}

    async def set(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Set a quota and return it with its use.

        Raises:
            ForbiddenError: the caller is no administrator.
            NotFoundError: neither Slurm nor an energy record knows the account.
            UsageError: the body is malformed, or the site has no price or carbon intensity.
        """
        actor = self._require_administrator(rights)
        order = QuotaOrder.from_json(body)
        self._require_factor(order)
        await self._names.refuse_unknown((order.key.account,), (), by_operator=True)
        quota = Quota(
            order.key.account,
            order.key.user,
            QuotaResource(order.key.resource),
            QuotaPeriod(order.key.period),
            order.amount,
            order.unit,
            order.warn_percent,
            order.hold_percent,
            order.start,
            order.end,
            actor,
            self._clock(),
            order.reason,
        )
        await self._store.write(quotas.set_quota, self._config().cluster.name, quota, _text(quota))
        await self._watch.update()
        self._watch.refresh()
        use = await self._watch.use_of(quota, self._clock())
        return {"quota": None if use is None else use.to_json(), "text": _text(quota)}

    async def remove(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Remove a quota.

        Raises:
            ForbiddenError: the caller is no administrator.
            NotFoundError: the quota does not exist.
        """
        actor = self._require_administrator(rights)
        key = QuotaKey.from_json(body)
        resource, period = QuotaResource(key.resource), QuotaPeriod(key.period)
        quota = Quota(key.account, key.user, resource, period, 0.0, "")
        why = f"{resource} quota per {period} removed"
        change = QuotaChange(self._clock(), actor, key.account, key.user, why)
        if not await self._store.write(quotas.remove_quota, self._config().cluster.name, quota, change):
            todo = "list them: senergy quota show"
            raise NotFoundError(f"{quota.subject}", f"has no {resource} quota per {period}", todo)
        await self._watch.update()
        self._watch.refresh()
        return {"text": f"{quota.subject}: {why}"}

    async def _accounts(self, rights: Rights) -> dict[str, bool] | None:
        """Return the accounts that the caller may see; None means all accounts.

        The value of each account says whether the caller coordinates the account.
        """
        if rights.everything:
            return None
        name = rights.name or ""
        own = self._watch.accounts_of(name)
        if name:
            own |= await self._store.read(quota_usage.accounts_of, self._config().cluster.name, name)
        return dict.fromkeys(own, False) | dict.fromkeys(rights.accounts, True)

    async def _without_use(self, accounts: Mapping[str, bool] | None, user: str) -> list[dict[str, Any]]:
        """Return the quotas for which it is unknown how much is used.

        There are two reasons why the use is unknown. The quota may have a fixed start and end, with the
        present time outside of them. Or an error may have occurred.
        """
        stored = await self._store.read(quotas.read_quotas, self._config().cluster.name)
        current = {use.quota for use in self._watch.standings.uses}
        return [
            {
                **{name: getattr(quota, name) for name in ("account", "start", "end", "amount", "unit")},
                **{name: getattr(quota, name) for name in ("warn_percent", "hold_percent", "reason")},
                "user": quota.user or None,
                "resource": str(quota.resource),
                "period": str(quota.period),
                "used": None,
                "used_percent": None,
                "level": "outside" if quota.period is QuotaPeriod.CUSTOM else "unknown",
                "basis": "",
                "set_by": quota.actor,
                "set_unix_s": quota.time,
            }
            for quota in stored
            if quota not in current and _may_see(quota, accounts, user)
        ]

    def _require_factor(self, order: QuotaOrder) -> None:
        config = self._config()
        if order.key.resource == "cost":
            if config.price.provider == "off":
                raise UsageError("cost quota", "the site has no price", "set price.provider")
            if order.unit != config.price.currency:
                raise UsageError("unit", f"{order.unit} is not price.currency, {config.price.currency}")
        carbon = config.carbon
        unknown = carbon.provider == "off" or (
            carbon.provider == "yearly" and not carbon.country and carbon.g_per_kwh is None
        )
        if order.key.resource == "carbon" and unknown:
            raise UsageError("carbon quota", "the site has no carbon intensity", "set carbon.country")

    @staticmethod
    def _require_administrator(rights: Rights) -> str:
        if not rights.everything:
            todo = "ask an operator (controller.operators)"
            raise ForbiddenError("quotas", "only operators may change them", todo)
        return rights.name or str(rights.uid)


def _may_see(quota: Quota, accounts: Mapping[str, bool] | None, user: str) -> bool:
    if accounts is None:
        return True
    return quota.account in accounts and (accounts[quota.account] or quota.user in ("", user))


def _text(quota: Quota) -> str:
    """Return a quota in one line, for the audit trail and for the response."""
    levels = [
        f"{name} at {percent:g} %"
        for name, percent in (("warning", quota.warn_percent), ("hold", quota.hold_percent))
        if percent is not None
    ]
    amount = resource_text(quota.resource, quota.amount, quota.unit)
    text = f"{quota.subject}: {quota.resource} quota of {amount} per {quota.period}, {', '.join(levels)}"
    return f"{text} ({quota.reason})" if quota.reason else text
