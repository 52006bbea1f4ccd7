"""docs/interfaces.md matches the code: each interface, module and test of its tables exists."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_energy.doctor import interface_catalogue
from slurm_energy_lab.model.profile import CPUFREQ_DRIVERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/interfaces.md").read_text()


def rows(heading: str) -> list[list[str]]:
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in cells[2:]]


def test_every_interface_that_the_doctor_knows_is_on_the_page() -> None:
    listed = [row[0] for row in rows("Counters, sensors and knobs")]
    assert listed == [known.name for known in interface_catalogue.INTERFACES]


def test_every_driver_that_the_lab_knows_is_on_the_page() -> None:
    listed = {re.search(r"`([\w-]+)`", row[0])[1] for row in rows("cpufreq drivers")}
    assert listed == set(CPUFREQ_DRIVERS)


def test_modules_and_tests_exist() -> None:
    for row in rows("Counters, sensors and knobs"):
        for module in re.findall(r"`([\w/]+\.py)`", row[1]):
            assert (ROOT / "slurm_energy/devices" / module).exists(), module
    tests = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    found = {path.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert tests and tests <= found, tests - found


def test_settings_of_the_lab_exist() -> None:
    from slurm_energy_lab.model import load_profile

    for key, value in re.findall(r"`((?:rapl|other|cpufreq|memory)\.\w+) = (\S+?)`", PAGE):
        plain = {"true": True}.get(value, int(value) if value.isdecimal() else value.strip('"'))
        load_profile("xeon-8358", {key: plain})
