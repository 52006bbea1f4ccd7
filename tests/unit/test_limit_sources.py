"""Tests of the sources of budget limits over time.

The sources are weekly schedules, calendars, signals and live limits, which operators set. The tests include
changes of the clock.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.budget.limit_files import configured_limit, parse_calendar, parse_signal
from slurm_energy.budget.limit_sources import (
    NO_LIMIT,
    CalendarLimit,
    ConstantLimit,
    LimitSource,
    LimitStep,
    OverriddenLimit,
    SignalLimit,
    WeeklyLimit,
)
from slurm_energy.config import BudgetTable
from slurm_energy.config.weekly_schedule import ScheduleEntry, parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [BERLIN, ZoneInfo("UTC"), ZoneInfo("America/New_York"), ZoneInfo("Africa/Cairo"), None]
DAY_AND_NIGHT = parse_schedule(
    [{"days": "mon-fri", "from": "08:00", "watts": 300}, {"from": "20:00", "watts": 400}]
)
HOUR_S = 3600.0


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    """Return Unix seconds of a local time."""
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def test_a_schedule_follows_the_days_of_the_week() -> None:
    limit = WeeklyLimit(DAY_AND_NIGHT, BERLIN)
    assert limit.limit_at(at("2026-11-23T07:59:59")) == 400  # Monday, still the entry of Sunday evening
    assert limit.limit_at(at("2026-11-23T08:00")) == 300
    assert limit.limit_at(at("2026-11-28T12:00")) == 400  # Saturday
    steps = limit.steps(at("2026-11-27T08:00"), at("2026-11-30T08:00"))
    assert steps == (LimitStep(at("2026-11-27T20:00"), 400), LimitStep(at("2026-11-30T08:00"), 300))
    assert limit.lowest(at("2026-11-28T00:00"), at("2026-11-30T07:59")) == 400
    assert limit.lowest(at("2026-11-28T00:00"), at("2026-11-30T08:00")) == 300


def test_an_hour_that_the_clock_skips_begins_with_the_change() -> None:
    limit = WeeklyLimit(parse_schedule([{"watts": 1}, {"from": "02:30", "watts": 2}]), BERLIN)
    change = at("2026-03-29T03:00")
    assert limit.steps(at("2026-03-29T01:00"), at("2026-03-29T12:00")) == (LimitStep(change, 2),)
    assert (limit.limit_at(change - 1), limit.limit_at(change)) == (1, 2)


def test_an_hour_that_the_clock_repeats_repeats_its_limits() -> None:
    limit = WeeklyLimit(parse_schedule([{"watts": 1}, {"from": "02:30", "watts": 2}]), BERLIN)
    first = at("2026-10-25T02:00")
    steps = limit.steps(first, at("2026-10-25T12:00"))
    assert [(step.unix_s - first, step.watts) for step in steps] == [(1800, 2), (3600, 1), (5400, 2)]


entries = st.builds(
    ScheduleEntry,
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(1, 5).map(float),
)
schedules = st.lists(entries, min_size=1, max_size=5, unique_by=lambda entry: entry.minute)
# Around a change of the clock in each zone, and elsewhere.
times = st.sampled_from(
    [at("2026-03-29T00:00"), at("2026-10-25T00:00"), at("2026-03-08T05:00"), at("2026-04-24T00:00"), 1.7e9]
).flatmap(lambda begin: st.integers(-2 * 86400, 2 * 86400).map(lambda offset: begin + offset))


@given(schedules, st.sampled_from(ZONES), times, st.integers(0, 3 * 86400))
def test_the_steps_of_a_schedule_say_what_its_limit_is(
    schedule: list[ScheduleEntry], zone: ZoneInfo | None, begin: float, span_s: int
) -> None:
    limit = WeeklyLimit(schedule, zone)
    steps = limit.steps(begin, begin + span_s)
    assert_steps_match(limit, steps, begin, begin + span_s)
    local = datetime.fromtimestamp(begin, zone)
    wall = local.replace(tzinfo=None, fold=0)
    earlier = [(wall - timedelta(days=back)).date() for back in range(8)]
    begins = [
        (datetime(day.year, day.month, day.day) + timedelta(minutes=entry.minute), entry.watts)
        for day in earlier
        for entry in schedule
        if day.weekday() in entry.days
    ]
    assert limit.limit_at(begin) == max(item for item in begins if item[0] <= wall)[1]


def assert_steps_match(limit: LimitSource, steps: tuple[LimitStep, ...], begin: float, end: float) -> None:
    """Check that the steps of a power limit describe the limit between the times `begin` and `end`.

    A step is a time and the value that the limit has from this time on. The check compares the steps with
    `limit.limit_at` at 200 evenly spaced times.
    """
    assert [step.unix_s for step in steps] == sorted({step.unix_s for step in steps})
    assert all(begin < step.unix_s <= end for step in steps)
    for number in range(200):
        time = begin + (end - begin) * number / 199
        applied = [step.watts for step in steps if step.unix_s <= time]
        assert limit.limit_at(time) == (applied[-1] if applied else limit.limit_at(begin))
    for step in steps:
        assert limit.limit_at(step.unix_s) == step.watts != limit.limit_at(step.unix_s - 0.001)
    assert limit.lowest(begin, end) == min([limit.limit_at(begin), *(step.watts for step in steps)])


def test_a_calendar_applies_from_its_first_row_on() -> None:
    text = "# of the operator\ntime,watts\n2026-12-24T18:00,300e3\n2026-12-24T20:00+01:00,\n1798200000,5\n"
    limit = parse_calendar(text, BERLIN)
    begin = at("2026-12-24T18:00")
    assert limit.limit_at(begin - 1) == NO_LIMIT
    assert [step.watts for step in limit.steps(begin - 1, 2e9)] == [300e3, NO_LIMIT, 5]
    assert (limit.begin_unix_s, limit.end_unix_s) == (begin, 1798200000)
    assert limit.limit_at(9e9) == 5


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("", "has no rows"),
        ("2026-12-24T18:00", "line 2: has 1 cells instead of 2"),
        ("2026-12-24T18:00,-5", "line 2: '-5' is not a limit"),
        ("2026-12-24T18:00,nan", "line 2: 'nan' is not a limit"),
        ("2026-12-24T18:00,4294967297", "line 2: '4294967297' is not a limit"),
        ("tomorrow,5", "line 2: 'tomorrow' is not a time"),
        ("nan,5", "line 2: 'nan' is not a time"),
        ("2026-12-24T18:00,5\n2026-12-24T17:00,5", "line 3: is earlier than line 2"),
        ("2026-12-24T18:00,5\n2026-12-24T18:00,6", "line 3: has the same time as line 2"),
        ('"2026,5', "line 2: "),
    ],
)
def test_a_fault_of_a_calendar_names_its_line(rows: str, expected: str) -> None:
    with pytest.raises(ValueError, match="^" + expected.replace("(", r"\(")):
        parse_calendar(f"time,watts\n{rows}\n", BERLIN)


def test_a_calendar_needs_its_header() -> None:
    with pytest.raises(ValueError, match="line 1: the header must be time,watts"):
        parse_calendar("0,5\n1,6\n")


def test_local_times_around_a_change_of_the_clock_never_give_more_than_either_reading() -> None:
    hourly = "\n".join(f"2026-10-25T0{hour}:00,{watts}" for hour, watts in enumerate([50, 40, 10, 60]))
    limit = parse_calendar(f"time,watts\n{hourly}\n", BERLIN)
    assert limit.limit_at(at("2026-10-25T02:00")) == 10  # the first of two
    raised = parse_calendar("time,watts\n2026-10-25T01:00,5\n2026-10-25T02:00,9\n", BERLIN)
    assert raised.limit_at(at("2026-10-25T02:00")) == 5
    assert raised.limit_at(at("2026-10-25T02:00") + HOUR_S) == 9
    spring = "time,watts\n2026-03-29T01:00,50\n2026-03-29T02:00,90\n2026-03-29T03:00,10\n"
    assert parse_calendar(spring, BERLIN).limit_at(at("2026-03-29T03:00")) == 10


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 9)), min_size=1, unique_by=lambda row: row[0]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_the_steps_of_a_calendar_say_what_its_limit_is(
    rows: list[tuple[int, int]], begin: int, span_s: int
) -> None:
    text = "time,watts\n" + "\n".join(f"{time},{watts}" for time, watts in sorted(rows))
    limit = parse_calendar(text)
    assert_steps_match(limit, limit.steps(begin, begin + span_s), begin, begin + span_s)


@given(st.text())
def test_any_text_is_a_calendar_or_one_fault(text: str) -> None:
    for content in (text, f"time,watts\n{text}"):
        try:
            assert isinstance(parse_calendar(content, BERLIN), CalendarLimit)
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("text", "watts", "unix_s"),
    [
        ("400000\n", 400000, None),
        (" 4e5 ", 400000, None),
        ('{"watts": 1500.5, "unix_s": 7, "unit": "W"}', 1500.5, 7),
    ],
)
def test_a_signal_is_a_number_or_a_json_object(text: str, watts: float, unix_s: float | None) -> None:
    value = parse_signal(text, (1, 1e9))
    assert (value.watts, value.unix_s) == (watts, unix_s)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "-5",
            "0",
            "nan",
            "NaN",
            "Infinity",
            "1e400",
            "true",
            "[5]",
            "null",
            '"5"',
            "400 kW",
        ),
        *(
            "{}",
            '{"watts": -1}',
            '{"watts": true}',
            '{"watts": 5, "unix_s": -1}',
            "\x00",
            "[" * 9999,
        ),
        "4294967297",
    ],
)
def test_a_negative_or_absurd_signal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_signal(text, (1, 1e9))


@given(st.text(max_size=200))
def test_any_signal_is_a_plausible_value_or_refused(text: str) -> None:
    try:
        assert 10 <= parse_signal(text, (10, 20)).watts <= 20
    except ValueError as error:
        assert str(error)


@given(
    st.floats(1, 1e9), st.floats(1, 1e9), st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from([True, False])
)
def test_losing_a_signal_never_raises_the_limit(
    watts: float, fallback: float, written: float, later_s: float, received: bool
) -> None:
    limit = SignalLimit(fallback, 300.0, watts if received else None, written if received else -math.inf)
    before, after = limit.limit_at(written), limit.limit_at(written + later_s)
    assert after <= before and after >= limit.lowest(written, written + later_s)
    if received:
        assert before == watts
        assert limit.is_lost(written + 301) and limit.limit_at(written + 301) == min(watts, fallback)
    else:
        assert limit.is_lost(written) and before == fallback


@given(st.integers(0, 100), st.integers(1, 100), st.integers(0, 100), st.integers(0, 50), st.integers(0, 50))
def test_a_live_limit_ends_at_its_time(watts: int, end: int, step: int, begin: int, span_s: int) -> None:
    configured = CalendarLimit([LimitStep(0, 50), LimitStep(step + 0.5, 20)])
    limit = OverriddenLimit(configured, watts, end)
    assert limit.limit_at(end - 0.001) == watts
    assert limit.limit_at(end) == configured.limit_at(end)
    assert_steps_match(limit, limit.steps(begin, begin + span_s), begin, begin + span_s)


def test_a_live_limit_without_end_hides_the_configured_steps() -> None:
    limit = OverriddenLimit(WeeklyLimit(DAY_AND_NIGHT, BERLIN), 7)
    assert limit.steps(1e9, 1.1e9) == () and limit.lowest(1e9, 1.1e9) == 7


def test_a_table_gives_its_limit() -> None:
    schedule = [{"watts": 5}, {"from": "08:00", "watts": 6}]
    assert configured_limit(BudgetTable(watts=4.0), None) == ConstantLimit(4.0)
    assert configured_limit(BudgetTable(schedule=schedule), BERLIN).lowest(0, 86400) == 5
    assert configured_limit(BudgetTable(signal="/s", fallback_watts=3.0), None).limit_at(0) == 3
    with pytest.raises(ValueError, match="has no limit"):
        configured_limit(BudgetTable(name="x"), None)
