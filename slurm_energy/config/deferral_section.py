"""Declaration of the configuration sections `[deferral]` and `[signals]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.config.value_checks import between, key

OFF: Final = "off"
_HOLD_SLOTS: Final = 1 / 3
_HOLD_CYCLES: Final = 5.0
_DELAY_CYCLES: Final = 1.5


@dataclass(frozen=True, slots=True)
class DeferralConfig:
    """Delayed start of jobs with --energy-slack, for cheap or clean power. See docs/deferral.md."""

    policy: str = key(
        "off",
        "off; cheapest: lowest expected cost; cleanest: lowest expected emissions; cedla: cost, planned for "
        "all jobs together; or a policy of `priority.policy_file`.",
        show="cheapest",
    )
    slot_s: float = key(
        900.0, "Length of a time slot in seconds; starts are planned by slots.", between(1, 86400)
    )
    max_slack_s: float = key(
        86400.0, "Maximum --energy-slack in seconds, also for jobs with a deadline.", between(1, 3.2e7)
    )
    deadline_is_slack: bool = key(
        True, "Jobs with --deadline and without --energy-slack are deferrable, too."
    )
    deadline_margin_s: float = key(
        1800.0,
        "Seconds between the latest planned start of a job with a deadline and the last start by which it "
        "could use its full time limit.",
        between(0, 86400),
    )
    start_margin_s: float = key(
        10_800.0,
        "Seconds between the latest planned start of a job and its latest start, in which the job waits for "
        "resources; at most three quarters of the slack. Held jobs reserve no resources. Used while fewer "
        "than 10 arrivals are known. Otherwise each job has a margin of its own, at most twice this one.",
        between(0, 86400),
    )
    margin_weight: float = key(
        4.0,
        "Standard deviations of the resources needed by jobs that have not arrived yet, for which a job's "
        "own margin suffices. More keeps more deadlines and saves less.",
        between(0, 10),
    )
    reserve_weight: float = key(
        0.0,
        "Standard deviations of the resources needed by jobs that have not arrived yet, which deferred jobs "
        "leave free in addition to the mean. More protects urgent jobs better and saves less.",
        between(0, 10),
    )
    interval_s: float = key(30.0, "Seconds between two plans.", between(0.5, 600))
    max_held_jobs: int = key(
        1000,
        "Maximum number of jobs that are held at a time; others start as without deferral. If it does not "
        "suffice, every user gets the same share of it.",
        between(1, 100_000),
    )
    min_saving_percent: float = key(
        2.0, "Minimum expected saving for which a job is delayed, in percent.", between(0, 100)
    )
    uncertainty_weight: float = key(
        0.5,
        "Standard deviations of the forecast by which a later start must be better. 0: the mean decides.",
        between(0, 10),
    )

    suspend: bool = key(
        False,
        "Suspend running jobs with --energy-checkpointable in expensive hours: they are requeued, and start "
        "again within their slack.",
    )
    max_suspensions: int = key(3, "Maximum number of suspensions of a job.", between(1, 100))
    min_run_s: float = key(
        3600.0, "Minimum time for which a job runs before it is suspended, in seconds.", between(0, 3.2e7)
    )
    min_suspension_s: float = key(
        3600.0,
        "Minimum length of a suspension in seconds; a shorter one is not started.",
        between(1, 3.2e7),
    )

    @property
    def enabled(self) -> bool:
        """Whether jobs are deferred."""
        return self.policy != OFF

    @property
    def hold_s(self) -> float:
        """Seconds by which the controller moves the begin time of a delayed job into the future.

        The controller repeats this in each cycle until the job shall start. If senergyctld stops, delayed
        jobs therefore start after at most this time. With the default slot and interval, the time is 300 s.
        """
        return max(_HOLD_SLOTS * self.slot_s, _HOLD_CYCLES * self.interval_s)

    @property
    def submit_delay_s(self) -> float:
        """Seconds by which the job_submit module delays a deferrable job.

        In this time, the start of the job is planned.
        """
        return _DELAY_CYCLES * self.interval_s + 1.0


@dataclass(frozen=True, slots=True)
class SignalsConfig:
    """Further signals for deferral beside price and carbon intensity. See docs/signals.md."""

    renewable_file: Path | None = key(
        None,
        "CSV file with the share of renewable sources: columns time and renewable_share. Read again when it "
        "changes. For deferral policies of the site; the built-in ones do not use it.",
        show="/etc/slurm/energy/renewable.csv",
    )
    outside_file: Path | None = key(
        None,
        "CSV file with the outside temperature: columns time and celsius. Read again when it changes.",
        show="/etc/slurm/energy/outside.csv",
    )
    history_days: float = key(
        28.0, "Days of past values from which values that are not known ahead are forecast.", between(1, 366)
    )
