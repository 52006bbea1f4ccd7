"""Tests of the command line: help, output and errors.

A wrong argument causes one line with a suggestion. The tests also cover output that cannot be written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_energy.cli import config as config_command
from slurm_energy.cli.main import main
from slurm_energy.cli.output import emit_json
from slurm_energy.cli.reference import COMMANDS
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.spelling import suggestion


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("jbo", "unknown command 'jbo': did you mean job?"),
        ("xyz", "unknown command 'xyz': senergy --help lists all"),
        ("--vresion", "unknown option '--vresion': did you mean --version?"),
        ("acct --formatt=x", "senergy acct: unknown option '--formatt': did you mean --format?"),
        ("acct jobs", "senergy acct: unexpected argument 'jobs': see senergy acct --help"),
        ("acct -o", "senergy acct: -o/--format/--fields: expected one argument: see senergy acct --help"),
        ("template lst", "senergy template: 'lst' is not one of list, show, render: did you mean list?"),
        ("prio --\x1b[2J", "senergy prio: unknown option '--\\x1b[2J': see senergy prio --help"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"senergy: error: {said}\n")


@pytest.mark.parametrize("option", ["-M", "--clusters"])
def test_slurm_only_options_name_the_alternative(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prio", option, "west"]) == 2
    assert capsys.readouterr().err.endswith("select another one's configuration with --config\n")


def test_a_wrong_choice_is_one_line_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--by", "users"]) == 2
    assert capsys.readouterr().err == (
        "senergy: error: --by: 'users' is not one of cluster, account, user, partition, policy, gpu, tag, "
        "model: did you mean user?\n"
    )


def test_sort_values_may_begin_with_a_dash() -> None:
    parser = CommandParser()
    parser.dashed_values = ("-S", "--sort")
    parser.add_argument("-S", "--sort")
    parser.add_argument("-y", action="store_true")
    for words in (["-S", "-y"], ["--sort", "-y"], ["-S-y"], ["--sort=-y"]):
        assert parser.parse_args(words).sort == "-y"
    assert parser.parse_args(["-S", "u", "-y"]).y


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("EDP", ["cap", "edp"], "did you mean edp?"),
        ("energy", ["CPUEnergy", "GPUEnergy", "Time"], "did you mean CPUEnergy or GPUEnergy?"),
        ("zzz", ["cap"], ""),
        ("fsfs", ["fcfs", "sjf", "zeus"], "did you mean fcfs?"),
        ("zuse", ["fcfs", "sjf", "zeus"], "did you mean zeus?"),
        ("jbo", ["top", "job", "acct"], "did you mean job?"),
        ("edpp", ["ed2p", "edp", "energy"], "did you mean edp?"),
        ("", ["job"], ""),
    ],
)
def test_suggestions(word: str, known: list[str], said: str) -> None:
    assert suggestion(word, known) == said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help", command])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "examples:\n" in text
    assert "exit codes: " in text


@pytest.mark.parametrize("command", ["config check", "config show", "template render", "lab up"])
def test_help_of_an_action_has_its_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert f"examples:\n  senergy {command}" in capsys.readouterr().out


JSON_COMMANDS = {
    "config show --json": {"cluster", "agent", "controller", "priority", "path"},
    "template show gpu --json": {"name", "group", "summary", "path", "variables", "source"},
    "simulate --list --json": {"scenarios", "policies"},
    "predict --list --json": {"models", "kinds"},
}


@pytest.mark.parametrize(("command", "keys"), JSON_COMMANDS.items())
def test_lists_are_available_as_json(
    command: str, keys: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert keys <= set(document)
    page = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()
    assert all(f"`{key}`" in page for key in keys - {"cluster", "agent", "controller", "priority"})


def test_templates_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["template", "list", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    required = [one["name"] for one in found["gpu"]["variables"] if one["default"] is None]
    assert required == ["command"]


def test_json_contains_no_nan_or_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": [float("nan"), (float("inf"), 1.5)], "b": -float("inf")})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [None, [None, 1.5]],
        "b": None,
    }


SENERGY = [sys.executable, "-m", "slurm_energy.cli.main"]


def run(
    *command: str, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*SENERGY, *command],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def test_a_closed_pipe_ends_a_command_silently() -> None:
    """A command ends without a message when its output is a pipe that nobody reads any more.

    Example: `senergy config example | head -0`.
    """
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("config", "example", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("slurm_energy.agent.main", "--help"),
        ("slurm_energy.controller.main", "--help"),
        ("slurm_energy.cli.main", "--help"),
        ("slurm_energy.cli.main", "acct", "--help"),
    ],
)
def test_help_into_a_closed_pipe_ends_silently(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = run("config", "example", stdout=full.fileno())
    assert (done.returncode, done.stderr) == (
        1,
        b"senergy: error: standard output: No space left on device\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_help_and_errors_can_be_written_in_any_encoding(encoding: str) -> None:
    for arguments in (["lab", "--help"], ["--help"], ["acct", "-o", "naïve-東京"]):
        done = run(*arguments, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert done.returncode == (0 if "--help" in arguments else 2)
        assert b"Traceback" not in done.stderr
        (done.stdout + done.stderr).decode(encoding)


def test_control_characters_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The function `emit` escapes control characters in all text, such as the name of a file."""
    evil = tmp_path / "\x1b]0;owned\x07.toml"
    evil.write_text("")
    assert main(["config", "check", str(evil)]) == 0
    evil.write_text("[nonsense]\n")
    assert main(["config", "check", str(evil)]) == 3
    printed = capsys.readouterr()
    assert (printed.out + printed.err).replace("\n", "").isprintable()
    assert config_command.HELP
