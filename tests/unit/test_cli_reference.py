"""Tests that the generated reference pages are current, and that all --help examples are valid."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from slurm_energy.cli import reference
from slurm_energy.cli.main import EPILOG, main
from slurm_energy.cli.subcommands import module_of
from slurm_energy.config import schema_document

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = [
    (command, line.split("   ")[0].split(" > ")[0].split(" # ")[0].strip())
    for command in reference.COMMANDS
    for line in (module_of(command).EPILOG or "").splitlines()
    if line.startswith("  senergy ")
]


def test_the_command_reference_is_current() -> None:
    stale = "run: python -m slurm_energy.cli.reference > docs/reference/cli.md"
    assert (DOCS / "reference/cli.md").read_text() == reference.page(), stale
    assert "%(" not in reference.page(), "a placeholder of argparse"


def test_the_configuration_reference_is_current() -> None:
    stale = "run: senergy config example --reference > docs/reference/configuration.md"
    assert (
        DOCS / "reference/configuration.md"
    ).read_text().rstrip() == schema_document.reference_page().rstrip(), stale


@pytest.mark.parametrize(("command", "line"), EXAMPLES)
def test_the_examples_in_help_are_accepted(command: str, line: str) -> None:
    words = shlex.split(line)
    assert words[:2] == ["senergy", command]
    reference.parser_of(command).parse_args(words[2:])


def test_every_command_has_examples() -> None:
    assert {command for command, _ in EXAMPLES} == set(reference.COMMANDS)


@pytest.mark.parametrize("command", reference.COMMANDS)
def test_help_prints(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        reference.parser_of(command).parse_args(["--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("command", reference.COMMANDS)
def test_help_ends_with_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert capsys.readouterr().out.rstrip().endswith(EPILOG)


@pytest.mark.parametrize(
    "line",
    [
        "predict --model resnet50 --gpu a40 --json",
        "simulate training --policies fcfs --seeds 1 --jobs 1 --json",
    ],
)
def test_keys_of_json_are_documented(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numba", reason="simulation and predictions are extras")
    assert main(line.split()) == 0
    page = (DOCS / "reference/json.md").read_text()
    assert [key for key in _keys(json.loads(capsys.readouterr().out)) if f"`{key}`" not in page] == []


def _keys(value: object) -> set[str]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set(value if isinstance(value, dict) else ()).union(*map(_keys, children))
