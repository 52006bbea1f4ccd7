"""Tests of the hardware files, each of which describes a kind of device.

The tests check the shipped files, the names and aliases of the kinds, and the errors for invalid
files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.errors import ConfigError, NotFoundError, UsageError
from slurm_energy.oracle.hardware import find_hardware, hardware_names, load_hardware

KINDS = Path(__file__).parents[2] / "slurm_energy/oracle/hardware/kinds"
GOOD = (KINDS / "a100-sxm4-40gb.toml").read_text(encoding="utf-8")


def test_the_common_kinds_are_shipped() -> None:
    wanted = {"a100", "a100-80gb", "h100", "h200", "a40", "rtx6000", "v100", "l40s", "mi250x", "xeon", "epyc"}
    assert set(hardware_names()) >= wanted


@pytest.mark.parametrize("path", sorted(KINDS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_files_are_valid(path: Path) -> None:
    hardware = load_hardware(path)
    assert hardware.name == path.stem
    assert all(len(source) > 10 for source in hardware.figure_sources.values())
    assert {"tdp_watts", "memory_bytes_per_s", "fp32_flops_per_s"} <= set(hardware.figure_sources)
    assert 50 <= hardware.tdp_watts <= 1000
    assert hardware.alu_flops_per_s <= hardware.matrix_flops_per_s("fp32")
    assert hardware.memory_bytes_per_s < 1e13 < 1e15 > hardware.fp32_flops_per_s


def test_names_are_unique() -> None:
    names = [name for path in KINDS.glob("*.toml") for name in (path.stem, *load_hardware(path).aliases)]
    assert len(names) == len(set(names))


def test_aliases_paths_and_near_names() -> None:
    assert find_hardware("A100").name == "a100-sxm4-40gb"
    assert find_hardware(str(KINDS / "a40-48gb.toml")) == find_hardware("a40")
    with pytest.raises(NotFoundError, match="hardware 'h10': no such kind: near names: h100"):
        find_hardware("h10")


def test_a_missing_unit_is_reported() -> None:
    with pytest.raises(
        UsageError, match="precision bf16: rtx6000-24gb has no unit for it: one of fp32, fp16"
    ):
        find_hardware("rtx6000").matrix_flops_per_s("bf16")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "tdp_watts = {",
            "tpd_watts = {",
            r"line 25: figures.tpd_watts: unknown key: did you mean tdp_watts\?",
        ),
        ("value = 400,", 'value = "400",', "line 25: figures.tdp_watts: '400' is not a number above 0"),
        ("value = 400,", "value = -1,", "line 25: figures.tdp_watts: -1 is not a number above 0"),
        (
            '400, source = "ds"',
            '400, source = "web"',
            r"line 25: figures.tdp_watts: source 'web' is not among",
        ),
        ('{ value = 400, source = "ds" }', "400", r"line 25: figures.tdp_watts: is not \{ value = NUMBER"),
        ('kind = "gpu"', 'kind = "tpu"', "line 4: kind: is neither gpu nor cpu"),
        (
            'memory_bytes = { value = 42.5e9, source = "smi" }\n',
            "",
            "line 14: figures.memory_bytes: is missing",
        ),
        ('name = "a100', 'nmae = "a100', r"line 2: nmae: unknown key: did you mean name\?"),
        ("value = 210,", "value = 2100,", "line 29: figures.min_clock_mhz: is above max_clock_mhz"),
        ("[figures]", "[figures", "not TOML: .*line 14"),
    ],
)
def test_a_corrupt_file_names_file_line_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"bad.toml(, |: ){message}"):
        load_hardware(path)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_hardware(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match=r"latin\.toml"):
        load_hardware(tmp_path / "latin.toml")
