"""Options of `senergy timeline` that select a part of the timeline by time or by ranks."""

from __future__ import annotations

import re
from datetime import datetime

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.time_spec import TIME_FORMATS, parse_time

_FACTORS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"\+(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>[smhd]?)", re.ASCII)
_CLOCK = re.compile(
    r"\+(?:(?P<hours>\d{1,6}):)?(?P<minutes>\d{1,2}):(?P<seconds>\d{1,2}(?:\.\d{1,6})?)", re.ASCII
)
_DURATIONS = "+90s, +10m, +2h or +1:30:00"
_RANKS = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?", re.ASCII)


def parse_shown_time(text: str, start_s: float, now: datetime, option: str) -> float:
    """Return the Unix time of `--from` or `--to`.

    Args:
        text: a time as sacct reads it, or `+DURATION` since the start of the job.
        start_s: start of the job, Unix seconds.
        now: current local time, for relative times.
        option: name of the option, for the error message.

    Raises:
        UsageError: the text is neither a time nor a duration.
    """
    if not text.startswith("+"):
        try:
            return parse_time(text, now, option)
        except UsageError as error:
            todo = f"write {_DURATIONS} since the start of the job, or {TIME_FORMATS}"
            raise UsageError(error.what, error.why, todo) from None
    if match := _DURATION.fullmatch(text):
        return start_s + float(match["number"]) * _FACTORS[match["unit"]]
    if match := _CLOCK.fullmatch(text):
        hours, minutes = int(match["hours"] or 0), int(match["minutes"])
        return start_s + 3600 * hours + 60 * minutes + float(match["seconds"])
    raise UsageError(f"{option}: '{shown(text)}' is not a duration", todo=f"write {_DURATIONS}")


def parse_ranks(text: str) -> list[range]:
    """Return the ranges of ranks in a list such as `0-7,12`.

    Raises:
        UsageError: the text is not a list of ranks.
    """
    ranges = []
    for item in text.split(","):
        match = _RANKS.fullmatch(item)
        first = int(match["first"]) if match else 0
        last = int(match["last"] or first) if match else -1
        if last < first:
            raise UsageError(f"--ranks: '{shown(text)}' is not a list of ranks", todo="write 0-7,12")
        ranges.append(range(first, last + 1))
    return ranges
