from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.reports.time_spec import format_time, parse_time, start_of_day

ZONE = ZoneInfo("UTC")
NOW = datetime(2026, 11, 21, 4, 43, 21, 500_000, tzinfo=ZONE)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZONE).timestamp()


# Each line was compared with sacct 22.05.8 at this time.
AS_SACCT = [
    ("now", "2026-11-21T04:43:21"),
    ("NOW", "2026-11-21T04:43:21"),
    ("now-1day", "2026-11-20T04:43:21"),
    ("now - 1 day", "2026-11-20T04:43:21"),
    ("now -1day", "2026-11-20T04:43:21"),
    ("now+1hour", "2026-11-21T05:43:21"),
    ("now-90", "2026-11-21T04:41:51"),
    ("now-2minutes", "2026-11-21T04:41:21"),
    ("now-1week", "2026-11-14T04:43:21"),
    ("today", "2026-11-21T00:00:00"),
    ("tomorrow", "2026-11-22T00:00:00"),
    ("midnight", "2026-11-21T00:00:00"),
    ("noon", "2026-11-21T12:00:00"),
    ("fika", "2026-11-21T15:00:00"),
    ("teatime", "2026-11-21T16:00:00"),
    ("today noon", "2026-11-21T12:00:00"),
    ("12:30", "2026-11-21T12:30:00"),
    ("0:30", "2026-11-21T00:30:00"),
    ("3:30PM", "2026-11-21T15:30:00"),
    ("3:30pm", "2026-11-21T15:30:00"),
    ("12:30 AM", "2026-11-21T00:30:00"),
    ("12:30PM", "2026-11-21T12:30:00"),
    ("12:30 today", "2026-11-21T12:30:00"),
    ("1120", "2026-11-20T00:00:00"),
    ("1231", "2025-12-31T00:00:00"),
    ("112026", "2026-11-20T00:00:00"),
    ("112026-09:05:07", "2026-11-20T09:05:07"),
    ("11/20", "2026-11-20T00:00:00"),
    ("1/5", "2026-01-05T00:00:00"),
    ("1/5/26", "2026-01-05T00:00:00"),
    ("11/20-12:30", "2026-11-20T12:30:00"),
    ("11/20T12:30", "2026-11-20T12:30:00"),
    ("11.20.26", "2026-11-20T00:00:00"),
    ("2026-11-20", "2026-11-20T00:00:00"),
    ("2026-11-20T1:30", "2026-11-20T01:30:00"),
    ("2026-11-20T12:30:15", "2026-11-20T12:30:15"),
    ("2026-11-20-12:30", "2026-11-20T12:30:00"),
    ("2026-11-20 12:30", "2026-11-20T12:30:00"),
    ("uts1700000000", "2023-11-14T22:13:20"),
]
REFUSED_AS_SACCT = [
    "elevenses", "teatimes", "now-2d", "now-1h", "now-1days12", "now 12:30", "25:00", "24:00", "5:3", "05:3",
    "23:59:60", "13:30PM", "2026", "11201", "1120261", "0/5", "2026-13-01", "2026-2-3", "11.20.2026",
    "12/31/1999", "2026-11-20T12", "2026-11-20T12:30:15.5", "2026-11-20Z", "12:30:15:16", "uts12", "T-",
]  # fmt: skip
REFUSED_UNLIKE_SACCT = ["2026-02-31", "12:30 12:31", "1120 1121", "", "uts999999999999", "uts253402300800"]


@pytest.mark.parametrize(("text", "expected"), AS_SACCT)
def test_reads_times_as_sacct_does(text: str, expected: str) -> None:
    assert parse_time(text, NOW) == at(expected)


@pytest.mark.parametrize("text", REFUSED_AS_SACCT + REFUSED_UNLIKE_SACCT)
def test_refuses_other_text_in_one_line_that_names_the_flag(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time(text, NOW, "--starttime")
    assert str(caught.value).startswith(f"--starttime: '{text}' is not a time")


def test_month_without_year_is_the_latest_past_one() -> None:
    january = NOW.replace(month=1, day=2)
    assert parse_time("0131", january) == datetime(2026, 1, 31, tzinfo=ZONE).timestamp()
    assert parse_time("0201", january) == datetime(2025, 2, 1, tzinfo=ZONE).timestamp()


@given(st.integers(0, 10**12 - 1))
@example(253402300799)
def test_every_time_that_is_read_can_be_written(seconds: int) -> None:
    for zone in (ZONE, ZoneInfo("Pacific/Kiritimati"), ZoneInfo("Pacific/Pago_Pago")):
        now = NOW.astimezone(zone)
        try:
            assert len(format_time(parse_time(f"uts{seconds:07d}", now), now=now)) == 19
        except UsageError as error:
            assert "is not a time" in str(error)


@given(st.text(max_size=40))
def test_any_text_gives_a_number_or_a_usage_error(text: str) -> None:
    try:
        assert isinstance(parse_time(text, NOW), float)
    except UsageError as error:
        assert "\n" not in str(error)


@given(st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31), timezones=st.just(ZONE)))
def test_reads_back_what_it_writes(moment: datetime) -> None:
    seconds = float(int(moment.timestamp()))
    assert parse_time(format_time(seconds, now=NOW), NOW) == seconds


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_every_time_of_day_is_todays(hour: int, minute: int, second: int) -> None:
    expected = NOW.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()
    assert parse_time(f"{hour}:{minute:02d}:{second:02d}", NOW) == expected


@pytest.mark.parametrize(
    ("style", "moment", "expected"),
    [
        ("", "2026-11-20T12:30:15", "2026-11-20T12:30:15"),
        ("standard", "2026-11-20T12:30:15", "2026-11-20T12:30:15"),
        ("%d.%m. %H:%M", "2026-11-20T12:30:15", "20.11. 12:30"),
        ("relative", "2026-11-21T01:02:03", "01:02:03"),
        ("relative", "2026-11-20T12:30:15", "Ystday 12:30"),
        ("relative", "2026-11-17T12:30:15", "17 Nov 12:30"),
        ("relative", "2026-11-24T12:30:15", "Tue 12:30"),
        ("relative", "2026-11-28T12:30:15", "28 Nov 12:30"),
        ("relative", "2025-12-31T12:30:15", "31 Dec 2025"),
        ("relative", "2026-09-01T12:30:15", "1 Sep 12:30"),
        ("relative", "2024-09-01T12:30:15", "1 Sep 2024"),
    ],
)
def test_writes_times_as_slurm_time_format_says(style: str, moment: str, expected: str) -> None:
    assert format_time(at(moment), style, NOW) == expected


def test_unknown_time_is_empty() -> None:
    assert format_time(None) == ""


def test_day_starts_at_local_midnight() -> None:
    paris = datetime(2026, 7, 1, 0, 30, tzinfo=ZoneInfo("Europe/Paris"))
    assert start_of_day(paris) == datetime(2026, 6, 30, 22, 0, tzinfo=ZONE).timestamp()


@pytest.fixture
def slurm_conf(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return a minimal configuration for sacct; no daemon listens at its addresses."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nAccountingStorageHost=127.0.0.1\n"
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStoragePort=1\n"
        "AuthType=auth/none\nNodeName=n1\nPartitionName=p Nodes=n1\n"
    )
    yield {**os.environ, "SLURM_CONF": str(conf)}


@pytest.mark.skipif(shutil.which("sacct") is None, reason="Slurm's sacct is not installed")
@pytest.mark.parametrize(
    "text", ["12:30", "1120", "1231", "11/20-12:30", "now-1day", "teatime", "now-2d", "5:3"]
)
def test_agrees_with_the_sacct_of_this_machine(text: str, slurm_conf: dict[str, str]) -> None:
    command = ["sacct", "-v", "-S", text, "-E", "2037-12-31"]
    before = datetime.now()
    try:
        done = subprocess.run(
            command, env=slurm_conf, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("sacct waits for a database")
    window = re.search(r"window from (.*) to", done.stderr)
    if window is None:
        with pytest.raises(UsageError):
            parse_time(text, before)
        return
    theirs = datetime.strptime(window[1], "%a %b %d %H:%M:%S %Y").timestamp()
    ours = [
        parse_time(text, now) for now in (before, datetime.now())
    ]  # midnight may lie between the two calls
    assert any(found == pytest.approx(theirs, abs=30) for found in ours)
