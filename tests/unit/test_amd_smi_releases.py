"""Tests of AMD GPUs with the Python package of older ROCm releases.

A module with fewer functions emulates the package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hardware_tree import Tree

from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError

ADDRESS = "0000:c1:00.0"
ENERGY = {"energy_accumulator": 1000, "counter_resolution": 15.25}
CAP = {"power_cap": 560_000_000, "min_power_cap": 0, "max_power_cap": 560_000_000}


class SmiError(Exception):
    """Error of the emulated package."""


def install(patch: pytest.MonkeyPatch, **results: Any) -> ModuleType:
    """Install an emulated package `amdsmi` for one GPU, whose functions have constant results."""
    module = ModuleType("amdsmi")
    functions = {
        "amdsmi_init": None,
        "amdsmi_shut_down": None,
        "amdsmi_get_processor_handles": [object()],
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI250X"},
        "amdsmi_get_gpu_device_bdf": ADDRESS,
        "amdsmi_get_power_cap_info": CAP,
        "amdsmi_get_energy_count": ENERGY,
        **results,
    }
    for name, result in functions.items():
        setattr(module, name, lambda *_, result=result: result)
    module.AmdSmiException = SmiError  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "amdsmi", module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.put("dev/kfd", "")
    tree.put(f"sys/bus/pci/devices/{ADDRESS}/drm/renderD136/dev", "226:136")
    return tree


def test_before_6_4_the_render_node_comes_from_sysfs(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    devices = discover(tree.root)
    assert [(gpu.index, gpu.minor, gpu.limit_watts) for gpu in devices.hardware.gpus] == [(0, 136, 560.0)]
    assert [counter.read() for counter in devices.counters] == [15250]
    assert devices.knobs["amdsmi.power_limit[gpu0]"].read() == "560000000"


def test_caps_that_an_early_release_states_in_watts_are_not_used(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        monkeypatch, amdsmi_get_power_cap_info={"power_cap": 560, "min_power_cap": 0, "max_power_cap": 560}
    )
    devices = discover(tree.root)
    assert [(gpu.limit_watts, gpu.max_limit_watts) for gpu in devices.hardware.gpus] == [(None, None)]
    assert "amdsmi.power_limit[gpu0]" not in devices.knobs


def test_a_value_in_another_form_is_an_unreadable_counter(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(monkeypatch)
    devices = discover(tree.root)
    library.amdsmi_get_energy_count = lambda _handle: {"power": 1000}  # type: ignore[attr-defined]
    library.amdsmi_get_power_cap_info = lambda _handle: {"power_cap": "N/A"}  # type: ignore[attr-defined]
    for device in (devices.counters[0], devices.knobs["amdsmi.power_limit[gpu0]"]):
        with pytest.raises(DeviceError, match="unknown form"):
            device.read()


def test_the_signals_of_an_amd_gpu_belong_to_the_node_s_sensors(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, amdsmi_get_gpu_activity={"gfx_activity": 93, "umc_activity": "N/A"})
    sensors = [sensor for sensor in discover(tree.root).signal_sensors if sensor.part.startswith("gpu[")]
    assert [(r.signal, r.part, r.value) for sensor in sensors for r in sensor.read(0.0)] == [
        ("gpu_busy_percent", "gpu[0]", 93.0)
    ]
