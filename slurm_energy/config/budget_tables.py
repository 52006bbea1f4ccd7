"""Declaration of the configuration tables of power budgets: `[budget]` and `[[budgets]]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from slurm_energy.config.value_checks import between, key, one_of, time_zone
from slurm_energy.config.weekly_schedule import MAX_LIMIT_WATTS, MIN_LIMIT_WATTS, check_schedule

BUDGET_MODES: Final = ("off", "observe", "enforce")
DISTRIBUTIONS: Final = ("least-edp", "equal", "proportional", "deadline-first")
ADMISSIONS: Final = ("licenses", "hold", "off")

SCOPES: Final = ("cluster", "partition", "nodes", "account", "user", "qos")
"""Keys of `[[budgets]]` that name the scope of a budget. Each table has exactly one of them."""

SOURCES: Final = ("watts", "schedule", "calendar", "signal")
"""Keys of `[[budgets]]` that give the limit. Each table has exactly one of them."""

_BUDGET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_LICENSE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_SLURM_NAME: Final = re.compile(r"[^\s,=|'\"\\]{1,200}")
_LIMIT = between(MIN_LIMIT_WATTS, MAX_LIMIT_WATTS)


def _budget_name(value: str) -> str | None:
    fits = _BUDGET_NAME.fullmatch(value)
    return None if fits else "must be 1 to 40 letters, digits, - and _, and begin with a letter or digit"


def _license_name(value: str) -> str | None:
    fits = _LICENSE.fullmatch(value)
    return None if fits else "must be 1 to 32 letters, digits and _, and begin with a letter"


def _slurm_name(value: str) -> str | None:
    fits = _SLURM_NAME.fullmatch(value)
    return None if fits else "must be one name as in Slurm, without blanks and commas"


def _node_list(value: str) -> str | None:
    return None if value.strip() else "must be a node list such as n[1-16]"


def _signal(value: str) -> str | None:
    if value.startswith("/") and value.isprintable():
        return None
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    printable = value.isascii() and value.isprintable() and " " not in value
    if parts.scheme not in ("http", "https") or not host or port == 0 or not printable:
        return "must be an absolute path or http(s)://HOST[:PORT]/PATH"
    if parts.username is not None or parts.password is not None:
        return "must not contain a password, which other users could read"
    return None


def _limit_range(value: tuple[float, float]) -> str | None:
    valid = MIN_LIMIT_WATTS <= value[0] <= value[1] <= MAX_LIMIT_WATTS
    return (
        None
        if valid
        else f"must be [low, high] with {MIN_LIMIT_WATTS:g} <= low <= high <= {MAX_LIMIT_WATTS:g}"
    )


def _reserves(value: dict[str, float]) -> str | None:
    if "" in value:
        return "must have node lists such as n[1-4] as names"
    return None if all(0 <= watts <= 1e5 for watts in value.values()) else "must be from 0 to 100000 watts"


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """Section `[budget]` of the configuration: how the limits of `[[budgets]]` are kept.

    See docs/budgets.md.
    """

    mode: str = key(
        "off",
        "off; observe: compute, store and show decisions, but change nothing; enforce: keep the limits.",
        one_of(*BUDGET_MODES),
        show="enforce",
    )
    distribution: str = key(
        "least-edp",
        "Which devices get less power if a limit binds. least-edp: those whose jobs lose the least; equal: "
        "all alike; proportional: in proportion to their power; deadline-first: jobs with a deadline last.",
        one_of(*DISTRIBUTIONS),
    )
    admission: str = key(
        "licenses",
        "How jobs wait that do not fit. licenses: each job requests its watts as Slurm licenses; hold: "
        "senergyctld holds them; off: every job starts, and running jobs get less.",
        one_of(*ADMISSIONS),
    )
    license: str = key(
        "watts", 'Name of the license in slurm.conf, for `admission = "licenses"`.', _license_name
    )
    period_s: float = key(
        5.0, "Control period in seconds: maximum time above a limit that has just dropped.", between(1, 300)
    )
    poll_s: float = key(
        1.0,
        "Seconds between two reports of a node; senergyctld lengthens it for many nodes, up to the period.",
        between(0.2, 60),
    )
    lease_s: float = key(
        30.0,
        "Seconds without a decision of senergyctld after which a node sets its safe limits.",
        between(2, 3600),
    )
    quantile: float = key(
        0.9, "Quantile of the predicted power with which a pending job counts.", between(0.5, 0.999)
    )
    margin_percent: float = key(
        2.0,
        "Part of each limit in percent that stays unused, for errors of sensors and of the devices' limits.",
        between(0, 50),
    )
    node_reserve_watts: dict[str, float] = key(
        {},
        "Power of a node beside its processors and GPUs (memory, fans, boards, losses), by node list. Other "
        "nodes: measured power of the node less these parts.",
        _reserves,
        show={"n[1-4]": 150.0},
    )
    timezone: str = key(
        "",
        "Time zone of schedules, and of calendar times without one. Empty: the zone of senergyctld's host.",
        time_zone,
        show="Europe/Berlin",
    )
    history_days: float = key(365.0, "Days to keep the power history of budgets.", between(1, 36500))


@dataclass(frozen=True, slots=True)
class BudgetTable:
    """A power limit of the cluster or of a part of it. Budgets may overlap; every one of them must be kept.

    Exactly one of `cluster`, `partition`, `nodes`, `account`, `user`, `qos` names the scope of the budget.
    Exactly one of `watts`, `schedule`, `calendar`, `signal` gives the limit.
    """

    name: str = key(
        "", "Name of the budget, for commands, history and explanations.", _budget_name, show="site"
    )
    cluster: bool = key(False, "true: the whole cluster.", show=True)
    partition: str = key("", "Nodes of this partition.", _slurm_name, show="gpu")
    nodes: str = key("", "These nodes.", _node_list, show="n[1-16]")
    account: str = key("", "Jobs of this account and of the accounts below it.", _slurm_name, show="physics")
    user: str = key("", "Jobs of this user.", _slurm_name, show="alice")
    qos: str = key("", "Jobs with this QOS.", _slurm_name, show="high")
    watts: float | None = key(None, "Constant limit.", _LIMIT, show=400000.0)
    schedule: list[dict[str, Any]] = key(
        [],
        "Limit by local time of day and weekday. An entry applies until the next one begins.",
        check_schedule,
        show=[
            {"days": "mon-fri", "from": "08:00", "watts": 300000.0},
            {"days": "mon-sun", "from": "20:00", "watts": 400000.0},
        ],
    )
    calendar: Path | None = key(
        None,
        "CSV file with the columns time and watts. A limit applies until the next row; no watts: no limit. "
        "The file is read again when it changes.",
        show="/etc/slurm/energy/budget.csv",
    )
    signal: str = key(
        "",
        'File or http(s) URL with the limit in watts, as a number or as JSON {"watts": 400000}, written by a '
        "grid operator or battery controller.",
        _signal,
        show="https://grid.example.org/limit",
    )
    signal_interval_s: float = key(5.0, "Seconds between two readings of the signal.", between(1, 3600))
    max_age_s: float = key(
        300.0,
        "Seconds after which a signal that was not written (file) or answered (URL) counts as lost.",
        between(2, 604800),
    )
    fallback_watts: float | None = key(
        None,
        "Limit while the signal is lost; the last value of the signal applies if it is lower. Required with "
        "signal.",
        _LIMIT,
        show=250000.0,
    )
    accept_watts: tuple[float, float] = key(
        (MIN_LIMIT_WATTS, MAX_LIMIT_WATTS),
        "Range of plausible values of the signal; other values count as a lost signal.",
        _limit_range,
        show=[100000.0, 500000.0],
    )
    floor_percent: float = key(
        0.0,
        "Power limit that running jobs keep, in percent of the range of each device; 0: the lowest limit of "
        "the device.",
        between(0, 100),
    )
    constant_watts: float = key(
        0.0,
        "Power under this budget that no node reports, such as switches and storage.",
        between(0, MAX_LIMIT_WATTS),
    )

    @property
    def scopes(self) -> dict[str, str]:
        """The keys of this budget table that state to what the budget applies, with their values.

        These scope keys are `cluster`, `partition`, `nodes`, `account`, `user` and `qos`. A valid table has
        exactly one of them. The value for the key `cluster` is an empty text.
        """
        texts = {"cluster": "", **{name: getattr(self, name) for name in SCOPES[1:]}}
        return {name: text for name, text in texts.items() if (self.cluster if name == "cluster" else text)}

    @property
    def scope(self) -> tuple[str, str]:
        """Scope of a valid budget table: key and value, such as ("partition", "gpu") or ("cluster", "")."""
        return next(iter(self.scopes.items()), ("cluster", ""))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the keys by which the configuration determines the limit of this budget.

        The possible keys are `watts`, `schedule`, `calendar` and `signal`. A valid table of a budget sets
        exactly one of them.
        """
        set_keys = {
            "watts": self.watts is not None,
            "schedule": bool(self.schedule),
            "calendar": self.calendar is not None,
            "signal": bool(self.signal),
        }
        return tuple(name for name in SOURCES if set_keys[name])
