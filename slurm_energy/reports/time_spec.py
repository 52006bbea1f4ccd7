"""Times in the notations that sacct reads and writes.

All functions are pure: the current time is an argument.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_NAMED_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_UTS = re.compile(r"uts(\d{7,12})", re.ASCII | re.IGNORECASE)
_TOKEN = re.compile(
    r"""
      (?P<now>now) \s*
      (?: (?P<sign>[+-]) \s* (?P<count>\d{1,9}) \s* (?:(?P<unit>second|minute|hour|day|week)s?)? )? \s* \Z
    | (?P<day>today|tomorrow)
    | (?P<named>midnight|noon|fika|teatime)
    | (?P<year>\d{4}) - (?P<ymonth>\d\d) - (?P<yday>\d\d)
    | (?P<hour>\d{1,2}) : (?P<minute>\d\d) (?: : (?P<second>\d\d) )? \s* (?P<half>[AP]M)?
    | (?P<smonth>\d{1,2}) [/.] (?P<sday>\d{1,2}) (?: [/.] (?P<syear>\d\d) )?
    | (?P<cmonth>\d\d) (?P<cday>\d\d) (?P<cyear>\d\d)?
    """,
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_SEPARATORS = " \t-Tt"
TIME_FORMATS = (
    "HH:MM[:SS][AM|PM], MMDD[YY][-HH:MM[:SS]], MM/DD[/YY][-HH:MM[:SS]], YYYY-MM-DD[THH:MM[:SS]], today,"
    " midnight, noon, fika, teatime, now[{+|-}COUNT[seconds|minutes|hours|days|weeks]]"
)


def parse_time(text: str, now: datetime, name: str = "time") -> float:
    """Parse a time with the same meaning as in sacct and return Unix seconds.

    Args:
        text: one of `TIME_FORMATS`, or `utsSECONDS`. A time without a date is a time of today. A date without
            a year is the latest matching date in the past. Unlike sacct, a day beyond the end of the month is
            refused (sacct reads 02-31 as March 3).
        now: current local time. If it has a time zone, the text is read in this zone.
        name: name of the option, for the error message.

    Raises:
        UsageError: the text is not a time in one of these notations.
    """
    try:
        if match := _UTS.fullmatch(text):
            # Times after the year 9999 cannot be written as a date.
            return datetime.fromtimestamp(int(match[1]), now.tzinfo).timestamp()
        return _Reading(now).read(text).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name}: '{shown(text)}' is not a time", todo=f"write it as {TIME_FORMATS}"
        ) from None


class _Reading:
    """State of the parser of a time specification: the date and the time of day read so far."""

    def __init__(self, now: datetime) -> None:
        self.now = now.replace(microsecond=0)
        self.date: datetime | None = None
        self.clock: tuple[int, int, int] | None = None

    def read(self, text: str) -> datetime:
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None and text[position] in _SEPARATORS:
                position += 1
                continue
            if match is None:
                raise ValueError(text)
            if match["now"]:
                if self.date or self.clock:
                    raise ValueError(text)
                return self._relative(match)
            self._take(match)
            position = match.end()
        if self.date is None and self.clock is None:
            raise ValueError(text)
        hour, minute, second = self.clock or (0, 0, 0)
        return (self.date or self.now).replace(hour=hour, minute=minute, second=second)

    def _relative(self, match: re.Match[str]) -> datetime:
        if not match["sign"]:
            return self.now
        seconds = int(match["count"]) * _UNIT_SECONDS[(match["unit"] or "second").lower()]
        moment = self.now.timestamp() + (seconds if match["sign"] == "+" else -seconds)
        return datetime.fromtimestamp(moment, self.now.tzinfo)

    def _take(self, match: re.Match[str]) -> None:
        if match["named"]:
            self._set_clock((_NAMED_HOURS[match["named"].lower()], 0, 0))
        elif match["hour"]:
            self._set_clock(_clock(match))
        elif match["day"]:
            days = 1 if match["day"].lower() == "tomorrow" else 0
            self._set_date(self.now + timedelta(days=days))
        elif match["year"]:
            self._set_date(self._day(int(match["year"]), match["ymonth"], match["yday"]))
        else:
            month = match["smonth"] or match["cmonth"]
            short_year = match["syear"] or match["cyear"]
            year = 2000 + int(short_year) if short_year else self._latest_year(int(month))
            self._set_date(self._day(year, month, match["sday"] or match["cday"]))

    def _day(self, year: int, month: str, day: str) -> datetime:
        return self.now.replace(year=year, month=int(month), day=int(day))

    def _latest_year(self, month: int) -> int:
        return self.now.year - 1 if month > self.now.month else self.now.year

    def _set_date(self, date: datetime) -> None:
        if self.date is not None:
            raise ValueError("two dates")
        self.date = date

    def _set_clock(self, clock: tuple[int, int, int]) -> None:
        if self.clock is not None:
            raise ValueError("two times")
        self.clock = clock


def _clock(match: re.Match[str]) -> tuple[int, int, int]:
    hour, half = int(match["hour"]), (match["half"] or "").upper()
    if half and hour > 12:
        raise ValueError("hour above 12 with AM or PM")
    if half:
        hour = hour % 12 + (12 if half == "PM" else 0)
    return hour, int(match["minute"]), int(match["second"] or 0)


def start_of_day(now: datetime) -> float:
    """Return today's midnight in Unix seconds, which is the default start of sacct's window."""
    return now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def format_time(moment: float | None, style: str = "", now: datetime | None = None) -> str:
    """Return a time as text in the format that Slurm's commands use under `SLURM_TIME_FORMAT`.

    Args:
        moment: Unix seconds; None gives an empty text.
        style: empty or `standard` (ISO 8601 local time), `relative`, or a strftime format that contains `%`.
        now: current time, for `relative`; None if not needed.
    """
    if moment is None:
        return ""
    when = datetime.fromtimestamp(moment, now.tzinfo if now else None)
    if "%" in style:
        return when.strftime(style)
    if style == "relative" and now is not None:
        return _relative_text(when, now)
    return when.strftime("%Y-%m-%dT%H:%M:%S")


def _relative_text(when: datetime, now: datetime) -> str:
    """Format a time as Slurm does under `SLURM_TIME_FORMAT=relative`.

    Slurm numbers days as 1000 times the year plus the day of the year. On 1 January, the number of the day
    before is much smaller. Slurm therefore does not show it as yesterday, but as a date. Source:
    `_relative_date_fmt` in src/common/parse_time.c.
    """
    distance = _day_number(when) - _day_number(now)
    if distance == 0:
        return when.strftime("%H:%M:%S")
    if distance in (-1, 1):
        return ("Ystday " if distance < 0 else "Tomorr ") + when.strftime("%H:%M")
    if not -365 <= distance <= 365:
        return when.strftime("%-d %b %Y")
    return when.strftime("%a %H:%M" if 1 < distance <= 6 else "%-d %b %H:%M")


def _day_number(when: datetime) -> int:
    return 1000 * when.year + when.timetuple().tm_yday
