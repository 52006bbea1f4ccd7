"""Subcommands that installed packages add through entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.cli import subcommands
from slurm_energy.cli.main import main

MODULE = """
HELP = "says hello"
EPILOG = ""

def configure(parser):
    parser.add_argument("name")

def run(args):
    print("hello", args.name)
    return 0
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that installs a distribution which adds one subcommand to `senergy`.

    No other installed distribution adds a subcommand during the test.
    """
    monkeypatch.setattr(subcommands, "ENTRY_POINT_GROUP", "test.subcommands")
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, value: str) -> None:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[test.subcommands]\n{name} = {value}\n")

    (tmp_path / "greeting_for_test.py").write_text(MODULE)
    return install


def test_another_package_adds_a_subcommand(install, capsys: pytest.CaptureFixture[str]) -> None:
    install("greet", "greeting_for_test")
    assert main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert main(["--help"]) == 0
    assert "\n  greet          says hello\n" in capsys.readouterr().out
    assert main(["gret"]) == 2
    assert "did you mean greet?" in capsys.readouterr().err


def test_a_subcommand_of_an_extra_that_is_absent_names_the_extra(
    install, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "up"]) == 4
    assert capsys.readouterr().err.endswith("-m pip install 'slurm-energy[lab]'\n")
    main(["--help"])
    assert "\n  lab " not in capsys.readouterr().out


def test_a_subcommand_that_cannot_be_imported_is_one_line(
    install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("lab", "no_such_module_for_test")
    assert main(["lab", "up"]) == 4
    error = capsys.readouterr().err
    assert error.startswith("senergy: error: senergy lab: cannot import no_such_module_for_test: ")
    assert error.count("\n") == 1
    assert "slurm-energy[lab]" in error
    assert main(["--help"]) == 0
    assert "  lab            cannot import no_such_module_for_test" in capsys.readouterr().out


def test_packages_cannot_replace_built_in_subcommands(install, capsys: pytest.CaptureFixture[str]) -> None:
    install("policies", "greeting_for_test")
    main(["--help"])
    assert "says hello" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["policies", "--help"])
    assert "hello" not in capsys.readouterr().out
