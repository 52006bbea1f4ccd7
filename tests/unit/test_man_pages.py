"""Tests of the man pages.

The pages must be complete, and identical for the same date. groff and mandoc must not print warnings.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_energy.cli import man, roff
from slurm_energy.cli.main import main
from slurm_energy.cli.reference import COMMANDS
from slurm_energy.config import schema_document


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    assert man.main([str(folder)]) == 0
    return folder


def test_every_command_daemon_and_file_has_a_page(directory: Path) -> None:
    commands = {f"senergy-{name}.1" for name in COMMANDS}
    others = {"senergy.1", "senergyd.8", "senergyctld.8", "energy.toml.5"}
    assert {path.name for path in directory.iterdir()} == commands | others


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_has_all_options_and_examples(
    directory: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    page = (directory / f"senergy-{command}.1").read_text()
    plain = re.sub(r"\\f[BIR]|\\&", "", page).replace(r"\-", "-")
    options = re.findall(r"^  +(--?[\w-]+)", capsys.readouterr().out, re.MULTILINE)
    assert [name for name in options if name not in plain] == []
    assert "%(" not in plain, "a placeholder of argparse"
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"):
        assert f'.SH "{heading}"' in page, heading
    assert re.search(r'\.SH "EXIT STATUS"\n\.TP', page)
    assert f"\nsenergy-{command} - " in plain


def test_the_page_of_the_configuration_has_every_key(directory: Path) -> None:
    page = (directory / "energy.toml.5").read_text()
    for header, cls in schema_document.tables().items():
        assert f'.SS "{roff.escape(header)}"' in page
        for name in cls.__dataclass_fields__:
            assert rf"\fB{name}\fR (" in page, f"{header} {name}"


def test_the_date_is_that_of_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    page = dict(man.pages())["senergy.1"]
    assert page.splitlines()[0].startswith(".TH SENERGY 1 2023-11-14 ")
    assert man.main([]) == 2


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="no mandoc here")
def test_mandoc_has_no_warnings(directory: Path) -> None:
    lint = ["mandoc", "-T", "lint", "-W", "warning", *sorted(map(str, directory.iterdir()))]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_groff_has_no_warnings_and_lines_fit(directory: Path) -> None:
    """Check that groff formats man pages without warnings and in at most 80 columns.

    The pages are the most difficult ones: they contain quotes, brackets, percent signs and long
    commands.
    """
    for name in ("senergy-acct.1", "energy.toml.5", "senergy-report.1"):
        command = ["groff", "-man", "-ww", "-Tascii", "-P-c", str(directory / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        plain = re.sub(r".\x08", "", done.stdout)
        assert max(map(len, plain.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (".ENV is a file", r"\&.ENV is a file"),
        ("'quoted'", r"\(aqquoted\(aq"),
        (r"a\b", r"a\eb"),
        ("--no-json ~ ^ `x`", r"\-\-no\-json \(ti \(ha \(gax\(ga"),
        ("§ 3", r"\[u00A7] 3"),
    ],
)
def test_text_is_never_a_request(text: str, line: str) -> None:
    assert roff.escape(text) == line
