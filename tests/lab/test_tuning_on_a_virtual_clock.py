"""Tests of live tuning by the agent's job manager.

The nodes are emulated, and their clock is virtual.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slurm_energy.tuning.search  # noqa: F401 - loaded before virtual seconds pass
from slurm_energy.records import EnergyRecord
from slurm_energy_lab.virtual_node import VirtualNode

pytestmark = pytest.mark.slow


def run_job(
    node: VirtualNode, kernel: str, device: str, seconds: float, **flags: str
) -> tuple[float, float, EnergyRecord]:
    """Run a compute kernel in a job on an emulated node.

    Return three results: the seconds of the run, the energy of the node in joules, and the job's energy
    record.
    """
    job_id = node.new_job_id()
    node.begin(job_id, **flags)
    start_s, start_joules = node.clock.now_s, node.energy_joules()["node"]
    node.run_reporting(kernel, device, seconds, job_id)
    seconds_run, joules = node.clock.now_s - start_s, node.energy_joules()["node"] - start_joules
    node.end(job_id)
    return seconds_run, joules, node.records()[job_id]


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_memory_bound_job_on_unknown_hardware_saves_energy_within_its_limit(
    tmp_path: Path, device: str
) -> None:
    profile, kernel = f"random-{device}-3", "triad"
    node = VirtualNode(tmp_path, profile, sampling_hz=1.0)
    before = node.settings
    untuned_s, untuned_joules, _ = run_job(node, kernel, device, 150, policy="monitor")
    tuned_s, tuned_joules, record = run_job(node, kernel, device, 150, policy="energy", slowdown="5")
    assert tuned_s < 1.05 * untuned_s
    assert tuned_joules < 0.92 * untuned_joules
    tuning: dict[str, Any] = record.tuning or {}
    assert tuning["progress"] == "reported"
    assert tuning["chosen"]
    assert 1 <= tuning["probes"] <= 9
    assert all(setting.restored for setting in record.applied if setting.applied is not None)
    assert node.settings == before
    node.close()


def test_a_processor_with_three_clocks_is_tuned_in_steps(tmp_path: Path) -> None:
    """Tuning saves energy on a processor that has only three frequencies.

    Tuning first switches off only the boost, because the frequencies below the highest entry of the
    frequency table would be much slower.
    """
    node = VirtualNode(tmp_path, "random-cpu-9000", sampling_hz=1.0)
    before = node.settings
    _, untuned_joules, _ = run_job(node, "triad", "cpu", 300, policy="monitor")
    tuned_s, tuned_joules, record = run_job(node, "triad", "cpu", 300, policy="energy", slowdown="5")
    assert tuned_s < 1.05 * 300
    assert tuned_joules < 0.93 * untuned_joules
    points = [item["point"] for item in (record.tuning or {})["points"]]
    assert {"cpu_max_mhz": 3000.0} in points
    assert node.settings == before
    node.close()
