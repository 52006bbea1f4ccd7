"""Tests of the device files through which the NVML stub library reaches the emulator.

The tests check the binary records, the commands, and what happens when the driver is unloaded.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from lab_bench import Bench

from slurm_energy_lab.model import KernelRequest
from slurm_energy_lab.nvml_library import SOURCES, build_nvml
from slurm_energy_lab.tree import nvidia
from slurm_energy_lab.tree.gpu_signals import RECORD
from slurm_energy_lab.tree.node_tree import NodeOptions

CONTROL = "/dev/nvidiactl"
GPU = "/dev/nvidia0"


def fields(node: Bench, index: int = 0) -> tuple[int, ...]:
    offset = nvidia.RECORD_OFFSET + index * nvidia.RECORD_STRIDE
    return nvidia.DYNAMIC.unpack(node.device(CONTROL).read_at(4096, offset)[: nvidia.DYNAMIC.size])


ENERGY, REASONS, POWER, INSTANT, AVERAGE, LIMIT, ENFORCED, CLOCK = range(8)


def command(node: Bench, *numbers: int, uid: int = 0, path: str = GPU) -> None:
    node.device(path).write_at(nvidia.COMMAND.pack(*(*numbers, 0, 0)[:3]), 0, uid)


def refusal(node: Bench, *numbers: int, uid: int = 0) -> int:
    with pytest.raises(OSError) as caught:
        command(node, *numbers, uid=uid)
    return caught.value.errno


def test_layout_is_the_stubs(tmp_path: Path):
    source = tmp_path / "sizes.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "nvidia_device.h"\n'
        'int main(void) { printf("%zu %zu %zu %zu %zu\\n", sizeof(struct snv_header),'
        " sizeof(struct snv_gpu), offsetof(struct snv_gpu, memory_bytes), sizeof(struct snv_command),"
        " sizeof(struct snv_profile_command)); return 0; }\n"
    )
    program = tmp_path / "sizes"
    subprocess.run(["gcc", "-I", str(SOURCES), "-o", str(program), str(source)], check=True, timeout=60)
    sizes = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    expected = (
        nvidia.HEADER.size,
        nvidia.DYNAMIC.size + nvidia.STATIC.size + nvidia.PROFILES_SIZE + RECORD.size,
        nvidia.DYNAMIC.size,
        nvidia.COMMAND.size,
        nvidia.PROFILE_COMMAND.size,
    )
    assert tuple(map(int, sizes)) == expected
    header = (SOURCES / "nvidia_device.h").read_text()
    assert f"SNV_RECORD_OFFSET {nvidia.RECORD_OFFSET}" in header
    assert f"SNV_RECORD_STRIDE {nvidia.RECORD_STRIDE}" in header


def test_stub_is_compiled_once_per_source(tmp_path: Path):
    old = os.umask(0o077)
    try:
        library = build_nvml(tmp_path)
    finally:
        os.umask(old)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path, library)] == [0o755] * 2, (
        "for every user's jobs"
    )
    first = library.stat().st_mtime_ns
    assert build_nvml(tmp_path).stat().st_mtime_ns == first
    (tmp_path / "libnvidia-ml.so.1.sha256").write_text("of another source")
    assert build_nvml(tmp_path).stat().st_mtime_ns != first


def test_nodes_without_gpus_have_no_devices():
    assert Bench("xeon-8358").node.tree.get(CONTROL) is None


def test_uuids_differ_by_node_and_gpu():
    texts = set()
    for name in ("n1", "n2"):
        node = Bench("epyc-7513-a100", NodeOptions(name))
        for index in range(4):
            record = node.device(CONTROL).read_at(4096, 4096 * (1 + index))
            texts |= set(re.findall(rb"GPU-[0-9a-f-]{36}", record))
    assert len(texts) == 8


def test_energy_is_the_models_and_steps_every_20_ms():
    node = Bench("epyc-7513-a100")
    node.wait(5)
    with node.realtime_model.now() as model:
        joules = model.energy_joules("gpu[0]")
    first = fields(node)[ENERGY]
    assert first == pytest.approx(joules * 1000, abs=2)
    node.wait(0.015)
    assert fields(node)[ENERGY] == first
    node.wait(0.006)
    assert fields(node)[ENERGY] > first


@pytest.mark.parametrize(
    ("profile", "has_average"), [("epyc-7513-a100", False), ("xeon-4210-rtx6000", False), ("xeon-h100", True)]
)
def test_power_is_an_average_from_ampere_on_except_ga100(profile, has_average):
    node = Bench(profile)
    node.wait(3)
    with node.realtime_model.modify() as model:
        model.submit(KernelRequest("gemm", "gpu", full_speed_s=60.0), node.clock())
    node.wait(0.1)
    found = fields(node)
    assert (found[AVERAGE] != nvidia.UNKNOWN_MW) == has_average
    assert (found[POWER] < 0.5 * found[INSTANT]) == has_average, "the last second was mostly idle"


def test_limit_is_for_root_and_within_bounds():
    node = Bench("epyc-7513-a100")
    command(node, nvidia.SET_POWER_LIMIT, 250_000)
    assert fields(node)[LIMIT] == fields(node)[ENFORCED] == 250_000
    assert fields(node, 1)[LIMIT] == 400_000
    assert refusal(node, nvidia.SET_POWER_LIMIT, 99_999) == errno.EINVAL
    assert refusal(node, nvidia.SET_POWER_LIMIT, 400_001) == errno.EINVAL
    assert refusal(node, nvidia.SET_POWER_LIMIT, 200_000, uid=1001) == errno.EPERM
    assert fields(node)[LIMIT] == 250_000


def test_locked_clocks_hold_and_show_their_reason():
    node = Bench("epyc-7513-a100")
    command(node, nvidia.LOCK_GRAPHICS, 210, 705)
    with node.realtime_model.modify() as model:
        model.submit(KernelRequest("gemm", "gpu", full_speed_s=60.0), node.clock())
    node.wait(2)
    assert fields(node)[CLOCK] == 705
    assert fields(node)[REASONS] == 2
    command(node, nvidia.RESET_GRAPHICS)
    node.wait(2)
    assert fields(node)[CLOCK] > 1200
    assert refusal(node, nvidia.LOCK_GRAPHICS, 900, 800) == errno.EINVAL


def test_capped_gemm_names_the_power_cap():
    node = Bench("epyc-7513-a100")
    command(node, nvidia.SET_POWER_LIMIT, 200_000)
    with node.realtime_model.modify() as model:
        model.submit(KernelRequest("gemm", "gpu", full_speed_s=60.0), node.clock())
    node.wait(5)
    assert fields(node)[REASONS] & 4
    assert fields(node)[INSTANT] <= 200_500


def test_turing_cannot_lock_memory_clocks():
    assert refusal(Bench("xeon-4210-rtx6000"), nvidia.LOCK_MEMORY, 405, 810) == errno.EOPNOTSUPP


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 12, struct.pack("<3I", 99, 0, 0), b"\0" * 16])
def test_bad_commands_are_refused(data):
    with pytest.raises(OSError) as caught:
        Bench("epyc-7513-a100").device(GPU).write_at(data, 0, 0)
    assert caught.value.errno == errno.EINVAL


def test_driver_is_lost_with_its_last_client_unless_persistent():
    node = Bench("epyc-7513-a100", NodeOptions("n1", gpu_persistence=False))
    control = node.device(CONTROL)
    node.wait(5)
    control.client_opened()
    control.client_opened()
    command(node, nvidia.SET_POWER_LIMIT, 250_000)
    command(node, nvidia.SET_PERSISTENCE, 1, path="/dev/nvidia1")
    command(node, nvidia.SET_POWER_LIMIT, 150_000, path="/dev/nvidia1")
    control.client_closed()
    assert fields(node)[LIMIT] == 250_000
    energy = fields(node)[ENERGY]
    control.client_closed()
    assert fields(node)[LIMIT] == 400_000
    assert fields(node)[ENERGY] < energy
    assert fields(node, 1)[LIMIT] == 150_000
