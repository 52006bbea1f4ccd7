"""Sections `[signals]` and `[deferral]` of a scenario, and the simulation inputs made from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slurm_energy import deferral
from slurm_energy.config.value_checks import between, key
from slurm_energy.deferral import DeferralOptions
from slurm_energy.errors import ConfigError, UsageError
from slurm_energy.grid.csv_series import parse_time
from slurm_energy.quantities import shown
from slurm_energy.signals import SignalName
from slurm_energy.signals.csv_files import read_signal
from slurm_energy.signals.feed import SignalFeed, SignalSource
from slurm_energy.signals.forecast import ForecastMode
from slurm_energy.signals.pue import DEFAULT_PUE, PueModel
from slurm_energy.simulator.schedule_settings import Deferral
from slurm_energy.simulator.workloads.workload import Workload

_share = between(0, 1)
_not_negative = between(0, 1e15)
_positive = between(1e-9, 1e15)
SIGNAL_FILES = {
    SignalName.PRICE: "price_file",
    SignalName.CARBON: "carbon_file",
    SignalName.RENEWABLE: "renewable_file",
    SignalName.OUTSIDE: "outside_file",
}
"""Key of the file of each signal."""
_POLICY_FILES = {"cheapest": "price_file", "cleanest": "carbon_file", "cedla": "price_file"}
"""Key of the file without which a built-in deferral policy defers no job."""


@dataclass(frozen=True, slots=True)
class SignalsSection:
    """Signals that policies see, `[signals]`: CSV files with a column of time and one of values."""

    price_file: str = key("", "Prices, e.g. with a column EUR/MWh or Price (USD/MWh).")
    carbon_file: str = key("", "Carbon intensity, e.g. with a column g/kWh or avg_CI.")
    renewable_file: str = key("", "Share of renewable sources, or the generation mix of the EIA.")
    outside_file: str = key("", "Outside temperature with a column celsius, which changes the PUE.")
    forecast: str = key("perfect", "What is known ahead: perfect, day-ahead, history or none.")
    start: str = key("", "Time in the files at which the simulation begins; empty: their first time.")
    utc_offset_hours: float = key(0.0, "Local time minus the time of the files.", between(-14, 14))
    publication_hour: float = key(
        13.0, "Local hour from which the prices of the next day are known (day-ahead).", between(0, 24)
    )
    horizon_hours: float = key(48.0, "Time that forecasts cover.", between(1, 24 * 14))
    pue: list[float] = key(
        [DEFAULT_PUE.constant, DEFAULT_PUE.linear, DEFAULT_PUE.quadratic],
        "Coefficients of the PUE as a polynomial of the outside temperature, the constant first.",
    )


@dataclass(frozen=True, slots=True)
class DeferralSection:
    """Settings for the deferral of jobs that may wait, from the table `[deferral]` of a scenario."""

    policy: str = key("off", "Deferral policy of all policies without their own, such as zeus+cheapest.")
    slot_s: float = key(900.0, "Slots in which starts are planned.", between(1, 86_400))
    share: float = key(0.0, "Share of the jobs without slack that get slack_hours.", _share)
    slack_hours: float = key(0.0, "Slack of these jobs.", _not_negative)
    deadline_is_slack: bool = key(False, "Jobs with a deadline may start as late as it permits.")
    max_slack_hours: float = key(24.0 * 7, "Maximum slack.", _positive)
    checkpointable_share: float = key(0.0, "Share of the jobs that can be suspended and resumed.", _share)
    best_share: float = key(0.0, "A job starts at once within this best share of its starts.", _share)
    uncertainty_weight: float = key(
        DeferralOptions().uncertainty_weight, "Standard deviations added to later costs.", between(0, 10)
    )
    min_saving: float = key(DeferralOptions().min_saving, "Minimum saving that defers a job.", _share)
    start_margin_s: float = key(
        DeferralOptions().start_margin_s,
        "Time between the latest planned start and the latest start while few arrivals are known.",
        _not_negative,
    )
    margin_weight: float = key(
        DeferralOptions().margin_weight,
        "Standard deviations of the demand of later arrivals for which a job's own margin suffices.",
        between(0, 10),
    )
    reserve_weight: float = key(
        DeferralOptions().reserve_weight,
        "Standard deviations of the demand of later arrivals that are kept free beside its mean.",
        between(0, 10),
    )
    solver_limit_s: float = key(2.0, "Time limit of the solver of cedla.", _not_negative)
    suspend: bool = key(True, "Suspend running checkpointable jobs in expensive slots.")
    restart_s: float = key(120.0, "Time that a checkpoint and a restart cost together.", _not_negative)
    max_suspensions: int = key(3, "Maximum number of suspensions of a job.", between(0, 1000))
    min_run_s: float = key(0.0, "Minimum run time before a suspension.", _not_negative)
    min_suspension_s: float = key(0.0, "Minimum length of a suspension.", _not_negative)

    def options(self) -> DeferralOptions:
        """Return the parameters of the deferral policies."""
        return DeferralOptions(
            slot_s=self.slot_s,
            best_share=self.best_share,
            uncertainty_weight=self.uncertainty_weight,
            min_saving=self.min_saving,
            start_margin_s=self.start_margin_s,
            margin_weight=self.margin_weight,
            reserve_weight=self.reserve_weight,
            solver_limit_s=self.solver_limit_s,
            suspend=self.suspend,
            restart_s=self.restart_s,
            max_suspensions=self.max_suspensions,
            min_run_s=self.min_run_s,
            min_suspension_s=self.min_suspension_s,
        )


def deferral_of(section: DeferralSection, name: str) -> Deferral | None:
    """Return the settings of deferral with the deferral policy `name`; None for the name `off`.

    Raises:
        NotFoundError: there is no deferral policy of that name.
    """
    policy = deferral.policy(name or section.policy)
    if policy.name == deferral.OFF:
        return None
    signal = SignalName.CARBON if policy.name == "cleanest" else SignalName.PRICE
    return Deferral(policy, section.options(), signal)


def missing_file(policy: str, section: SignalsSection) -> str:
    """Return the key in `[signals]` that a deferral policy needs and that is not set; empty if there is none.

    Args:
        policy: name of the deferral policy. It is not known what a site's own policy needs.
        section: section of the signals.
    """
    key = _POLICY_FILES.get(policy, "")
    return "" if key and getattr(section, key) else key


def split_policy(name: str, default_ranking: str = "fcfs") -> tuple[str, str]:
    """Split a policy name such as `zeus+cheapest` into ranking and deferral policy.

    If the name is only that of a deferral policy, the ranking is `default_ranking`. If the name is only that
    of a ranking, the second value is empty, which stands for the deferral policy of the scenario.
    """
    ranking, plus, deferred = name.partition("+")
    if plus:
        return ranking, deferred
    return (default_ranking, name) if name in deferral.names() else (name, "")


def mark_jobs(work: Workload, section: DeferralSection, seed: int) -> Workload:
    """Return the workload with the columns `slack_s` and `checkpointable` filled in.

    The values come from section `[deferral]` of the scenario. The slack is the time by which the start of a
    job may be deferred. If the workload file already states the slack of a job, it is kept, but at most the
    maximum slack.
    """
    slack_s, checkpointable = work.slack_s, work.checkpointable
    marks = section.deadline_is_slack or section.share or section.checkpointable_share
    if not marks and np.all(np.isnan(slack_s)):
        return work
    if section.deadline_is_slack:
        limit_s = np.where(
            np.isnan(work.time_limit_s), work.predicted_time_s[work.first[:-1]], work.time_limit_s
        )
        from_deadline = work.deadline_s - limit_s - work.submit_s
        slack_s = np.where(np.isnan(slack_s) & (from_deadline > 0), from_deadline, slack_s)
    # A separate generator, so that no other random number of the scenario changes.
    random = np.random.default_rng([seed, 0x5EED])
    drawn = random.random((2, work.count))
    if section.share > 0 and section.slack_hours > 0:
        chosen = np.isnan(slack_s) & (drawn[0] < section.share)
        slack_s = np.where(chosen, section.slack_hours * 3600, slack_s)
    if section.checkpointable_share > 0:
        checkpointable = np.maximum(checkpointable, drawn[1] < section.checkpointable_share)
    slack_s = np.minimum(slack_s, section.max_slack_hours * 3600)
    return replace(work, slack_s=slack_s, checkpointable=checkpointable)


def signal_feed(section: SignalsSection, location: str, beside: Callable[[str], Path]) -> SignalFeed | None:
    """Return the scenario's signals, such as price and carbon intensity, in simulated time.

    The times in the files are shifted so that they are seconds of the simulated clock. The result is None
    if the scenario names no signal file.

    Args:
        section: the section `[signals]`.
        location: name of the scenario, for errors.
        beside: function that returns the path of a file that the scenario names.

    Raises:
        EnergyError: a file is unreadable or lacks a signal of the section, or a key is wrong.
    """
    mode = check_signals(section, location)
    sources = {}
    for name, file_key in SIGNAL_FILES.items():
        file = getattr(section, file_key)
        if not file:
            continue
        path = beside(file)
        try:
            with path.open(newline="", encoding="utf-8") as lines:
                series = read_signal(lines, str(path), name)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}", str(getattr(error, "strerror", None) or error)) from None
        begin_s = parse_time(section.start) if section.start else series.start_s
        # Day-ahead prices are published by the day of the calendar, which the simulated clock does not show.
        offset_s = section.utc_offset_hours * 3600 + math.fmod(begin_s, 86_400)
        own = (
            ForecastMode.HISTORY if mode is ForecastMode.DAY_AHEAD and name is not SignalName.PRICE else mode
        )
        sources[name] = SignalSource(series.shifted(-begin_s), own, section.publication_hour, offset_s)
    if not sources:
        return None
    pue = PueModel(*section.pue)
    return SignalFeed(sources, horizon_s=section.horizon_hours * 3600, pue=pue)


def check_signals(section: SignalsSection, location: str) -> ForecastMode:
    """Check the section `[signals]`, and return the mode of the forecasts.

    Raises:
        ConfigError: a key is wrong.
    """
    if section.forecast not in set(ForecastMode):
        why = f"one of {', '.join(ForecastMode)}, not '{shown(section.forecast)}'"
        raise ConfigError(f"{location}: signals.forecast", why)
    if section.start:
        try:
            parse_time(section.start)
        except (ValueError, OverflowError):
            why = f"'{shown(section.start)}' is not a time"
            raise ConfigError(f"{location}: signals.start", why, "write it as 2023-05-01T00:00Z") from None
    if len(section.pue) != 3:
        raise ConfigError(f"{location}: signals.pue", "needs three coefficients")
    return ForecastMode(section.forecast)
