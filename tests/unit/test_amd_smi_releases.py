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

from slurm_energy.agent.metering.components import job_gpus
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError
from slurm_energy.slurm.hook_environment import job_context

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
    return tree


def test_before_6_4_a_gpu_has_a_counter_and_a_limit(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    devices = discover(tree.root)
    assert [(gpu.index, gpu.limit_watts) for gpu in devices.hardware.gpus] == [(0, 560.0)]
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


def test_slurm_numbers_amd_gpus_from_0(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm numbers GPUs by their positions in gres.conf, not by the numbers of their files.

    With `File=/dev/dri/renderD[128-129]`, a job on the first GPU has SLURM_JOB_GPUS=0.
    """
    install(monkeypatch, amdsmi_get_processor_handles=[0, 1])
    monkeypatch.setattr(
        sys.modules["amdsmi"],
        "amdsmi_get_gpu_enumeration_info",
        lambda gpu: {"drm_render": 128 + gpu},
        raising=False,
    )
    gpus = discover(tree.root).hardware.gpus
    for text, indices in {"0": (0,), "1": (1,), "0-1": (0, 1), "128": ()}.items():
        context = job_context({"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": text})
        assert job_gpus(context, gpus, has_all=False) == indices


def test_the_two_dies_of_a_card_are_one_gpu(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card with two dies counts as one GPU, because the driver reports energy and limit of the card.

    For the second die, the driver reports 0. Source: kernel, swsmu/smu13/aldebaran_ppt.c.
    """
    library = install(monkeypatch, amdsmi_get_processor_handles=[0, 1, 2, 3])
    by_handle = {
        "amdsmi_get_energy_count": lambda die: ENERGY | {"energy_accumulator": 0 if die % 2 else 1000},
        "amdsmi_get_power_cap_info": lambda die: CAP | {"power_cap": 0 if die % 2 else CAP["power_cap"]},
        "amdsmi_get_gpu_activity": lambda die: {"gfx_activity": 50 if die % 2 else 100},
        "amdsmi_get_gpu_vram_usage": lambda die: {"vram_total": 65536, "vram_used": 1024 * die},
    }
    for name, function in by_handle.items():
        setattr(library, name, function)
    devices = discover(tree.root)
    assert [(gpu.index, gpu.limit_watts) for gpu in devices.hardware.gpus] == [(0, 560.0), (2, 560.0)]
    assert [counter.component for counter in devices.counters] == ["gpu[0]", "gpu[2]"]
    for text, indices in {"0": (0,), "1": (0,), "0-1": (0,), "3": (2,), "1-2": (0, 2)}.items():
        context = job_context({"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": text})
        assert job_gpus(context, devices.hardware.gpus, has_all=False) == indices
    sensors = [sensor for sensor in devices.signal_sensors if sensor.part == "gpu[2]"]
    assert {reading.signal: reading.value for sensor in sensors for reading in sensor.read(0.0)} == {
        "gpu_busy_percent": 75.0,
        "gpu_memory_used_bytes": 5 * 2**30,
        "gpu_memory_total_bytes": 2**37,
    }


@pytest.mark.parametrize(
    ("energies", "cards"),
    [
        ([0, 9, 0, 9], {1: (0,), 3: (2,)}),  # the secondary die is the first one of each card
        ([0, 9, 0], {0: (), 1: (2,)}),  # the primary die of the first card is lost
        ([9, 9, 0], {0: (), 1: (2,)}),  # a card with one die beside a card with two
    ],
)
def test_dies_of_different_cards_are_never_one_gpu(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, energies: list[int], cards: dict[int, tuple[int, ...]]
) -> None:
    library: Any = install(monkeypatch, amdsmi_get_processor_handles=list(range(len(energies))))
    library.amdsmi_get_energy_count = lambda die: ENERGY | {"energy_accumulator": energies[die]}
    library.amdsmi_get_power_cap_info = lambda die: CAP if energies[die] else CAP | {"power_cap": 0}
    devices = discover(tree.root)
    assert {gpu.index: gpu.other_indices for gpu in devices.hardware.gpus} == cards
    limited = {f"amdsmi.power_limit[gpu{index}]" for index, energy in enumerate(energies) if energy}
    assert {key for key in devices.knobs if key.startswith("amdsmi")} == limited


def test_gpus_without_a_count_or_with_a_cap_of_their_own_stay_apart(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(monkeypatch, amdsmi_get_processor_handles=[0, 1])
    by_handle = {"amdsmi_get_energy_count": lambda die: ENERGY | {"energy_accumulator": 0 if die else 1000}}
    for name, function in by_handle.items():
        setattr(library, name, function)
    assert [gpu.index for gpu in discover(tree.root).hardware.gpus] == [0, 1]
    library.amdsmi_get_energy_count = lambda _die: ENERGY | {"energy_accumulator": 0}  # type: ignore[attr-defined]
    library.amdsmi_get_power_cap_info = lambda _die: {"power_cap": "N/A"}  # type: ignore[attr-defined]
    assert [gpu.index for gpu in discover(tree.root).hardware.gpus] == [0, 1]
