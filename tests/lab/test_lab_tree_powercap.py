"""Test the emulated powercap files and MSRs of a node.

The tests check units, counter wraps, power limits, and writes that must be rejected.
"""

from __future__ import annotations

import errno
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_bench import Bench

from slurm_energy_lab.tree.node_tree import NodeOptions
from slurm_energy_lab.tree.rapl_registers import window_from_raw, window_to_raw

pytestmark = pytest.mark.slow

RAPL = "/sys/devices/virtual/powercap/intel-rapl"
PACKAGE = f"{RAPL}/intel-rapl:0"
DRAM = f"{PACKAGE}/intel-rapl:0:0"
LIMIT = f"{PACKAGE}/constraint_0_power_limit_uw"
TIME_UNIT_US = 976


def refusal(node: Bench, path: str, text: str | bytes) -> int:
    with pytest.raises(OSError) as caught:
        node.write(path, text)
    return caught.value.errno


def zone_by_name(node: Bench, name: str) -> str:
    for number in range(8):
        path = f"{RAPL}/intel-rapl:{number}"
        if node.node.tree.get(f"{path}/name") and node.read(f"{path}/name") == name:
            return path
    raise AssertionError(name)


def test_energy_counts_microjoules_of_the_model():
    node = Bench("xeon-8358")
    before = int(node.read(f"{PACKAGE}/energy_uj"))
    node.wait(10)
    with node.realtime_model.now() as model:
        joules = model.energy_joules("cpu[0]")
    assert int(node.read(f"{PACKAGE}/energy_uj")) - before == pytest.approx(joules * 1e6, rel=1e-5, abs=100)


@pytest.mark.parametrize("joules", [100, 400])
def test_the_range_of_counters_can_be_chosen(joules):
    node = Bench("xeon-8358", NodeOptions("n1", counter_range_joules=joules))
    for zone in (PACKAGE, DRAM):
        highest = int(node.read(f"{zone}/max_energy_range_uj"))
        assert highest == pytest.approx(joules * 1e6, rel=0.02)
        before = int(node.read(f"{zone}/energy_uj"))
        with node.realtime_model.now() as model:
            component = "cpu[0]" if zone == PACKAGE else "dram[0]"
            seconds = 0.9 * joules / model.power_watts(component)
        readings = [before]
        for _ in range(3):
            node.wait(seconds)
            readings.append(int(node.read(f"{zone}/energy_uj")))
        moved = [(later - earlier) % (highest + 1) for earlier, later in itertools.pairwise(readings)]
        assert moved == pytest.approx([0.9 * joules * 1e6] * 3, rel=0.01)
        assert readings != sorted(readings)


def test_counters_wrap_at_their_range():
    node = Bench("xeon-8358", NodeOptions("n1", energy_offset_joules=262_143.0))
    highest = int(node.read(f"{PACKAGE}/max_energy_range_uj"))
    assert highest == 262143328850, "what kernels show for a unit of 2**-14 J"
    assert int(node.read(f"{DRAM}/max_energy_range_uj")) == 65712999613, "fixed unit of 15.3 microjoules"
    before = int(node.read(f"{PACKAGE}/energy_uj"))
    assert before > highest * 0.999
    node.wait(60)
    after = int(node.read(f"{PACKAGE}/energy_uj"))
    assert after < before
    with node.realtime_model.now() as model:
        joules = model.energy_joules("cpu[0]")
    assert (after - before) % (highest + 61) == pytest.approx(joules * 1e6, rel=1e-4)


def test_counters_step_by_the_millisecond():
    node = Bench("xeon-8358")
    node.wait(1)
    first = node.read(f"{PACKAGE}/energy_uj")
    node.wait(0.0004)
    assert node.read(f"{PACKAGE}/energy_uj") == first
    node.wait(0.0007)
    assert node.read(f"{PACKAGE}/energy_uj") != first


def test_energy_is_for_root_and_limits_are_for_root_to_write():
    node = Bench("xeon-8358")
    assert node.entry(f"{PACKAGE}/energy_uj").mode & 0o777 == 0o400
    assert node.entry(LIMIT).mode & 0o777 == 0o644
    assert node.entry(f"{PACKAGE}/name").mode & 0o777 == 0o444


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("100000000", 100_000_000),
        ("100000000\0", 100_000_000),
        ("100124999\n", 100_000_000),
        ("100125000", 100_125_000),
        ("0", 0),
        (str(0x8000 * 125_000), 0),
        (str(0x8000 * 125_000 + 77_000_000), 77_000_000),
    ],
)
def test_limits_round_down_to_the_unit_and_lose_high_bits(text, stored):
    node = Bench("xeon-8358")
    node.write(LIMIT, text)
    assert int(node.read(LIMIT)) == stored


@pytest.mark.parametrize("text", ["abc", "-1", "0x10", "1e8", "100 W", "", str(2**64)])
def test_limits_refuse_what_is_not_decimal(text):
    node = Bench("xeon-8358")
    assert refusal(node, LIMIT, text) == errno.EINVAL


def test_time_windows_lie_on_the_grid():
    node = Bench("xeon-8358")
    window = f"{PACKAGE}/constraint_0_time_window_us"
    assert int(node.read(window)) == 999424
    node.write(window, "7808")
    assert int(node.read(window)) == 7808
    node.write(window, "2440")
    assert int(node.read(window)) == 1952, "whole units first, so even a value of the grid can fall"
    node.write(window, "3000000")
    assert int(node.read(window)) == 2998272
    node.write(window, "1")
    assert int(node.read(window)) == TIME_UNIT_US


@given(st.integers(TIME_UNIT_US, 2**40))
def test_windows_round_down_by_less_than_a_quarter(window_us):
    raw = window_to_raw(window_us, TIME_UNIT_US)
    found = window_from_raw(raw, TIME_UNIT_US)
    assert found <= window_us
    assert found * 1.26 > window_us - TIME_UNIT_US
    assert window_to_raw(found, TIME_UNIT_US) <= raw


def test_a_limit_slows_the_cores_until_it_is_disabled():
    from slurm_energy_lab.model import KernelRequest

    node = Bench("xeon-8358")
    with node.realtime_model.modify() as model:
        model.submit(KernelRequest("gemm", "cpu", full_speed_s=1000.0), node.clock())
    node.write(LIMIT, "150000000")
    node.wait(30)
    with node.realtime_model.now() as model:
        assert model.package_average_watts(0) == pytest.approx(150, abs=1)
        assert model.power_watts("cpu[1]") > 200, "the other package is not limited"
        capped_khz = model.effective_khz(0)
    node.write(f"{PACKAGE}/enabled", "0")
    assert node.read(f"{PACKAGE}/enabled") == "0"
    node.wait(5)
    with node.realtime_model.now() as model:
        assert model.effective_khz(0) > capped_khz


def test_the_lower_of_both_interfaces_holds():
    node = Bench("xeon-8358", rapl__mmio=True)
    mmio = "/sys/devices/virtual/powercap/intel-rapl-mmio/intel-rapl-mmio:0"
    assert node.read(f"{mmio}/name") == "package-0"
    node.wait(1)
    assert node.read(f"{mmio}/energy_uj") == node.read(f"{PACKAGE}/energy_uj")
    from slurm_energy_lab.model import KernelRequest

    with node.realtime_model.modify() as model:
        model.submit(KernelRequest("gemm", "cpu", full_speed_s=1000.0), node.clock())
    node.write(f"{mmio}/constraint_0_power_limit_uw", "130000000")
    node.wait(30)
    with node.realtime_model.now() as model:
        assert model.package_average_watts(0) == pytest.approx(130, abs=1)


def test_firmware_lock_reads_off_and_refuses_in_the_kernels_way():
    node = Bench("xeon-8358", NodeOptions("n1", rapl_locked=True))
    assert node.read(f"{PACKAGE}/enabled") == "0"
    before = node.read(LIMIT)
    assert refusal(node, LIMIT, "100000000") == errno.ENODATA
    assert refusal(node, LIMIT, "rubbish") == errno.EINVAL
    assert refusal(node, f"{PACKAGE}/constraint_0_time_window_us", "2440") == errno.ENODATA
    assert refusal(node, f"{PACKAGE}/enabled", "1") == errno.ENOSYS
    assert node.read(LIMIT) == before


def test_dram_limits_are_locked_and_control_types_have_no_switch():
    node = Bench("xeon-8358")
    assert node.read(f"{DRAM}/name") == "dram"
    assert refusal(node, f"{DRAM}/constraint_0_power_limit_uw", "20000000") == errno.ENODATA
    assert refusal(node, f"{RAPL}/enabled", "0") == errno.ENOSYS
    assert refusal(node, f"{RAPL}/enabled", "maybe") == errno.EINVAL


def test_zone_numbers_differ_from_package_numbers_with_psys():
    node = Bench("xeon-h100")
    assert node.read(f"{RAPL}/intel-rapl:1/name") == "psys"
    second = zone_by_name(node, "package-1")
    assert second.endswith("intel-rapl:2")
    assert node.read(f"{second}/intel-rapl:2:0/name") == "dram"
    node.wait(2)
    total = int(node.read(f"{RAPL}/intel-rapl:1/energy_uj"))
    assert total > int(node.read(f"{second}/energy_uj"))


def test_amd_shows_energy_and_no_limits():
    node = Bench("epyc-7513-a100")
    assert node.read(f"{PACKAGE}/name") == "package-0"
    assert int(node.read(f"{PACKAGE}/max_energy_range_uj")) == 65532610987
    assert node.node.tree.get(LIMIT) is None
    assert node.node.tree.get(DRAM) is None
    assert refusal(node, f"{PACKAGE}/enabled", "1") == errno.ENOSYS


def msr(node: Bench, register: int, cpu: int = 0) -> int:
    return struct.unpack("<Q", node.device(f"/dev/cpu/{cpu}/msr").read_at(8, register))[0]


def test_msrs_agree_with_the_files():
    node = Bench("xeon-8358")
    node.wait(3)
    units = msr(node, 0x606)
    assert (units & 0xF, units >> 8 & 0x1F, units >> 16 & 0xF) == (3, 14, 10)
    uj = int(node.read(f"{PACKAGE}/energy_uj"))
    assert msr(node, 0x611) * 61035 // 1000 == uj
    assert msr(node, 0x611, cpu=32) * 61035 // 1000 == int(node.read(f"{RAPL}/intel-rapl:1/energy_uj"))
    assert msr(node, 0x619) * 15300 // 1000 == int(node.read(f"{DRAM}/energy_uj"))
    assert msr(node, 0x614) & 0x7FFF == 250 * 8
    for unknown in (0x0, 0x639, 0x64D, 0xC001029B):
        with pytest.raises(OSError) as caught:
            msr(node, unknown)
        assert caught.value.errno == errno.EIO
    with pytest.raises(OSError) as caught:
        node.device("/dev/cpu/0/msr").read_at(4, 0x611)
    assert caught.value.errno == errno.EINVAL


def test_limits_written_by_msr_show_in_powercap():
    node = Bench("xeon-8358")
    value = msr(node, 0x610)
    node.device("/dev/cpu/5/msr").write_at(struct.pack("<Q", value & ~0x7FFF | 150 * 8), 0x610, 0)
    assert int(node.read(LIMIT)) == 150_000_000
    locked = Bench("xeon-8358", NodeOptions("n1", rapl_locked=True))
    with pytest.raises(OSError):
        locked.device("/dev/cpu/0/msr").write_at(struct.pack("<Q", 0), 0x610, 0)


def test_amd_msrs():
    node = Bench("epyc-7513-a100")
    node.wait(3)
    assert msr(node, 0xC0010299) >> 8 & 0x1F == 16
    assert msr(node, 0xC001029B) * 15258 // 1000 == int(node.read(f"{PACKAGE}/energy_uj"))
    with pytest.raises(OSError):
        msr(node, 0x611)
