"""Tests of the sections `[budget]` and `[[budgets]]` of energy.toml.

Valid tables must be read, and each fault must yield one finding.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.budget.limit_files import parse_calendar
from slurm_energy.budget.limit_sources import NO_LIMIT
from slurm_energy.cli.reference import parser_of
from slurm_energy.config import Config, parse
from slurm_energy.config.schema_document import example_file
from slurm_energy.config.weekly_schedule import DAYS, parse_schedule
from slurm_energy.errors import ConfigError

TABLES = """
[budget]
mode = "enforce"
timezone = "Europe/Berlin"
node_reserve_watts = { "n[1-4]" = 150 }

[[budgets]]
name = "site"
cluster = true
schedule = [
    { days = "mon-fri", from = "08:00", watts = 300e3 },
    { from = "20:00", watts = 400_000 },
]

[[budgets]]
name = "row-1"
nodes = "n[1-16]"
signal = "https://grid.example.org/limit"
fallback_watts = 20e3
accept_watts = [10e3, 50e3]

[[budgets]]
name = "physics"
account = "physics"
watts = 90e3
"""


def test_tables_are_read_and_written_back() -> None:
    config = parse(TABLES)
    assert [table.scope for table in config.budgets] == [
        ("cluster", ""),
        ("nodes", "n[1-16]"),
        ("account", "physics"),
    ]
    assert [table.sources for table in config.budgets] == [("schedule",), ("signal",), ("watts",)]
    assert config.budget.node_reserve_watts == {"n[1-4]": 150.0}
    assert parse(example_file(config)) == config


def test_without_tables_there_is_no_budget() -> None:
    assert parse("") == Config()
    assert (Config().budget.mode, Config().budgets) == ("off", ())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("watts = -1", "budgets.watts: must be from 1 to 2e+09, not -1"),
        ("watts = nan", "budgets.watts: must be a finite number"),
        ("watts = 4294967297", "budgets.watts: must be from 1 to 2e+09"),
        ("watt = 5", "did you mean 'watts'?"),
        ("name = 'a b'", "budgets.name: must be 1 to 40 letters"),
        ("account = 'a,b'", "budgets.account: must be one name"),
        ("calendar = 'budget.csv'", "budgets.calendar: must be an absolute path"),
        ("signal = 'ftp://host/limit'", "budgets.signal: must be an absolute path or http(s)"),
        ("signal = 'https://user:secret@host/limit'", "must not contain a password"),
        ("signal = 'http://host:99999/limit'", "budgets.signal: must be an absolute path or http(s)"),
        ("accept_watts = [5, 2]", "budgets.accept_watts: must be [low, high]"),
        ("floor_percent = 101", "budgets.floor_percent: must be from 0 to 100"),
        ("schedule = 5", "budgets.schedule: must be a list of tables"),
        ("schedule = [5]", "budgets.schedule: must be a list of tables"),
        ("schedule = [{days = 'mon'}]", "entry 1: has no watts"),
        ("schedule = [{watts = 0}]", "entry 1: watts must be a number from 1"),
        ("schedule = [{watts = 5}, {from = '25:00', watts = 5}]", "entry 2: from must be a time of day"),
        ("schedule = [{from = 8, watts = 5}]", "entry 1: from must be a time of day"),
        ("schedule = [{days = 'Monday', watts = 5}]", "entry 1: days must be weekdays"),
        ("schedule = [{to = '08:00', watts = 5}]", "entry 1: 'to' is not one of days, from, watts"),
        (
            "schedule = [{watts = 5}, {days = 'sun-mon', watts = 6}]",
            "entries 1 and 2 both begin on mon at 00:00",
        ),
    ],
)
def test_a_fault_names_its_key_and_line(line: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"[[budgets]]\n{line}\n")
    assert expected in str(caught.value)
    assert "configuration:2: budgets." in str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mode = 'on'", "must be one of off, observe, enforce"),
        ("timezone = 'Mars/Olympus'", "must be a time zone of this host"),
        ("timezone = '../../etc/passwd'", "must be a time zone of this host"),
        ("license = 'watts:5'", "must be 1 to 32 letters"),
        ("lease_s = 0", "must be from 2 to 3600"),
        ("node_reserve_watts = { n1 = -5 }", "must be from 0 to 100000 watts"),
    ],
)
def test_a_fault_of_the_section_names_its_key(line: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"[budget]\n{line}\n")
    assert "configuration:2: budget." in str(caught.value) and expected in str(caught.value)


@given(st.integers(0, 6), st.integers(0, 6))
def test_a_range_of_weekdays_may_cross_the_weekend(first: int, last: int) -> None:
    (entry,) = parse_schedule([{"days": f"{DAYS[first]}-{DAYS[last]}", "watts": 1}])
    day, expected = first, {first}
    while day != last:
        day = (day + 1) % 7
        expected.add(day)
    assert entry.days == expected


@given(st.lists(st.dictionaries(st.sampled_from(["days", "from", "watts"]), st.text() | st.floats())))
def test_any_schedule_gives_entries_or_one_fault(tables: list[dict[str, object]]) -> None:
    try:
        entries = parse_schedule(tables)
    except ValueError as error:
        assert str(error)
    else:
        assert len(entries) == len(tables) > 0


def blocks(language: str) -> list[str]:
    """Return the code blocks in one language on the documentation page about budgets.

    Code blocks about the simulator are left out.
    """
    text = (Path(__file__).parents[2] / "docs/budgets.md").read_text().partition("## In the simulator")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_examples_of_the_page_are_valid() -> None:
    examples = blocks("toml")
    assert len(examples) >= 3
    for example in examples:
        text = example if "[[budgets]]" in example or "[budget]" in example else f"[[budgets]]\n{example}"
        config = parse(text)
        assert config.budgets == () or all(len(table.sources) == 1 for table in config.budgets)
    (calendar,) = blocks("csv")
    assert parse_calendar(calendar).limit_at(2e9) == NO_LIMIT


def test_the_commands_of_the_page_are_accepted() -> None:
    lines = [line.partition("#")[0] for block in blocks("bash") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("senergy ")]
    assert len(commands) >= 5
    for _, command, *arguments in commands:
        parser_of(command).parse_args(arguments)
