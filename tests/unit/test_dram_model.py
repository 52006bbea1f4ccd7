"""Tests of the thesis' model of the power of memory, and of the memory sizes that it uses.

The sizes of the memory modules come from SMBIOS tables (DMTF DSP0134, 7.18).
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hardware_tree import Tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.metering import components
from slurm_energy.agent.metering.job_meter import JobMeter
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.node import smbios
from slurm_energy.devices.node.dram_model import (
    DramPowerModel,
    model_watts,
    module_watts,
    usage_factor,
    used_share,
)
from slurm_energy.records import Quality

GIB = 1 << 30
DDR4, DDR5, HBM3 = 0x1A, 0x22, 0x24


def structure(kind: int, body: bytes, *strings: str) -> bytes:
    texts = b"".join(text.encode() + b"\0" for text in strings) or b"\0"
    return bytes((kind, 4 + len(body))) + b"\x01\x00" + body + texts + b"\0"


def module(size: int, kind: int = DDR4, slot: str = "DIMM_A1", extended_mb: int = 0) -> bytes:
    """Return the SMBIOS description of a memory module, a structure of type 17 of SMBIOS 2.8.

    The size is at 0x0C, the locators at 0x10, and the memory type at 0x12.
    """
    body = struct.pack("<HHHHHBBBBBHHBBBBBIHHHH", 0x10, 0xFFFE, 72, 64, size, 9, 0, 1, 2, kind, 0x80,
                       3200, 3, 4, 5, 6, 2, extended_mb, 3200, 1200, 1200, 1200)  # fmt: skip
    return structure(17, body, slot, "BANK 0", "Maker", "Serial", "Asset", "Part")


def megabytes(gib: int) -> int:
    return gib * 1024


END = structure(127, b"")
TABLE = (
    structure(0, bytes(20), "BIOS vendor", "1.0")
    + module(megabytes(16), slot="DIMM_A1")
    + module(0, slot="DIMM_A2")
    + module(0x7FFF, DDR5, "DIMM_B1", extended_mb=megabytes(64))
    + module(0x8000 | 512, slot="DIMM_B2")
    + module(0xFFFF, slot="DIMM_C1")
    + END
    + module(megabytes(16), slot="after the end")
)


def test_occupied_slots_are_read_with_size_and_type() -> None:
    assert smbios.parse_table(TABLE) == [
        smbios.MemoryModule("DIMM_A1", 16 * GIB, "DDR4"),
        smbios.MemoryModule("DIMM_B1", 64 * GIB, "DDR5"),
        smbios.MemoryModule("DIMM_B2", 512 << 10, "DDR4"),
        smbios.MemoryModule("DIMM_C1", None, "DDR4"),
    ]


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 255))
def test_damaged_tables_are_read_as_far_as_they_go(noise: bytes, at: int, byte: int) -> None:
    smbios.parse_table(noise)
    smbios.parse_table(TABLE[:at])
    damaged = bytearray(TABLE)
    damaged[at % len(TABLE)] = byte
    assert len(smbios.parse_table(bytes(damaged))) <= 6


@pytest.mark.parametrize(
    ("gib", "watts"),
    [(4, 4), (16, 4), (24, 5), (32, 5), (64, 6), (96, 8), (128, 8), (256, 10), (512, 20)],
)
def test_watts_of_a_module_are_those_of_the_table(gib: int, watts: float) -> None:
    assert module_watts(gib * GIB) == watts


@pytest.mark.parametrize(
    ("share", "factor"),
    [(0.0, 0.3), (0.0499, 0.3), (0.05, 0.6), (0.1499, 0.6), (0.15, 0.7), (0.2499, 0.7), (0.25, 0.75),
     (0.5, 0.75), (0.5001, 0.8), (1.0, 0.8)],
)  # fmt: skip
def test_the_usage_factor_steps_at_the_bounds_of_the_thesis(share: float, factor: float) -> None:
    assert usage_factor(share) == factor


def test_the_thesis_platform_with_512_gib() -> None:
    """The memory power model gives the value of Eq. 4.1 of the thesis for a node with 512 GiB.

    The node has 16 modules of 32 GiB. More than half of the memory is in use. The expected power is 5 W x 16
    x 0.8.
    """
    assert model_watts([32 * GIB] * 16, 0.6) == pytest.approx(64.0)


@given(st.lists(st.integers(1, 1 << 42), min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_more_use_is_never_less_power(sizes: list[int], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert model_watts(sizes, low) <= model_watts(sizes, high)


MEMINFO = "MemTotal:       {total} kB\nMemFree:        100 kB\nMemAvailable:   {free} kB\nBuffers: 5 kB\n"


def test_memory_in_use_is_the_memory_that_is_not_available() -> None:
    assert used_share(MEMINFO.format(total=1000, free=750).encode()) == 0.25
    with pytest.raises(ValueError, match="missing"):
        used_share(b"MemTotal: 5 kB\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.put("proc/meminfo", MEMINFO.format(total=1000, free=990).rstrip())
    return made


def dmi(tree: Tree, table: bytes) -> Tree:
    file = tree.put("sys/firmware/dmi/tables/DMI", "")
    file.write_bytes(table)
    return tree


def test_unmeasured_memory_is_modelled_and_marked(tree: Tree) -> None:
    dmi(tree, module(0x7FFF, extended_mb=megabytes(32)) * 8 + END).zone("intel-rapl:0", "package-0")
    devices = discover(tree.root)
    model = devices.counters[1]
    assert (model.key, model.component, model.quality) == ("dram_model", "dram", Quality.MODELLED)
    assert devices.hardware.max_dram_watts == pytest.approx(32.0)  # 8 x 5 W x 0.8
    devices.close()


def test_measured_memory_is_not_modelled(tree: Tree) -> None:
    dmi(tree, module(0x7FFF, extended_mb=megabytes(32)) * 8 + END).two_packages()
    devices = discover(tree.root)
    assert all(counter.quality == Quality.MEASURED for counter in devices.counters)
    devices.close()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (END, "absent or unreadable"),
        (module(0xFFFF) + END, "does not report the size"),
        (module(512, HBM3) + END, "size"),
    ],
)
def test_unknown_modules_are_not_guessed(tree: Tree, table: bytes, why: str) -> None:
    devices = discover(dmi(tree, table).root)
    assert devices.counters == ()
    assert any("dram model" in note and why in note for note in devices.notes)


def test_the_model_follows_the_use_of_memory(tree: Tree) -> None:
    model = DramPowerModel([16 * GIB] * 2, tree.root / "proc/meminfo")
    assert model.read().watts == pytest.approx(2.4)
    (tree.root / "proc/meminfo").write_text(MEMINFO.format(total=1000, free=100))
    assert model.read().watts == pytest.approx(6.4)
    (tree.root / "proc/meminfo").write_text("MemTotal\n")
    with pytest.raises(DeviceError):
        model.read()
    model.close()


def test_a_record_says_that_its_memory_is_modelled(tree: Tree) -> None:
    dmi(tree, module(0x7FFF, extended_mb=megabytes(32)) + END).zone("intel-rapl:0", "package-0")
    devices = discover(tree.root)
    parts = components.job_components(devices, True, (), unknown_gpus=False)
    meter = JobMeter(0.0, energy_uj={"cpu": 5_000_000, "dram": 5_000_000})
    found = {c.name: c.quality for c in components.component_energies(parts, meter, whole_node=True)}
    assert found == {"cpu": Quality.MEASURED, "dram": Quality.MODELLED}
    devices.close()
