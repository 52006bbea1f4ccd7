"""Tests of the output of commands on terminals and in pipes.

On terminals, the output is laid out for the width and may be coloured. Output in pipes stays as it is.
"""

from __future__ import annotations

import io
import os
import pty
import struct
import subprocess
import sys
from fcntl import ioctl
from termios import TIOCSWINSZ

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.main import argument_parser as agent_parser
from slurm_energy.cli import connection, reference
from slurm_energy.cli.main import main, overview
from slurm_energy.cli.terminal_layout import fitted
from slurm_energy.command_line import colour
from slurm_energy.command_line.help_text import render, shell_lines
from slurm_energy.controller.main import argument_parser as controller_parser
from slurm_energy.safe_text import display_width

TABLE = [
    "Name        Jobs         Mean",
    "---------- ----- ------------",
    "bob            2       12.5 W",
    "東京           3      unknown",
]


def test_wide_columns_become_as_narrow_as_their_contents() -> None:
    assert fitted(TABLE, 22) == [
        "Name Jobs    Mean",
        "---- ---- -------",
        "bob     2  12.5 W",
        "東京    3 unknown",
    ]


def test_a_table_that_is_still_too_wide_is_shown_in_groups() -> None:
    assert fitted(TABLE[:3], 12) == [
        "Name Jobs",
        "---- ----",
        "bob     2",
        "",
        "Name   Mean",
        "---- ------",
        "bob  12.5 W",
    ]


def test_lines_that_fit_stay_as_they_are() -> None:
    assert fitted([*TABLE, "", "a  b"], 40) == [*TABLE, "", "a  b"]


def test_prose_continues_below_its_last_column() -> None:
    line = "ok        SPANK    the plugin was built for another release of Slurm"
    assert fitted([line], 50) == [
        "ok        SPANK    the plugin was built for",
        "                   another release of Slurm",
    ]


def test_a_tree_keeps_its_indent() -> None:
    tree = ["Account              Shares", "-------------------- ------", "lab                       1"]
    tree.append(" physics                 10")
    assert fitted(tree, 20) == ["Account  Shares", "-------- ------", "lab           1", " physics     10"]


def test_a_table_without_a_rule_between_prose() -> None:
    block = [
        "a heading",
        "policy     done    jobs    mean",
        "fcfs        162       4     9.4",
        "  a note of words",
    ]
    expected = ["a heading", "policy done jobs mean", "fcfs    162    4  9.4", "  a note of words"]
    assert fitted(block, 24) == expected


def test_a_value_wider_than_its_column_is_not_cut() -> None:
    rows = ["A     B    ", "----- -----", "longer-than-five yes", "x     y" + " " * 40 + "z"]
    assert "longer-than-five yes" in fitted(rows, 30)


@given(st.lists(st.text(alphabet="ab -東", max_size=60), max_size=12), st.integers(30, 100))
def test_no_character_is_lost(lines: list[str], columns: int) -> None:
    kept = sorted("".join(lines).replace(" ", "").replace("-", ""))
    shown = sorted("".join(fitted(lines, columns)).replace(" ", "").replace("-", ""))
    assert set(shown) == set(kept)
    assert len(shown) >= len(kept)


@given(st.text(alphabet="abc '\"-", max_size=200), st.integers(40, 80))
def test_a_continued_command_has_the_same_words(command: str, width: int) -> None:
    lines = list(shell_lines(command, width))
    assert [line.endswith(" \\") for line in lines[:-1]] == [True] * (len(lines) - 1)
    assert " ".join(" ".join(line.removesuffix(" \\") for line in lines).split()) == " ".join(command.split())


def test_help_pages_have_at_most_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    pages = [overview(78), agent_parser().format_help(), controller_parser().format_help()]
    for command in reference.COMMANDS:
        parser = reference.parser_of(command)
        pages.append(parser.format_help())
        for action in parser._actions:
            if isinstance(action.choices, dict):
                pages += [child.format_help() for child in action.choices.values()]
    wide = [line for page in pages for line in page.splitlines() if display_width(line) > 80]
    assert wide == []


def test_a_help_page_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    prose = [line for line in reference.parser_of("doctor").format_help().splitlines() if "--" not in line]
    assert max(map(len, prose)) <= 60


def test_a_line_with_a_colon_within_a_paragraph_is_no_paragraph() -> None:
    text = "Run it as\nroot: only root can read the counters of this host, which is why it asks"
    assert render(text, 40).splitlines()[0] == "Run it as root: only root can read the"
    labels = "values: lists\nstate:  the file that a command writes, and more"
    assert render(labels, 40).splitlines()[1] == "state:  the file that a command writes,"


def test_rows_and_paragraphs_keep_their_meaning() -> None:
    text = "a paragraph of words\n\nexamples:\n  senergy db check --content --json --database x   compares\n"
    assert render(text, 40) == (
        "a paragraph of words\n\nexamples:\n"
        "  senergy db check --content --json \\\n      --database x\n        compares"
    )


@pytest.mark.parametrize("program", ["senergyd", "senergyctld"])
def test_a_usage_error_of_a_daemon_is_one_line(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    from slurm_energy.agent import main as agent
    from slurm_energy.controller import main as controller

    run = agent.main if program == "senergyd" else controller.main
    assert run(["--confgi"]) == 2
    said = f"{program}: error: {program}: unknown option '--confgi': did you mean --config?\n"
    assert capsys.readouterr() == ("", said)


def on_terminal(*command: str, columns: int = 80, **environment: str) -> str:
    """Run a `senergy` command on a pseudo-terminal and return its output without carriage returns."""
    main_end, other = pty.openpty()
    ioctl(other, TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "slurm_energy.cli.main", *command],
        stdin=other,
        stdout=other,
        stderr=other,
        env=clean | {"TERM": "xterm"} | environment,
    )
    os.close(other)
    output = b""
    try:
        while chunk := os.read(main_end, 65536):
            output += chunk
    except OSError:  # the terminal is closed
        pass
    process.wait()
    os.close(main_end)
    return output.decode().replace("\r", "")


class TerminalStream(io.StringIO):
    """Text stream that claims to be a terminal, for tests."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("when", "environment", "expected"),
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"NO_COLOR": ""}, True),
        ("auto", {"TERM": "dumb"}, False),
        ("never", {}, False),
        ("always", {"NO_COLOR": "1"}, True),
    ],
)
def test_when_there_is_colour(
    when: str, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    colour.choose(when)
    try:
        assert colour.is_enabled(TerminalStream()) is expected
        assert colour.is_enabled(io.StringIO()) is (when == "always")
    finally:
        colour.choose(colour.AUTO)


def test_an_error_on_a_terminal_has_colour() -> None:
    printed = on_terminal("template", "lst")
    assert printed.startswith("senergy: \x1b[1;31merror:\x1b[0m senergy template: 'lst' is not one of")
    assert "\x1b" not in on_terminal("template", "lst", NO_COLOR="1")


def test_tables_fit_the_terminal() -> None:
    printed = on_terminal("template", "list")
    assert max(map(len, printed.splitlines())) <= 80
    assert "senergyd.service" in printed


def test_pipes_get_no_colour_and_no_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["template", "list"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) > 80


def test_colour_can_be_forced_in_pipes_and_for_one_command_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grid", "factors", "DE", "--color=always"]) == 0
    assert "\x1b[1mCountry" in capsys.readouterr().out
    assert main(["grid", "factors", "DE"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert not colour.is_enabled(sys.stdout)


def test_the_value_of_color_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--color", "alwys", "status"]) == 2
    assert "--color: 'alwys' is not one of auto, always, never" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "field"),
    [("share", "Acount"), ("quota show", "Acount"), ("budget show", "Budgt"), ("grid show", "Carbn")],
)
def test_a_mistyped_field_is_named_before_anything_is_asked(
    command: str, field: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "connect", lambda *_, **__: pytest.fail("asked the controller"))
    assert main([*command.split(), "-o", field]) == 2
    error = capsys.readouterr().err
    assert f"unknown field '{field}': did you mean" in error
    assert error.count("\n") == 1
