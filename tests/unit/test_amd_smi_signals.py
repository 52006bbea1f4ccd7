"""Test the signals of AMD GPUs from the values that AMD SMI returns.

Values that AMD SMI does not know are left out of the signals.
"""

from __future__ import annotations

from typing import Any

import pytest

from slurm_energy.devices.gpu.amd_smi_signals import AmdSmiSignalSensor
from slurm_energy.diagnosis.signals import SIGNALS

ANSWERS: dict[str, Any] = {
    "amdsmi_get_gpu_activity": {"gfx_activity": 93, "umc_activity": 40, "mm_activity": "N/A"},
    "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 1024},
    "amdsmi_get_clock_info": {"clk": 1900, "min_clk": 500, "max_clk": 2100},
    "amdsmi_get_temp_metric": 61,
    "amdsmi_get_gpu_metrics_info": {
        "accumulation_counter": 1000,
        "ppt_residency_acc": 10,
        "socket_thm_residency_acc": 0,
        "hbm_thm_residency_acc": 5,
        "vr_thm_residency_acc": "N/A",
    },
}


def sensor(answers: dict[str, Any], *, has_constants: bool = True) -> AmdSmiSignalSensor:
    def call(function: str, *_: Any) -> Any:
        return answers.get(function)

    return AmdSmiSignalSensor(call, lambda kind, name: f"{kind}.{name}" if has_constants else None, 2)


def test_all_signals_of_a_gpu() -> None:
    answers = dict(ANSWERS)
    one = sensor(answers)
    assert not [reading for reading in one.read(0.0) if reading.signal.startswith("throttle")]
    metrics = {"accumulation_counter": 1200, "ppt_residency_acc": 60, "hbm_thm_residency_acc": 25}
    answers["amdsmi_get_gpu_metrics_info"] = ANSWERS["amdsmi_get_gpu_metrics_info"] | metrics
    readings = one.read(10.0)
    assert {reading.part for reading in readings} == {"gpu[2]"}
    assert all(reading.signal in SIGNALS and reading.source.startswith("amdsmi:") for reading in readings)
    assert {reading.signal: reading.value for reading in readings} == {
        "gpu_busy_percent": 93.0,
        "dram_active_percent": 40.0,
        "gpu_memory_used_bytes": 1024.0 * 2**20,
        "gpu_memory_total_bytes": 196592.0 * 2**20,
        "sm_clock_mhz": 1900.0,
        "max_sm_clock_mhz": 2100.0,
        "gpu_temperature_celsius": 61.0,
        "throttle_power_percent": 25.0,
        "throttle_thermal_percent": 10.0,
    }
    one.forget()
    assert len(one.read(20.0)) == 7


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"amdsmi_get_gpu_activity": {"gfx_activity": "N/A", "umc_activity": 65535}},
        {"amdsmi_get_gpu_vram_usage": {"vram_total": 0, "vram_used": 0}},
        {"amdsmi_get_clock_info": {"clk": "N/A"}, "amdsmi_get_temp_metric": 0},
        {"amdsmi_get_gpu_metrics_info": {"accumulation_counter": "N/A", "ppt_residency_acc": 1}},
    ],
)
def test_what_the_gpu_does_not_report_is_unknown(answers: dict[str, Any]) -> None:
    one = sensor(answers)
    assert [*one.read(0.0), *one.read(10.0)] == []


def test_a_library_without_the_constants_has_the_other_signals() -> None:
    names = {reading.signal for reading in sensor(dict(ANSWERS), has_constants=False).read(0.0)}
    assert "gpu_busy_percent" in names and "sm_clock_mhz" not in names
