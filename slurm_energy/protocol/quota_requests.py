"""Messages that read or change quotas. The CLI builds the requests and senergyctld parses them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.quantities import JOULES_PER_KWH, is_number, shown

QUOTA_PATH: Final = "/v1/quota"
SET_PATH: Final = "/v1/quota/set"
REMOVE_PATH: Final = "/v1/quota/remove"
CHANGES_PATH: Final = "/v1/quota/changes"

RESOURCES: Final = ("energy", "cost", "carbon")
PERIODS: Final = ("month", "quarter", "year", "custom")
DEFAULT_WARN_PERCENT: Final = 80.0
MAX_PERCENT: Final = 1000.0
_MAX_AMOUNT: Final = 1e18
_MAX_UNIX_S: Final = 1e11
_MAX_TEXT: Final = 200
_NAME: Final = re.compile(r"[^\s,=|'\"\\]{1,200}")
_AMOUNT: Final = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)\s?(?P<unit>[A-Za-z]{1,3})", re.ASCII)
_ENERGY_UNITS: Final = {
    "J": 1.0,
    "kJ": 1e3,
    "MJ": 1e6,
    "GJ": 1e9,
    "Wh": JOULES_PER_KWH / 1e3,
    "kWh": JOULES_PER_KWH,
    "MWh": JOULES_PER_KWH * 1e3,
    "GWh": JOULES_PER_KWH * 1e6,
}
_CARBON_UNITS: Final = {"g": 1.0, "kg": 1e3, "t": 1e6}
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class QuotaAmount:
    """The amount of a quota with its unit.

    Attributes:
        resource: `energy`, `cost` or `carbon`.
        amount: number of joules, of currency units, or of grams of CO2 equivalents.
        unit: `J`, the currency, or `g`.
    """

    resource: str
    amount: float
    unit: str


def parse_amount(text: str) -> QuotaAmount:
    """Parse an amount such as `500kWh`, `36 MJ`, `200EUR`, `50kg` or `1.5t`.

    The unit determines the resource.

    Raises:
        UsageError: the text has another form, an unknown unit, or is 0.
    """
    match = _AMOUNT.fullmatch(text)
    todo = "write it as 500kWh, 200EUR or 50kg"
    if match is None or not float(match["number"]) > 0:
        raise UsageError(f"AMOUNT: '{shown(text)}' is not an amount", todo=todo)
    number, unit = float(match["number"]), match["unit"]
    if unit in _ENERGY_UNITS:
        return QuotaAmount("energy", number * _ENERGY_UNITS[unit], "J")
    if unit in _CARBON_UNITS:
        return QuotaAmount("carbon", number * _CARBON_UNITS[unit], "g")
    if _CURRENCY.fullmatch(unit):
        return QuotaAmount("cost", number, unit)
    raise UsageError(f"AMOUNT: '{shown(text)}' has an unknown unit", todo=todo)


@dataclass(frozen=True, slots=True)
class QuotaKey:
    """Identity of a quota.

    Attributes:
        account: Slurm account.
        user: login name; empty for a quota of the whole account.
        resource: `energy`, `cost` or `carbon`.
        period: `month`, `quarter`, `year` or `custom`.
    """

    account: str
    user: str
    resource: str
    period: str

    def to_json(self) -> dict[str, Any]:
        """Return the body of the request to remove the quota."""
        return {name: getattr(self, name) for name in QuotaKey.__slots__}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> QuotaKey:
        """Parse the body of a request.

        Raises:
            UsageError: a key is unknown, missing or malformed.
        """
        refuse_unknown({str(key): "" for key in body}, cls.__slots__)
        return _key(body)


@dataclass(frozen=True, slots=True)
class QuotaOrder:
    """Request to set a quota.

    Attributes:
        key: identity of the quota.
        amount: number of joules, of currency units, or of grams of CO2 equivalents.
        unit: `J`, the currency, or `g`.
        warn_percent: warning level in percent of the amount; None for no warning level.
        hold_percent: hold level in percent of the amount; None for no hold level.
        start: start of a custom period in Unix seconds; None for a calendar period.
        end: end of a custom period in Unix seconds; None for a calendar period.
        reason: text for the audit trail.
    """

    key: QuotaKey
    amount: float
    unit: str
    warn_percent: float | None
    hold_percent: float | None
    start: float | None = None
    end: float | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the order to set a quota as a dict for the JSON body of the request."""
        own = {name: getattr(self, name) for name in _ORDER_KEYS}
        return {**self.key.to_json(), **own}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> QuotaOrder:
        """Parse the body of a request that sets a quota.

        Raises:
            UsageError: a key is unknown, missing or malformed, or the values contradict each other.
        """
        refuse_unknown({str(key): "" for key in body}, (*QuotaKey.__slots__, *_ORDER_KEYS))
        key = _key(body)
        amount, unit = body.get("amount"), body.get("unit")
        if not (is_number(amount) and 0 < float(amount or 0) <= _MAX_AMOUNT):
            raise UsageError("amount", f"must be a number above 0 and up to {_MAX_AMOUNT:g}")
        expected = {"energy": "J", "carbon": "g"}.get(key.resource)
        if not isinstance(unit, str) or (unit != expected if expected else not _CURRENCY.fullmatch(unit)):
            raise UsageError("unit", f"must be {expected or 'a currency such as EUR'}")
        warn, hold = _percent(body, "warn_percent"), _percent(body, "hold_percent")
        if warn is None and hold is None:
            raise UsageError("warn_percent", "or hold_percent must be given", "the quota has no effect else")
        if warn is not None and hold is not None and hold < warn:
            raise UsageError("hold_percent", f"{hold:g} is below the warning level, {warn:g}")
        start, end = _time(body, "start"), _time(body, "end")
        given = {start is not None, end is not None}
        if given != {key.period == "custom"}:
            raise UsageError("period", "custom needs start and end, and only custom takes them")
        if start is not None and end is not None and end <= start:
            raise UsageError("end", "is not after start")
        reason = body.get("reason", "")
        if not (isinstance(reason, str) and len(reason) <= _MAX_TEXT and reason.isprintable()):
            raise UsageError("reason", f"must be one line of at most {_MAX_TEXT} characters")
        assert amount is not None
        return cls(key, float(amount), unit, warn, hold, start, end, reason)


_ORDER_KEYS: Final = ("amount", "unit", "warn_percent", "hold_percent", "start", "end", "reason")


def _key(body: Mapping[str, Any]) -> QuotaKey:
    account, user = body.get("account"), body.get("user") or ""
    resource, period = body.get("resource"), body.get("period")
    if not (isinstance(account, str) and _NAME.fullmatch(account)):
        raise UsageError("account", "must be one name as in Slurm, without blanks and commas")
    if not (isinstance(user, str) and (not user or _NAME.fullmatch(user))):
        raise UsageError("user", "must be one login name, without blanks and commas")
    if resource not in RESOURCES:
        raise UsageError("resource", f"must be one of {', '.join(RESOURCES)}")
    if period not in PERIODS:
        raise UsageError("period", f"must be one of {', '.join(PERIODS)}")
    return QuotaKey(account, user, str(resource), str(period))


def _percent(body: Mapping[str, Any], key: str) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if not (is_number(value) and 0 < value <= MAX_PERCENT):
        raise UsageError(key, f"must be a number above 0 and up to {MAX_PERCENT:g}, or null")
    return float(value)


def _time(body: Mapping[str, Any], key: str) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if not (is_number(value) and 0 <= value <= _MAX_UNIX_S):
        raise UsageError(key, "must be a time in Unix seconds, or null")
    return float(value)
