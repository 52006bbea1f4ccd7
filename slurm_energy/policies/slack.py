"""Parser of two durations that users state for their jobs.

The first is the slack in --energy-slack (the permitted delay). The second is the restart time in
--energy-checkpointable.
"""

from __future__ import annotations

import re
from typing import Final

from slurm_energy.config.deferral_section import DeferralConfig
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

FLAG: Final = "--energy-slack"
RESTART_FLAG: Final = "--energy-checkpointable"
MAX_SLACK_S: Final = 999_999_999
_FORM: Final = "write it as 30m, 4h or 1d, or as for --time: 4:00:00 or 1-12"
_WITH_UNIT = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?([smhd])", re.ASCII)
_CLOCK = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})", re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MICRO: Final = 1_000_000


def parse_slack(text: str, name: str = FLAG) -> int:
    """Parse a slack (permitted delay of a job) or the time of a restart, and return whole seconds.

    Args:
        text: a number with the unit s, m, h or d such as `30m`, `1.5h`, or a time as Slurm's `--time`
            takes it: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`. A number alone means minutes.
        name: flag or configuration key, for the error message.

    Raises:
        UsageError: the text has any other form, or is shorter than a second or longer than 30 years.
    """
    seconds = _seconds(text)
    if seconds is None or not 1 <= seconds <= MAX_SLACK_S:
        raise UsageError(f"{name}: '{shown(text)}' is not a duration", todo=_FORM)
    return seconds


def check_slack(text: str | None, settings: DeferralConfig) -> None:
    """Check the slack that a job requests with a flag.

    The slack is the time by which the start of the job may be deferred. If the site does not defer jobs, any
    duration is accepted and has no effect: the job starts as soon as possible.

    Args:
        text: the flag's value; None means not given.
        settings: section `[deferral]` of the configuration.

    Raises:
        UsageError: the text is not a duration, or exceeds the maximum of the site.
    """
    _check(text, FLAG, settings.enabled, settings)


def check_restart(text: str | None, settings: DeferralConfig) -> None:
    """Check the time that a restart of a checkpointable job costs.

    If the site does not suspend jobs, any duration is accepted and has no effect.

    Args:
        text: the flag's value; None means not given.
        settings: section `[deferral]` of the configuration.

    Raises:
        UsageError: the text is not a duration, or exceeds the maximum slack (permitted delay of a start)
            of the site.
    """
    _check(text, RESTART_FLAG, settings.enabled and settings.suspend, settings)


def _check(text: str | None, name: str, has_effect: bool, settings: DeferralConfig) -> None:
    if text is None:
        return
    seconds, highest = parse_slack(text, name), int(settings.max_slack_s)
    if has_effect and seconds > highest:
        raise UsageError(f"{name}: '{shown(text)}' is out of bounds", todo=f"1 to {highest} s")


def _seconds(text: str) -> int | None:
    if match := _WITH_UNIT.fullmatch(text):
        micros = int(match[1]) * _MICRO + int((match[2] or "").ljust(6, "0"))
        return micros * _UNITS[match[3]] // _MICRO
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    fields = [int(field) for field in match[2].split(":")]
    if match[1] is None and len(fields) < 3:
        fields.insert(0, 0)  # M and M:S have no hours
    hours, minutes, seconds = (*fields, 0, 0)[:3]
    return ((int(match[1] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
