"""Tests of the page docs/architecture.md.

The page must name every package, must have the same layers as import-linter, and must stay short.
"""

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def packages(folder: Path) -> list[str]:
    """Return the dotted names of all packages below `folder`, relative to `folder`."""
    return [".".join(file.parent.relative_to(folder).parts) for file in folder.glob("**/__init__.py")][1:]


def layers() -> list[str]:
    """Return the layers of packages that the contract `layers` in the file .importlinter lists.

    Each line is a layer. Packages on one line are separated by blanks.
    """
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser["importlinter:contract:layers"]["layers"].split("\n")
    return [re.sub(r"[|:()]+", " ", line) for line in lines if line.strip()]


def test_page_has_at_most_150_lines() -> None:
    assert len(PAGE.splitlines()) <= 150


def test_every_room_is_on_the_page() -> None:
    rooms = {name for name in packages(ROOT / "slurm_energy") if "." not in name}
    missing = sorted(room for room in rooms - {"config"} if f"{room}/" not in PAGE)
    assert not missing


def test_layers_on_the_page_are_those_of_import_linter() -> None:
    block = PAGE[PAGE.index(" cli/ ") : PAGE.index(" root modules")]
    shown = [re.findall(r"(\w+)/", line[:25]) for line in block.splitlines()]
    checked = [line.split() for line in layers()]
    rooms = {name for name in packages(ROOT / "slurm_energy") if "." not in name and name != "config"}
    assert [sorted(line) for line in shown if line] == [
        sorted(set(line) & rooms) for line in checked if set(line) & rooms
    ]


def test_every_module_of_the_root_has_a_layer() -> None:
    modules = {file.stem for file in (ROOT / "slurm_energy").glob("*.py")} - {"__init__"}
    assert modules <= set(" ".join(layers()).split())


def test_test_files_have_names_of_their_own() -> None:
    """All test files have different names.

    pytest imports test files by their names and cannot run two files of the same name together.
    """
    files = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(files) == sorted(set(files))
